/** The history of StatefulSets and DaemonSets, kept in ControllerRevisions (`pkg/controller/history`). */
import { mustFindKind } from "../kinds/kinds.ts";
import { ApiStatusError } from "../objects/errors.ts";
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import { controllerReference, type Actor } from "./actor.ts";
import { hashOf } from "./hash.ts";
import { claim } from "./pods.ts";
import type { ObjectIndex } from "./object-index.ts";

const controllerRevisions = mustFindKind("apps", "v1", "controllerrevisions");

export const REVISION_HASH = "controller-revision-hash";

interface History {
  /** The revision of today's template. */
  current: StoredObject;
  /** All of them, oldest first. */
  all: StoredObject[];
}

const number = (revision: StoredObject): number => revision["revision"] as number;

/** What `kubectl rollout undo` applies to go back: the template, whole. */
const templatePatch = (set: StoredObject): Json => ({
  spec: { template: { ...set.spec.template, $patch: "replace" } },
});

/**
 * The revisions of a set; today's template gets one when it has none, and becomes the newest when it was had before.
 * @throws ApiStatusError when a revision of another template has the name; the set counts the collision then
 */
export function historyOf(actor: Actor, index: ObjectIndex, set: StoredObject): History {
  const byNumber = (a: StoredObject, b: StoredObject) => number(a) - number(b);
  const all = claim(actor, index, set, "apps/controllerrevisions", set.spec.selector).toSorted(byNumber);
  const data = templatePatch(set);
  const last = all.at(-1);
  let current = all.findLast((revision) => jsonEqual(revision.data, data));
  if (current && current === last) return { current, all };
  const next = (last ? number(last) : 0) + 1;
  if (current) current = actor.update({ ...current, revision: next });
  else current = create(actor, set, data, next);
  const others = all.filter(({ metadata }) => metadata.uid !== current.metadata.uid);
  return { current, all: [...others, current] };
}

function create(actor: Actor, set: StoredObject, data: Json, revision: number): StoredObject {
  const { metadata, spec, status } = set;
  const hash = hashOf(data, status?.collisionCount);
  try {
    return actor.create(controllerRevisions, metadata.namespace, {
      metadata: {
        name: `${metadata.name.slice(0, 223)}-${hash}`,
        labels: { ...spec.template.metadata?.labels, [REVISION_HASH]: hash },
        ...(metadata.annotations && { annotations: metadata.annotations }),
        ownerReferences: [controllerReference(set)],
      },
      data,
      revision,
    });
  } catch (thrown) {
    if (thrown instanceof ApiStatusError && thrown.body.reason === "AlreadyExists")
      actor.updateStatus(set, { ...status, collisionCount: ((status?.collisionCount ?? 0) as number) + 1 });
    throw thrown;
  }
}

/**
 * Deletes the oldest revisions that nobody uses, beyond the limit.
 * @param isLive whether a pod, or the set itself, is of this revision
 */
export function truncateHistory(
  actor: Actor,
  history: History,
  limit: number,
  isLive: (revision: StoredObject) => boolean,
): void {
  const unused = history.all.filter((revision) => revision !== history.current && !isLive(revision));
  for (const revision of unused.slice(0, Math.max(0, unused.length - limit))) actor.delete(revision);
}
