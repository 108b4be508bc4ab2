/** One watch connection: turns changes in storage into watch events that a selector lets through. */
import type { Filter, StoredObject } from "./object.ts";
import type { Change, Storage } from "./storage.ts";

export type EventType = "ADDED" | "MODIFIED" | "DELETED";

/**
 * What a watcher with `filter` sees of a change. An object that stops matching is DELETED for that watcher: its last
 * matching state, under the revision of the change, as kube-apiserver's watch cache sends it.
 */
function eventOf(change: Change, filter: Filter): { type: EventType; object: StoredObject } | undefined {
  const matched = change.previous !== undefined && filter(change.previous);
  const matches = !change.deleted && filter(change.object);
  if (matches) return { type: matched ? "MODIFIED" : "ADDED", object: change.object };
  if (!matched) return undefined;
  const last = change.deleted ? change.object : change.previous!;
  return {
    type: "DELETED",
    object: { ...last, metadata: { ...last.metadata, resourceVersion: String(change.revision) } },
  };
}

export interface WatchStart {
  /** Send the current state as ADDED events first. */
  initial: boolean;
  /** Send what came after this revision; the current one when undefined. */
  after: number | undefined;
}

/** Starts delivering events. @returns a function that ends it. @throws ApiStatusError 410 when `after` is compacted */
export function startWatch(
  storage: Storage,
  resource: string,
  filter: Filter,
  start: WatchStart,
  deliver: (type: EventType, object: StoredObject) => void,
): () => void {
  const revision = start.initial ? storage.revision : (start.after ?? storage.revision);
  if (start.initial) for (const object of storage.list(resource)) if (filter(object)) deliver("ADDED", object);
  return storage.watch(resource, revision, (change) => {
    const event = eventOf(change, filter);
    if (event) deliver(event.type, event.object);
  });
}
