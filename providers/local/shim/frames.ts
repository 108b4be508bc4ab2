/** The frames between the backend and a shim: one byte type, four bytes length (big endian), payload. */

export const FRAME = {
  /** client -> shim, first: JSON ShimHello. */
  hello: 0,
  /** client -> shim: bytes for the command's stdin. */
  stdin: 1,
  /** client -> shim: no more stdin from this client. */
  stdinEnd: 2,
  /** client -> shim: JSON `{columns, rows}`. */
  resize: 3,
  /** shim -> client. */
  stdout: 4,
  stderr: 5,
  /** shim -> client: JSON ShimStatus, at once after hello and at each change. */
  status: 6,
} as const;

export interface ShimHello {
  stdin: boolean;
  stdout: boolean;
  stderr: boolean;
}

/** Times are milliseconds since the epoch. */
export interface ShimStatus {
  state: "starting" | "running" | "exited";
  pid?: number | undefined;
  startedAt?: number;
  exit?: { exitCode: number; signal?: number | undefined; startError?: string | undefined; lost?: true | undefined };
  finishedAt?: number;
}

const HEADER_BYTES = 5;
/** Neither side sends more at once; a longer frame is a broken peer. */
export const MAX_FRAME_BYTES = 1 << 20;

export function encodeFrame(type: number, payload: Buffer | string): Buffer {
  const body = typeof payload === "string" ? Buffer.from(payload) : payload;
  const frame = Buffer.allocUnsafe(HEADER_BYTES + body.length);
  frame[0] = type;
  frame.writeUInt32BE(body.length, 1);
  body.copy(frame, HEADER_BYTES);
  return frame;
}

/** Cuts a byte stream into frames. `push` throws on a frame above MAX_FRAME_BYTES. */
export class FrameReader {
  #rest: Buffer = Buffer.alloc(0);
  readonly #onFrame: (type: number, payload: Buffer) => void;

  constructor(onFrame: (type: number, payload: Buffer) => void) {
    this.#onFrame = onFrame;
  }

  push(chunk: Buffer): void {
    let data = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    while (data.length >= HEADER_BYTES) {
      const length = data.readUInt32BE(1);
      if (length > MAX_FRAME_BYTES) throw new Error(`frame of ${length} bytes exceeds ${MAX_FRAME_BYTES}`);
      if (data.length < HEADER_BYTES + length) break;
      this.#onFrame(data[0]!, data.subarray(HEADER_BYTES, HEADER_BYTES + length));
      data = data.subarray(HEADER_BYTES + length);
    }
    this.#rest = data;
  }
}
