/** What the kernel remembers of connections (conntrack), which must not lead to the next owner of an address. */
import { serviceKey, type ServicePort } from "../../../src/provider/kit/index.ts";
import type { HostProblem } from "../engine.ts";
import { findTool } from "../host/command.ts";
import { runSoon } from "./tools.ts";

/** `conntrack` when it had nothing to delete. */
const NOTHING_THERE = 1;

/**
 * Forgets all connections from and to a machine that is gone: those of UDP ports of this host would lead on to its
 * address, also when another machine has it. A host without the tool has to wait until they expire.
 */
export async function forgetConnections(address: string): Promise<void> {
  const tool = findTool("conntrack");
  if (tool === undefined) return;
  const family = address.includes(":") ? "ipv6" : "ipv4";
  // From the machine, to it, and to a port of this host that led to it.
  const ends = ["--src", "--dst", "--reply-src"].map((end) => ["--delete", "--family", family, end, address]);
  await Promise.all(ends.map((args) => runSoon(tool, args, { exitCodes: [0, NOTHING_THERE] })));
}

/** So many calls of `conntrack` for one Service; with more, all of its packets' ways are forgotten. */
const MOST_ENDPOINTS = 16;

/**
 * UDP has no end by which the kernel would forget where packets to a Service went: to endpoints that are gone, or
 * nowhere, while there was none (kubernetes: pkg/proxy/conntrack).
 */
export async function forgetServices(
  set: readonly ServicePort[],
  replaced: readonly ServicePort[],
  inPlaceOf: (address: string) => string,
): Promise<void> {
  const tool = findTool("conntrack");
  if (tool === undefined) return;
  const now = new Map(set.map((port) => [serviceKey(port), port]));
  const before = new Map(replaced.map((port) => [serviceKey(port), port]));
  for (const [key, { address, protocol, port }] of new Map([...before, ...now])) {
    if (protocol !== "UDP") continue;
    const there = new Set(now.get(key)?.endpoints.map((each) => inPlaceOf(each.address)));
    const former = before.get(key)?.endpoints.map((each) => inPlaceOf(each.address)) ?? [];
    const gone = former.length === 0 ? [address] : [...new Set(former)].filter((each) => !there.has(each));
    const service = ["--delete", "--proto", "udp", "--orig-dst", address, "--orig-port-dst", String(port)];
    const ways = gone.length > MOST_ENDPOINTS ? [[]] : gone.map((each) => ["--reply-src", each]);
    for (const way of ways) await runSoon(tool, [...service, ...way], { exitCodes: [0, NOTHING_THERE] });
  }
}

export function checkConnections(): HostProblem[] {
  if (findTool("conntrack") !== undefined) return [];
  return [
    {
      fatal: false,
      problem:
        "conntrack is not on the PATH: for up to three minutes, UDP packets to a host port of a machine that is gone go on to its address",
      cure: "install the package conntrack (Debian: apt-get install conntrack)",
    },
  ];
}
