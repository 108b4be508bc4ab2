/**
 * What of a status must be written: the difference between what the API server has and what is to be there.
 */
import type { PodCondition, PodStatus } from "../../kube/wire.ts";

const OWNED_FIELDS = [
  "phase",
  "reason",
  "message",
  "hostIP",
  "hostIPs",
  "podIP",
  "podIPs",
  "startTime",
  "observedGeneration",
  "conditions",
  "containerStatuses",
  "initContainerStatuses",
  "ephemeralContainerStatuses",
  "resources",
  "allocatedResources",
] as const;

/**
 * The fields of `next` that differ from what the API server has, as a JSON merge patch of the status; undefined when
 * nothing differs. Lists are sent whole, which is safe because the patch carries the resourceVersion.
 */
export function statusDiff(current: PodStatus | undefined, next: PodStatus): Record<string, unknown> | undefined {
  const patch: Record<string, unknown> = {};
  for (const field of OWNED_FIELDS) {
    const before = current?.[field];
    const after = next[field];
    if (
      field === "conditions" ? !sameConditions(before as PodCondition[], after as PodCondition[]) : !same(before, after)
    ) {
      patch[field] = after ?? null;
    }
  }
  return Object.keys(patch).length === 0 ? undefined : patch;
}

/** Deep equality of JSON in which absent, null, and an empty list or object are the same. */
function same(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (isEmpty(a) && isEmpty(b)) return true;
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((v, i) => same(v, b[i]));
  if (
    typeof a === "object" &&
    typeof b === "object" &&
    a !== null &&
    b !== null &&
    !Array.isArray(a) &&
    !Array.isArray(b)
  ) {
    const [before, after] = [a as Record<string, unknown>, b as Record<string, unknown>];
    for (const key of Object.keys(before)) if (!same(before[key], after[key])) return false;
    for (const key of Object.keys(after)) if (!Object.hasOwn(before, key) && !isEmpty(after[key])) return false;
    return true;
  }
  return false;
}

function isEmpty(v: unknown): boolean {
  if (v === undefined || v === null || v === "") return true;
  if (typeof v !== "object") return false;
  return Array.isArray(v) ? v.length === 0 : Object.keys(v).length === 0;
}

function sameConditions(a: readonly PodCondition[] | undefined, b: readonly PodCondition[]): boolean {
  if (a === undefined || a.length !== b.length) return false;
  return b.every((c) =>
    same(
      a.find((o) => o.type === c.type),
      c,
    ),
  );
}
