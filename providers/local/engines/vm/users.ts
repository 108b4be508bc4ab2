/**
 * Users of this host for its VMs, one for each: QEMUs that were broken out of have nothing in common, not even with
 * those of another backend. Who has which is a file per user in memory: it outlives the backend, and not the host.
 */
import { readFileSync } from "node:fs";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Once, ProviderError } from "../../../../src/provider/kit/index.ts";
import type { HostProblem } from "../../engine.ts";

/** Numbers of users, which are those of groups as well. */
export interface UserRange {
  first?: number | undefined;
  count?: number | undefined;
}

/**
 * systemd's table of users and groups leaves these to nobody; distributions give lower ones to people, services and
 * containers.
 */
const FIRST = 1_879_048_192;
const COUNT = 65_536;
const DIR = "/run/vmlet/vm-users";

export class VmUsers {
  readonly #first: number;
  readonly #count: number;
  readonly #dir: string;
  /** Owner -> user: also those of a former backend. */
  readonly #taken = new Once(() => this.#read());
  #tried = 0;

  constructor({ first = FIRST, count = COUNT, dir = DIR }: UserRange & { dir?: string | undefined } = {}) {
    this.#first = first;
    this.#count = count;
    this.#dir = dir;
  }

  /**
   * A user that nobody else on this host has.
   * @param owner folder of the VM; always the same user until it is released
   * @throws ProviderError unavailable when all are taken
   */
  async take(owner: string): Promise<number> {
    const taken = await this.#taken.get();
    const own = taken.get(owner);
    if (own !== undefined) return own;
    for (let tries = 0; tries < this.#count; tries++) {
      const uid = this.#first + (this.#tried++ % this.#count);
      if (!(await this.#claim(uid, owner))) continue;
      taken.set(owner, uid);
      return uid;
    }
    throw new ProviderError(
      "unavailable",
      `all ${this.#count} users for VMs are taken: raise engine.users.count, or remove files of backends that are no more from ${this.#dir}`,
    );
  }

  /** Nothing may run as this user any more. */
  async release(owner: string): Promise<void> {
    const taken = await this.#taken.get();
    const uid = taken.get(owner);
    if (uid === undefined) return;
    await rm(join(this.#dir, String(uid)), { force: true });
    taken.delete(owner);
  }

  async #claim(uid: number, owner: string): Promise<boolean> {
    try {
      await writeFile(join(this.#dir, String(uid)), owner, { flag: "wx", mode: 0o600 });
      return true;
    } catch (thrown) {
      if ((thrown as NodeJS.ErrnoException).code === "EEXIST") return false;
      throw thrown;
    }
  }

  async #read(): Promise<Map<string, number>> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    const taken = new Map<string, number>();
    for (const name of await readdir(this.#dir)) taken.set(await readFile(join(this.#dir, name), "utf8"), Number(name));
    return taken;
  }
}

/** People, services and containers of this host that have numbers out of the range. */
export function checkUsers({ first = FIRST, count = COUNT }: UserRange = {}, etc = "/etc"): HostProblem[] {
  const overlaps = (from: number, numbers: number) => from < first + count && from + numbers > first;
  const accounts = lines(join(etc, "passwd")).map(([name, , uid]) => [name, Number(uid), 1] as const);
  const ranges = ["subuid", "subgid"]
    .flatMap((file) => lines(join(etc, file)))
    .map(([name, from, numbers]) => [name, Number(from), Number(numbers)] as const);
  const names = [...accounts, ...ranges].filter(([, from, numbers]) => overlaps(from, numbers)).map(([name]) => name);
  if (names.length === 0) return [];
  return [
    {
      fatal: false,
      problem: `VMs run as users ${first} to ${first + count - 1}, some of which are those of ${[...new Set(names)].join(", ")}`,
      cure: "set engine.users to a range that nobody has (/etc/passwd, /etc/subuid, /etc/subgid)",
    },
  ];
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
