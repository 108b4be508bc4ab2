/**
 * The network of the host's cluster, as its configuration says (CNI specification 1.1, section 1): of the folder's
 * files the first by name that can be read, as container runtimes take it.
 */
import { join } from "node:path";
import { readdirIfExists, readFileIfExists } from "../../host/files.ts";

/** One plugin's part, which is handed to it whole. */
export interface PluginConfig {
  type: string;
  capabilities?: Record<string, boolean>;
}

export interface NetworkConfig {
  cniVersion: string;
  name: string;
  plugins: PluginConfig[];
}

/** `.conf` and `.json` have a single plugin. */
const NAMES = /\.(?:conflist|conf|json)$/;
const OLDEST_VERSION = /^(?:0\.[34]\.|[1-9]\d*\.)/;

/** @returns why not, where there is none */
export async function readNetwork(dir: string): Promise<NetworkConfig | string> {
  const faults: string[] = [];
  for (const name of (await readdirIfExists(dir)).filter((each) => NAMES.test(each)).toSorted()) {
    const text = await readFileIfExists(join(dir, name));
    if (text === undefined) continue;
    const network = parseNetwork(text);
    if (typeof network !== "string") return network;
    faults.push(`${join(dir, name)}: ${network}`);
  }
  return faults.length > 0 ? faults.join("; ") : `no network config found in ${dir}`;
}

/**
 * @returns what is wrong with it, where something is
 * @internal
 */
export function parseNetwork(text: string): NetworkConfig | string {
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch (thrown) {
    return `it is no JSON: ${(thrown as Error).message}`;
  }
  if (typeof found !== "object" || found === null) return "it is no object";
  const { cniVersion, name, plugins, type } = found as Partial<NetworkConfig & PluginConfig>;
  if (typeof name !== "string" || !/^[a-zA-Z0-9][\w.-]*$/.test(name))
    return "its name is missing, or none of a network";
  if (typeof cniVersion !== "string" || !OLDEST_VERSION.test(cniVersion))
    return `its cniVersion is ${JSON.stringify(cniVersion)}: want 0.3.0 or newer`;
  const list = plugins ?? (type === undefined ? [] : [found]);
  const isPlugin = (each: unknown): each is PluginConfig =>
    typeof (each as PluginConfig | null)?.type === "string" && /^[\w.-]+$/.test((each as PluginConfig).type);
  if (!Array.isArray(list) || list.length === 0 || !list.every(isPlugin)) return "it names no plugins";
  return { cniVersion, name, plugins: list };
}

/** Whether one of its plugins takes that of a runtime (CNI: conventions, capabilities). */
export function hasCapability({ plugins }: NetworkConfig, capability: string): boolean {
  return plugins.some(({ capabilities }) => capabilities?.[capability] === true);
}
