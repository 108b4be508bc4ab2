/**
 * Which pods may choose which of the backend's sizes. A size is a cost, and an annotation is every tenant's to write:
 * where the node's configuration has rules, what none of them allows is refused.
 */
import type { Pod } from "../../kube/wire.ts";
import { globMatches } from "../../util/glob.ts";

/**
 * Names one of the backend's sizes, or several in the order in which they are to be tried: what `instance_type` of the
 * machine is to be.
 */
export const ANNOTATION_INSTANCE_TYPE = "vmlet.dev/instance-type";

/** As the kubelet's `SysctlForbidden`: the node could, but may not for this pod. */
export const INSTANCE_TYPE_FORBIDDEN = "InstanceTypeForbidden";

/** Pods of these namespaces that have all of these labels may have these instance types. Names of both are globs. */
export interface InstanceTypeRule {
  readonly namespaces: readonly string[];
  readonly podLabels: Readonly<Record<string, string>>;
  readonly allow: readonly string[];
}

/** No backend calls a size by a longer name, so a longer one matches nothing. In characters. */
const LONGEST_NAME = 256;
/** How much of a value and of a list of patterns a message quotes. */
const QUOTED = { value: 64, patterns: 10 };

/**
 * Why the pod may not have the instance type that it asks for, as a kubelet would tell it; undefined when it may, or
 * asks for none.
 *
 * @param rules undefined: every pod may have any
 */
export function instanceTypeFault(pod: Pod, rules: readonly InstanceTypeRule[] | undefined): string | undefined {
  const wanted = pod.metadata?.annotations?.[ANNOTATION_INSTANCE_TYPE];
  if (wanted === undefined || rules === undefined) return undefined;
  const allowed = rules.filter((rule) => isAbout(rule, pod)).flatMap(({ allow }) => allow);
  const isAllowed = (name: string) => allowed.some((pattern) => isWithin(name, pattern));
  if (wanted.length <= LONGEST_NAME && wanted.split(",").every((name) => isAllowed(name.trim()))) return undefined;
  const told = [...new Set(allowed)].slice(0, QUOTED.patterns);
  const choice = told.length === 0 ? "" : `choose one of ${told.join(", ")}, `;
  const quoted = wanted.length <= QUOTED.value ? wanted : `${wanted.slice(0, QUOTED.value)}...`;
  return `metadata.annotations[${ANNOTATION_INSTANCE_TYPE}]: ${JSON.stringify(quoted)} is not allowed for this pod on this node; ${choice}leave the annotation out, or have a rule added to instanceTypes in the node's configuration`;
}

/**
 * Whether all that the name stands for is among what the pattern allows. A backend may take the name for a glob: then
 * it has to be the pattern itself, or begin with all of it that stands before its only `*`.
 */
function isWithin(name: string, pattern: string): boolean {
  if (!/[*?[\\]/.test(name)) return globMatches(pattern, name);
  if (name === pattern) return true;
  const prefix = /^([^*?[\\]*)\*$/.exec(pattern)?.[1];
  return prefix !== undefined && name.startsWith(prefix) && !name.includes("/");
}

function isAbout({ namespaces, podLabels }: InstanceTypeRule, { metadata }: Pod): boolean {
  const { namespace = "", labels = {} } = metadata ?? {};
  if (!namespaces.some((pattern) => globMatches(pattern, namespace))) return false;
  return Object.entries(podLabels).every(([key, value]) => Object.hasOwn(labels, key) && labels[key] === value);
}
