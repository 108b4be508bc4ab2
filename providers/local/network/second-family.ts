/**
 * Dual stack: the IPv6 address that a machine has beside its IPv4 one. It is made of that, so it is never given twice
 * and needs no lease: the eighth address of the one range goes with the eighth of the other.
 *
 * Machines do not see each other's links by it: each knows this host alone, by an entry that does not change (no
 * neighbour discovery, no router advertisements, nothing to forge: CVE-2020-10749), and this host routes. So all of its
 * rules, and a Service's, hold for what goes from one machine to another, with or without br_netfilter.
 */
import { readdir, readFile, writeFile } from "node:fs/promises";
import { ipv4Number, ipv6Text, parseIpv6Range } from "../../../src/provider/kit/index.ts";
import { findTool } from "../host/command.ts";
import { HostError } from "../host/host-error.ts";
import { ip } from "./links.ts";
import { runSoon } from "./tools.ts";

export interface Ipv6Subnet {
  /** `fd00:10:99::/64` */
  cidr: string;
  /** Of this host, on the bridge. */
  gateway: string;
  first: bigint;
}

/** A machine's, and where it sends everything. */
export interface Ipv6Attachment {
  address: string;
  gateway: string;
  /** Of the bridge. */
  gatewayMac: string;
}

const CONF = "/proc/sys/net/ipv6/conf";

/** @param prefix of the IPv4 range that it goes with. @throws HostError that names the cure */
export function parseIpv6Subnet(text: string, prefix: number): Ipv6Subnet {
  const range = parseIpv6Range(text);
  const longest = 128 - (32 - prefix);
  if (range === undefined || range.prefix < 8 || range.prefix > longest)
    throw new HostError(
      `network.cidr ${JSON.stringify(text)}: want, beside the IPv4 range, an IPv6 one with a prefix of 8 to ${longest}, such as fd00:10:99::/64`,
    );
  return { cidr: range.text, gateway: ipv6Text(range.first + 1n), first: range.first };
}

/** The IPv6 address of the machine that has this IPv4 address. */
export function ipv6Of(subnet: { prefix: number; ipv6: Ipv6Subnet }, address: string): string {
  const place = ipv4Number(address) % 2 ** (32 - subnet.prefix);
  return ipv6Text(subnet.ipv6.first + BigInt(place));
}

/** Has this host route. Safe to repeat. */
export async function routeIpv6(bridge: string): Promise<void> {
  if ((await readFile(`${CONF}/all/forwarding`, "utf8")).trim() !== "1") {
    // A router takes no route from another one unless told so (2): this host would lose the way that it has out.
    for (const name of await readdir(CONF)) {
      const file = `${CONF}/${name}/accept_ra`;
      if ((await readFile(file, "utf8")).trim() === "1") await writeFile(file, "2");
    }
    await writeFile(`${CONF}/all/forwarding`, "1");
  }
  await writeFile(`${CONF}/${bridge}/accept_ra`, "0");
}

/** Has a network namespace's eth0 have the address, and nothing but this host as its neighbour. Safe to repeat. */
export async function addIpv6(netns: string, { address, gateway, gatewayMac }: Ipv6Attachment): Promise<void> {
  // It would go past the host when the kernel there redirects it. A host where IPv6 is off gives that on to new
  // namespaces.
  const turnOn = "echo 0 >all/disable_ipv6 && echo 0 >eth0/accept_redirects";
  const script = `cd ${CONF} && ${turnOn} && exec "$0" -batch -`;
  await runSoon("nsenter", [`--net=${netns}`, "sh", "-c", script, findTool("ip")!], {
    input: [
      // There is nobody to ask whether it is taken.
      `address replace ${address}/128 dev eth0 nodad`,
      `neighbour replace ${gateway} lladdr ${gatewayMac} dev eth0 nud permanent`,
      `route replace ${gateway}/128 dev eth0`,
      `route replace default via ${gateway} dev eth0`,
      "",
    ].join("\n"),
  });
}

/** Has this host know where the machine is. @returns lines for `ip -batch`, safe to repeat */
export function neighbours(
  bridge: string,
  { ipv6, mac }: { ipv6?: Ipv6Attachment | undefined; mac: string },
): string[] {
  return ipv6 === undefined ? [] : [`neighbour replace ${ipv6.address} lladdr ${mac} dev ${bridge} nud permanent`];
}

export async function forgetNeighbour(bridge: string, address: string | undefined): Promise<void> {
  if (address === undefined) return;
  // The bridge may be gone, and this with it.
  await ip([`neighbour delete ${address} dev ${bridge}`]).catch(() => undefined);
}
