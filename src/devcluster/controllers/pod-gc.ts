/**
 * Pods that nobody will end (`pkg/controller/podgc`): those of nodes that are gone, and finished ones beyond a large
 * number.
 */
import { isTerminal } from "../../kube/pod.ts";
import { withPodCondition } from "../kinds/pod-rules.ts";
import type { StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { parseRfc3339Ms } from "./times.ts";

/** As kube-controller-manager's: how often it looks, how long a node must be gone, how many finished pods may stay. */
const PERIOD_MS = 20_000;
const QUARANTINE_MS = 40_000;
const FINISHED_LIMIT = 12_500;

/** It has one key: all pods. */
const ALL = "pods";

export class PodGarbageCollector extends KeyedController {
  /** Since when a node that pods name is missing. Monotonic. */
  readonly #missing = new Map<string, number>();

  constructor(options: ControllerOptions) {
    super(options, "pod-garbage-collector");
  }

  start(): void {
    this.queue.addAfter(ALL, PERIOD_MS);
  }

  protected sync(): void {
    this.queue.addAfter(ALL, PERIOD_MS);
    const pods = this.storage.list("/pods");
    this.#collectFinished(pods);
    this.#collectOrphans(pods);
    for (const pod of pods) if (pod.metadata.deletionTimestamp && !pod.spec.nodeName) this.#end(pod);
  }

  #collectFinished(pods: readonly StoredObject[]): void {
    const finished = pods.filter(isTerminal);
    const created = ({ metadata }: StoredObject) => parseRfc3339Ms(metadata.creationTimestamp);
    const oldest = finished.toSorted((a, b) => created(a) - created(b));
    for (const pod of oldest.slice(0, Math.max(0, finished.length - FINISHED_LIMIT))) this.#end(pod);
  }

  #collectOrphans(pods: readonly StoredObject[]): void {
    const now = this.clock.monotonic();
    const orphans = pods.filter(({ spec }) => spec.nodeName && !this.storage.get("/nodes", spec.nodeName));
    const names = new Set(orphans.map(({ spec }) => spec.nodeName as string));
    for (const name of this.#missing.keys()) if (!names.has(name)) this.#missing.delete(name);
    for (const name of names) if (!this.#missing.has(name)) this.#missing.set(name, now);
    for (const pod of orphans) {
      if (now - this.#missing.get(pod.spec.nodeName)! < QUARANTINE_MS) continue;
      const condition = {
        type: "DisruptionTarget",
        status: "True",
        reason: "DeletionByPodGC",
        message: "PodGC: node no longer exists",
      };
      this.#end({ ...pod, status: withPodCondition(pod.status, condition, this.actor.objects.now()) });
    }
  }

  /** Nobody is there to stop it: it has failed, and goes without grace. */
  #end(pod: StoredObject): void {
    if (!this.actor.fresh(pod)) return;
    const ended = isTerminal(pod) ? pod : this.actor.updateStatus(pod, { ...pod.status, phase: "Failed" });
    this.actor.delete(ended, { gracePeriodSeconds: 0 });
  }
}
