/**
 * Reads the configuration: file < environment < flags, checked once, with every complaint naming the place in the file.
 * The only folder that reads the environment.
 */
import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { LineCounter, isMap, isNode, parseDocument, type Document } from "yaml";
import type { z } from "zod";
import { VmletError, toError } from "../util/errors.ts";
import { didYouMean } from "../util/nearest.ts";
import { faultOf, oneOf } from "./faults.ts";
import { agentConfigSchema, type AgentConfig } from "./schema.ts";

/**
 * The configuration is wrong: the message lists each fault with file, line and field. The process should end with
 * status 2.
 */
export class ConfigError extends VmletError {
  readonly code = "CONFIG";
}

/**
 * Does what the configuration asks for under `field`, whose owner has to change it if that cannot be done.
 * @throws ConfigError
 */
export async function configuredBy<T>(field: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (thrown) {
    throw new ConfigError(`${field}: ${toError(thrown).message}${cureOf(thrown)}`, { cause: thrown });
  }
}

/** A kubelet has these on every host that is a node, and they are the defaults here. */
const KUBELET_PORTS: readonly unknown[] = [10_248, 10_250];

/** Of a port that is taken. */
function cureOf(thrown: unknown): string {
  const { code, port } = thrown as { code?: unknown; port?: unknown };
  if (code !== "EADDRINUSE") return "";
  return KUBELET_PORTS.includes(port)
    ? "; a kubelet of this host has this port too: set another"
    : "; set another port, or end what has it";
}

/** What flags may set; undefined leaves file and environment alone. */
export interface ConfigOverrides {
  kubeconfig?: string | undefined;
  clusterId?: string | undefined;
  logLevel?: string | undefined;
  nodeName?: string | undefined;
  nodeAddress?: string | undefined;
}

/** Environment variables and the override each one is. */
export const ENVIRONMENT: Readonly<Record<string, keyof ConfigOverrides>> = {
  VMLET_KUBECONFIG: "kubeconfig",
  VMLET_CLUSTER_ID: "clusterId",
  VMLET_LOG_LEVEL: "logLevel",
  VMLET_NODE_NAME: "nodeName",
  VMLET_NODE_ADDRESS: "nodeAddress",
};

/**
 * @returns the configuration, in which a provider module's relative path has become one from the file's folder
 * @throws ConfigError
 */
export function loadConfig(
  path: string,
  flags: ConfigOverrides,
  environment: NodeJS.ProcessEnv = process.env,
): AgentConfig {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (thrown) {
    throw new ConfigError(`cannot read the configuration file ${path}: ${toError(thrown).message}`, { cause: thrown });
  }
  return parseLoaded(text, path, flags, environment);
}

/** What `loadConfig` makes of a file's text. @throws ConfigError */
export function parseLoaded(
  text: string,
  path: string,
  flags: ConfigOverrides,
  environment: NodeJS.ProcessEnv = process.env,
): AgentConfig {
  refuseMisspelt(environment);
  const overrides: ConfigOverrides = {};
  const origins: Origins = {};
  for (const [variable, key] of Object.entries(ENVIRONMENT)) {
    const value = environment[variable];
    if (value === undefined || value === "") continue;
    overrides[key] = value;
    origins[key] = variable;
  }
  for (const [name, value] of Object.entries(flags)) {
    if (value === undefined) continue;
    const key = name as keyof ConfigOverrides;
    overrides[key] = value;
    origins[key] = `--${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
  }
  const config = parseConfig(text, path, overrides, origins);
  for (const { provider } of config.nodes)
    if (provider.type === "module" && provider.module.startsWith("."))
      provider.module = resolve(dirname(path), provider.module);
  return config;
}

/**
 * A variable that is ignored is a setting that does not apply. Only what looks like one of ours is refused: Kubernetes
 * itself gives containers VMLET_... variables, for a Service of that name.
 */
function refuseMisspelt(environment: NodeJS.ProcessEnv): void {
  const known = Object.keys(ENVIRONMENT);
  const faults = Object.keys(environment)
    .filter((name) => name.startsWith("VMLET_") && !known.includes(name))
    .map((name) => ({ name, meant: didYouMean(name, known) }))
    .filter(({ meant }) => meant !== "");
  if (faults.length > 0)
    throw new ConfigError(faults.map(({ name, meant }) => `${name}: unknown variable${meant}`).join("\n"));
}

/** Where an override comes from, as its user knows it. */
type Origins = Partial<Record<keyof ConfigOverrides, string>>;

/** @throws ConfigError */
export function parseConfig(
  text: string,
  path: string,
  overrides: ConfigOverrides = {},
  origins: Origins = {},
): AgentConfig {
  const prepare = (raw: unknown) => applyOverrides(raw as RawConfig, overrides);
  return parseFile(agentConfigSchema, text, path, prepare, ([first, , third]) => {
    if (first !== "nodes") return origins[first as keyof ConfigOverrides];
    return third === "name" ? origins.nodeName : third === "addresses" ? origins.nodeAddress : undefined;
  });
}

interface RawConfig {
  kubeconfig?: unknown;
  clusterId?: unknown;
  logLevel?: unknown;
  nodes?: unknown;
}

function applyOverrides(raw: RawConfig, overrides: ConfigOverrides): RawConfig {
  const merged = { ...raw };
  if (overrides.kubeconfig !== undefined) merged.kubeconfig = overrides.kubeconfig;
  if (overrides.clusterId !== undefined) merged.clusterId = overrides.clusterId;
  if (overrides.logLevel !== undefined) merged.logLevel = overrides.logLevel;
  // The schema refuses a value that is not a list of nodes.
  if (!Array.isArray(raw.nodes)) return merged;
  if (overrides.nodeName !== undefined && raw.nodes.length !== 1) {
    throw new ConfigError("a node's name can be overridden only when the file lists exactly one node");
  }
  if (overrides.nodeName !== undefined || overrides.nodeAddress !== undefined) {
    // All nodes of a process are found at the address of its host or pod; they differ in the port.
    const addresses = overrides.nodeAddress?.split(",");
    merged.nodes = raw.nodes.map((node: unknown) =>
      typeof node !== "object" || node === null
        ? node
        : {
            ...node,
            ...(overrides.nodeName !== undefined && { name: overrides.nodeName }),
            ...(addresses && { addresses }),
          },
    );
  }
  return merged;
}

/**
 * Parses a YAML file by a schema. Shared with the backend's configuration file.
 *
 * @param originOf who set a field that the file did not
 * @throws ConfigError with one line per fault: `file:line:column: field: what is wrong`
 */
export function parseFile<S extends z.ZodType>(
  schema: S,
  text: string,
  path: string,
  prepare: (raw: unknown) => unknown = (raw) => raw,
  originOf: (fields: readonly (string | number)[]) => string | undefined = () => undefined,
): z.infer<S> {
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, uniqueKeys: true });
  const [syntax] = document.errors;
  if (syntax !== undefined) {
    const at = lines.linePos(syntax.pos[0]);
    const fault =
      syntax.code === "MULTIPLE_DOCS"
        ? "the file must hold one document; a second begins here"
        : syntax.message.replace(/ at line \d+, column \d+:\n[^]*$/, "");
    throw new ConfigError(`${path}:${at.line}:${at.col}: ${fault}`);
  }
  let raw: unknown;
  try {
    raw = document.toJS();
  } catch (thrown) {
    // An alias of nothing, or too many of them.
    throw new ConfigError(`${path}: ${toError(thrown).message}`, { cause: thrown });
  }
  if (raw === null || typeof raw !== "object" || Array.isArray(raw))
    throw new ConfigError(`${path}: the file must hold one YAML mapping`);
  const result = schema.safeParse(prepare(raw), { error: faultOf });
  if (result.success) return result.data;
  const told = (fields: Fields, fault: string, origin = originOf(fields)) =>
    `${origin ?? `${path}${position(document, lines, fields)}`}: ${fieldName(fields) || "(file)"}: ${fault}`;
  const faults = result.error.issues.flatMap(nearestOption).flatMap((issue) => {
    const fields = fieldsOf(issue);
    if (issue.code !== "unrecognized_keys") {
      const isMissing = originOf(fields) === undefined && document.getIn(fields) === undefined;
      return [told(fields, wordsOf(issue, isMissing, isMissing ? undefined : document.getIn(fields)))];
    }
    const words = issue.message.split("\n");
    return issue.keys.map((key, index) => told([...fields, key], words[index]!));
  });
  throw new ConfigError(faults.join("\n"));
}

type Fields = readonly (string | number)[];

const fieldsOf = (issue: { path?: PropertyKey[] | undefined }): Fields =>
  (issue.path ?? []).map((part) => (typeof part === "symbol" ? String(part) : part));

/** A value that is one of several shapes but for misspelt keys has those faults, not that of being none of them. */
function nearestOption(issue: z.core.$ZodIssue): z.core.$ZodIssue[] {
  if (issue.code !== "invalid_union") return [issue];
  const misspelt = issue.errors.find((option) => option.length > 0 && option.every(isMisspelt));
  return misspelt?.map((inner) => ({ ...inner, path: [...issue.path, ...inner.path] })) ?? [issue];
}

const isMisspelt = ({ code, message }: z.core.$ZodIssue): boolean =>
  code === "unrecognized_keys" && message.split("\n").every((words) => words.includes("did you mean"));

function wordsOf(issue: z.core.$ZodIssue, isMissing: boolean, value: unknown): string {
  if (issue.code === "invalid_union") {
    const options = "options" in issue ? issue.options : undefined;
    if (options !== undefined && typeof value === "string") return oneOf(options, value);
    const wanted = options === undefined ? issue.message : `must be one of ${options.join(", ")}`;
    return isMissing ? `is required: ${wanted}` : wanted;
  }
  if (isMissing && (issue.code === "invalid_type" || issue.code === "invalid_value")) return "is required";
  return issue.message.replace(/^Invalid input: /, "");
}

/** `:line:column` of the field, or of the nearest place above it that the file has. */
function position(document: Document, lines: LineCounter, fields: readonly (string | number)[]): string {
  for (let depth = fields.length; depth > 0; depth--) {
    const parent = depth === 1 ? document.contents : document.getIn(fields.slice(0, depth - 1), true);
    const last = fields[depth - 1]!;
    let node: unknown = document.getIn(fields.slice(0, depth), true);
    if (isMap(parent))
      node = parent.items.find((pair) => isNode(pair.key) && "value" in pair.key && pair.key.value === last)?.key;
    if (isNode(node) && node.range) {
      const at = lines.linePos(node.range[0]);
      return `:${at.line}:${at.col}`;
    }
  }
  return "";
}

function fieldName(fields: readonly (string | number)[]): string {
  return fields.map((f, i) => (typeof f === "number" ? `[${f}]` : i === 0 ? f : `.${f}`)).join("");
}
