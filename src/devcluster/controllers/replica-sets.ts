/** ReplicaSets (`pkg/controller/replicaset`): so many pods of a template. Failed ones are replaced at once. */
import { isSubset } from "../../resources/labels.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import { toError } from "../../util/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { controllerOf } from "./object-index.ts";
import {
  byDispensability,
  claim,
  createPod,
  deletePod,
  isActive,
  isAvailable,
  isReady,
  isTerminating,
  nextAvailability,
  podOf,
} from "./pods.ts";

const replicaSets = mustFindKind("apps", "v1", "replicasets");

/** As the real one's: more are made in the next round. */
const BURST = 500;

export class ReplicaSets extends KeyedController {
  constructor(options: ControllerOptions) {
    super(options, "replicaset-controller");
  }

  start(): void {
    this.watchOwn(replicaSets);
    this.watchDependents("/pods", replicaSets);
  }

  protected sync(key: string): void {
    const set = this.storage.get("apps/replicasets", key);
    if (!set) return;
    const pods = claim(this.actor, this.index, set, "/pods", set.spec.selector);
    const active = pods.filter(isActive);
    let failure: Error | undefined;
    if (!set.metadata.deletionTimestamp) {
      try {
        this.#manage(set, active);
      } catch (thrown) {
        failure = toError(thrown);
      }
    }
    this.#writeStatus(set, active, pods.filter(isTerminating).length, failure);
    if (failure) throw failure;
    const wait = nextAvailability(active, set.spec.minReadySeconds ?? 0, this.clock.now());
    if (wait !== undefined) this.queue.addAfter(key, wait);
  }

  #manage(set: StoredObject, active: StoredObject[]): void {
    const missing = (set.spec.replicas as number) - active.length;
    for (let i = 0; i < Math.min(missing, BURST); i++) createPod(this.actor, set, podOf(set.spec.template, set));
    if (missing >= 0) return;
    const perNode = this.#relatedPerNode(set);
    const rank = (pod: StoredObject) => perNode.get(pod.spec.nodeName as string) ?? 0;
    const leaving = active.toSorted(byDispensability(this.clock.now(), rank)).slice(0, Math.min(-missing, BURST));
    for (const pod of leaving) deletePod(this.actor, set, pod);
  }

  /** How many pods of the whole family, those of the Deployment's other ReplicaSets included, each node has. */
  #relatedPerNode(set: StoredObject): Map<string, number> {
    const parent = controllerOf(set)?.uid;
    const family = parent === undefined ? [set] : this.index.controlled("apps/replicasets", parent);
    const counts = new Map<string, number>();
    for (const member of family) {
      for (const pod of this.index.controlled("/pods", member.metadata.uid)) {
        const node = (pod.spec.nodeName ?? "") as string;
        if (isActive(pod)) counts.set(node, (counts.get(node) ?? 0) + 1);
      }
    }
    return counts;
  }

  #writeStatus(before: StoredObject, active: StoredObject[], terminating: number, failure: Error | undefined): void {
    // The pods that were made or deleted in this round are counted in the next, when their changes come in.
    const set = this.actor.fresh(before);
    if (!set) return;
    const now = this.clock.now();
    const { minReadySeconds = 0, template } = set.spec;
    const labels = template.metadata?.labels ?? {};
    const others = ((set.status?.conditions ?? []) as Json[]).filter(({ type }) => type !== "ReplicaFailure");
    const known = set.status?.conditions?.find(({ type }: Json) => type === "ReplicaFailure");
    const condition = known ?? {
      type: "ReplicaFailure",
      status: "True",
      lastTransitionTime: this.actor.objects.now(),
      reason: active.length < set.spec.replicas ? "FailedCreate" : "FailedDelete",
      message: failure?.message,
    };
    const conditions = failure ? [...others, condition] : others;
    this.actor.updateStatus(set, {
      replicas: active.length,
      fullyLabeledReplicas: active.filter((pod) => isSubset(labels, pod.metadata.labels ?? {})).length,
      readyReplicas: active.filter(isReady).length,
      availableReplicas: active.filter((pod) => isAvailable(pod, minReadySeconds, now)).length,
      terminatingReplicas: terminating,
      observedGeneration: set.metadata.generation,
      ...(conditions.length > 0 && { conditions }),
    });
  }
}
