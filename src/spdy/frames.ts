/**
 * SPDY/3.1 framing (draft-mbelshe-httpbis-spdy-00 §2.2): bytes to frames and frames to bytes. Pure; no I/O, no zlib.
 *
 * Only what moby/spdystream, the SPDY peer of every Kubernetes client, needs of a server.
 */
import { VmletError } from "../util/errors.ts";

const FLAG_FIN = 0x01;

export const RST_STATUS = {
  protocolError: 1,
  invalidStream: 2,
  refusedStream: 3,
  cancel: 5,
  internalError: 6,
} as const;

/** The peer broke the protocol; the session is over. */
export class SpdyProtocolError extends VmletError {
  readonly code = "SPDY_PROTOCOL";
}

export type SpdyFrame =
  | { type: "syn_stream"; streamId: number; fin: boolean; headerBlock: Buffer }
  /**
   * SYN_REPLY and HEADERS: of no use to a server, but the block must be inflated because the zlib context is shared.
   */
  | { type: "headers"; streamId: number; fin: boolean; headerBlock: Buffer }
  /** A piece of a DATA frame: payloads are handed on as they come. `fin` is on the last piece only. */
  | { type: "data"; streamId: number; fin: boolean; payload: Buffer }
  | { type: "rst_stream"; streamId: number; status: number }
  | { type: "ping"; id: number }
  | { type: "goaway"; lastGoodStreamId: number };

const CONTROL_TYPES = {
  synStream: 1,
  synReply: 2,
  rstStream: 3,
  settings: 4,
  ping: 6,
  goaway: 7,
  headers: 8,
  windowUpdate: 9,
} as const;

const VERSION = 3;
const HEADER_BYTES = 8;
const STREAM_ID_MASK = 0x7fffffff;

/**
 * Cuts a byte stream into frames. Control frames are collected whole, up to `maxControlBytes`; DATA payloads are not
 * collected at all, so a frame of 16 MiB costs no memory.
 */
export class SpdyFrameParser {
  readonly #maxControlBytes: number;
  #pending: Buffer = Buffer.alloc(0);
  /** The DATA frame whose payload is being handed on. */
  #data: { streamId: number; fin: boolean; remaining: number } | undefined;

  constructor(options: { maxControlBytes: number }) {
    this.#maxControlBytes = options.maxControlBytes;
  }

  /** @throws SpdyProtocolError for anything that is not SPDY/3 or too large */
  *push(chunk: Buffer): Generator<SpdyFrame, void> {
    let bytes = this.#pending.length === 0 ? chunk : Buffer.concat([this.#pending, chunk]);
    this.#pending = Buffer.alloc(0);
    for (;;) {
      if (this.#data !== undefined) {
        if (bytes.length === 0) return;
        const payload = bytes.subarray(0, this.#data.remaining);
        bytes = bytes.subarray(payload.length);
        const { streamId, fin } = this.#data;
        this.#data.remaining -= payload.length;
        const last = this.#data.remaining === 0;
        if (last) this.#data = undefined;
        yield { type: "data", streamId, fin: fin && last, payload };
        continue;
      }
      if (bytes.length < HEADER_BYTES) break;
      const word = bytes.readUInt32BE(0);
      const flags = bytes.readUInt8(4);
      const length = bytes.readUIntBE(5, 3);
      if (word >>> 31 === 0) {
        const fin = (flags & FLAG_FIN) !== 0;
        bytes = bytes.subarray(HEADER_BYTES);
        if (length === 0) yield { type: "data", streamId: word, fin, payload: Buffer.alloc(0) };
        else this.#data = { streamId: word, fin, remaining: length };
        continue;
      }
      const version = (word >>> 16) & 0x7fff;
      if (version !== VERSION) throw new SpdyProtocolError(`the peer speaks SPDY/${version}, not SPDY/3`);
      if (length > this.#maxControlBytes) {
        throw new SpdyProtocolError(
          `control frame of ${length} bytes is larger than the limit of ${this.#maxControlBytes}`,
        );
      }
      if (bytes.length < HEADER_BYTES + length) break;
      const body = bytes.subarray(HEADER_BYTES, HEADER_BYTES + length);
      bytes = bytes.subarray(HEADER_BYTES + length);
      const frame = parseControl(word & 0xffff, flags, body);
      if (frame !== undefined) yield frame;
    }
    // A copy, so that the few bytes kept do not hold the whole network buffer alive.
    if (bytes.length > 0) this.#pending = Buffer.from(bytes);
  }
}

/** @returns undefined for frames that are to be ignored: spdystream has no flow control and no settings */
function parseControl(type: number, flags: number, body: Buffer): SpdyFrame | undefined {
  const need = (bytes: number, name: string) => {
    if (body.length < bytes) throw new SpdyProtocolError(`${name} frame of ${body.length} bytes is too short`);
  };
  const fin = (flags & FLAG_FIN) !== 0;
  switch (type) {
    case CONTROL_TYPES.synStream:
      need(10, "SYN_STREAM");
      return {
        type: "syn_stream",
        streamId: body.readUInt32BE(0) & STREAM_ID_MASK,
        fin,
        headerBlock: body.subarray(10),
      };
    case CONTROL_TYPES.synReply:
    case CONTROL_TYPES.headers:
      need(4, "HEADERS");
      return { type: "headers", streamId: body.readUInt32BE(0) & STREAM_ID_MASK, fin, headerBlock: body.subarray(4) };
    case CONTROL_TYPES.rstStream:
      need(8, "RST_STREAM");
      return { type: "rst_stream", streamId: body.readUInt32BE(0) & STREAM_ID_MASK, status: body.readUInt32BE(4) };
    case CONTROL_TYPES.ping:
      need(4, "PING");
      return { type: "ping", id: body.readUInt32BE(0) };
    case CONTROL_TYPES.goaway:
      need(4, "GOAWAY");
      return { type: "goaway", lastGoodStreamId: body.readUInt32BE(0) & STREAM_ID_MASK };
    case CONTROL_TYPES.settings:
    case CONTROL_TYPES.windowUpdate:
      return undefined;
    default:
      throw new SpdyProtocolError(`unknown control frame type ${type}`);
  }
}

function control(type: number, flags: number, body: Buffer): Buffer {
  const frame = Buffer.alloc(HEADER_BYTES + body.length);
  frame.writeUInt16BE(0x8000 | VERSION, 0);
  frame.writeUInt16BE(type, 2);
  frame.writeUInt8(flags, 4);
  frame.writeUIntBE(body.length, 5, 3);
  body.copy(frame, HEADER_BYTES);
  return frame;
}

function words(...values: number[]): Buffer {
  const buffer = Buffer.alloc(4 * values.length);
  values.forEach((value, index) => buffer.writeUInt32BE(value >>> 0, 4 * index));
  return buffer;
}

/** The eight bytes before a payload of `length` bytes. */
export function dataHeader(streamId: number, length: number, fin: boolean): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32BE(streamId, 0);
  header.writeUInt8(fin ? FLAG_FIN : 0, 4);
  header.writeUIntBE(length, 5, 3);
  return header;
}

export function synStreamFrame(streamId: number, headerBlock: Buffer, fin = false): Buffer {
  return control(
    CONTROL_TYPES.synStream,
    fin ? FLAG_FIN : 0,
    Buffer.concat([words(streamId, 0), Buffer.alloc(2), headerBlock]),
  );
}

export function synReplyFrame(streamId: number, headerBlock: Buffer): Buffer {
  return control(CONTROL_TYPES.synReply, 0, Buffer.concat([words(streamId), headerBlock]));
}

export function rstStreamFrame(streamId: number, status: number): Buffer {
  return control(CONTROL_TYPES.rstStream, 0, words(streamId, status));
}

export function pingFrame(id: number): Buffer {
  return control(CONTROL_TYPES.ping, 0, words(id));
}

export function goawayFrame(lastGoodStreamId: number): Buffer {
  return control(CONTROL_TYPES.goaway, 0, words(lastGoodStreamId, 0));
}
