/**
 * Which sandbox has which address, as CNI's plugin host-local and CNI's library write it down. Neither flushes that,
 * and each forgets a sandbox only when it is told of its end by id: what is torn by a loss of power, or names a sandbox
 * of which the runtime has lost its word, would be taken for ever.
 */
import { rm } from "node:fs/promises";
import { isIP } from "node:net";
import { dirname, join } from "node:path";
import { readdirIfExists, readFileIfExists } from "../../host/files.ts";

/** libcni's own, of all networks and runtimes of a host. */
const RESULTS = "/var/lib/cni/results";

/** Files, and the sandbox that each names. */
export type WrittenAddresses = ReadonlyMap<string, string>;

export class SandboxAddresses {
  readonly #leases: string;
  readonly #results: string;
  readonly #network: string;

  /** @param leasesDir host-local's `dataDir`; @param network its name; @param results of libcni */
  constructor(leasesDir: string, network: string, results = RESULTS) {
    this.#leases = join(leasesDir, network);
    this.#network = network;
    this.#results = results;
  }

  /** What is written down by now. */
  async written(): Promise<WrittenAddresses> {
    const found = new Map<string, string>();
    for (const name of await readdirIfExists(this.#leases)) {
      // Beside them are a lock, and the address that was given out last.
      if (isIP(name) === 0) continue;
      const file = join(this.#leases, name);
      found.set(file, (await ownerIn(file)) ?? "");
    }
    const ours = `${this.#network}-`;
    for (const name of await readdirIfExists(this.#results)) {
      const owner = name.startsWith(ours) ? /^([\da-f]+)-[^-]+$/.exec(name.slice(ours.length))?.[1] : undefined;
      if (owner !== undefined) found.set(join(this.#results, name), owner);
    }
    return found;
  }

  /** Forgets of what was written all but these sandboxes; an address may be another's by now, that is being made. */
  async forget(written: WrittenAddresses, but: ReadonlySet<string>): Promise<void> {
    for (const [file, owner] of written) {
      if (but.has(owner)) continue;
      const isLease = dirname(file) === this.#leases;
      if (!isLease || (await ownerIn(file)) === owner) await rm(file, { force: true });
    }
  }

  /** Forgets all but these sandboxes. To be called while none is made. */
  async retain(sandboxIds: ReadonlySet<string>): Promise<void> {
    await this.forget(await this.written(), sandboxIds);
  }
}

/** Undefined: the lease is no more. */
async function ownerIn(lease: string): Promise<string | undefined> {
  return (await readFileIfExists(lease))?.split(/\s/)[0];
}
