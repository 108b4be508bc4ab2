/** The client's side of SPDY/3.1, as moby/spdystream plays it: enough to drive a session in tests. */
import { Duplex, PassThrough } from "node:stream";
import { constants, deflateSync } from "node:zlib";
import { SPDY_DICTIONARY } from "../../../src/spdy/dictionary.ts";
import {
  SpdyFrameParser,
  dataHeader,
  pingFrame,
  rstStreamFrame,
  synStreamFrame,
  type SpdyFrame,
} from "../../../src/spdy/frames.ts";
import { HeaderDeflater } from "../../../src/spdy/headers.ts";

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
