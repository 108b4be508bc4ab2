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

/** Replaces the rules in one transaction; sets and maps keep their elements. @returns a script for `nft -f` */
export function networkRules(wanted: NetworkRules): string {
  const { table, bridgeName, cidr, outbound, denyCidrs, podCidrs, openHostPorts, seesBridged } = wanted;
  const bridge = `"${bridgeName}"`;
  const ports = `{ ${openHostPorts.join(", ")} }`;
  const denied = denyCidrs.map((denyCidr) => `iifname ${bridge} ip daddr ${denyCidr} drop`);
  const open =
    openHostPorts.length === 0 ? [] : [`iifname ${bridge} meta l4proto { tcp, udp } th dport ${ports} accept`];
  const forwards = HOST_PORT_MAPS.map((map) => `fib daddr type local dnat ip to ${KEYS[map].of} map @${map}`);
  const chains: Record<string, [family: string, hook: string, rules: string[]]> = {
    forward: [
      "inet",
      "type filter hook forward priority filter; policy accept;",
      [
        `iifname ${bridge} oifname ${bridge} accept`,
        `iifname ${bridge} ct state established,related accept`,
        ...denied,
        ...podCidrs.map((podCidr) => `iifname ${bridge} ip daddr ${podCidr} accept`),
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
    prerouting: ["inet", "type nat hook prerouting priority dstnat; policy accept;", forwards],
    output: [
      "inet",
      "type nat hook output priority -100; policy accept;",
      // The host's own loopback is its programs': of that, machines have what they ask for by address.
      [forwards[0]!, `ip daddr != 127.0.0.0/8 ${forwards[1]!}`],
    ],
    postrouting: [
      "inet",
      "type nat hook postrouting priority srcnat; policy accept;",
      [
        // Between pods there is no other address than a pod's own.
        ...podCidrs.map((podCidr) => `ip saddr ${cidr} ip daddr ${podCidr} oifname != ${bridge} accept`),
        `ip saddr ${cidr} oifname != ${bridge} masquerade`,
        `oifname ${bridge} ip saddr . ip daddr @${HAIRPINS} ct status dnat masquerade`,
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
    ...HOST_PORT_MAPS.map(
      (map) => `add map inet ${table} ${map} { type ${KEYS[map].type} : ipv4_addr . inet_service; }`,
    ),
  ];
  for (const [name, [family, hook, rules]] of Object.entries(chains)) {
    lines.push(`add chain ${family} ${table} ${name} { ${hook} }`, `flush chain ${family} ${table} ${name}`);
    lines.push(...rules.map((rule) => `add rule ${family} ${table} ${name} ${rule}`));
  }
  return `${lines.join("\n")}\n`;
}

/** A machine may call itself by another address. It stays when the machine goes: it is as true of the next one. */
export function hairpinRule(table: string, address: string): string {
  return `add element inet ${table} ${HAIRPINS} { ${address} . ${address} }\n`;
}

/** Of ports of one address alone, and of ports of all: which of them is asked first. */
export const HOST_PORT_MAPS = ["host_ports_at", "host_ports"] as const;

const KEYS: Record<(typeof HOST_PORT_MAPS)[number], { type: string; of: string }> = {
  host_ports_at: { type: "ipv4_addr . inet_proto . inet_service", of: "ip daddr . meta l4proto . th dport" },
  host_ports: { type: "inet_proto . inet_service", of: "meta l4proto . th dport" },
};

/** `tcp . 8080`, or `127.0.0.1 . tcp . 8080` -> `10.99.0.2 . 80`. */
export function hostPortRule(verb: "add" | "delete", table: string, key: string, target: string): string {
  const map = key.split(" . ").length === 3 ? "host_ports_at" : "host_ports";
  return `${verb} element inet ${table} ${map} { ${key} : ${target} }\n`;
}
