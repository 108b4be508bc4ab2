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
      field === "conditions"
        ? !sameConditions(before as PodCondition[], after as PodCondition[])
        : !isSame(before, after)
    ) {
      patch[field] = after ?? null;
    }
  }
  return Object.keys(patch).length === 0 ? undefined : patch;
}

/**
 * Deep equality of JSON in which absent, null, and an empty list or object are the same. Each look at a pod asks this
 * of a hundred values, so it leaves no garbage.
 */
export function isSame(a: unknown, b: unknown): boolean {
  if (a === b || (isEmpty(a) && isEmpty(b))) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  return Array.isArray(a) ? isSameList(a, b as unknown[]) : isSameObject(a as Fields, b as Fields);
}

type Fields = Record<string, unknown>;

function isSameList(a: readonly unknown[], b: readonly unknown[]): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (!isSame(a[i], b[i])) return false;
  return true;
}

function isSameObject(a: Fields, b: Fields): boolean {
  for (const key in a) if (!isSame(a[key], b[key])) return false;
  for (const key in b) if (!Object.hasOwn(a, key) && !isEmpty(b[key])) return false;
  return true;
}

function isEmpty(v: unknown): boolean {
  if (v === undefined || v === null || v === "") return true;
  if (typeof v !== "object") return false;
  for (const _key in v) return false;
  return true;
}

function sameConditions(a: readonly PodCondition[] | undefined, b: readonly PodCondition[]): boolean {
  if (a === undefined || a.length !== b.length) return false;
  return b.every((c) =>
    isSame(
      a.find((o) => o.type === c.type),
      c,
    ),
  );
}
