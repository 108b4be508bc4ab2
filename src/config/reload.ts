/**
 * (pure) What a configuration that was read again means for a process that runs by the one before: what it takes over,
 * and what only a new process can.
 */
import { isDeepStrictEqual } from "node:util";
import type { AgentConfig, NodeConfig } from "./schema.ts";

/** Of the whole process; the others are for as long as it runs: what they say was used when it was put together. */
const PROCESS_FIELDS: readonly (keyof AgentConfig)[] = ["api", "nodes"];
/** The Node is written again, and everything else of it goes on: sessions, work on pods. */
const NODE_OBJECT_FIELDS: readonly (keyof NodeConfig)[] = [
  "labels",
  "annotations",
  "taints",
  "capacity",
  "backendOutageGrace",
];
/**
 * How a backend is spoken to may change. Which one it is may not: machines that the new one does not have would be
 * taken for lost, and those of the old one be nobody's.
 */
const PROVIDER_FIELDS: readonly string[] = [
  "tokenFile",
  "caFile",
  "certFile",
  "keyFile",
  "concurrency",
  "requestsPerSecond",
];

interface Reload {
  /** The new configuration, with what cannot change as it was. */
  config: AgentConfig;
  /** Fields that differ and cannot change while the process runs. */
  kept: string[];
}

export function reload(before: AgentConfig, after: AgentConfig): Reload {
  const kept: string[] = [];
  const ofProcess = pick(after, PROCESS_FIELDS);
  kept.push(...differences(omit(before, PROCESS_FIELDS), omit(after, PROCESS_FIELDS)));
  const nodes = after.nodes.map((node) => {
    const old = before.nodes.find(({ name }) => name === node.name)?.provider;
    if (old === undefined) return node;
    const provider = keepProvider(old, node.provider);
    kept.push(...differences(provider, node.provider, `nodes[${node.name}].provider`));
    return { ...node, provider };
  });
  return { config: { ...before, ...ofProcess, nodes }, kept };
}

function keepProvider(before: NodeConfig["provider"], after: NodeConfig["provider"]): NodeConfig["provider"] {
  // What a module or the memory of this process was told, it was told once.
  if (before.type !== "http-vm" || after.type !== "http-vm") return before;
  return { ...omit(before, PROVIDER_FIELDS), ...pick(after, PROVIDER_FIELDS) } as NodeConfig["provider"];
}

/** What has to be made again of a node whose configuration changed. */
export function nodeChange(before: NodeConfig, after: NodeConfig): "nothing" | "node-object" | "everything" {
  if (isDeepStrictEqual(before, after)) return "nothing";
  const rest = (node: NodeConfig) => omit(node, NODE_OBJECT_FIELDS);
  return isDeepStrictEqual(rest(before), rest(after)) ? "node-object" : "everything";
}

/** The fields of a node that `nodeChange` calls its object's. */
export function nodeObjectFields(node: NodeConfig): Partial<NodeConfig> {
  // Also what is absent now.
  return Object.fromEntries(NODE_OBJECT_FIELDS.map((field) => [field, node[field]]));
}

/** Names of the fields in which two values differ, as deep as both are mappings. */
function differences(before: unknown, after: unknown, field = ""): string[] {
  if (isDeepStrictEqual(before, after)) return [];
  if (!isMapping(before) || !isMapping(after)) return [field];
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((key) =>
    differences(before[key], after[key], field === "" ? key : `${field}.${key}`),
  );
}

const isMapping = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const pick = <T extends object>(value: T, keys: readonly string[]): Partial<T> =>
  Object.fromEntries(Object.entries(value).filter(([key]) => keys.includes(key))) as Partial<T>;

const omit = <T extends object>(value: T, keys: readonly string[]): Partial<T> =>
  Object.fromEntries(Object.entries(value).filter(([key]) => !keys.includes(key))) as Partial<T>;
