/**
 * The disks that a loss of power could have left, at any moment of what a host has asked of its disk: what was flushed
 * by then, and of the rest what chance wants. One run of a host makes as many of them as one likes.
 */
import { closeSync, openSync, writeSync } from "node:fs";
import { runCommand } from "../../e2e/harness/exec.ts";
import type { Random } from "../../../src/util/random.ts";
import { type Operation, whatIsKept, type Write } from "./disk.ts";

export class CrashedDisks {
  readonly #log: readonly Operation[];
  readonly #path: string;
  readonly #file: number;
  readonly #isLying: boolean;
  #cache: Write[] = [];
  #at = 0;

  /**
   * @param log all that was asked since the disk was as the file at `path`, which moves on with each cut
   * @param options.isLying the disk says that it has flushed, and has not
   */
  constructor(path: string, log: readonly Operation[], { isLying = false }: { isLying?: boolean } = {}) {
    this.#path = path;
    this.#log = log;
    this.#isLying = isLying;
    this.#file = openSync(path, "r+");
  }

  /**
   * Writes the disk as it is after `operations` of all, which never become fewer, to a new file.
   * @returns how many writes it has lost
   */
  async cut(operations: number, random: Random, file: string): Promise<number> {
    for (; this.#at < operations; this.#at++) this.#do(this.#log[this.#at]!);
    await runCommand("cp", ["--sparse=always", this.#path, file]);
    const { kept, lost } = whatIsKept(this.#cache, random);
    const copy = openSync(file, "r+");
    for (const { offset, data } of kept) writeSync(copy, data, 0, data.length, offset);
    closeSync(copy);
    return lost;
  }

  close(): void {
    closeSync(this.#file);
  }

  #do(operation: Operation): void {
    if (operation.kind === "write" || (operation.kind === "durable" && this.#isLying)) this.#cache.push(operation);
    else if (operation.kind === "durable") this.#write(operation);
    else if (!this.#isLying) {
      for (const write of this.#cache) this.#write(write);
      this.#cache = [];
    }
  }

  #write({ offset, data }: Write): void {
    writeSync(this.#file, data, 0, data.length, offset);
  }
}
