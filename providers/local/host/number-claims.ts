/**
 * Numbers of this host that only one owner has at a time: users, or ranges of them, of whatever is to have nothing in
 * common, not even with that of another backend. Who has which is a file per number in memory: it outlives the
 * backend, and not the host.
 */
import { readFileSync } from "node:fs";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Once, ProviderError } from "../../../src/provider/kit/index.ts";

interface NumberClaimsOptions {
  /** Holds the files, for all backends of the host. */
  dir: string;
  first: number;
  count: number;
  /** From one number to the next. Default 1. */
  step?: number | undefined;
  /** What is said when all are taken. */
  exhausted: string;
}

export class NumberClaims {
  readonly #options: NumberClaimsOptions;
  /** Owner -> number: also those of a former backend. */
  readonly #taken = new Once(() => this.#read());
  #tried = 0;

  constructor(options: NumberClaimsOptions) {
    this.#options = options;
  }

  /**
   * A number that nobody else on this host has.
   * @param owner always has the same one until it is released
   * @throws ProviderError unavailable when all are taken
   */
  async take(owner: string): Promise<number> {
    const { first, count, step = 1, exhausted } = this.#options;
    const taken = await this.#taken.get();
    const own = taken.get(owner);
    if (own !== undefined) return own;
    for (let tries = 0; tries < count; tries++) {
      const number = first + (this.#tried++ % count) * step;
      if (await this.#claim(number, owner, taken)) return number;
    }
    throw new ProviderError("unavailable", exhausted);
  }

  /** It is the owner's, whatever is written: what has it runs already. */
  async hold(owner: string, number: number): Promise<void> {
    const taken = await this.#taken.get();
    if (taken.get(owner) !== number) await this.#claim(number, owner, taken);
  }

  /** Nothing may have the number any more. */
  async release(owner: string): Promise<void> {
    const taken = await this.#taken.get();
    const number = taken.get(owner);
    if (number === undefined) return;
    await rm(this.#file(number), { force: true });
    taken.delete(owner);
  }

  /** Of this backend's and of others'. */
  async owners(): Promise<string[]> {
    return [...(await this.#taken.get()).keys()];
  }

  #file(number: number): string {
    return join(this.#options.dir, String(number));
  }

  async #claim(number: number, owner: string, taken: Map<string, number>): Promise<boolean> {
    try {
      await writeFile(this.#file(number), owner, { flag: "wx", mode: 0o600 });
    } catch (thrown) {
      if ((thrown as NodeJS.ErrnoException).code === "EEXIST") return false;
      // A full disk lets the file be made, and nothing be written to it: the number would be nobody's for ever.
      await rm(this.#file(number), { force: true }).catch(() => undefined);
      throw thrown;
    }
    taken.set(owner, number);
    return true;
  }

  async #read(): Promise<Map<string, number>> {
    const { dir } = this.#options;
    await mkdir(dir, { recursive: true, mode: 0o700 });
    const taken = new Map<string, number>();
    for (const name of await readdir(dir)) taken.set(await readFile(join(dir, name), "utf8"), Number(name));
    return taken;
  }
}

/** People, services and containers of this host that have numbers of users or groups in a range. */
export function accountsWithin({ first, count }: { first: number; count: number }, etc = "/etc"): string[] {
  const overlaps = (from: number, numbers: number) => from < first + count && from + numbers > first;
  const accounts = lines(join(etc, "passwd")).map(([name, , uid]) => [name, Number(uid), 1] as const);
  const ranges = ["subuid", "subgid"]
    .flatMap((file) => lines(join(etc, file)))
    .map(([name, from, numbers]) => [name, Number(from), Number(numbers)] as const);
  const names = [...accounts, ...ranges].filter(([, from, numbers]) => overlaps(from, numbers)).map(([name]) => name!);
  return [...new Set(names)];
}

function lines(file: string): string[][] {
  try {
    return readFileSync(file, "utf8")
      .split("\n")
      .filter((line) => line !== "")
      .map((line) => line.split(":"));
  } catch {
    return []; // this host has none
  }
}
