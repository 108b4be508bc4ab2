/** What this host has of a range of addresses already, apart from the machines' bridge: machines cannot have it too. */
import { readFileSync } from "node:fs";
import { networkInterfaces } from "node:os";
import {
  containsRange,
  ipv4Number,
  type Ipv4Range,
  ipv4Text,
  type Ipv6Range,
  ipv6Text,
  overlaps,
  parseIpv4Range,
  parseIpv6Range,
} from "../../../src/provider/kit/index.ts";
import { isMissing } from "../host/files.ts";

interface HostUse {
  interfaces: NodeJS.Dict<readonly { family: string; address: string; cidr: string | null }[]>;
  /** Of IPv4 /proc/net/route, of IPv6 /proc/net/ipv6_route. */
  routes: string;
}

/** Why machines on `bridge` cannot have the range; undefined when they can. */
export function hostsOwn(range: Ipv4Range, bridge: string, host = hostUse()): string | undefined {
  for (const [name, addresses = []] of Object.entries(host.interfaces)) {
    const own = name === bridge ? undefined : addresses.find((address) => isInTheWay(address, range));
    if (own !== undefined) return `this host has ${own.cidr ?? own.address} on ${name}`;
  }
  for (const line of host.routes.split("\n").slice(1)) {
    const [name = "", destination = "", , , , , , mask = ""] = line.trim().split(/\s+/);
    if (!/^[0-9A-F]{8}$/i.test(destination) || !/^[0-9A-F]{8}$/i.test(mask)) continue;
    const prefix = onesOf(mask);
    const route = parseIpv4Range(`${addressOf(destination)}/${prefix}`);
    // A wider one is how the cluster's other hosts are reached: that of the bridge goes before it.
    if (route !== undefined && name !== bridge && containsRange(range, route))
      return `this host has a route to ${route.text} by ${name}`;
  }
  return undefined;
}

/** Why machines on `bridge` cannot have the IPv6 range; undefined when they can. */
export function hostsOwnIpv6(
  range: Ipv6Range,
  bridge: string,
  host: HostUse = { interfaces: networkInterfaces(), routes: tableOf("/proc/net/ipv6_route") },
): string | undefined {
  for (const [name, addresses = []] of Object.entries(host.interfaces)) {
    if (name === bridge) continue;
    const own = addresses.find(({ family, address, cidr }) => {
      const network = family === "IPv6" ? parseIpv6Range(cidr ?? `${address}/128`) : undefined;
      return network !== undefined && overlaps(network, range);
    });
    if (own !== undefined) return `this host has ${own.cidr ?? own.address} on ${name}`;
  }
  for (const line of host.routes.split("\n")) {
    const [destination = "", prefix = "", ...rest] = line.trim().split(/\s+/);
    const name = rest.at(-1) ?? "";
    if (!/^[0-9a-f]{32}$/.test(destination) || !/^[0-9a-f]{2}$/.test(prefix)) continue;
    const route = parseIpv6Range(`${ipv6Text(BigInt(`0x${destination}`))}/${Number.parseInt(prefix, 16)}`);
    // By loopback the kernel lists what it refuses, and what is its own.
    if (route !== undefined && name !== bridge && name !== "lo" && containsRange(range, route))
      return `this host has a route to ${route.text} by ${name}`;
  }
  return undefined;
}

/** The range's own first address alone is nobody's: VXLAN interfaces have it (flannel). */
function isInTheWay(
  { family, address, cidr }: { family: string; address: string; cidr: string | null },
  range: Ipv4Range,
) {
  if (family !== "IPv4") return false;
  const network = parseIpv4Range(cidr ?? `${address}/32`);
  if (network === undefined || !overlaps(network, range)) return false;
  return network.prefix !== 32 || ipv4Number(address) !== range.first;
}

function hostUse(): HostUse {
  return { interfaces: networkInterfaces(), routes: tableOf("/proc/net/route") };
}

function tableOf(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (thrown) {
    if (isMissing(thrown)) return "";
    throw thrown;
  }
}

/** The kernel prints addresses in its own order of bytes. */
const addressOf = (hex: string): string => ipv4Text(Buffer.from(hex, "hex").readUInt32LE());

function onesOf(mask: string): number {
  return Number.parseInt(mask, 16).toString(2).replaceAll("0", "").length;
}
