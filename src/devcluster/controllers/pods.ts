/**
 * What controllers ask about pods, and how they make, claim, count and choose them
 * (`pkg/controller/controller_utils.go`).
 */
import { isTerminal } from "../../kube/pod.ts";
import { parseRfc3339Ms } from "./times.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import { selects } from "../kinds/pod-template.ts";
import { ApiStatusError } from "../objects/errors.ts";
import { withMeta, type Json, type StoredObject } from "../objects/object.ts";
import { controllerReference, type Actor } from "./actor.ts";
import { controllerOf, ownersOf, type ObjectIndex } from "./object-index.ts";

export const podKind = mustFindKind("", "v1", "pods");

/** Neither over nor on its way out. */
export const isActive = (pod: StoredObject): boolean => !isTerminal(pod) && !pod.metadata.deletionTimestamp;
/** On its way out, and not over yet. */
export const isTerminating = (pod: StoredObject): boolean =>
  !isTerminal(pod) && pod.metadata.deletionTimestamp !== undefined;

const readyCondition = (pod: StoredObject): Json => pod.status?.conditions?.find((c: Json) => c.type === "Ready");
export const isReady = (pod: StoredObject): boolean => readyCondition(pod)?.status === "True";

/** Since when it is ready, in milliseconds since the epoch; 0 when it is not. */
const readySince = (pod: StoredObject): number =>
  isReady(pod) ? parseRfc3339Ms(readyCondition(pod).lastTransitionTime) : 0;

/** Milliseconds until it has been ready for so long; 0 when it has, undefined when it is not ready. */
function untilAvailable(pod: StoredObject, minReadySeconds: number, now: number): number | undefined {
  if (!isReady(pod)) return undefined;
  if (minReadySeconds <= 0) return 0;
  return Math.max(0, readySince(pod) + minReadySeconds * 1000 - now);
}

export const isAvailable = (pod: StoredObject, minReadySeconds: number, now: number): boolean =>
  untilAvailable(pod, minReadySeconds, now) === 0;

/** Milliseconds until the next of these pods counts as available, if one will by waiting alone. */
export function nextAvailability(
  pods: readonly StoredObject[],
  minReadySeconds: number,
  now: number,
): number | undefined {
  const waits = pods.map((pod) => untilAvailable(pod, minReadySeconds, now)).filter((ms) => ms !== undefined && ms > 0);
  return waits.length === 0 ? undefined : Math.min(...(waits as number[]));
}

/** A pod of a template, owned by `owner`. */
export function podOf(template: Json, owner: StoredObject): Json {
  const { labels, annotations, finalizers } = template.metadata ?? {};
  return {
    metadata: {
      generateName: `${owner.metadata.name}-`,
      ...(labels && { labels: { ...labels } }),
      ...(annotations && { annotations: { ...annotations } }),
      ...(finalizers && { finalizers: [...finalizers] }),
      ownerReferences: [controllerReference(owner)],
    },
    spec: structuredClone(template.spec),
  };
}

/** Creates a pod and tells of it. @throws ApiStatusError when the API refuses; the owner has an event then */
export function createPod(actor: Actor, owner: StoredObject, pod: Json): StoredObject {
  try {
    const created = actor.create(podKind, owner.metadata.namespace, pod);
    actor.event(owner, "Normal", "SuccessfulCreate", `Created pod: ${created.metadata.name}`);
    return created;
  } catch (thrown) {
    if (thrown instanceof ApiStatusError)
      actor.event(owner, "Warning", "FailedCreate", `Error creating: ${thrown.message}`);
    throw thrown;
  }
}

export function deletePod(actor: Actor, owner: StoredObject, pod: StoredObject): void {
  actor.delete(pod);
  actor.event(owner, "Normal", "SuccessfulDelete", `Deleted pod: ${pod.metadata.name}`);
}

/**
 * The objects of a resource that are this owner's: orphans that it selects are adopted, its own that it selects no more
 * are let go (`controller_ref_manager.go`).
 */
export function claim(
  actor: Actor,
  index: ObjectIndex,
  owner: StoredObject,
  resource: string,
  selector: Json,
): StoredObject[] {
  const { uid, namespace, deletionTimestamp } = owner.metadata;
  const claimed: StoredObject[] = [];
  for (const object of index.controlled(resource, uid)) {
    if (selects(selector, object.metadata.labels)) claimed.push(object);
    else if (!deletionTimestamp) release(actor, object, uid);
  }
  if (deletionTimestamp) return claimed;
  for (const object of index.orphans(resource, namespace!)) {
    if (object.metadata.deletionTimestamp || !selects(selector, object.metadata.labels)) continue;
    if (resource === "/pods" && isTerminal(object)) continue;
    const references = [...ownersOf(object), controllerReference(owner)];
    claimed.push(actor.update(withMeta(object, { ownerReferences: references })));
  }
  return claimed;
}

function release(actor: Actor, object: StoredObject, uid: string): void {
  const others = ownersOf(object).filter((reference) => reference.uid !== uid);
  const { ownerReferences: _, ...meta } = object.metadata;
  actor.update({ ...object, metadata: { ...meta, ...(others.length > 0 && { ownerReferences: others }) } });
}

const phases: readonly (string | undefined)[] = ["Pending", "Unknown", "Running"];
const restarts = (pod: StoredObject): number =>
  Math.max(0, ...((pod.status?.containerStatuses ?? []) as Json[]).map((c) => c.restartCount as number));
const deletionCost = (pod: StoredObject): number =>
  Number(pod.metadata.annotations?.["controller.kubernetes.io/pod-deletion-cost"] ?? 0) || 0;

/**
 * Which of two pods goes first when there are too many: the one that serves least, costs least, and is youngest.
 * @param rank how many of the same family share a pod's node; more go first
 */
export function byDispensability(
  now: number,
  rank: (pod: StoredObject) => number = () => 0,
  withCost = true,
): (a: StoredObject, b: StoredObject) => number {
  // Ages are compared by their order of magnitude alone, so that not always the youngest goes.
  const age = (at: number) => Math.floor(Math.log2(Math.max(1, now - at)));
  return (a, b) => {
    const unbound = Number(!b.spec.nodeName) - Number(!a.spec.nodeName);
    if (unbound !== 0) return unbound;
    const phase = phases.indexOf(a.status?.phase) - phases.indexOf(b.status?.phase);
    if (phase !== 0) return phase;
    const ready = Number(isReady(a)) - Number(isReady(b));
    if (ready !== 0) return ready;
    const cost = withCost ? deletionCost(a) - deletionCost(b) : 0;
    if (cost !== 0) return cost;
    if (rank(a) !== rank(b)) return rank(b) - rank(a);
    if (isReady(a) && readySince(a) !== readySince(b)) {
      const byReady = age(readySince(a)) - age(readySince(b));
      if (byReady !== 0) return byReady;
    }
    if (restarts(a) !== restarts(b)) return restarts(b) - restarts(a);
    const created = (pod: StoredObject) => parseRfc3339Ms(pod.metadata.creationTimestamp);
    const byCreation = age(created(a)) - age(created(b));
    if (byCreation !== 0) return byCreation;
    return a.metadata.uid < b.metadata.uid ? -1 : 1;
  };
}

/** The key of the object of this kind that controls another; undefined when another kind does, or nobody. */
export function controllerKey(object: StoredObject, kind: { kind: string }): string | undefined {
  const reference = controllerOf(object);
  return reference?.kind === kind.kind ? `${object.metadata.namespace}/${reference.name}` : undefined;
}
