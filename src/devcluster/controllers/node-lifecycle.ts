/**
 * Nodes that are heard of no more (`pkg/controller/nodelifecycle`): their conditions become Unknown, their pods
 * unready, and taints say so to the scheduler and to the eviction.
 */
import { mustFindKind } from "../kinds/kinds.ts";
import { withPodCondition } from "../kinds/pod-rules.ts";
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { isReady } from "./pods.ts";

const nodes = mustFindKind("", "v1", "nodes");

/** kube-controller-manager's `--node-monitor-period`, `--node-monitor-grace-period`, `--node-startup-grace-period`. */
const PERIOD_MS = 5_000;
const GRACE_MS = 50_000;
const STARTUP_GRACE_MS = 60_000;

const HEARTBEATS = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
const NOT_READY = "node.kubernetes.io/not-ready";
const UNREACHABLE = "node.kubernetes.io/unreachable";
/** The taint of a condition: by type, then by status. */
const CONDITION_TAINTS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  Ready: { False: NOT_READY, Unknown: UNREACHABLE },
  MemoryPressure: { True: "node.kubernetes.io/memory-pressure" },
  DiskPressure: { True: "node.kubernetes.io/disk-pressure" },
  PIDPressure: { True: "node.kubernetes.io/pid-pressure" },
  NetworkUnavailable: { True: "node.kubernetes.io/network-unavailable" },
};
const UNSCHEDULABLE = "node.kubernetes.io/unschedulable";
const OWN_NO_SCHEDULE = new Set([UNSCHEDULABLE, ...Object.values(CONDITION_TAINTS).flatMap(Object.values<string>)]);

const conditionOf = (node: StoredObject, type: string): Json =>
  node.status?.conditions?.find((c: Json) => c.type === type);

/** When a node was last heard of, by this process' own clock: what nodes write as the time is theirs. */
interface Heard {
  uid: string;
  at: number;
  heartbeat: string;
}

export class NodeLifecycle extends KeyedController {
  readonly #heard = new Map<string, Heard>();
  readonly #ready = new Set<string>();

  constructor(options: ControllerOptions) {
    super(options, "node-controller");
  }

  start(): void {
    this.watchOwn(nodes);
  }

  protected sync(name: string): void {
    const node = this.storage.get("/nodes", name);
    if (!node) {
      this.#heard.delete(name);
      this.#ready.delete(name);
      return;
    }
    this.queue.addAfter(name, PERIOD_MS);
    const silentFor = this.#silence(node);
    const wasReady = conditionOf(node, "Ready")?.status === "True";
    const grace = conditionOf(node, "Ready") ? GRACE_MS : STARTUP_GRACE_MS;
    const current = silentFor > grace ? this.#markUnknown(node) : node;
    const ready = conditionOf(current, "Ready")?.status as string | undefined;
    if (ready === "True") this.#ready.add(name);
    else this.#ready.delete(name);
    if (wasReady && ready !== "True") {
      this.#tellNotReady(current);
      this.#markPodsNotReady(name);
    }
    this.#writeTaints(current, ready);
  }

  /** For how long neither its lease nor its status has moved, in milliseconds. */
  #silence(node: StoredObject): number {
    const { name, uid } = node.metadata;
    const lease = this.storage.get("coordination.k8s.io/leases", `kube-node-lease/${name}`);
    const heartbeat = `${lease?.spec?.renewTime ?? ""} ${conditionOf(node, "Ready")?.lastHeartbeatTime ?? ""}`;
    const now = this.clock.monotonic();
    const before = this.#heard.get(name);
    if (before?.uid !== uid || before.heartbeat !== heartbeat) {
      if (before?.uid !== uid)
        this.actor.event(node, "Normal", "RegisteredNode", `Node ${name} event: Registered Node ${name} in Controller`);
      this.#heard.set(name, { uid, at: now, heartbeat });
      return 0;
    }
    return now - before.at;
  }

  #markUnknown(node: StoredObject): StoredObject {
    const now = this.actor.objects.now();
    const known = (node.status?.conditions ?? []) as Json[];
    const silent = known.map((condition) =>
      HEARTBEATS.includes(condition.type) && condition.status !== "Unknown"
        ? {
            ...condition,
            status: "Unknown",
            reason: "NodeStatusUnknown",
            message: "Kubelet stopped posting node status.",
            lastTransitionTime: now,
          }
        : condition,
    );
    const never = HEARTBEATS.filter((type) => !known.some((c) => c.type === type)).map((type) => ({
      type,
      status: "Unknown",
      reason: "NodeStatusNeverUpdated",
      message: "Kubelet never posted node status.",
      lastHeartbeatTime: node.metadata.creationTimestamp,
      lastTransitionTime: now,
    }));
    const conditions = [...silent, ...never];
    return jsonEqual(conditions, known) ? node : this.actor.updateStatus(node, { ...node.status, conditions });
  }

  #tellNotReady(node: StoredObject): void {
    const { name } = node.metadata;
    this.actor.event(node, "Normal", "NodeNotReady", `Node ${name} status is now: NodeNotReady`);
  }

  #markPodsNotReady(name: string): void {
    for (const pod of this.index.podsOn(name)) {
      if (!isReady(pod)) continue;
      const status = withPodCondition(pod.status, { type: "Ready", status: "False" }, this.actor.objects.now());
      this.actor.updateStatus(pod, status);
      this.actor.event(pod, "Warning", "NodeNotReady", "Node is not ready");
    }
  }

  #writeTaints(node: StoredObject, ready: string | undefined): void {
    const before = (node.spec?.taints ?? []) as Json[];
    const wanted = ((node.status?.conditions ?? []) as Json[]).flatMap(({ type, status }) => {
      const key = CONDITION_TAINTS[type]?.[status];
      return key === undefined ? [] : [{ key, effect: "NoSchedule" }];
    });
    if (node.spec?.unschedulable) wanted.push({ key: UNSCHEDULABLE, effect: "NoSchedule" });
    // When no node is ready at all, it is the network here that is gone: nothing would be gained by evicting
    // everything.
    const isAlone = this.#ready.size === 0;
    const noExecute = isAlone
      ? undefined
      : ready === "False"
        ? NOT_READY
        : ready === "Unknown"
          ? UNREACHABLE
          : undefined;
    if (noExecute !== undefined) wanted.push({ key: noExecute, effect: "NoExecute" });
    const isOwn = ({ key, effect }: Json) =>
      (effect === "NoSchedule" && OWN_NO_SCHEDULE.has(key)) ||
      (effect === "NoExecute" && (key === NOT_READY || key === UNREACHABLE));
    const others = before.filter((taint) => !isOwn(taint));
    const own = wanted.map(
      (taint) =>
        before.find(({ key, effect }) => key === taint.key && effect === taint.effect) ?? {
          ...taint,
          timeAdded: this.actor.objects.now(),
        },
    );
    const taints = [...others, ...own];
    const isSame = taints.length === before.length && taints.every((taint) => before.includes(taint));
    if (isSame) return;
    const { taints: _, ...spec } = node.spec ?? {};
    this.actor.update({ ...node, spec: { ...spec, ...(taints.length > 0 && { taints }) } });
  }
}
