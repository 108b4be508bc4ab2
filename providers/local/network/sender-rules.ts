/**
 * What a machine may put on its link, as text for nft: IPv4 and ARP from its own two addresses, IPv6 from its own one
 * to this host, which routes it (second-family.ts), or on a network of others where neighbours find each other, and
 * nothing else. The rules stand where a frame enters this host (netdev, ingress), before the bridge learns from it,
 * before a group address that bridges keep for themselves hands it past all other rules to the host's own stack, and
 * for whatever shape it has.
 */
import { ipv6Number } from "../../../src/provider/kit/index.ts";
import type { Ipv6Attachment } from "./second-family.ts";

interface SenderLink {
  /** Name of the interface on this host's side. */
  link: string;
  address: string;
  mac: string;
  /** Without a gateway's MAC: neighbours are on the link, and the machine answers for its own addresses alone. */
  ipv6?: Ipv6Attachment | { address: string } | undefined;
}

/** Bridges neither forward nor filter these: IEEE 802.1D, 7.12.6. */
const LINK_LOCAL_GROUPS = "01:80:c2:00:00:00";
const LINK_LOCAL_MASK = "ff:ff:ff:ff:ff:f0";

/** By these a machine would pass for a router, or for another machine. */
const DISCOVERY =
  "{ nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect, mld2-listener-report, mld-listener-report, mld-listener-done }";

/** The table, for the beginning of a script that has chains in it. */
export function senderTable(table: string): string {
  return `add table netdev ${table}\n`;
}

/**
 * Holds the link to the machine's own addresses; what is there already is replaced in one step. The link must exist.
 * @param pass what becomes of the rest: nft's verdict, or a statement that ends its way
 */
export function holdSender(table: string, { link, address, mac, ipv6 }: SenderLink, pass = "accept"): string {
  const rules = [
    // By a look at the type alone: where a tag stands before it, only such a look sees the tag on all kernels
    // (CVE-2021-27853).
    `ether type != { ip, arp${ipv6 === undefined ? "" : ", ip6"} } drop`,
    `ether saddr != ${mac} drop`,
    `ether daddr & ${LINK_LOCAL_MASK} == ${LINK_LOCAL_GROUPS} drop`,
    `ether type ip ip saddr ${address} ${pass}`,
    `ether type arp arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp saddr ether ${mac} arp saddr ip ${address} ${pass}`,
    ...(ipv6 === undefined ? [] : "gatewayMac" in ipv6 ? routed(ipv6, pass) : onLink(ipv6.address, mac, pass)),
  ];
  return [
    `add chain netdev ${table} ${link} { type filter hook ingress device "${link}" priority 0; policy drop; }`,
    `flush chain netdev ${table} ${link}`,
    ...rules.map((rule) => `add rule netdev ${table} ${link} ${rule}`),
    "",
  ].join("\n");
}

const routed = ({ address, gatewayMac }: Ipv6Attachment, pass: string): string[] => [
  `ether type ip6 icmpv6 type ${DISCOVERY} drop`,
  `ether type ip6 ether daddr ${gatewayMac} ip6 saddr ${address} ${pass}`,
];

/**
 * What it answers for is its advertisement's target (RFC 4861, 4.4); older versions of nft have no name for that. Its
 * solicitations are believed as well (7.2.3): by another's link-local address, such as a router's, it would be taken
 * for it.
 */
function onLink(address: string, mac: string, pass: string): string[] {
  const own = [address, linkLocalOf(mac)];
  const target = (each: string) => `0x${ipv6Number(each).toString(16).padStart(32, "0")}`;
  return [
    `ether type ip6 icmpv6 type { nd-router-solicit, nd-router-advert, nd-redirect } drop`,
    ...own.map(
      (each) => `ether type ip6 icmpv6 type nd-neighbor-advert ip6 saddr ${each} @th,64,128 ${target(each)} ${pass}`,
    ),
    `ether type ip6 icmpv6 type nd-neighbor-advert drop`,
    `ether type ip6 ip6 saddr { ${own.join(", ")}, :: } ${pass}`,
  ];
}

/** As Linux makes it of a MAC (RFC 4291, appendix A). */
function linkLocalOf(mac: string): string {
  const [a, b, c, d, e, f] = mac.split(":").map((byte) => Number.parseInt(byte, 16));
  const groups = [((a! ^ 2) << 8) | b!, (c! << 8) | 0xff, 0xfe00 | d!, (e! << 8) | f!];
  return `fe80::${groups.map((group) => group.toString(16)).join(":")}`;
}

/** Forgets a chain whose link is gone. Some kernels have done so by then, others wait for a link of the same name. */
export function forgetLink(table: string, name: string): string {
  const chain = `chain netdev ${table} ${name}`;
  return `${senderTable(table)}add ${chain}\nflush ${chain}\ndelete ${chain}\n`;
}
