/**
 * The environment of one container, built in the kubelet's order (kubelet_pods.go `makeEnvironmentVariables`): envFrom,
 * then env, which may refer to what came before and to the service variables, then those service variables whose names
 * are still free. The order of the result is the order of declaration.
 */
import type { ConfigMap, Container, Pod, Secret, Service } from "../../kube/wire.ts";
import { envFilesOf, MAX_ENV_FILES } from "../../provider/env-files.ts";
import type { ContainerSpec, EnvVar } from "../../provider/machine.ts";
import { failure, type Result, success } from "../../util/result.ts";
import { Budget, OverBudgetError, POD_LIMITS, tell } from "../budget.ts";
import { expand, lookUpIn } from "./expansion.ts";
import { fieldValueForEnv, resourceValue, type AddressTokens } from "./field-refs.ts";
import { cleanPath, subPathProblem } from "./paths.ts";
import type { Lookup, NodeFacts, PodEvent, References } from "../types.ts";
import { serviceVariables } from "./service-env.ts";

/** What is in files is known only inside the machine, so these stand around a variable's name for its value. */
export type EnvTokens = NonNullable<ContainerSpec["env_tokens"]>;

interface Environment {
  /** For what refers to them; those of files as tokens. */
  variables: ReadonlyMap<string, string>;
  /** As the machine is told of them. */
  entries: EnvVar[];
  /** Where some of the values are in files. */
  hasFiles: boolean;
}

/** Strings that no other pod's values hold by accident. No name of a variable has an equals sign. */
export function envTokens(podUid: string): EnvTokens {
  return { open: `{{vmlet ${podUid} file `, close: "=}}" };
}

/** What resolving one container's environment needs. */
interface EnvironmentInput {
  pod: Pod;
  references: References;
  node: NodeFacts;
  tokens: AddressTokens;
  envTokens: EnvTokens;
  /** Names of the volumes that the machine has. */
  volumes: ReadonlySet<string>;
  /** Gets what is worth telling the user besides the result. */
  events: PodEvent[];
  /**
   * The variables of the Services that the pod sees, where they are known already: they are the same for all its
   * containers.
   */
  services?: ReadonlyMap<string, string> | undefined;
  /** What the container's environment and arguments may take; by default what a process may be given. */
  budget?: Budget | undefined;
}

type EnvContainer = Pick<Container, "name" | "env" | "envFrom" | "resources">;

/** Resolves a container's environment. The message of a failure is the kubelet's, where it has one. */
export function containerEnvironment(container: EnvContainer, input: EnvironmentInput): Result<Environment> {
  try {
    return resolveEnvironment(container, input);
  } catch (thrown) {
    if (thrown instanceof OverBudgetError) return failure(thrown.message);
    throw thrown;
  }
}

/** @throws OverBudgetError */
function resolveEnvironment(container: EnvContainer, input: EnvironmentInput): Result<Environment> {
  const { pod, references } = input;
  if (references.services === undefined)
    return failure("services have not yet been read at least once, cannot construct envvars");
  const { budget = new Budget(`the environment of container "${container.name}"`, POD_LIMITS.processBytes) } = input;
  const services = input.services ?? podServiceVariables(pod, references.services);
  const variables = new Map<string, string>();
  const told: EnvVar[] = [];
  const set: SetVariable = (name, value, from_file) => {
    payFor(name, value, budget);
    // What the pod refers to until a file is known to have it.
    const earlier = from_file?.optional === true && !variables.has(name) ? services.get(name) : undefined;
    if (earlier !== undefined) told.push({ name, value: earlier });
    variables.set(name, value);
    told.push(from_file === undefined ? { name, value } : { name, value: "", from_file });
  };
  const problem = importAll(container, input, set) ?? setDeclared(container, input, lookUpIn(variables, services), set);
  if (problem !== undefined) return problem;
  for (const [name, value] of services) {
    if (!variables.has(name)) set(name, value);
  }
  for (const [name, value] of variables) {
    // No operating system can pass one on; the value itself is not repeated, it may be a secret.
    if (value.includes("\0") || name.includes("\0"))
      return failure(`environment variable "${name.replaceAll("\0", "\\0")}" holds a NUL byte`);
  }
  const files = envFilesOf({ env: told }).length;
  if (files > MAX_ENV_FILES)
    return failure(`its variables are in ${files} files of volumes, this node reads at most ${MAX_ENV_FILES}`);
  const hasFiles = files > 0;
  // In their order, because which one of a name counts is known only when the files are read.
  const entries = hasFiles ? told : [...variables].map(([name, value]) => ({ name, value }));
  return success({ variables, entries, hasFiles });
}

type SetVariable = (name: string, value: string, from_file?: EnvVar["from_file"]) => void;

/** A variable that is set again is counted again, because it costs the same work. @throws OverBudgetError */
function payFor(name: string, value: string, budget: Budget): void {
  const bytes = Buffer.byteLength(value);
  if (bytes > POD_LIMITS.wordBytes)
    throw new OverBudgetError(
      `environment variable "${name.slice(0, 64)}" has ${bytes} bytes, a process can be given at most ${POD_LIMITS.wordBytes}: argument list too long`,
    );
  budget.take(Buffer.byteLength(name) + bytes + 2);
}

/** `envFrom`: all the keys of an object. @returns why that cannot be */
function importAll(
  { envFrom }: EnvContainer,
  { references, events }: EnvironmentInput,
  set: SetVariable,
): { ok: false; message: string } | undefined {
  for (const source of envFrom ?? []) {
    const kind = source.configMapRef ? "configmap" : "secret";
    const ref = source.configMapRef ?? source.secretRef;
    if (!ref) continue;
    const name = ref.name ?? "";
    const found = readData(references, kind, name);
    if (found.kind !== "found") {
      const optional = ref.optional ?? false;
      if (found.kind === "absent") tell(events, notFoundEvent(kind, name, optional));
      if (found.kind === "absent" && optional) continue;
      return failure(missingMessage(kind, name, found));
    }
    for (const key of found.object.keys().sort()) set(`${source.prefix ?? ""}${key}`, found.object.get(key) ?? "");
  }
  return undefined;
}

/** `env`, in its order. @returns why that cannot be */
function setDeclared(
  container: EnvContainer,
  input: EnvironmentInput,
  lookUp: (name: string) => string | undefined,
  set: SetVariable,
): { ok: false; message: string } | undefined {
  for (const variable of container.env ?? []) {
    const { name, value, valueFrom } = variable;
    if (!value && valueFrom?.fileKeyRef) {
      const source = fileSource(valueFrom.fileKeyRef, input);
      if (!source.ok) return source;
      set(name, `${input.envTokens.open}${name}${input.envTokens.close}`, source.value);
      continue;
    }
    const isGiven = (value !== undefined && value !== "") || valueFrom === undefined || valueFrom === null;
    const resolved = isGiven
      ? success(expand(value ?? "", lookUp, POD_LIMITS.wordBytes))
      : sourceValue(container, name, valueFrom, input);
    if (resolved === undefined) continue;
    if (!resolved.ok) return resolved;
    set(name, resolved.value);
  }
  return undefined;
}

/** Where in the machine the value is. */
function fileSource(
  { volumeName, path, key, optional }: NonNullable<ValueSource["fileKeyRef"]>,
  { volumes }: EnvironmentInput,
): Result<NonNullable<EnvVar["from_file"]>> {
  if (!volumes.has(volumeName)) return failure(`cannot find the volume "${volumeName}" referenced by FileKeyRef`);
  // A kubelet takes a volume's root for where a path begins.
  const relative = path.replace(/^\/+/, "");
  const problem = subPathProblem(relative);
  if (problem !== undefined) return failure(problem);
  return success({ volume: volumeName, path: cleanPath(relative), key, ...(optional && { optional }) });
}

type ValueSource = NonNullable<NonNullable<Container["env"]>[number]["valueFrom"]>;

/** Undefined when it is optional and not there. */
function sourceValue(
  container: EnvContainer,
  variableName: string,
  from: ValueSource,
  { pod, references, events, node, tokens }: EnvironmentInput,
): Result<string> | undefined {
  if (from.configMapKeyRef || from.secretKeyRef)
    return keyValue(variableName, from, pod.metadata?.namespace ?? "", references, events);
  if (from.fieldRef) {
    const { nodeName, hostIPs } = node;
    // On the host's network its addresses are the node's.
    const known = { pod_ip: hostIPs[0] ?? "", pod_ips: hostIPs.join(",") };
    return fieldValueForEnv(pod, from.fieldRef, { nodeName, hostIPs, tokens: pod.spec?.hostNetwork ? known : tokens });
  }
  if (from.resourceFieldRef) return resourceValue(pod, container, from.resourceFieldRef, node.allocatable);
  return failure(`environment variable "${variableName}" has no known source`);
}

/** The variables of the Services that a pod sees. @throws OverBudgetError */
export function podServiceVariables(pod: Pod, services: readonly Service[]): Map<string, string> {
  return serviceVariables(services, pod.metadata?.namespace ?? "", pod.spec?.enableServiceLinks ?? true);
}

/** The value of a configMapKeyRef or secretKeyRef; undefined when it is optional and not there. */
function keyValue(
  variableName: string,
  from: ValueSource,
  namespace: string,
  references: References,
  events: PodEvent[],
): Result<string> | undefined {
  const kind = from.configMapKeyRef ? "configmap" : "secret";
  const ref = from.configMapKeyRef ?? from.secretKeyRef;
  if (!ref) return undefined;
  const name = ref.name ?? "";
  const optional = ref.optional ?? false;
  const found = readData(references, kind, name);
  if (found.kind !== "found") {
    if (found.kind === "absent") tell(events, notFoundEvent(kind, name, optional, variableName));
    if (found.kind === "absent" && optional) return undefined;
    return failure(missingMessage(kind, name, found));
  }
  const value = found.object.get(ref.key);
  if (value !== undefined) return success(value);
  tell(events, keyNotFoundEvent(kind, name, ref.key, optional, variableName));
  if (optional) return undefined;
  const kindName = kind === "configmap" ? "ConfigMap" : "Secret";
  return failure(`couldn't find key ${ref.key} in ${kindName} ${namespace}/${name}`);
}

/** The text values of a configMap (never `binaryData`) or secret; only what is asked for is decoded. */
interface Data {
  keys(): string[];
  get(key: string): string | undefined;
}

function readData(references: References, kind: "configmap" | "secret", name: string): Lookup<Data> {
  const found: Lookup<ConfigMap | Secret> = (kind === "configmap" ? references.configMaps : references.secrets).get(
    name,
  ) ?? {
    kind: "unknown",
    message: "not read yet",
  };
  if (found.kind !== "found") return found;
  const data: Readonly<Record<string, string>> = found.object.data ?? {};
  const decode = (text: string) => (kind === "secret" ? Buffer.from(text, "base64").toString("utf8") : text);
  const get = (key: string) => (Object.hasOwn(data, key) ? decode(data[key] ?? "") : undefined);
  return { kind: "found", object: { keys: () => Object.keys(data), get } };
}

/** The kubelet's error for an object that it cannot have. */
export function missingMessage(
  kind: "configmap" | "secret",
  name: string,
  lookup: { kind: "absent" } | { kind: "unknown"; message: string },
): string {
  return lookup.kind === "absent"
    ? `${kind} "${name}" not found`
    : `failed to sync ${kind} cache: ${kind} "${name}": ${lookup.message}`;
}

/** The event that virtual-kubelet's users know, besides the kubelet's `Failed`. */
function notFoundEvent(kind: "configmap" | "secret", name: string, optional: boolean, variable?: string): PodEvent {
  const noun = kind === "configmap" ? "ConfigMap" : "Secret";
  const skipped = optional && variable !== undefined ? `skipping optional envvar "${variable}": ` : "";
  return {
    type: "Warning",
    reason: `${optional ? "Optional" : "Mandatory"}${noun}NotFound`,
    message: `${skipped}${kind} "${name}" not found`,
  };
}

function keyNotFoundEvent(
  kind: "configmap" | "secret",
  name: string,
  key: string,
  optional: boolean,
  variable: string,
): PodEvent {
  const noun = kind === "configmap" ? "ConfigMap" : "Secret";
  const skipped = optional ? `skipping optional envvar "${variable}": ` : "";
  return {
    type: "Warning",
    reason: `${optional ? "Optional" : "Mandatory"}${noun}KeyNotFound`,
    message: `${skipped}key "${key}" does not exist in ${kind} "${name}"`,
  };
}
