/**
 * A disk with a volatile write cache, as a server of the NBD protocol that QEMU connects to. What was written is read
 * back at once, but it is on the disk only when the host has flushed (or asked for that write alone, FUA). A loss of
 * power loses what is in the cache: any of its writes, all of them, or half of one, but no 512 bytes in part.
 */
import { closeSync, openSync, readSync, writeSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import type { Random } from "../../../src/util/random.ts";

const SECTOR = 512;
/** NBD: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md */
const NBD = {
  fixedNewstyle: 1,
  noZeroes: 2,
  optionMagic: 0x49484156454f5054n,
  optionReplyMagic: 0x3e889045565a9n,
  optionAbort: 2,
  optionGo: 7,
  replyAck: 1,
  replyInfo: 3,
  replyUnsupported: 0x80000001,
  requestMagic: 0x25609513,
  replyMagic: 0x67446698,
  /** Has flags, flush and FUA. */
  transmission: 1 | 4 | 8,
  fua: 1,
} as const;
const COMMANDS = ["read", "write", "disconnect", "flush"] as const;

export interface Write {
  offset: number;
  data: Buffer;
}

/** What a host has asked of its disk, in order; `durable`: on the disk by itself (FUA). */
export type Operation = ({ kind: "write" | "durable" } & Write) | { kind: "flush" };

export class VolatileDisk {
  readonly #path: string;
  readonly #bytes: number;
  readonly #file: number;
  readonly #server: Server;
  /** Newest last. */
  #cache: Write[] = [];
  #isCut = false;
  readonly #connections = new Set<Socket>();
  #countdown: { left: number; cut: () => void } | undefined;
  #log: Operation[] | undefined;
  /** Of this disk since it was made. */
  readonly count = { writes: 0, flushes: 0, lost: 0 };

  /** @param file of `bytes` bytes, the disk's content; @param socket where QEMU finds it */
  constructor(file: string, bytes: number, socket: string) {
    this.#path = socket;
    this.#bytes = bytes;
    this.#file = openSync(file, "r+");
    this.#server = createServer((connection) => void this.#serve(connection));
  }

  listen(): Promise<void> {
    return new Promise((resolve) => this.#server.listen(this.#path, resolve));
  }

  close(): void {
    this.#server.close();
    closeSync(this.#file);
  }

  /** What is asked of it from now on is kept in `log` as well. */
  record(log: Operation[]): void {
    this.#log = log;
  }

  /** Calls `cut` when the host has written or flushed so many times more; what it asks from then on is not done. */
  cutAfter(operations: number, cut: () => void): void {
    this.#countdown = { left: operations, cut };
  }

  /** The power is gone: nothing more is done, and of what is in the cache no more is kept than chance wants. */
  losePower(random: Random): void {
    this.#isCut = true;
    this.#countdown = undefined;
    // What has been asked and not read yet must not be done when the power is on again.
    for (const connection of this.#connections) connection.destroy();
    const { kept, lost } = whatIsKept(this.#cache, random);
    for (const write of kept) this.#write(write);
    this.count.lost += lost;
    this.#cache = [];
  }

  /** The host boots again. */
  powerOn(): void {
    this.#isCut = false;
  }

  #write({ offset, data }: Write): void {
    writeSync(this.#file, data, 0, data.length, offset);
  }

  #read(offset: number, length: number): Buffer {
    const data = Buffer.alloc(length);
    readSync(this.#file, data, 0, length, offset);
    for (const write of this.#cache) {
      const from = Math.max(offset, write.offset);
      const to = Math.min(offset + length, write.offset + write.data.length);
      if (from < to) write.data.copy(data, from - offset, from - write.offset, to - write.offset);
    }
    return data;
  }

  #flush(): void {
    for (const write of this.#cache) this.#write(write);
    this.#cache = [];
  }

  /** False when the power is gone. */
  #counts(kind: "writes" | "flushes"): boolean {
    if (this.#isCut) return false;
    this.count[kind]++;
    const countdown = this.#countdown;
    if (countdown !== undefined && --countdown.left === 0) {
      this.#isCut = true;
      this.#countdown = undefined;
      countdown.cut();
    }
    return true;
  }

  // --- the protocol ---

  async #serve(connection: Socket): Promise<void> {
    connection.on("error", () => {});
    this.#connections.add(connection);
    try {
      const take = reader(connection);
      const hello = Buffer.alloc(18);
      hello.write("NBDMAGIC", 0, "latin1");
      hello.writeBigUInt64BE(NBD.optionMagic, 8);
      hello.writeUInt16BE(NBD.fixedNewstyle | NBD.noZeroes, 16);
      connection.write(hello);
      await take(4);
      await this.#negotiate(connection, take);
      for (;;) await this.#request(connection, take);
    } catch {
      connection.destroy();
    } finally {
      this.#connections.delete(connection);
    }
  }

  async #negotiate(connection: Socket, take: Take): Promise<void> {
    for (;;) {
      const head = await take(16);
      const option = head.readUInt32BE(8);
      await take(head.readUInt32BE(12));
      const reply = (type: number, data = Buffer.alloc(0)) => {
        const header = Buffer.alloc(20);
        header.writeBigUInt64BE(NBD.optionReplyMagic, 0);
        header.writeUInt32BE(option, 8);
        header.writeUInt32BE(type, 12);
        header.writeUInt32BE(data.length, 16);
        connection.write(Buffer.concat([header, data]));
      };
      if (option === NBD.optionGo) {
        const info = Buffer.alloc(12);
        info.writeBigUInt64BE(BigInt(this.#bytes), 2);
        info.writeUInt16BE(NBD.transmission, 10);
        reply(NBD.replyInfo, info);
        reply(NBD.replyAck);
        return;
      }
      reply(option === NBD.optionAbort ? NBD.replyAck : NBD.replyUnsupported);
    }
  }

  async #request(connection: Socket, take: Take): Promise<void> {
    const head = await take(28);
    if (head.readUInt32BE(0) !== NBD.requestMagic) throw new Error("this is no request of NBD");
    const flags = head.readUInt16BE(4);
    const command = COMMANDS[head.readUInt16BE(6)];
    const offset = Number(head.readBigUInt64BE(16));
    const length = head.readUInt32BE(24);
    const data = command === "write" ? await take(length) : Buffer.alloc(0);
    if (command === undefined || command === "disconnect" || connection.destroyed) throw new Error("the end");
    const reply = Buffer.alloc(16);
    reply.writeUInt32BE(NBD.replyMagic, 0);
    head.copy(reply, 8, 8, 16);
    if (command === "read") {
      if (!this.#isCut) connection.write(Buffer.concat([reply, this.#read(offset, length)]));
      return;
    }
    if (!this.#counts(command === "write" ? "writes" : "flushes")) return;
    if (command === "flush") {
      this.#log?.push({ kind: "flush" });
      this.#flush();
    } else if (flags & NBD.fua) {
      this.#log?.push({ kind: "durable", offset, data });
      this.#write({ offset, data });
    } else {
      this.#log?.push({ kind: "write", offset, data });
      this.#cache.push({ offset, data });
    }
    if (!this.#isCut) connection.write(reply);
  }
}

/** Of what was not flushed when the power went: all, nothing, or a part of it, for disks differ. */
export function whatIsKept(cache: readonly Write[], random: Random): { kept: Write[]; lost: number } {
  const share = [0, 0.5, 1][Math.floor(random() * 3)]!;
  const kept: Write[] = [];
  let lost = 0;
  for (const write of cache) {
    if (random() < share) kept.push(write);
    else {
      lost++;
      if (random() < 0.1) kept.push({ ...write, data: write.data.subarray(0, halfOf(write.data.length)) });
    }
  }
  return { kept, lost };
}

const halfOf = (bytes: number) => Math.floor(bytes / 2 / SECTOR) * SECTOR;

type Take = (bytes: number) => Promise<Buffer>;

/** Exactly so many of the bytes that come, in order. */
function reader(connection: Socket): Take {
  const iterator = connection[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  let chunks: Buffer[] = [];
  let size = 0;
  return async (bytes) => {
    while (size < bytes) {
      const { value, done } = await iterator.next();
      if (done) throw new Error("the connection has ended");
      chunks.push(value);
      size += value.length;
    }
    const all = Buffer.concat(chunks);
    chunks = [all.subarray(bytes)];
    size = all.length - bytes;
    return Buffer.from(all.subarray(0, bytes));
  };
}
