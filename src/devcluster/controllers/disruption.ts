/** PodDisruptionBudgets (`pkg/controller/disruption`): how many pods may be taken away by those who ask first. */
import { isTerminal } from "../../kube/pod.ts";
import { kindOf, mustFindKind } from "../kinds/kinds.ts";
import { objectKey, storageName } from "../kinds/kind.ts";
import { resolveIntOrPercent, selects } from "../kinds/pod-template.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { controllerOf, keyOf } from "./object-index.ts";
import { isActive, isReady } from "./pods.ts";
import { parseRfc3339Ms } from "./times.ts";

const budgets = mustFindKind("policy", "v1", "poddisruptionbudgets");

/** After so long an eviction that was granted counts no more: the pod should be on its way. */
const GRANTED_MS = 120_000;

export class DisruptionBudgets extends KeyedController {
  constructor(options: ControllerOptions) {
    super(options, "controllermanager");
  }

  start(): void {
    this.watchOwn(budgets);
    this.watch("/pods", ({ object, previous }) => {
      for (const budget of this.index.inNamespace("policy/poddisruptionbudgets", object.metadata.namespace!)) {
        const { selector } = budget.spec;
        if (selects(selector, object.metadata.labels) || (previous && selects(selector, previous.metadata.labels)))
          this.queue.add(keyOf(budget));
      }
    });
  }

  protected sync(key: string): void {
    const budget = this.storage.get("policy/poddisruptionbudgets", key);
    if (!budget || budget.metadata.deletionTimestamp) return;
    const now = this.clock.now();
    const pods = this.index
      .podsIn(budget.metadata.namespace!)
      .filter((pod) => selects(budget.spec.selector, pod.metadata.labels) && !isTerminal(pod));
    const granted = Object.entries((budget.status?.disruptedPods ?? {}) as Record<string, string>).filter(
      ([name, at]) =>
        pods.some((pod) => pod.metadata.name === name && isActive(pod)) && now - parseRfc3339Ms(at) < GRANTED_MS,
    );
    const leaving = new Set(granted.map(([name]) => name));
    const currentHealthy = pods.filter(
      (pod) => isActive(pod) && isReady(pod) && !leaving.has(pod.metadata.name),
    ).length;
    const expectedPods = this.#expected(budget, pods);
    const { minAvailable, maxUnavailable } = budget.spec;
    const desiredHealthy =
      maxUnavailable !== undefined
        ? Math.max(0, expectedPods - resolveIntOrPercent(maxUnavailable, expectedPods, "up"))
        : resolveIntOrPercent(minAvailable ?? 1, expectedPods, "up");
    const disruptionsAllowed = expectedPods <= 0 ? 0 : Math.max(0, currentHealthy - desiredHealthy);
    this.actor.updateStatus(budget, {
      currentHealthy,
      desiredHealthy,
      disruptionsAllowed,
      expectedPods,
      observedGeneration: budget.metadata.generation,
      ...(granted.length > 0 && { disruptedPods: Object.fromEntries(granted) }),
      conditions: [this.#condition(budget, disruptionsAllowed > 0)],
    });
    if (granted.length > 0) this.queue.addAfter(key, GRANTED_MS);
  }

  #condition(budget: StoredObject, allowed: boolean): Json {
    const status = allowed ? "True" : "False";
    const before = budget.status?.conditions?.find((c: Json) => c.type === "DisruptionAllowed");
    return {
      type: "DisruptionAllowed",
      status,
      reason: allowed ? "SufficientPods" : "InsufficientPods",
      message: "",
      observedGeneration: budget.metadata.generation,
      lastTransitionTime: before?.status === status ? before.lastTransitionTime : this.actor.objects.now(),
    };
  }

  /** How many there should be: what the pods' controllers want, where the budget is a share of it. */
  #expected(budget: StoredObject, pods: readonly StoredObject[]): number {
    const { minAvailable, maxUnavailable } = budget.spec;
    if (maxUnavailable === undefined && typeof minAvailable === "number") return pods.length;
    const scales = new Map<string, number>();
    let alone = 0;
    for (const pod of pods) {
      const owner = this.#topOwner(pod);
      if (owner?.spec?.replicas === undefined) alone++;
      else scales.set(owner.metadata.uid, owner.spec.replicas as number);
    }
    return [...scales.values()].reduce((total, replicas) => total + replicas, alone);
  }

  #topOwner(object: StoredObject): StoredObject | undefined {
    const reference = controllerOf(object);
    const kind = reference && kindOf(reference);
    if (!kind) return undefined;
    const owner = this.storage.get(storageName(kind), objectKey(object.metadata.namespace, reference.name));
    if (owner?.metadata.uid !== reference.uid) return undefined;
    return this.#topOwner(owner) ?? owner;
  }
}
