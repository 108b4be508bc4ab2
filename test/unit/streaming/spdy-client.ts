/** The client's side of SPDY/3.1, as moby/spdystream plays it: enough to drive a session in tests. */
import { Duplex, PassThrough } from "node:stream";
import { constants, createDeflate, deflateSync } from "node:zlib";
import { SPDY_DICTIONARY } from "../../../src/streaming/spdy/dictionary.ts";
import {
  SpdyFrameParser,
  dataHeader,
  pingFrame,
  rstStreamFrame,
  synStreamFrame,
  type SpdyFrame,
} from "../../../src/streaming/spdy/frames.ts";

/** Two ends of a connection in memory, with back-pressure. */
export function duplexPair(): [Duplex, Duplex] {
  const [a, b] = [new PassThrough(), new PassThrough()];
  const end = (readable: PassThrough, writable: PassThrough) => {
    const duplex = new Duplex({
      allowHalfOpen: true,
      read: () => readable.resume(),
      write: (chunk: Buffer, _encoding, callback) => {
        if (writable.write(chunk)) callback();
        else writable.once("drain", () => callback());
      },
      final: (callback) => void writable.end(callback),
      destroy: (error, callback) => {
        readable.destroy();
        // What was written to its end is the other end's to read, as with a socket.
        if (!writable.writableFinished) writable.destroy();
        callback(error);
      },
    });
    readable.on("data", (chunk: Buffer) => {
      if (!duplex.push(chunk)) readable.pause();
    });
    readable.on("end", () => duplex.push(null));
    readable.on("close", () => {
      if (!readable.readableEnded) duplex.destroy();
    });
    return duplex;
  };
  return [end(a, b), end(b, a)];
}

export function rawHeaders(headers: Record<string, string>): Buffer {
  const parts: Buffer[] = [];
  const length = (value: number) => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32BE(value);
    parts.push(bytes);
  };
  const entries = Object.entries(headers);
  length(entries.length);
  for (const text of entries.flat()) {
    const bytes = Buffer.from(text);
    length(bytes.length);
    parts.push(bytes);
  }
  return Buffer.concat(parts);
}

/** Compresses the header blocks of one session. */
export class HeaderDeflater {
  readonly #deflate = createDeflate({ dictionary: SPDY_DICTIONARY });

  next(headers: Record<string, string> | Buffer): Promise<Buffer> {
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
}

/** A block of which a small one inflates to `bytes` zeros. */
export function headerBomb(bytes: number): Buffer {
  return deflateSync(Buffer.alloc(bytes), { dictionary: SPDY_DICTIONARY, finishFlush: constants.Z_SYNC_FLUSH });
}

export class SpdyClient {
  readonly transport: Duplex;
  readonly frames: SpdyFrame[] = [];
  readonly #deflater = new HeaderDeflater();
  readonly #received = new Map<number, Buffer[]>();
  readonly #finished = new Set<number>();
  #waiting: { done: () => boolean; resolve: () => void }[] = [];
  closed = false;

  constructor(transport: Duplex) {
    this.transport = transport;
    const parser = new SpdyFrameParser({ maxControlBytes: 1 << 20 });
    transport.on("error", () => {});
    transport.on("data", (chunk: Buffer) => {
      for (const frame of parser.push(chunk)) {
        if (frame.type === "data") {
          this.#received.set(frame.streamId, [...(this.#received.get(frame.streamId) ?? []), frame.payload]);
          if (frame.fin) this.#finished.add(frame.streamId);
        } else this.frames.push(frame);
      }
      this.#wake();
    });
    const end = () => {
      this.closed = true;
      this.#wake();
    };
    transport.on("end", end);
    transport.on("close", end);
  }

  #wake(): void {
    this.#waiting = this.#waiting.filter(({ done, resolve }) => {
      if (!done()) return true;
      resolve();
      return false;
    });
  }

  until(done: () => boolean): Promise<void> {
    if (done()) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push({ done, resolve }));
  }

  async open(id: number, headers: Record<string, string>, fin = false): Promise<void> {
    this.transport.write(synStreamFrame(id, await this.#deflater.next(headers), fin));
  }

  /** Opens a stream and waits for the reply, as the Go client does. */
  async openAndWait(id: number, headers: Record<string, string>): Promise<void> {
    await this.open(id, headers);
    await this.until(() => this.frames.some((frame) => frame.type === "headers" && frame.streamId === id));
  }

  data(id: number, payload: string | Buffer, fin = false): void {
    const bytes = Buffer.from(payload);
    this.transport.write(Buffer.concat([dataHeader(id, bytes.length, fin), bytes]));
  }

  reset(id: number): void {
    this.transport.write(rstStreamFrame(id, 5));
  }

  ping(id: number): void {
    this.transport.write(pingFrame(id));
  }

  text(id: number): string {
    return Buffer.concat(this.#received.get(id) ?? []).toString();
  }

  isFinished(id: number): boolean {
    return this.#finished.has(id);
  }
}
