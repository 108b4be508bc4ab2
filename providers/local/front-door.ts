/**
 * Where a host has one machine, its address is the machine's: what comes to the host from outside goes to the machine.
 * What the host itself serves by TLS stays its own.
 */
import { type Logger, type Machine, type Provider } from "../../src/provider/kit/index.ts";
import { run } from "./host/command.ts";

interface FrontDoorOptions {
  readonly provider: Provider;
  /** The machines' own link. */
  readonly bridge: string;
  /** Ports of the host's own. */
  readonly ownPorts: readonly number[];
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

const TABLE = "vmlet_front_door";

/** Follows the machine until the signal aborts. */
export async function keepFrontDoor({ provider, bridge, ownPorts, logger, signal }: FrontDoorOptions): Promise<void> {
  let shown: string | undefined;
  const follow = async (machines: readonly Machine[]) => {
    const address = machines.flatMap(({ addresses }) => addresses.map(({ ip }) => ip)).find((ip) => !ip.includes(":"));
    if (address === shown) return;
    await run("nft", ["-f", "-"], { input: frontDoorRules({ address, bridge, ownPorts }), signal });
    shown = address;
  };
  try {
    const { items, revision } = await provider.getPods({ labels: {}, signal });
    await follow(items);
    const events = provider.watchPods?.(revision, { labels: {}, signal }) ?? [];
    for await (const { machine } of events) if (machine !== undefined) await follow([machine]);
  } catch (thrown) {
    if (!signal.aborted) logger.error({ err: thrown }, "The machine cannot be reached at this host's address");
  }
}

/** @internal */
export function frontDoorRules({
  address,
  bridge,
  ownPorts,
}: Pick<FrontDoorOptions, "bridge" | "ownPorts"> & { address: string | undefined }): string {
  const lines = [`add table ip ${TABLE}`, `delete table ip ${TABLE}`];
  if (address === undefined) return `${lines.join("\n")}\n`;
  lines.push(
    `add table ip ${TABLE}`,
    `add chain ip ${TABLE} prerouting { type nat hook prerouting priority dstnat + 1; policy accept; }`,
    ...ownPorts.map((port) => `add rule ip ${TABLE} prerouting tcp dport ${port} return`),
    `add rule ip ${TABLE} prerouting iifname != { "lo", "${bridge}" } fib daddr type local dnat to ${address}`,
    // What the machine sends to its own address, which it does not know as such, comes back to it. The bridge's is the
    // host's.
    `add rule ip ${TABLE} prerouting iifname "${bridge}" ip daddr != 127.0.0.0/8 fib daddr . iif type != local fib daddr type local dnat to ${address}`,
  );
  return `${lines.join("\n")}\n`;
}
