/**
 * Addresses for machines: one file per lease, named by the address and holding the machine's id. A file that is made
 * with O_EXCL is the lock, so no address is ever given twice, even if the backend is killed at any moment. The files
 * are read once; from then on what they hold is in memory.
 */
import { mkdir, readdir, rm, writeFile } from "node:fs/promises";
import { isIPv4 } from "node:net";
import { join } from "node:path";
import { ipv4Number, ipv4Text, Once, ProviderError } from "../../../src/provider/kit/index.ts";
import { readFileIfExists } from "../host/files.ts";
import { HostError } from "../host/host-error.ts";
import { type Ipv6Subnet, parseIpv6Subnet } from "./second-family.ts";

export interface Subnet {
  /** `10.99.0.0/16` */
  cidr: string;
  prefix: number;
  /** The first usable address: the bridge's own. */
  gateway: string;
  first: number;
  last: number;
  /** Absent: machines have IPv4 alone. */
  ipv6?: Ipv6Subnet;
}

/** Of both families, as it is written down: `10.99.0.0/16,fd00:10:99::/64`. */
export const rangeText = ({ cidr, ipv6 }: Subnet): string => [cidr, ipv6?.cidr ?? []].flat().join();

/**
 * @param text an IPv4 range with room for machines, and after a comma perhaps an IPv6 one with room for as many
 * @throws HostError that names the cure
 */
export function parseSubnet(text: string): Subnet {
  const [cidr = "", ...second] = text.split(",");
  const subnet = parseIpv4Subnet(cidr);
  return second.length === 0 ? subnet : { ...subnet, ipv6: parseIpv6Subnet(second.join(), subnet.prefix) };
}

function parseIpv4Subnet(cidr: string): Subnet {
  const match = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})\/(\d{1,2})$/.exec(cidr);
  const octets = match?.slice(1, 5).map(Number) ?? [];
  const prefix = Number(match?.[5]);
  if (match === null || octets.some((octet) => octet > 255) || prefix < 8 || prefix > 29)
    throw new HostError(
      `network.cidr ${JSON.stringify(cidr)}: want an IPv4 range with a prefix of 8 to 29, such as 10.99.0.0/16`,
    );
  const size = 2 ** (32 - prefix);
  const address = ipv4Number(octets.join("."));
  const base = Math.floor(address / size) * size;
  return {
    cidr: `${ipv4Text(base)}/${prefix}`,
    prefix,
    gateway: ipv4Text(base + 1),
    first: base + 2,
    last: base + size - 2,
  };
}

/** Of a range that a Node has and nobody has told. */
export const NO_RANGE =
  "the addresses of this backend's machines are the Node's podCIDR (network.cidr: node), and no agent has told one that they may have";

/** The address that was given out last, among the leases, as the CNI plugin host-local has it. */
const LAST_FILE = "last_reserved_ip";

export class Ipam {
  readonly #dir: string;
  /** Undefined until it is known. */
  #subnet: Subnet | undefined;
  /** What the folder holds, read once: nothing else writes there. */
  readonly #read = new Once(() => this.#load());
  /** Address -> machine id. */
  readonly #leases = new Map<string, string>();
  /** The same by machine; of leases without an owner there may be several. */
  readonly #owned = new Map<string, string>();
  /** Where the search starts: right after the last one, so that an address rests before it is used again. */
  #next: number;

  constructor(dir: string, subnet: Subnet | undefined) {
    this.#dir = dir;
    this.#subnet = subnet;
    this.#next = subnet?.first ?? 0;
  }

  /** From now on, addresses are given out of another range. */
  use(subnet: Subnet): void {
    this.#subnet = subnet;
    this.#next = subnet.first;
  }

  /** The machine's address: the one it has, else a new one. @throws ProviderError quota when the range is used up */
  async acquire(machineId: string): Promise<string> {
    await this.#read.get();
    const own = this.#owned.get(machineId);
    if (own !== undefined) return own;
    if (this.#subnet === undefined) throw new ProviderError("unavailable", NO_RANGE);
    const { first, last, cidr } = this.#subnet;
    for (let tried = first; tried <= last; tried++) {
      const candidate = this.#next;
      this.#next = candidate >= last ? first : candidate + 1;
      const address = ipv4Text(candidate);
      if (this.#leases.has(address)) continue;
      if (!(await this.#take(address, machineId))) continue;
      // Without it a next backend would begin with the address that has rested least; that is no reason to fail.
      await writeFile(join(this.#dir, LAST_FILE), address).catch(() => undefined);
      return address;
    }
    throw new ProviderError("quota", `all ${last - first + 1} addresses of network.cidr ${cidr} are in use`);
  }

  /** Another one gives out the addresses: remembers whose this one is. */
  async record(machineId: string, address: string): Promise<void> {
    if ((await this.find(machineId)) === address) return;
    await this.release(machineId);
    // Before it is written: until then the range could move.
    this.#remember(address, machineId);
    try {
      await this.#write(address, machineId, "w");
    } catch (thrown) {
      this.#forget(address, machineId);
      throw thrown;
    }
  }

  async find(machineId: string): Promise<string | undefined> {
    await this.#read.get();
    return this.#owned.get(machineId);
  }

  async release(machineId: string): Promise<void> {
    await this.#read.get();
    const own = this.#owned.get(machineId);
    if (own === undefined) return;
    const theirs = machineId === "" ? [...this.#leases].filter(([, id]) => id === "").map(([each]) => each) : [own];
    for (const address of theirs) {
      await rm(join(this.#dir, address), { force: true });
      this.#leases.delete(address);
    }
    this.#owned.delete(machineId);
  }

  /** Address -> machine id. A lease whose machine was not written yet (killed in between) has no owner: "". */
  async leases(): Promise<ReadonlyMap<string, string>> {
    await this.#read.get();
    return new Map(this.#leases);
  }

  /** @returns false when somebody else has it. @throws when it cannot be written down: then nobody has it */
  async #take(address: string, machineId: string): Promise<boolean> {
    // In the same turn as the look: two machines must not both find it free.
    this.#remember(address, machineId);
    try {
      await this.#write(address, machineId, "wx");
      return true;
    } catch (thrown) {
      this.#forget(address, machineId);
      if (!isTaken(thrown)) throw thrown;
      this.#remember(address, (await readFileIfExists(join(this.#dir, address))) ?? "");
      return false;
    }
  }

  async #write(address: string, machineId: string, flag: "w" | "wx"): Promise<void> {
    const file = join(this.#dir, address);
    try {
      await writeFile(file, machineId, { flag });
    } catch (thrown) {
      // A full disk lets the file be made, and nothing be written to it.
      if (!isTaken(thrown)) await rm(file, { force: true }).catch(() => undefined);
      throw thrown;
    }
  }

  #remember(address: string, machineId: string): void {
    this.#leases.set(address, machineId);
    this.#owned.set(machineId, address);
  }

  #forget(address: string, machineId: string): void {
    this.#owned.delete(machineId);
    this.#leases.delete(address);
  }

  async #load(): Promise<void> {
    await mkdir(this.#dir, { recursive: true });
    for (const name of await readdir(this.#dir)) {
      const text = await readFileIfExists(join(this.#dir, name));
      if (text === undefined) continue;
      if (name === LAST_FILE) this.#next = this.#after(text);
      else if (isIPv4(name)) this.#remember(name, text);
    }
  }

  /** The one to begin with when this text was given out last. */
  #after(address: string): number {
    if (this.#subnet === undefined) return 0;
    const { first, last } = this.#subnet;
    const next = isIPv4(address) ? ipv4Number(address) + 1 : first;
    return next > last || next < first ? first : next;
  }
}

function isTaken(thrown: unknown): boolean {
  return (thrown as NodeJS.ErrnoException).code === "EEXIST";
}
