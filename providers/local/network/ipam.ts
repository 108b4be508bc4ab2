/**
 * Addresses for machines: one file per lease, named by the address and holding the machine's id. A file that is made
 * with O_EXCL is the lock, so no address is ever given twice, even if the backend is killed at any moment.
 */
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ProviderError } from "../../../src/provider/kit/index.ts";
import { isMissing } from "../host/files.ts";
import { HostError } from "../host/host-error.ts";

export interface Subnet {
  /** `10.99.0.0/16` */
  cidr: string;
  prefix: number;
  /** The first usable address: the bridge's own. */
  gateway: string;
  first: number;
  last: number;
}

/** @throws Error that names the cure, for anything but an IPv4 range with room for machines. */
export function parseSubnet(cidr: string): Subnet {
  const match = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})\/(\d{1,2})$/.exec(cidr);
  const octets = match?.slice(1, 5).map(Number) ?? [];
  const prefix = Number(match?.[5]);
  if (match === null || octets.some((octet) => octet > 255) || prefix < 8 || prefix > 29)
    throw new HostError(
      `network.cidr ${JSON.stringify(cidr)}: want an IPv4 range with a prefix of 8 to 29, such as 10.99.0.0/16`,
    );
  const size = 2 ** (32 - prefix);
  const address = octets.reduce((sum, octet) => sum * 256 + octet, 0);
  const base = Math.floor(address / size) * size;
  return {
    cidr: `${toText(base)}/${prefix}`,
    prefix,
    gateway: toText(base + 1),
    first: base + 2,
    last: base + size - 2,
  };
}

export class Ipam {
  readonly #dir: string;
  readonly #subnet: Subnet;
  /** Where the search starts: right after the last one, so that an address rests before it is used again. */
  #next: number;

  constructor(dir: string, subnet: Subnet) {
    this.#dir = dir;
    this.#subnet = subnet;
    this.#next = subnet.first;
  }

  /** The machine's address: the one it has, else a new one. @throws ProviderError quota when the range is used up */
  async acquire(machineId: string): Promise<string> {
    const leases = await this.leases();
    const own = [...leases].find(([, id]) => id === machineId)?.[0];
    if (own !== undefined) return own;
    const { first, last, cidr } = this.#subnet;
    for (let tried = first; tried <= last; tried++) {
      const candidate = this.#next;
      this.#next = candidate >= last ? first : candidate + 1;
      const address = toText(candidate);
      if (leases.has(address)) continue;
      try {
        await writeFile(join(this.#dir, address), machineId, { flag: "wx" });
        return address;
      } catch (thrown) {
        if ((thrown as NodeJS.ErrnoException).code !== "EEXIST") throw thrown;
      }
    }
    throw new ProviderError("quota", `all ${last - first + 1} addresses of network.cidr ${cidr} are in use`);
  }

  /** Another one gives out the addresses: remembers whose this one is. */
  async record(machineId: string, address: string): Promise<void> {
    await this.release(machineId);
    await writeFile(join(this.#dir, address), machineId);
  }

  async find(machineId: string): Promise<string | undefined> {
    return [...(await this.leases())].find(([, id]) => id === machineId)?.[0];
  }

  async release(machineId: string): Promise<void> {
    for (const [address, id] of await this.leases())
      if (id === machineId) await rm(join(this.#dir, address), { force: true });
  }

  /** Address -> machine id. A lease whose machine was not written yet (killed in between) has no owner: "". */
  async leases(): Promise<Map<string, string>> {
    await mkdir(this.#dir, { recursive: true });
    const leases = new Map<string, string>();
    for (const address of await readdir(this.#dir)) {
      try {
        leases.set(address, await readFile(join(this.#dir, address), "utf8"));
      } catch (thrown) {
        if (!isMissing(thrown)) throw thrown;
      }
    }
    return leases;
  }
}

function toText(address: number): string {
  return [24, 16, 8, 0].map((shift) => Math.floor(address / 2 ** shift) % 256).join(".");
}
