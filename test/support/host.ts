/** What this host offers to tests that need more than Node, and unique names on it. */
import { randomBytes } from "node:crypto";
import { checkNetwork } from "../../providers/local/network/check-network.ts";
import type { NetworkOptions } from "../../providers/local/network/network.ts";

/** Why tests that need machine networks cannot run here; undefined when they can. */
export function missingForNetwork(kind: "namespace" | "tap" = "namespace"): string | undefined {
  const problems = checkNetwork(kind);
  return problems.length === 0 ? undefined : problems.map(({ problem }) => problem).join(", ");
}

/** A bridge and a range that nothing else on this host has: tests may run beside each other and beside a real backend. */
export function testNetwork(dir: string): NetworkOptions {
  const [a, b] = randomBytes(2);
  return { dir, bridge: `vt${randomBytes(3).toString("hex")}`, cidr: `10.${200 + (a! % 50)}.${b!}.0/24` };
}

/** The IPv6 range that goes with an IPv4 one of {@link testNetwork}: in canonical form, so that tests compare addresses as text. */
export function secondRange(cidr: string): string {
  const [, second, third] = cidr.split(".");
  return `fd00:99:${second}:f${third}::/64`;
}
