/**
 * The nft rules by which machines reach the cluster's Services, as kube-proxy has them (kubernetes:
 * pkg/proxy/nftables): a map from address, protocol and port to a chain, which leads on to one of the endpoints. Of
 * IPv4.
 */
import { type ServiceAddress, serviceKey, type ServicePort } from "../../../src/provider/kit/index.ts";

interface ServiceTableNames {
  /** Of nftables, family `ip`. */
  table: string;
  /** The machines' link. */
  bridge: string;
}

/** Leads to what this host has at its own address, where that is the machine's: see front-door.ts. */
type InPlaceOf = (address: string) => string;

/** Of the callers of one Service. */
const MOST_CALLERS = 65_535;

/** @returns a script for `nft -f`, in place of all that there was */
export function allServiceRules(names: ServiceTableNames, ports: readonly ServicePort[], inPlaceOf: InPlaceOf): string {
  const { table, bridge } = names;
  const called = "ip daddr . meta l4proto . th dport";
  const lead = `${called} vmap @services`;
  const refuse = `${called} @idle reject`;
  const rule = (chain: string, text: string) => `add rule ip ${table} ${chain} ${text}`;
  return [
    `add table ip ${table}`,
    `delete table ip ${table}`,
    `add table ip ${table}`,
    `add map ip ${table} services { type ipv4_addr . inet_proto . inet_service : verdict; }`,
    `add set ip ${table} idle { type ipv4_addr . inet_proto . inet_service; }`,
    // Before those of the bridge and of the host: what they have for an address of this host is no Service.
    `add chain ip ${table} prerouting { type nat hook prerouting priority dstnat - 5; policy accept; }`,
    rule("prerouting", `iifname "${bridge}" ${lead}`),
    // Of machines on the host's own network.
    `add chain ip ${table} output { type nat hook output priority -105; policy accept; }`,
    rule("output", lead),
    `add chain ip ${table} forward { type filter hook forward priority filter - 5; policy accept; }`,
    rule("forward", `iifname "${bridge}" ${refuse}`),
    `add chain ip ${table} unreached { type filter hook output priority filter - 5; policy accept; }`,
    rule("unreached", refuse),
    ...ports.flatMap((port) => changeOf(table, { to: port }, inPlaceOf)),
    "",
  ].join("\n");
}

/** @returns a script for `nft -f` that changes these alone, all at once */
export function changedServiceRules(
  { table }: ServiceTableNames,
  { set, replaced }: { set: readonly ServicePort[]; replaced: readonly ServicePort[] },
  inPlaceOf: InPlaceOf,
): string {
  const before = new Map(replaced.map((port) => [serviceKey(port), port]));
  const lines = set.flatMap((to) => changeOf(table, { from: before.get(serviceKey(to)), to }, inPlaceOf));
  for (const port of set) before.delete(serviceKey(port));
  for (const from of before.values()) lines.push(...changeOf(table, { from }, inPlaceOf));
  return [...lines, ""].join("\n");
}

interface Endpoint {
  address: string;
  port: number;
}

/** What one Service's port has in the table. */
interface Made {
  /** Of all callers, and of those who have called it before: by the endpoint. */
  chains: Map<string, string[]>;
  sets: Map<string, number>;
}

function changeOf(
  table: string,
  { from, to }: { from?: ServicePort | undefined; to?: ServicePort },
  inPlaceOf: InPlaceOf,
): string[] {
  const { chains: formerChains, sets: formerSets } = made(from, inPlaceOf);
  const { chains, sets } = made(to, inPlaceOf);
  const key = nftKey((to ?? from)!);
  const chain = chainOf((to ?? from)!);
  const element = (verb: string, set: string, value: string) => `${verb} element ip ${table} ${set} { ${value} }`;
  const goes = (name: string, known: ReadonlyMap<string, unknown>) => !known.has(name);
  return [
    ...[...chains.keys()].map((name) => `add chain ip ${table} ${name}`),
    ...[...new Set([...formerChains.keys(), ...chains.keys()])].map((name) => `flush chain ip ${table} ${name}`),
    ...[...sets].map(
      ([name, seconds]) =>
        `add set ip ${table} ${name} { type ipv4_addr; size ${MOST_CALLERS}; flags dynamic,timeout; timeout ${seconds}s; }`,
    ),
    ...[...chains].flatMap(([name, rules]) => rules.map((rule) => `add rule ip ${table} ${name} ${rule}`)),
    ...(isLed(to) === isLed(from) ? [] : [element(isLed(to) ? "add" : "delete", "services", `${key} : goto ${chain}`)]),
    ...(isIdle(to) === isIdle(from) ? [] : [element(isIdle(to) ? "add" : "delete", "idle", key)]),
    ...[...formerChains.keys()].filter((name) => goes(name, chains)).map((name) => `delete chain ip ${table} ${name}`),
    ...[...formerSets.keys()].filter((name) => goes(name, sets)).map((name) => `delete set ip ${table} ${name}`),
  ];
}

const isLed = (port: ServicePort | undefined): boolean => port !== undefined && port.endpoints.length > 0;
const isIdle = (port: ServicePort | undefined): boolean => port !== undefined && port.endpoints.length === 0;

function made(port: ServicePort | undefined, inPlaceOf: InPlaceOf): Made {
  const chains = new Map<string, string[]>();
  const sets = new Map<string, number>();
  if (port === undefined || port.endpoints.length === 0) return { chains, sets };
  const { protocol, affinity_s: seconds } = port;
  const endpoints = port.endpoints.map((each) => ({ address: inPlaceOf(each.address), port: each.port }));
  const chain = chainOf(port);
  const said = `meta l4proto ${protocol.toLowerCase()} dnat ip to`;
  if (seconds === undefined) {
    const to = endpoints.map(({ address, port: at }, index) => `${index} : ${address} . ${at}`);
    chains.set(chain, [`${said} ${byChance(endpoints)} map { ${to.join(", ")} }`]);
    return { chains, sets };
  }
  const own = endpoints.map((each) => ({ ...each, name: `${chain}_to_${dotless(each.address)}_${each.port}` }));
  for (const { name, address, port: at } of own) {
    // A set's time cannot be changed, so another one has another name.
    const callers = `${name}_${seconds}`;
    sets.set(callers, seconds);
    chains.set(name, [`update @${callers} { ip saddr }`, `${said} ${address}:${at}`]);
  }
  const again = own.map(({ name }) => `ip saddr @${name}_${seconds} goto ${name}`);
  const verdicts = own.map(({ name }, index) => `${index} : goto ${name}`);
  chains.set(chain, [...again, `${byChance(endpoints)} vmap { ${verdicts.join(", ")} }`]);
  return { chains, sets };
}

const byChance = (endpoints: readonly Endpoint[]): string => `numgen random mod ${endpoints.length}`;

const dotless = (address: string): string => address.replaceAll(".", "_");

const chainOf = ({ address, protocol, port }: ServiceAddress): string =>
  `to_${dotless(address)}_${protocol.toLowerCase()}_${port}`;

const nftKey = ({ address, protocol, port }: ServiceAddress): string =>
  `${address} . ${protocol.toLowerCase()} . ${port}`;
