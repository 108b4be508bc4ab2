/**
 * Which sandbox has which address, as CNI's plugin host-local and CNI's library write it down. Neither flushes that,
 * and each forgets a sandbox only when it is told of its end by id: what is torn by a loss of power, or names a sandbox
 * of which the runtime has lost its word, would be taken for ever.
 */
import { readFile, rm } from "node:fs/promises";
import { isIP } from "node:net";
import { join } from "node:path";
import { readdirIfExists } from "../../host/files.ts";

/** libcni's own, of all networks and runtimes of a host. */
const RESULTS = "/var/lib/cni/results";

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

  /** Forgets all but these sandboxes. To be called while none is made. */
  async retain(sandboxIds: ReadonlySet<string>): Promise<void> {
    for (const name of await readdirIfExists(this.#leases)) {
      // Beside them are a lock, and the address that was given out last.
      if (isIP(name) === 0) continue;
      const [owner = ""] = (await readFile(join(this.#leases, name), "latin1")).split(/\s/);
      if (!sandboxIds.has(owner)) await rm(join(this.#leases, name), { force: true });
    }
    const ours = `${this.#network}-`;
    for (const name of await readdirIfExists(this.#results)) {
      const owner = name.startsWith(ours) ? /^([\da-f]+)-[^-]+$/.exec(name.slice(ours.length))?.[1] : undefined;
      if (owner !== undefined && !sandboxIds.has(owner)) await rm(join(this.#results, name), { force: true });
    }
  }
}
