/**
 * Where a host has one machine, the host's address is the machine's: what comes to the host from outside goes to the
 * machine, which has that address as one of its own. What the host itself serves by TLS stays its own.
 */
import { readFile } from "node:fs/promises";
import { networkInterfaces } from "node:os";
import type { Clock, Logger } from "../../../src/provider/kit/index.ts";
import { findTool } from "../host/command.ts";
import { runSoon } from "./tools.ts";

interface FrontDoorOptions {
  /** The machines' own link. */
  readonly bridge: string;
  /** Of the host's own. */
  readonly ownPorts: readonly number[];
  /** Called before a machine is told the host's address, by which its own Services lead to it. */
  readonly onLead?: ((outside: string, inside: string) => Promise<void>) | undefined;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** As the host's network has made the machine's. */
interface Behind {
  /** On that bridge. */
  address: string;
  /** Path of the machine's network namespace. */
  netns: string;
}

const TABLE = "vmlet_front_door";
/** A host may boot while its machine is made. */
const WAIT_MS = 10_000;
const LOOK_EVERY_MS = 100;

export class FrontDoor {
  readonly #options: FrontDoorOptions;

  constructor(options: FrontDoorOptions) {
    this.#options = options;
  }

  /**
   * Repeating it is safe.
   * @returns what the machine is told as its address: the host's, or its own where it cannot have that
   */
  async lead({ address, netns }: Behind, signal?: AbortSignal): Promise<string> {
    const { bridge, ownPorts, onLead, logger } = this.#options;
    await runSoon("nft", ["-f", "-"], { input: hostRules({ address, bridge, ownPorts }), signal });
    const outside = await this.#addressOfHost(signal);
    if (outside === undefined) {
      logger.warn({ address }, "This host has no address yet: its machine is told that on its bridge");
      return address;
    }
    await giveAddress({ address, netns }, outside, signal);
    await onLead?.(outside, address);
    return outside;
  }

  async #addressOfHost(signal: AbortSignal | undefined): Promise<string | undefined> {
    const { clock } = this.#options;
    const deadline = clock.monotonic() + WAIT_MS;
    for (;;) {
      const link = defaultLink(await readFile("/proc/net/route", "utf8"));
      const address = networkInterfaces()[link ?? ""]?.find(({ family }) => family === "IPv4")?.address;
      if (address !== undefined || clock.monotonic() >= deadline) return address;
      await clock.sleep(LOOK_EVERY_MS, signal);
    }
  }
}

/**
 * Has the machine have that address, and send from it. So does what answers by UDP from a socket of all addresses,
 * which takes the address that routes say; of another one an answer is none.
 * @internal
 */
export async function giveAddress({ address, netns }: Behind, outside: string, signal?: AbortSignal): Promise<void> {
  const inside = async (tool: string, args: readonly string[], input?: string) =>
    await runSoon("nsenter", [`--net=${netns}`, findTool(tool) ?? tool, ...args], { input, signal });
  await inside("ip", ["address", "replace", `${outside}/32`, "dev", "eth0"]);
  const { stdout } = await inside("ip", ["-4", "route", "show", "dev", "eth0"]);
  await inside("ip", ["-batch", "-"], routesFrom(stdout.toString("utf8"), outside));
  await inside("nft", ["-f", "-"], machineRules({ address, outside }));
}

/** @param routes as `ip route show dev eth0` has them */
function routesFrom(routes: string, outside: string): string {
  const lines = routes.split("\n").filter((line) => line !== "");
  return lines.map((line) => `route replace ${line.replace(/ src \S+/, "").trim()} dev eth0 src ${outside}\n`).join("");
}

/** Of Linux' own table: the link by which the host reaches what it does not know. @internal */
export function defaultLink(routes: string): string | undefined {
  return routes
    .split("\n")
    .slice(1)
    .map((line) => line.split("\t"))
    .find(([, destination, , , , , , mask]) => destination === "00000000" && mask === "00000000")?.[0];
}

const replaced = (rules: readonly string[]) =>
  [`add table ip ${TABLE}`, `delete table ip ${TABLE}`, `add table ip ${TABLE}`, ...rules, ""].join("\n");

/** @internal */
export function hostRules({
  address,
  bridge,
  ownPorts,
}: Pick<FrontDoorOptions, "bridge" | "ownPorts"> & Pick<Behind, "address">): string {
  return replaced([
    `add chain ip ${TABLE} prerouting { type nat hook prerouting priority dstnat + 1; policy accept; }`,
    ...ownPorts.map((port) => `add rule ip ${TABLE} prerouting tcp dport ${port} return`),
    `add rule ip ${TABLE} prerouting iifname != { "lo", "${bridge}" } fib daddr type local dnat to ${address}`,
    // What the machine sends to an address of the host's by another way, as a Service's, comes back to it. The bridge's
    // is the host's.
    `add rule ip ${TABLE} prerouting iifname "${bridge}" ip daddr != 127.0.0.0/8 fib daddr . iif type != local fib daddr type local dnat to ${address}`,
  ]);
}

/**
 * Between the address that the machine has on its bridge and the one that it is told: its programs may listen at that,
 * and send from it. After the rules of its own: what those have settled is left alone.
 * @internal
 */
export function machineRules({ address, outside }: { address: string; outside: string }): string {
  return replaced([
    `add chain ip ${TABLE} prerouting { type nat hook prerouting priority dstnat + 10; policy accept; }`,
    `add rule ip ${TABLE} prerouting ip daddr ${address} dnat to ${outside}`,
    `add chain ip ${TABLE} postrouting { type nat hook postrouting priority srcnat + 10; policy accept; }`,
    `add rule ip ${TABLE} postrouting oifname != "lo" ip saddr ${outside} snat to ${address}`,
  ]);
}
