/**
 * Binds pending pods to nodes, as far as one virtual node needs a scheduler: node selector and required affinity,
 * taints, `unschedulable`, free resources. It does not score, spread or preempt, and of volumes it looks only whether
 * claims are bound. Level-triggered: every change of a pod, a node or a claim makes it look at all unbound pods again.
 */
import { isTerminal } from "../../kube/pod.ts";
import { findUntoleratedTaint, isSubset, matchesNodeSelectorTerms } from "../../resources/labels.ts";
import { addResources, parseResourceList, podRequests } from "../../resources/pod-resources.ts";
import { Quantity } from "../../resources/quantity.ts";
import type { Logger } from "../../telemetry/logger.ts";
import { rfc3339Micro, type Clock } from "../../util/clock.ts";
import { objectKey } from "../kinds/kind.ts";
import { claimNamesOf } from "../kinds/storage.ts";
import { findKind } from "../kinds/kinds.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { withPodCondition } from "../kinds/pod-rules.ts";
import type { ObjectApi, WriteContext } from "../kinds/object-api.ts";

const SCHEDULER = "default-scheduler";

const context: WriteContext = {
  user: { username: "system:kube-scheduler", groups: ["system:masters"] },
  dryRun: false,
  fieldValidation: "Ignore",
  warnings: [],
};

export class Binder {
  readonly #objects: ObjectApi;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #stops: (() => void)[] = [];
  #cancelRun: (() => void) | undefined;

  constructor(options: { objects: ObjectApi; clock: Clock; logger: Logger }) {
    this.#objects = options.objects;
    this.#clock = options.clock;
    this.#logger = options.logger;
  }

  start(): void {
    const { storage } = this.#objects;
    for (const resource of ["/pods", "/nodes", "/persistentvolumeclaims"])
      this.#stops.push(storage.watch(resource, storage.revision, () => this.#runSoon()));
    this.#runSoon();
  }

  stop(): void {
    this.#cancelRun?.();
    for (const stop of this.#stops) stop();
  }

  /** One run for all changes of the moment. */
  #runSoon(): void {
    this.#cancelRun ??= this.#clock.after(0, () => {
      this.#cancelRun = undefined;
      try {
        this.runOnce();
      } catch (thrown) {
        this.#logger.error({ err: thrown }, "Binder failed; it looks again at the next change");
      }
    });
  }

  /** Looks at every unbound pod once, oldest first. */
  runOnce(): void {
    const { storage } = this.#objects;
    const pods = storage.list("/pods");
    const waiting = pods
      .filter(
        (p) =>
          !p.spec.nodeName &&
          !p.metadata.deletionTimestamp &&
          !isTerminal(p) &&
          p.spec.schedulerName === SCHEDULER &&
          !p.spec.schedulingGates?.length,
      )
      .toSorted((a, b) => Number(a.metadata.resourceVersion) - Number(b.metadata.resourceVersion));
    if (waiting.length === 0) return;
    const nodes = storage.list("/nodes").map((node) => new NodeRoom(node));
    const room = new Map(nodes.map((n) => [n.node.metadata.name, n]));
    for (const pod of pods) if (pod.spec.nodeName && !isTerminal(pod)) room.get(pod.spec.nodeName as string)?.take(pod);
    for (const pod of waiting) this.#place(pod, nodes);
  }

  #place(pod: StoredObject, nodes: readonly NodeRoom[]): void {
    const refusals: string[] = [];
    const fitting: NodeRoom[] = [];
    for (const node of nodes) {
      const reasons = node.refusals(pod);
      if (reasons.length === 0) fitting.push(node);
      refusals.push(...reasons);
    }
    // The emptiest node, so that several virtual nodes share the load.
    const chosen = fitting.toSorted((a, b) => a.count - b.count)[0];
    const { namespace, name } = pod.metadata;
    const unbound = this.#unboundClaim(pod);
    if (unbound !== undefined) {
      this.#refuse(pod, `0/${nodes.length} nodes are available: ${unbound}.`);
      return;
    }
    if (!chosen) {
      this.#refuse(pod, unavailable(nodes.length, refusals));
      return;
    }
    this.#objects.bind(
      namespace!,
      name,
      {
        metadata: { name, namespace, uid: pod.metadata.uid },
        target: { kind: "Node", name: chosen.node.metadata.name },
      },
      context,
    );
    chosen.take(pod);
    this.#event(
      pod,
      "Normal",
      "Scheduled",
      "Binding",
      `Successfully assigned ${namespace}/${name} to ${chosen.node.metadata.name}`,
    );
  }

  /** The scheduler's words for claims that have no volume yet. */
  #unboundClaim(pod: StoredObject): string | undefined {
    const claims = claimNamesOf(pod).map((name) => ({
      name,
      claim: this.#objects.storage.get("/persistentvolumeclaims", objectKey(pod.metadata.namespace, name)),
    }));
    const missing = claims.find(({ claim }) => claim === undefined);
    if (missing) return `persistentvolumeclaim "${missing.name}" not found`;
    return claims.some(({ claim }) => claim?.status?.phase !== "Bound")
      ? "pod has unbound immediate PersistentVolumeClaims"
      : undefined;
  }

  /** Says why a pod waits, once per reason: writing it again would wake the binder for nothing. */
  #refuse(pod: StoredObject, message: string): void {
    const before = pod.status?.conditions?.find((c: Json) => c.type === "PodScheduled");
    if (before?.reason === "Unschedulable" && before.message === message) return;
    const status = withPodCondition(
      pod.status,
      { type: "PodScheduled", status: "False", reason: "Unschedulable", message },
      this.#objects.now(),
    );
    this.#objects.storage.put("/pods", objectKey(pod.metadata.namespace, pod.metadata.name), { ...pod, status });
    this.#event(pod, "Warning", "FailedScheduling", "Scheduling", message);
  }

  #event(pod: StoredObject, type: "Normal" | "Warning", reason: string, action: string, message: string): void {
    const now = this.#clock.now();
    const { namespace, name, uid, resourceVersion } = pod.metadata;
    const event = {
      // client-go's form: the object's name and a time, so that names never meet.
      metadata: {
        name: `${name}.${(BigInt(now) * 1_000_000n + BigInt(this.#objects.storage.revision % 1_000_000)).toString(16)}`,
        namespace,
      },
      involvedObject: { kind: "Pod", namespace, name, uid, apiVersion: "v1", resourceVersion },
      type,
      reason,
      action,
      message,
      eventTime: rfc3339Micro(now),
      reportingComponent: SCHEDULER,
      reportingInstance: `${SCHEDULER}-devcluster`,
    };
    // A namespace that is going takes no events; the pod goes with it.
    const ending = this.#objects.storage.get("/namespaces", namespace!)?.metadata.deletionTimestamp !== undefined;
    if (!ending) this.#objects.create(findKind("", "v1", "events")!, namespace, event, context);
  }
}

/** `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) ...`, as the scheduler says it. */
function unavailable(total: number, refusals: readonly string[]): string {
  if (total === 0) return "no nodes available to schedule pods";
  const counts = new Map<string, number>();
  for (const refusal of refusals) counts.set(refusal, (counts.get(refusal) ?? 0) + 1);
  const parts = [...counts].map(([reason, count]) => `${count} ${reason}`).toSorted();
  return `0/${total} nodes are available: ${parts.join(", ")}.`;
}

/** A node and what is free on it. */
class NodeRoom {
  readonly node: StoredObject;
  readonly #allocatable: Map<string, Quantity>;
  #used = new Map<string, Quantity>();
  count = 0;

  constructor(node: StoredObject) {
    this.node = node;
    this.#allocatable = parseResourceList(node.status?.allocatable as Record<string, string> | undefined);
  }

  take(pod: StoredObject): void {
    this.count++;
    this.#used = addResources(this.#used, podRequests(pod.spec));
  }

  /** Why the pod cannot come here; empty when it can. The first filter that refuses speaks, as in the scheduler. */
  refusals(pod: StoredObject): string[] {
    const misplaced = this.#taintRefusal(pod) ?? this.#affinityRefusal(pod);
    return misplaced === undefined ? this.#shortages(pod) : [misplaced];
  }

  #taintRefusal({ spec }: StoredObject): string | undefined {
    const tolerations = spec.tolerations ?? [];
    const unschedulable = { key: "node.kubernetes.io/unschedulable", effect: "NoSchedule" };
    if (this.node.spec?.unschedulable && findUntoleratedTaint([unschedulable], tolerations, ["NoSchedule"]))
      return "node(s) were unschedulable";
    const taint = findUntoleratedTaint(this.node.spec?.taints ?? [], tolerations, ["NoSchedule", "NoExecute"]);
    return taint && "node(s) had untolerated taint(s)";
  }

  #affinityRefusal({ spec }: StoredObject): string | undefined {
    const labels = this.node.metadata.labels ?? {};
    const terms = spec.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms;
    const selected =
      isSubset(spec.nodeSelector ?? {}, labels) &&
      (!terms || matchesNodeSelectorTerms({ name: this.node.metadata.name, labels }, terms));
    return selected ? undefined : "node(s) didn't match Pod's node affinity/selector";
  }

  #shortages({ spec }: StoredObject): string[] {
    const reasons: string[] = [];
    const podLimit = this.#allocatable.get("pods");
    if (podLimit && this.count + 1 > podLimit.toNumber()) reasons.push("Too many pods");
    for (const [name, asked] of podRequests(spec)) {
      if (asked.isZero) continue;
      const free = (this.#allocatable.get(name) ?? Quantity.zero).sub(this.#used.get(name) ?? Quantity.zero);
      if (asked.compare(free) > 0) reasons.push(`Insufficient ${name}`);
    }
    return reasons;
  }
}
