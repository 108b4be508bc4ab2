/** What a deletion does to an object that does not go at once. Times are milliseconds since the epoch. */
import { addSeconds } from "date-fns/addSeconds";
import { rfc3339 } from "../../util/clock.ts";
import { withMeta, type StoredObject } from "../objects/object.ts";
import { invalid, notSupported } from "../objects/errors.ts";
import type { Kind } from "./kind.ts";

export type Propagation = "Background" | "Foreground" | "Orphan";

const ORPHAN_WARNING =
  "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/**
 * What a deletion says about the dependents, or, where it says nothing, what is the way of the kind.
 * @throws ApiStatusError 422
 */
export function propagationOf(
  kind: Kind,
  old: StoredObject,
  options: { propagationPolicy?: string | undefined; orphanDependents?: boolean | undefined },
  context: { warnings: string[] },
): Propagation | undefined {
  const { propagationPolicy: policy, orphanDependents } = options;
  if (policy !== undefined && policy !== "Background" && policy !== "Foreground" && policy !== "Orphan") {
    throw invalid({ group: "meta.k8s.io", kind: "DeleteOptions" }, "", [
      notSupported("propagationPolicy", policy, ["Foreground", "Background", "Orphan", "nil"]),
    ]);
  }
  if (policy !== undefined) return policy;
  if (orphanDependents !== undefined) return orphanDependents ? "Orphan" : "Background";
  const isMarked = old.metadata.finalizers?.some((f) => f === "orphan" || f === "foregroundDeletion");
  if (!kind.orphansByDefault || isMarked) return undefined;
  context.warnings.push(ORPHAN_WARNING);
  return "Orphan";
}

/**
 * What becomes of the dependents is kept in finalizers, which the garbage collector acts on
 * (`deletionFinalizersForGarbageCollection`).
 * @param policy undefined: what the finalizers that are there say, or the kind's own way
 */
export function withPropagation(old: StoredObject, policy: Propagation | undefined): StoredObject {
  if (policy === undefined) return old;
  const others = (old.metadata.finalizers ?? []).filter((f) => f !== "orphan" && f !== "foregroundDeletion");
  const own = { Background: [], Foreground: ["foregroundDeletion"], Orphan: ["orphan"] }[policy];
  const finalizers = [...others, ...own];
  const same = finalizers.length === (old.metadata.finalizers?.length ?? 0);
  if (same && finalizers.every((f) => old.metadata.finalizers?.includes(f))) return old;
  const { finalizers: _, ...meta } = old.metadata;
  return { ...old, metadata: { ...meta, ...(finalizers.length > 0 && { finalizers }) } };
}

/** `rest.BeforeDelete` for kinds that end gracefully: the marked object, "now", or "pending" when nothing changes. */
export function markGraceful(
  kind: Kind,
  old: StoredObject,
  requested: number | undefined,
  now: number,
): StoredObject | "now" | "pending" {
  const meta = old.metadata;
  if (meta.deletionTimestamp) {
    const running = meta.deletionGracePeriodSeconds ?? 0;
    if (running === 0) return meta.finalizers?.length ? "pending" : "now";
    // A later delete may only shorten the grace.
    if (requested === undefined || requested >= running) return "pending";
    const moved = addSeconds(meta.deletionTimestamp, requested - running).getTime();
    const overdue = moved < now;
    const seconds = overdue && requested !== 0 ? 1 : requested;
    return withMeta(old, { deletionTimestamp: rfc3339(overdue ? now : moved), deletionGracePeriodSeconds: seconds });
  }
  const seconds = kind.gracePeriod!(old, requested);
  return withMeta(old, {
    deletionTimestamp: rfc3339(now + seconds * 1000),
    deletionGracePeriodSeconds: seconds,
    ...(meta.generation && { generation: meta.generation + 1 }),
  });
}

/** For kinds without a grace: what only its finalizers keep. */
export function markForFinalizers(old: StoredObject, now: number): StoredObject | "now" | "pending" {
  const meta = old.metadata;
  if (!meta.finalizers?.length) return "now";
  if (meta.deletionTimestamp) return "pending";
  return withMeta(old, {
    deletionTimestamp: rfc3339(now),
    deletionGracePeriodSeconds: 0,
    ...(meta.generation && { generation: meta.generation + 1 }),
  });
}
