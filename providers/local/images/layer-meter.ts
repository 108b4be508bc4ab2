/**
 * What a layer comes to when it is unpacked, read while it passes by: a small one can hold a huge tree, or a million
 * files, and who unpacks it here keeps to no limit. It is read as those read it that will unpack it (Go's archive/tar,
 * containerd's pkg/archive/compression); what could be read in two ways is refused.
 */
import type { Hash } from "node:crypto";
import { once } from "node:events";
import { createGunzip, createZstdDecompress, type Gunzip, type ZstdDecompress } from "node:zlib";
import { toError, VmletError } from "../../../src/provider/kit/index.ts";

const BLOCK = 512;
/** Go's maxSpecialFileSize: of an extended header. */
const MAX_EXTENDED_BYTES = 1 << 20;
/** Enough to tell compressions by. */
const MAGIC_BYTES = 4;

/** A layer that is too large, or that cannot be read. */
export class LayerError extends VmletError {
  readonly code = "IMAGE_LAYER";
}

/** What all layers of one image may come to. */
export class UnpackBudget {
  readonly #limits: { bytes: number; inodes: number };
  #bytes = 0;
  #inodes = 0;

  constructor(limits: { bytes: number; inodes: number }) {
    this.#limits = limits;
  }

  /** @throws LayerError */
  take(bytes: number, inodes: number): void {
    this.#bytes += bytes;
    this.#inodes += inodes;
    const tooMuch = (most: number, what: string) =>
      new LayerError(`unpacks to more than the ${most} ${what} that this host accepts`);
    if (this.#bytes > this.#limits.bytes) throw tooMuch(this.#limits.bytes, "bytes");
    if (this.#inodes > this.#limits.inodes) throw tooMuch(this.#limits.inodes, "files");
  }
}

/**
 * Passes a layer on, piece by piece, as long as it keeps to the budget.
 * @param diffId is told of all that it unpacks to
 * @throws LayerError
 */
export async function* metered(
  content: AsyncIterable<Buffer>,
  budget: UnpackBudget,
  diffId?: Hash,
): AsyncGenerator<Buffer> {
  const tar = new TarMeter(budget);
  const unpacker = new Unpacker((data) => {
    tar.read(data);
    diffId?.update(data);
  });
  try {
    for await (const chunk of content) {
      await unpacker.write(chunk);
      yield chunk;
    }
    await unpacker.end();
  } finally {
    unpacker.destroy();
  }
}

/** Takes a layer as it is sent, and gives it as an archive. What is compressed may have several parts, each whole. */
class Unpacker {
  readonly #read: (data: Buffer) => void;
  #head = Buffer.alloc(0);
  /** Undefined until the first bytes say how it is compressed. */
  #begin: (() => Decompressor | undefined) | undefined;
  #stream: Decompressor | undefined;
  /** Settled when the stream has no more to give. */
  #over: Promise<unknown> = Promise.resolve();
  #failure: Error | undefined;

  constructor(read: (data: Buffer) => void) {
    this.#read = read;
  }

  async write(chunk: Buffer): Promise<void> {
    if (this.#begin !== undefined) return await this.#pass(chunk);
    this.#head = Buffer.concat([this.#head, chunk]);
    if (this.#head.length >= MAGIC_BYTES) await this.#passHead();
  }

  async end(): Promise<void> {
    if (this.#begin === undefined) await this.#passHead();
    this.#stream?.end();
    await this.#over;
    if (this.#failure !== undefined) throw this.#failure;
  }

  destroy(): void {
    this.#stream?.destroy();
  }

  async #passHead(): Promise<void> {
    this.#begin = decompression(this.#head);
    await this.#pass(this.#head);
  }

  /** Returns when all that the piece holds has been read. */
  async #pass(chunk: Buffer): Promise<void> {
    for (let rest = chunk; rest.length > 0;) {
      const isNew = this.#stream === undefined;
      const stream = (this.#stream ??= this.#follow(this.#begin?.()));
      if (stream === undefined) return this.#read(rest);
      const before = stream.bytesWritten;
      const written = new Promise<void>((resolve) => stream.write(rest, () => resolve()));
      await Promise.race([written, this.#over]);
      if (this.#failure !== undefined) throw this.#failure;
      const taken = stream.bytesWritten - before;
      rest = rest.subarray(taken);
      if (rest.length === 0) return;
      if (isNew && taken === 0) throw new LayerError("a layer goes on after its end");
      // This part is complete.
      stream.destroy();
      this.#stream = undefined;
      this.#over = Promise.resolve();
    }
  }

  #follow(stream: Decompressor | undefined): Decompressor | undefined {
    stream?.on("data", (data: Buffer) => {
      try {
        if (this.#failure === undefined) this.#read(data);
      } catch (thrown) {
        this.#failure = toError(thrown);
      }
    });
    if (stream === undefined) return undefined;
    this.#over = once(stream, "end").catch((thrown: unknown) => {
      const { message } = toError(thrown);
      this.#failure ??= new LayerError(`a layer cannot be unpacked: ${message}`, { cause: thrown });
    });
    return stream;
  }
}

type Decompressor = Gunzip | ZstdDecompress;

/** By the first bytes, whatever the media type says. @returns what makes a decompressor, if one is needed */
function decompression(head: Buffer): () => Decompressor | undefined {
  if (head.subarray(0, 2).toString("hex") === "1f8b") return () => createGunzip();
  const word = head.length < MAGIC_BYTES ? 0 : head.readUInt32LE(0);
  // The second is a frame that is skipped, of which there are sixteen.
  if (word === 0xfd2fb528 || word >>> 4 === 0x184d2a5) return () => createZstdDecompress();
  return () => undefined;
}

/** What the headers before an entry say of it. */
interface Extended {
  size?: number;
  /** Of a file with holes. */
  realSize?: number;
  /** There were some. */
  any: boolean;
}

/** An archive's entries and their sizes. */
class TarMeter {
  readonly #budget: UnpackBudget;
  readonly #block = Buffer.alloc(BLOCK);
  #filled = 0;
  /** Bytes of content and padding before the next header. */
  #skip = 0;
  /** Of the extended header that is being read. */
  #collected: Buffer[] | undefined;
  #collectedSize = 0;
  #extended: Extended = { any: false };
  /** Bytes of content and padding behind the blocks of holes that are being read. */
  #afterHoles: number | undefined;
  #zeros = 0;

  constructor(budget: UnpackBudget) {
    this.#budget = budget;
  }

  read(data: Buffer): void {
    this.#budget.take(data.length, 0);
    for (let at = 0; at < data.length && this.#zeros < 2;) {
      const wanted = this.#skip > 0 ? this.#skip : BLOCK - this.#filled;
      const piece = data.subarray(at, at + Math.min(wanted, data.length - at));
      at += piece.length;
      if (this.#skip > 0) this.#content(piece);
      else {
        piece.copy(this.#block, this.#filled);
        this.#filled = (this.#filled + piece.length) % BLOCK;
        if (this.#filled === 0) this.#header(this.#block);
      }
    }
  }

  #content(piece: Buffer): void {
    this.#skip -= piece.length;
    this.#collected?.push(Buffer.from(piece));
    if (this.#skip > 0 || this.#collected === undefined) return;
    const records = Buffer.concat(this.#collected).subarray(0, this.#collectedSize);
    this.#collected = undefined;
    this.#extended = { ...readRecords(records), any: true };
  }

  #header(block: Buffer): void {
    if (this.#afterHoles !== undefined) return this.#moreHoles(block[504] !== 0, this.#afterHoles);
    if (block.every((byte) => byte === 0)) {
      this.#zeros++;
      return;
    }
    if (this.#zeros > 0) throw new LayerError("a layer goes on after its end");
    const type = String.fromCharCode(block[156]!);
    const size = numberAt(block, 124, 12);
    if (type === "x" || type === "L" || type === "K") return this.#extension(type, size);
    const { size: given, realSize, any } = this.#extended;
    this.#extended = { any: false };
    const length = "123456".includes(type) ? 0 : (given ?? size);
    const name = block.toString("latin1", 0, 100).split("\0")[0]!;
    if (type === "\0" && length > 0 && (any || name.endsWith("/")))
      throw new LayerError("a layer has an entry that may be a file or a folder");
    this.#budget.take(type === "S" ? numberAt(block, 483, 12) : (realSize ?? 0), 1);
    this.#moreHoles(type === "S" && block[482] !== 0, padded(length));
  }

  /** What says where a file has its holes stands before its content. */
  #moreHoles(more: boolean, contentBytes: number): void {
    this.#afterHoles = more ? contentBytes : undefined;
    this.#skip = more ? 0 : contentBytes;
  }

  /** A header that says something of the entry after it. */
  #extension(type: string, size: number): void {
    if (size > MAX_EXTENDED_BYTES) throw new LayerError(`a layer has an extended header of ${size} bytes`);
    this.#extended = { ...this.#extended, any: true };
    this.#skip = padded(size);
    if (type !== "x" || size === 0) return;
    this.#collected = [];
    this.#collectedSize = size;
  }
}

function padded(size: number): number {
  return Math.ceil(size / BLOCK) * BLOCK;
}

/** Octal, or in base 256 where the first bit is set. */
function numberAt(block: Buffer, at: number, length: number): number {
  const field = block.subarray(at, at + length);
  const value = (field[0]! & 0x80) === 0 ? octal(field.toString("latin1")) : base256(field);
  if (!Number.isSafeInteger(value) || value < 0) throw new LayerError("a layer has an entry of no size");
  return value;
}

function octal(text: string): number {
  const digits = text.split("\0")[0]!.trim();
  return digits === "" ? 0 : /^[0-7]+$/.test(digits) ? Number.parseInt(digits, 8) : Number.NaN;
}

function base256(field: Buffer): number {
  return field.reduce((sum, byte, index) => sum * 256 + (index === 0 ? byte & 0x7f : byte), 0);
}

/** `LENGTH KEY=VALUE\n`, one after another. */
function readRecords(records: Buffer): { size?: number; realSize?: number } {
  const found: { size?: number; realSize?: number } = {};
  for (let at = 0; at < records.length;) {
    const space = records.indexOf(0x20, at);
    const length = space < 0 ? 0 : Number(records.toString("latin1", at, space));
    const equals = records.indexOf(0x3d, space);
    if (!Number.isSafeInteger(length) || length < 5 || at + length > records.length || equals >= at + length)
      throw new LayerError("a layer has an extended header that cannot be read");
    const key = records.toString("utf8", space + 1, equals);
    const value = records.toString("latin1", equals + 1, at + length - 1);
    at += length;
    if (value === "") continue;
    if (key === "size") found.size = decimal(value);
    if (key === "GNU.sparse.realsize" || key === "GNU.sparse.size") found.realSize = decimal(value);
  }
  return found;
}

function decimal(text: string): number {
  const value = /^\d{1,15}$/.test(text) ? Number(text) : Number.NaN;
  if (Number.isNaN(value)) throw new LayerError("a layer has an entry of no size");
  return value;
}
