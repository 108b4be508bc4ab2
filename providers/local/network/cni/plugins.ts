/**
 * Runs network plugins (CNI specification 1.1, sections 2 to 5): each is a program that is told by its environment what
 * to do, and by its input how.
 */
import { accessSync, constants } from "node:fs";
import { join } from "node:path";
import { ProviderError } from "../../../../src/provider/kit/index.ts";
import { CommandError, run } from "../../host/command.ts";
import type { NetworkConfig, PluginConfig } from "./configuration.ts";

/** For whom: the same in ADD and DEL. */
export interface PluginCall {
  /** Of the machine, with this network's plugins. */
  containerId: string;
  /** Path of the machine's network namespace; empty when that is gone. */
  netns: string;
  /** `K8S_POD_NAME=web`... by which plugins look the pod up. */
  args: Readonly<Record<string, string>>;
  /** By capability, for the plugins that have it. */
  runtimeConfig: Readonly<Record<string, unknown>>;
}

export interface CniResult {
  interfaces?: { name?: string; mac?: string; sandbox?: string }[];
  ips?: { address: string; gateway?: string; interface?: number }[];
  routes?: { dst: string; gw?: string }[];
}

/** Of the interface in the machine's namespace. */
export const INTERFACE = "eth0";
/** One may wait for the cluster: a route, an address of a pool. */
const END_MS = 120_000;

/**
 * Has each make its part, in order.
 * @returns what the last one says
 * @throws ProviderError unavailable, in a plugin's words
 */
export async function addNetwork(
  network: NetworkConfig,
  binDirs: readonly string[],
  call: PluginCall,
  signal?: AbortSignal,
): Promise<CniResult> {
  let result: CniResult | undefined;
  for (const plugin of network.plugins) {
    const said = await runPlugin("ADD", plugin, { network, binDirs, call, previous: result, signal });
    result = said as CniResult;
  }
  return result!;
}

/** Has each take its part back, the last one first; repeating it is safe. @param result of ADD, where that has ended */
export async function removeNetwork(
  network: NetworkConfig,
  binDirs: readonly string[],
  call: PluginCall,
  result: CniResult | undefined,
): Promise<void> {
  for (const plugin of network.plugins.toReversed())
    await runPlugin("DEL", plugin, { network, binDirs, call, previous: result });
}

async function runPlugin(
  command: "ADD" | "DEL",
  plugin: PluginConfig,
  {
    network,
    binDirs,
    call,
    previous,
    signal,
  }: {
    network: NetworkConfig;
    binDirs: readonly string[];
    call: PluginCall;
    previous: CniResult | undefined;
    signal?: AbortSignal | undefined;
  },
): Promise<unknown> {
  const program = findPlugin(plugin.type, binDirs);
  const { cniVersion, name } = network;
  const wanted = Object.entries(call.runtimeConfig).filter(
    ([capability]) => plugin.capabilities?.[capability] === true,
  );
  const config = {
    ...plugin,
    ...{ cniVersion, name },
    ...(wanted.length > 0 ? { runtimeConfig: Object.fromEntries(wanted) } : {}),
    ...(previous === undefined ? {} : { prevResult: previous }),
  };
  const env = {
    CNI_COMMAND: command,
    CNI_CONTAINERID: call.containerId,
    CNI_NETNS: call.netns,
    CNI_IFNAME: INTERFACE,
    CNI_ARGS: Object.entries({ IgnoreUnknown: "1", ...call.args })
      .map((pair) => pair.join("="))
      .join(";"),
    CNI_PATH: binDirs.join(":"),
  };
  try {
    const { stdout } = await run(program, [], { env, input: JSON.stringify(config), withinMs: END_MS, signal });
    return command === "ADD" ? JSON.parse(stdout.toString()) : undefined;
  } catch (thrown) {
    signal?.throwIfAborted();
    const why = thrown instanceof CommandError ? (complaintIn(thrown.stdout) ?? thrown.message) : String(thrown);
    throw new ProviderError("unavailable", `plugin type="${plugin.type}" failed (${command.toLowerCase()}): ${why}`, {
      cause: thrown,
    });
  }
}

/** What a plugin says is wrong: an error of CNI, as JSON. */
function complaintIn(stdout: string): string | undefined {
  try {
    const { msg, details } = JSON.parse(stdout) as { msg?: string; details?: string };
    return [msg, details].filter(Boolean).join("; ") || undefined;
  } catch {
    return undefined;
  }
}

function findPlugin(type: string, binDirs: readonly string[]): string {
  for (const dir of binDirs) {
    const path = join(dir, type);
    try {
      accessSync(path, constants.X_OK);
      return path;
    } catch {
      // Perhaps in the next.
    }
  }
  throw new ProviderError(
    "unavailable",
    `failed to find plugin ${JSON.stringify(type)} in path [${binDirs.join(" ")}]`,
  );
}
