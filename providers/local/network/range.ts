/** The range of a bridge's addresses: the one of the configuration, or that of a Node, which is told. */
import { readFileSync } from "node:fs";
import { BlockList } from "node:net";
import { join } from "node:path";
import { inRanges, parseIpv4Range, parseIpv6Range, ProviderError } from "../../../src/provider/kit/index.ts";
import { isMissing, readFileIfExists, writeFileAtomic } from "../host/files.ts";
import { HostError } from "../host/host-error.ts";
import { hostsOwn, hostsOwnIpv6 } from "./host-ranges.ts";
import { NO_RANGE, parseSubnet, rangeText, type Subnet } from "./ipam.ts";
import { runSoon } from "./tools.ts";

export const DEFAULT_CIDR = "10.99.0.0/16";
/** In place of a range: the one that the Node has. */
export const OF_THE_NODE = "node";

export class BridgeRange {
  readonly #file: string;
  readonly #isNodes: boolean;
  #subnet: Subnet | undefined;
  /** That of the Node, as it was told. */
  #wanted: Subnet | undefined;

  /** @param dir where it is written down of which range addresses were given out */
  constructor(dir: string, cidr: string = DEFAULT_CIDR) {
    this.#file = join(dir, "range");
    this.#isNodes = cidr === OF_THE_NODE;
    this.#subnet = this.#isNodes ? this.#former() : parseSubnet(cidr);
  }

  /** Of which addresses are given out; undefined until a Node's is told. */
  get subnet(): Subnet | undefined {
    return this.#subnet;
  }

  /** Whether machines have IPv6 addresses; false while their range is not known. */
  get hasIpv6(): boolean {
    return this.#subnet?.ipv6 !== undefined;
  }

  /** @throws ProviderError unavailable while it is not known */
  get inUse(): Subnet {
    if (this.#subnet === undefined) throw new ProviderError("unavailable", NO_RANGE);
    return this.#subnet;
  }

  /** Why new machines get no addresses yet; undefined when they do. */
  get waitsFor(): string | undefined {
    if (!this.#isNodes) return undefined;
    if (this.#subnet === undefined) return NO_RANGE;
    if (this.#wanted === undefined || this.next === undefined) return undefined;
    return `machines still have addresses of ${rangeText(this.#subnet)}: new ones wait until they are deleted, and then get theirs of the Node's podCIDR ${rangeText(this.#wanted)}`;
  }

  /** Of a Node: takes effect when nothing has an address of the one in use. */
  want(cidr: string): void {
    this.#wanted = parseSubnet(cidr);
  }

  /** What is wanted, unless it is in use already. */
  get next(): Subnet | undefined {
    const isInUse = this.#wanted && this.#subnet && rangeText(this.#wanted) === rangeText(this.#subnet);
    return isInUse === true ? undefined : this.#wanted;
  }

  /** From now on addresses are of this one. Nothing may have one. */
  take(subnet: Subnet | undefined): void {
    this.#subnet = subnet;
  }

  /** @throws HostError for an address of another range: the runtime's plugin has not known of this one yet */
  assertHas(address: string): void {
    const { cidr } = this.inUse;
    if (!inRanges([cidr])(address))
      throw new HostError(`the runtime's network has given out ${address}, which is not in ${cidr}: it is asked again`);
  }

  /** A bridge whose leases were given out of another range would route wrongly: say so instead. */
  async claim(leases: number): Promise<void> {
    const cidr = rangeText(this.inUse);
    const before = await readFileIfExists(this.#file);
    if (before !== undefined && before !== cidr && leases > 0)
      throw new HostError(
        `network.cidr: machines still have addresses of ${before}; delete them before the range becomes ${cidr}`,
      );
    if (before !== cidr) await writeFileAtomic(this.#file, cidr);
  }

  /** If something else has a machine's address, either it or the machine would not be reached. */
  async assertOwn(bridge: string): Promise<void> {
    if (this.#subnet === undefined) return;
    const { cidr, prefix, ipv6 } = this.#subnet;
    const where = this.#isNodes ? "the Node's podCIDR" : "network.cidr";
    const ipv6Fault = ipv6 && hostsOwnIpv6(parseIpv6Range(ipv6.cidr)!, bridge);
    if (ipv6Fault !== undefined) throw new HostError(`${where} ${ipv6!.cidr}: ${ipv6Fault}: choose another range`);
    if (this.#isNodes) {
      const fault = hostsOwn(parseIpv4Range(cidr)!, bridge);
      if (fault === undefined) return;
      throw new HostError(`${where} ${cidr}: ${fault}`);
    }
    const range = new BlockList();
    range.addSubnet(cidr.split("/")[0]!, prefix);
    const { stdout } = await runSoon("ip", ["-json", "-4", "address", "show"]);
    const interfaces = JSON.parse(stdout.toString("utf8")) as { ifname?: string; addr_info?: { local: string }[] }[];
    // Old versions of ip print an empty object for an interface without addresses.
    for (const { ifname, addr_info: addresses = [] } of interfaces) {
      const taken = addresses.find(({ local }) => range.check(local));
      if (ifname !== bridge && taken !== undefined)
        throw new HostError(`${where} ${cidr}: this host has ${taken.local} on ${ifname}: choose another range`);
    }
  }

  /** Of the machines that a former backend has left. */
  #former(): Subnet | undefined {
    try {
      return parseSubnet(readFileSync(this.#file, "utf8"));
    } catch (thrown) {
      if (isMissing(thrown)) return undefined;
      throw thrown;
    }
  }
}
