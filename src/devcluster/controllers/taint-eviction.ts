/**
 * Pods that do not tolerate a NoExecute taint of their node leave it, at once or when their time is over
 * (`pkg/controller/tainteviction`).
 */
import { findUntoleratedTaint, toleratesTaint, type Taint, type Toleration } from "../../resources/labels.ts";
import { withPodCondition } from "../kinds/pod-rules.ts";
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { keyOf } from "./object-index.ts";

export class TaintEviction extends KeyedController {
  /** Since when a pod bears taints that it tolerates for a time only. Monotonic; by UID. */
  readonly #since = new Map<string, number>();

  constructor(options: ControllerOptions) {
    super(options, "taint-eviction-controller");
  }

  start(): void {
    this.watch("/nodes", ({ object, previous, deleted }) => {
      if (deleted || (previous && jsonEqual(taintsOf(object), taintsOf(previous)))) return;
      for (const pod of this.index.podsOn(object.metadata.name)) this.queue.add(keyOf(pod));
    });
    this.watch("/pods", ({ object, previous, deleted }) => {
      if (deleted) this.#since.delete(object.metadata.uid);
      const isNew = !previous || previous.spec.nodeName !== object.spec.nodeName;
      if (!deleted && (isNew || !jsonEqual(previous.spec.tolerations, object.spec.tolerations)))
        this.queue.add(keyOf(object));
    });
  }

  protected sync(key: string): void {
    const pod = this.storage.get("/pods", key);
    const node = pod?.spec.nodeName ? this.storage.get("/nodes", pod.spec.nodeName) : undefined;
    if (!pod || !node || pod.metadata.deletionTimestamp) return;
    const { uid, namespace, name } = pod.metadata;
    const patience = patienceOf(taintsOf(node), pod.spec.tolerations ?? []);
    if (patience === Infinity) {
      if (this.#since.delete(uid)) this.#tell(pod, `Cancelling deletion of Pod ${namespace}/${name}`);
      return;
    }
    const now = this.clock.monotonic();
    const since = this.#since.get(uid) ?? now;
    this.#since.set(uid, since);
    const left = since + patience - now;
    if (left > 0) {
      this.queue.addAfter(key, left);
      return;
    }
    this.#tell(pod, `Marking for deletion Pod ${namespace}/${name}`);
    const condition = {
      type: "DisruptionTarget",
      status: "True",
      reason: "DeletionByTaintManager",
      message: "Taint manager: deleting due to NoExecute taint",
    };
    const marked = this.actor.updateStatus(pod, withPodCondition(pod.status, condition, this.actor.objects.now()));
    this.actor.delete(marked);
  }

  #tell(pod: StoredObject, message: string): void {
    this.actor.event(pod, "Normal", "TaintManagerEviction", message);
  }
}

const taintsOf = (node: StoredObject): Taint[] =>
  ((node.spec?.taints ?? []) as Json[]).filter(({ effect }) => effect === "NoExecute");

/** How long a pod may stay under these taints, in milliseconds; Infinity when it may for ever. */
function patienceOf(
  taints: readonly Taint[],
  tolerations: readonly (Toleration & { tolerationSeconds?: number })[],
): number {
  if (findUntoleratedTaint([...taints], [...tolerations], ["NoExecute"])) return 0;
  const used = taints.flatMap((taint) => tolerations.filter((toleration) => toleratesTaint(toleration, taint)));
  return Math.min(...used.map(({ tolerationSeconds }) => Math.max(0, (tolerationSeconds ?? Infinity) * 1000)));
}
