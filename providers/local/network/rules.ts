/**
 * The nft rules of a bridge: what machines reach, what reaches them, and which ports of this host lead to them.
 * sender-rules.ts has those of the single machine.
 */
import { senderTable } from "./sender-rules.ts";

interface NetworkRules {
  /** Of nftables, in each family. */
  table: string;
  bridgeName: string;
  /** Of the machines. */
  cidr: string;
  /** Of the machines, where they have that too. */
  ipv6Cidr?: string | undefined;
  outbound: "allow" | "deny";
  denyCidrs: readonly string[];
  /** Of machines on other hosts. */
  podCidrs: readonly string[];
  openHostPorts: readonly number[];
  /** Rules of this host see what machines send each other over the bridge (br_netfilter). */
  seesBridged: boolean;
}

/** Pairs of a machine's address with itself. */
const HAIRPINS = "hairpins";
const HAIRPINS_IPV6 = "hairpins6";

/** `ip saddr 10.0.0.0/8`, `ip6 daddr fd00::/8`. */
const end = (which: "saddr" | "daddr", cidr: string) => `${cidr.includes(":") ? "ip6" : "ip"} ${which} ${cidr}`;

/** Replaces the rules in one transaction; sets and maps keep their elements. @returns a script for `nft -f` */
export function networkRules(wanted: NetworkRules): string {
  const { table, bridgeName, cidr, ipv6Cidr, outbound, denyCidrs, podCidrs, openHostPorts, seesBridged } = wanted;
  const own = [cidr, ipv6Cidr ?? []].flat();
  const bridge = `"${bridgeName}"`;
  const ports = `{ ${openHostPorts.join(", ")} }`;
  const denied = denyCidrs.map((denyCidr) => `iifname ${bridge} ${end("daddr", denyCidr)} drop`);
  const open =
    openHostPorts.length === 0 ? [] : [`iifname ${bridge} meta l4proto { tcp, udp } th dport ${ports} accept`];
  const forward = (map: HostPortMap) =>
    `fib daddr type local dnat ${map.endsWith("6") ? "ip6" : "ip"} to ${KEYS[map].of} map @${map}`;
  // A kernel without IPv6 takes no rule that translates its addresses.
  const hasIpv6 = ipv6Cidr !== undefined;
  const chains: Record<string, [family: string, hook: string, rules: string[]]> = {
    forward: [
      "inet",
      "type filter hook forward priority filter; policy accept;",
      [
        `iifname ${bridge} oifname ${bridge} accept`,
        `iifname ${bridge} ct state established,related accept`,
        ...denied,
        ...podCidrs.map((podCidr) => `iifname ${bridge} ${end("daddr", podCidr)} accept`),
        ...(outbound === "allow" ? [] : [`iifname ${bridge} drop`]),
      ],
    ],
    input: [
      "inet",
      "type filter hook input priority filter; policy accept;",
      [
        `iifname ${bridge} ct state established,related accept`,
        // Loopback is routed to the bridge when machines have ports of it: it is not theirs for that.
        `iifname ${bridge} ip daddr 127.0.0.0/8 drop`,
        ...open,
        `iifname ${bridge} drop`,
      ],
    ],
    prerouting: [
      "inet",
      "type nat hook prerouting priority dstnat; policy accept;",
      hostPortMaps(hasIpv6).map((map) => forward(map)),
    ],
    output: [
      "inet",
      "type nat hook output priority -100; policy accept;",
      // The host's own loopback is its programs': of that, machines have what they ask for by address.
      [
        forward("host_ports_at"),
        `ip daddr != 127.0.0.0/8 ${forward("host_ports")}`,
        ...(hasIpv6 ? [forward("host_ports_at6"), `ip6 daddr != ::1 ${forward("host_ports6")}`] : []),
      ],
    ],
    postrouting: [
      "inet",
      "type nat hook postrouting priority srcnat; policy accept;",
      [
        // Between pods there is no other address than a pod's own.
        ...podCidrs.flatMap((podCidr) =>
          own
            .filter((each) => each.includes(":") === podCidr.includes(":"))
            .map((each) => `${end("saddr", each)} ${end("daddr", podCidr)} oifname != ${bridge} accept`),
        ),
        ...own.map((each) => `${end("saddr", each)} oifname != ${bridge} masquerade`),
        `oifname ${bridge} ip saddr . ip daddr @${HAIRPINS} ct status dnat masquerade`,
        ...(hasIpv6 ? [`oifname ${bridge} ip6 saddr . ip6 daddr @${HAIRPINS_IPV6} ct status dnat masquerade`] : []),
        // An answer to what was sent to another address has to come back through these rules. Where they see what is
        // bridged it does so by itself, and a machine is told whose call it is.
        ...(seesBridged ? [] : [`ip saddr ${cidr} ip daddr ${cidr} oifname ${bridge} ct status dnat masquerade`]),
        `ip saddr 127.0.0.0/8 oifname ${bridge} masquerade`,
      ],
    ],
  };
  const lines = [
    // Where earlier versions kept the senders: it would cut off what it does not know.
    `add table bridge ${table}`,
    `delete table bridge ${table}`,
    senderTable(table).trim(),
    `add table inet ${table}`,
    `add set inet ${table} ${HAIRPINS} { type ipv4_addr . ipv4_addr; }`,
    ...(hasIpv6 ? [`add set inet ${table} ${HAIRPINS_IPV6} { type ipv6_addr . ipv6_addr; }`] : []),
    ...hostPortMaps(hasIpv6).map((map) => `add map inet ${table} ${map} { type ${KEYS[map].type} . inet_service; }`),
  ];
  for (const [name, [family, hook, rules]] of Object.entries(chains)) {
    lines.push(`add chain ${family} ${table} ${name} { ${hook} }`, `flush chain ${family} ${table} ${name}`);
    lines.push(...rules.map((rule) => `add rule ${family} ${table} ${name} ${rule}`));
  }
  return `${lines.join("\n")}\n`;
}

/** A machine may call itself by another address. It stays when the machine goes: it is as true of the next one. */
export function hairpinRule(table: string, address: string): string {
  const set = address.includes(":") ? HAIRPINS_IPV6 : HAIRPINS;
  return `add element inet ${table} ${set} { ${address} . ${address} }\n`;
}

type HostPortMap = "host_ports_at" | "host_ports" | "host_ports_at6" | "host_ports6";

/** Of ports of one address alone, and of all of a family: in which order they are asked. */
export function hostPortMaps(hasIpv6: boolean): readonly HostPortMap[] {
  return ["host_ports_at", "host_ports", ...(hasIpv6 ? (["host_ports_at6", "host_ports6"] as const) : [])];
}

const KEYS: Record<HostPortMap, { type: string; of: string }> = {
  host_ports_at: {
    type: "ipv4_addr . inet_proto . inet_service : ipv4_addr",
    of: "ip daddr . meta l4proto . th dport",
  },
  host_ports: { type: "inet_proto . inet_service : ipv4_addr", of: "meta l4proto . th dport" },
  host_ports_at6: {
    type: "ipv6_addr . inet_proto . inet_service : ipv6_addr",
    of: "ip6 daddr . meta l4proto . th dport",
  },
  host_ports6: { type: "inet_proto . inet_service : ipv6_addr", of: "meta l4proto . th dport" },
};

/** Before the key of a port of all IPv6 addresses, as it is known here: nft knows it by its map. */
export const IPV6_KEY = ":: . ";

/**
 * `tcp . 8080`, `127.0.0.1 . tcp . 8080` -> `10.99.0.2 . 80`; `:: . tcp . 8080`, `fd00::5 . tcp . 8080` ->
 * `fd00::2 . 80`.
 */
export function hostPortRule(verb: "add" | "delete", table: string, key: string, target: string): string {
  if (key.startsWith(IPV6_KEY))
    return `${verb} element inet ${table} host_ports6 { ${key.slice(IPV6_KEY.length)} : ${target} }\n`;
  const isOfOne = key.split(" . ").length === 3;
  const map: HostPortMap = !isOfOne ? "host_ports" : key.includes(":") ? "host_ports_at6" : "host_ports_at";
  return `${verb} element inet ${table} ${map} { ${key} : ${target} }\n`;
}
