/**
 * SPDY/3 header blocks (draft-mbelshe-httpbis-spdy-00 §2.6.10): one zlib stream per direction and session, primed with
 * the SPDY dictionary, flushed after each block.
 */
import { constants, createDeflate, createInflate, type Inflate } from "node:zlib";
import { SPDY_DICTIONARY } from "./dictionary.ts";
import { SpdyProtocolError } from "./frames.ts";

const MAX_HEADERS = 100;

/**
 * The header block of a reply without headers, `first` of a session or later, as a stored deflate block of four zero
 * bytes. A server that never sends headers therefore needs no compressor, and replies need no waiting. The empty stored
 * block behind it is a sync flush: without one, Go's reader asks for more after the last byte, fails, and fails for
 * ever.
 */
export function emptyHeaderBlock(first: boolean): Buffer {
  const stored = [0x00, 0x04, 0x00, 0xfb, 0xff, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff];
  return Buffer.from(first ? [0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, ...stored] : stored);
}

/** Inflates the blocks of one session, which must be given in the order of arrival, one at a time. */
export class HeaderInflater {
  readonly #maxBytes: number;
  readonly #inflate: Inflate;
  #chunks: Buffer[] = [];
  #size = 0;
  #fail: ((error: Error) => void) | undefined;

  /** @param options.maxBytes largest block after inflation: what stops a header bomb */
  constructor(options: { maxBytes: number }) {
    this.#maxBytes = options.maxBytes;
    this.#inflate = createInflate({ dictionary: SPDY_DICTIONARY });
    this.#inflate.on("data", (chunk: Buffer) => {
      this.#size += chunk.length;
      if (this.#size > this.#maxBytes)
        this.#break(new SpdyProtocolError(`header block inflates to more than ${this.#maxBytes} bytes`));
      else this.#chunks.push(chunk);
    });
    this.#inflate.on("error", (error) =>
      this.#break(new SpdyProtocolError("header block is not valid zlib data", { cause: error })),
    );
    // A peer that ends its zlib stream leaves the rest of its input unread: no callback would ever come.
    this.#inflate.on("end", () =>
      this.#break(new SpdyProtocolError("header compression ended in the middle of a session")),
    );
    this.#inflate.on("close", () => this.#break(new SpdyProtocolError("session is closed")));
  }

  /** @throws SpdyProtocolError for a block that is malformed or too large; the inflater is of no use afterwards */
  async next(block: Buffer): Promise<ReadonlyMap<string, string>> {
    this.#chunks = [];
    this.#size = 0;
    const inflated = await new Promise<Buffer>((resolve, reject) => {
      this.#fail = reject;
      if (this.#inflate.destroyed || this.#inflate.readableEnded) {
        reject(new SpdyProtocolError("session is closed"));
        return;
      }
      this.#inflate.write(block, (error) => {
        if (error) this.#break(error);
        else resolve(Buffer.concat(this.#chunks));
      });
    });
    return parseHeaders(inflated);
  }

  close(): void {
    this.#inflate.destroy();
  }

  #break(error: Error): void {
    this.#fail?.(error);
    this.#fail = undefined;
    this.#inflate.destroy();
  }
}

/** Compresses the header blocks of one session, on the client's side; one at a time. */
export class HeaderDeflater {
  readonly #deflate = createDeflate({ dictionary: SPDY_DICTIONARY });

  /** Never settles once it is closed. */
  next(headers: Readonly<Record<string, string>> | Buffer): Promise<Buffer> {
    return new Promise((resolve) => {
      const chunks: Buffer[] = [];
      const collect = (chunk: Buffer) => void chunks.push(chunk);
      this.#deflate.on("data", collect);
      this.#deflate.write(Buffer.isBuffer(headers) ? headers : rawHeaders(headers));
      this.#deflate.flush(constants.Z_SYNC_FLUSH, () => {
        this.#deflate.off("data", collect);
        resolve(Buffer.concat(chunks));
      });
    });
  }

  close(): void {
    this.#deflate.destroy();
  }
}

/**
 * A block before it is compressed: how many, then the length and text of each name and each value.
 * @internal
 */
export function rawHeaders(headers: Readonly<Record<string, string>>): Buffer {
  const length = (value: number) => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32BE(value);
    return bytes;
  };
  const entries = Object.entries(headers);
  const texts = entries.flatMap(([name, value]) => [Buffer.from(name.toLowerCase()), Buffer.from(value)]);
  return Buffer.concat([length(entries.length), ...texts.flatMap((text) => [length(text.length), text])]);
}

/** Names are lower case on the wire; several values of a name are joined by NUL and kept so. */
function parseHeaders(block: Buffer): ReadonlyMap<string, string> {
  let offset = 0;
  const length = (): number => {
    if (offset + 4 > block.length) throw new SpdyProtocolError("header block is truncated");
    offset += 4;
    return block.readUInt32BE(offset - 4);
  };
  const text = (): string => {
    const size = length();
    if (size > block.length - offset) throw new SpdyProtocolError("header block is truncated");
    offset += size;
    return block.toString("utf8", offset - size, offset);
  };
  const count = length();
  if (count > MAX_HEADERS) throw new SpdyProtocolError(`${count} headers are more than the limit of ${MAX_HEADERS}`);
  const headers = new Map<string, string>();
  for (let index = 0; index < count; index++) {
    const name = text().toLowerCase();
    headers.set(name, text());
  }
  return headers;
}
