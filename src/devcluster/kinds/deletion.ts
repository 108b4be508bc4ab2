/** What a deletion does to an object that does not go at once. Times are milliseconds since the epoch. */
import { addSeconds } from "date-fns/addSeconds";
import { rfc3339 } from "../../util/clock.ts";
import { withMeta, type StoredObject } from "../objects/object.ts";
import type { Kind } from "./kinds.ts";

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
