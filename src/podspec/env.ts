/**
 * The environment of one container, built in the kubelet's order (kubelet_pods.go `makeEnvironmentVariables`): envFrom,
 * then env, which may refer to what came before and to the service variables, then those service variables whose names
 * are still free. The order of the result is the order of declaration.
 */
import type { ConfigMap, Container, Pod, Secret } from "../kube/wire.ts";
import { expand, lookUpIn } from "./expansion.ts";
import { fieldValueForEnv, resourceValue, type AddressTokens } from "./field-refs.ts";
import type { Lookup, NodeFacts, PodEvent, References } from "./inputs.ts";
import { serviceVariables } from "./service-env.ts";

export type Environment = { ok: true; variables: Map<string, string> } | { ok: false; message: string };

/** What resolving one container's environment needs. */
export interface EnvironmentInput {
  pod: Pod;
  references: References;
  node: NodeFacts;
  tokens: AddressTokens;
  /** Gets what is worth telling the user besides the result. */
  events: PodEvent[];
}

type EnvContainer = Pick<Container, "name" | "env" | "envFrom" | "resources">;

/** Resolves a container's environment. The message of a failure is the kubelet's. */
export function containerEnvironment(container: EnvContainer, input: EnvironmentInput): Environment {
  const { pod, references, node, events } = input;
  const namespace = pod.metadata?.namespace ?? "";
  if (references.services === undefined) {
    return { ok: false, message: "services have not yet been read at least once, cannot construct envvars" };
  }
  const services = serviceVariables(references.services, namespace, pod.spec?.enableServiceLinks ?? true);
  const variables = new Map<string, string>();

  for (const source of container.envFrom ?? []) {
    const from = source.configMapRef
      ? { kind: "configmap" as const, ref: source.configMapRef }
      : source.secretRef
        ? { kind: "secret" as const, ref: source.secretRef }
        : undefined;
    if (from === undefined) continue;
    const name = from.ref.name ?? "";
    const found = readData(references, from.kind, name);
    if (found.kind !== "found") {
      const optional = from.ref.optional ?? false;
      if (found.kind === "absent") events.push(notFoundEvent(from.kind, name, optional));
      if (found.kind === "absent" && optional) continue;
      return { ok: false, message: missingMessage(from.kind, name, found) };
    }
    for (const key of [...found.object.keys()].sort()) {
      variables.set(`${source.prefix ?? ""}${key}`, found.object.get(key) ?? "");
    }
  }

  const lookUp = lookUpIn(variables, services);
  for (const variable of container.env ?? []) {
    const value = variable.value;
    const from = variable.valueFrom;
    if (value !== undefined && value !== "") {
      variables.set(variable.name, expand(value, lookUp));
      continue;
    }
    if (from === undefined || from === null) {
      variables.set(variable.name, "");
      continue;
    }
    if (from.configMapKeyRef || from.secretKeyRef) {
      const resolved = keyValue(variable.name, from, namespace, references, events);
      if (resolved === undefined) continue;
      if (!resolved.ok) return resolved;
      variables.set(variable.name, resolved.value);
      continue;
    }
    const resolved = from.fieldRef
      ? fieldValueForEnv(pod, from.fieldRef, { nodeName: node.nodeName, hostIPs: node.hostIPs, tokens: input.tokens })
      : from.resourceFieldRef
        ? resourceValue(pod, container, from.resourceFieldRef, node.allocatable)
        : undefined;
    if (resolved === undefined)
      return { ok: false, message: `environment variable "${variable.name}" has no known source` };
    if (!resolved.ok) return resolved;
    variables.set(variable.name, resolved.value);
  }

  for (const [name, value] of services) {
    if (!variables.has(name)) variables.set(name, value);
  }
  for (const [name, value] of variables) {
    // No operating system can pass one on; the value itself is not repeated, it may be a secret.
    if (value.includes("\0") || name.includes("\0")) {
      return { ok: false, message: `environment variable "${name.replaceAll("\0", "\\0")}" holds a NUL byte` };
    }
  }
  return { ok: true, variables };
}

/** The value of a configMapKeyRef or secretKeyRef; undefined when it is optional and not there. */
function keyValue(
  variableName: string,
  from: NonNullable<NonNullable<Container["env"]>[number]["valueFrom"]>,
  namespace: string,
  references: References,
  events: PodEvent[],
): { ok: true; value: string } | { ok: false; message: string } | undefined {
  const kind = from.configMapKeyRef ? "configmap" : "secret";
  const ref = from.configMapKeyRef ?? from.secretKeyRef;
  if (!ref) return undefined;
  const name = ref.name ?? "";
  const optional = ref.optional ?? false;
  const found = readData(references, kind, name);
  if (found.kind !== "found") {
    if (found.kind === "absent") events.push(notFoundEvent(kind, name, optional, variableName));
    if (found.kind === "absent" && optional) return undefined;
    return { ok: false, message: missingMessage(kind, name, found) };
  }
  const value = found.object.get(ref.key);
  if (value !== undefined) return { ok: true, value };
  events.push(keyNotFoundEvent(kind, name, ref.key, optional, variableName));
  if (optional) return undefined;
  const kindName = kind === "configmap" ? "ConfigMap" : "Secret";
  return { ok: false, message: `couldn't find key ${ref.key} in ${kindName} ${namespace}/${name}` };
}

/** The text values of a configMap (never `binaryData`) or secret. */
function readData(references: References, kind: "configmap" | "secret", name: string): Lookup<Map<string, string>> {
  const found: Lookup<ConfigMap | Secret> = (kind === "configmap" ? references.configMaps : references.secrets).get(
    name,
  ) ?? {
    kind: "unknown",
    message: "not read yet",
  };
  if (found.kind !== "found") return found;
  const entries = Object.entries(found.object.data ?? {});
  const decode =
    kind === "secret" ? (text: string) => Buffer.from(text, "base64").toString("utf8") : (text: string) => text;
  return { kind: "found", object: new Map(entries.map(([key, value]) => [key, decode(value)])) };
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
