/**
 * DaemonSets (`pkg/controller/daemon`): one pod on each node that they fit. Failed ones are replaced after a growing
 * pause.
 */
import { isTerminal } from "../../kube/pod.ts";
import { findUntoleratedTaint, isSubset, matchesNodeSelectorTerms } from "../../resources/labels.ts";
import { mustFindKind } from "../kinds/kinds.ts";
import { resolveIntOrPercent } from "../kinds/pod-template.ts";
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { claim, createPod, deletePod, isAvailable, isReady, nextAvailability, podOf } from "./pods.ts";
import { historyOf, REVISION_HASH, truncateHistory } from "./revisions.ts";
import { parseRfc3339Ms } from "./times.ts";

const daemonSets = mustFindKind("apps", "v1", "daemonsets");

const GENERATION = "pod-template-generation";
const BACKOFF_MS = { first: 1000, max: 900_000 };

/** What a node agent outlives on a node. */
const TOLERATED: readonly [key: string, effect: string][] = [
  ["node.kubernetes.io/not-ready", "NoExecute"],
  ["node.kubernetes.io/unreachable", "NoExecute"],
  ["node.kubernetes.io/disk-pressure", "NoSchedule"],
  ["node.kubernetes.io/memory-pressure", "NoSchedule"],
  ["node.kubernetes.io/pid-pressure", "NoSchedule"],
  ["node.kubernetes.io/unschedulable", "NoSchedule"],
];

function tolerationsOf(spec: Json): Json[] {
  const added = spec.hostNetwork
    ? [...TOLERATED, ["node.kubernetes.io/network-unavailable", "NoSchedule"] as const]
    : TOLERATED;
  const own = ((spec.tolerations ?? []) as Json[]).filter(
    (t) => !added.some(([key, effect]) => t.key === key && t.effect === effect && t.operator === "Exists"),
  );
  return [...own, ...added.map(([key, effect]) => ({ key, operator: "Exists", effect }))];
}

/** Whether a pod of the set belongs on this node, and whether one that is there may stay. */
function fits(set: StoredObject, node: StoredObject): { run: boolean; stay: boolean } {
  const { spec } = set.spec.template;
  const { name, labels = {} } = node.metadata;
  const terms = spec.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms;
  const isWanted =
    (!spec.nodeName || spec.nodeName === name) &&
    isSubset(spec.nodeSelector ?? {}, labels) &&
    (!terms || matchesNodeSelectorTerms({ name, labels }, terms));
  if (!isWanted) return { run: false, stay: false };
  const taints = node.spec?.taints ?? [];
  const tolerations = tolerationsOf(spec);
  const stay = !findUntoleratedTaint(taints, tolerations, ["NoExecute"]);
  return { run: stay && !findUntoleratedTaint(taints, tolerations, ["NoSchedule"]), stay };
}

/** The node that a pod is on, or is made for. */
function nodeOf(pod: StoredObject): string | undefined {
  if (pod.spec.nodeName) return pod.spec.nodeName as string;
  const terms = pod.spec.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms;
  const field = (terms ?? [])
    .flatMap((term: Json) => term.matchFields ?? [])
    .find(({ key, operator }: Json) => key === "metadata.name" && operator === "In");
  return field?.values?.[0] as string | undefined;
}

const isLeaving = (pod: StoredObject): boolean => pod.metadata.deletionTimestamp !== undefined;
const oldestFirst = (a: StoredObject, b: StoredObject): number =>
  Number(!a.spec.nodeName) - Number(!b.spec.nodeName) ||
  parseRfc3339Ms(a.metadata.creationTimestamp) - parseRfc3339Ms(b.metadata.creationTimestamp) ||
  (a.metadata.name < b.metadata.name ? -1 : 1);

const isUpdated = (pod: StoredObject, hash: string): boolean => pod.metadata.labels?.[REVISION_HASH] === hash;

interface Backoff {
  pauseMs: number;
  at: number;
}

export class DaemonSets extends KeyedController {
  /** By set, generation and node: when a failed pod was last taken away. Monotonic. */
  readonly #backoff = new Map<string, Backoff>();

  constructor(options: ControllerOptions) {
    super(options, "daemonset-controller");
  }

  start(): void {
    this.watchOwn(daemonSets);
    this.watchDependents("/pods", daemonSets);
    this.watch("/nodes", ({ object, previous, deleted }) => {
      const matters =
        deleted ||
        !previous ||
        !jsonEqual(object.metadata.labels, previous.metadata.labels) ||
        !jsonEqual(object.spec?.taints, previous.spec?.taints);
      if (!matters) return;
      for (const { metadata } of this.storage.list("apps/daemonsets"))
        this.queue.add(`${metadata.namespace}/${metadata.name}`);
    });
  }

  protected sync(key: string): void {
    const set = this.storage.get("apps/daemonsets", key);
    if (!set || set.metadata.deletionTimestamp) return;
    const history = historyOf(this.actor, this.index, set);
    const hash = history.current.metadata.labels![REVISION_HASH]!;
    const pods = claim(this.actor, this.index, set, "/pods", set.spec.selector);
    const nodes = this.storage.list("/nodes");
    let failure: unknown;
    try {
      this.#manage(key, set, nodes, pods, hash);
      if (set.spec.updateStrategy.type === "RollingUpdate") this.#roll(set, nodes, hash);
    } catch (thrown) {
      failure = thrown;
    }
    const live = new Set(pods.map(({ metadata }) => metadata.labels?.[REVISION_HASH]));
    truncateHistory(this.actor, history, set.spec.revisionHistoryLimit, ({ metadata }) =>
      live.has(metadata.labels?.[REVISION_HASH]),
    );
    this.#writeStatus(set, nodes, pods, hash);
    if (failure !== undefined) throw failure;
    const wait = nextAvailability(pods, set.spec.minReadySeconds ?? 0, this.clock.now());
    if (wait !== undefined) this.queue.addAfter(key, wait);
  }

  #byNode(pods: readonly StoredObject[]): Map<string, StoredObject[]> {
    const byNode = new Map<string, StoredObject[]>();
    for (const pod of pods.toSorted(oldestFirst)) {
      // One that is over and on its way out is as good as gone.
      if (isTerminal(pod) && isLeaving(pod)) continue;
      const node = nodeOf(pod) ?? "";
      byNode.set(node, [...(byNode.get(node) ?? []), pod]);
    }
    return byNode;
  }

  #manage(key: string, set: StoredObject, nodes: StoredObject[], pods: StoredObject[], hash: string): void {
    const byNode = this.#byNode(pods);
    for (const node of nodes) {
      const { name } = node.metadata;
      const here = byNode.get(name) ?? [];
      byNode.delete(name);
      const { run, stay } = fits(set, node);
      if (!stay) for (const pod of here) this.#delete(set, pod);
      else if (here.length > 0) this.#tidy(key, set, name, here, hash);
      else if (run) this.#create(set, name, hash);
    }
    // Made for a node that has gone since.
    for (const pod of [...byNode.values()].flat()) if (!pod.spec.nodeName) this.#delete(set, pod);
  }

  /** Takes away what has ended, and what is too much on one node. */
  #tidy(key: string, set: StoredObject, node: string, here: StoredObject[], hash: string): void {
    const running: StoredObject[] = [];
    for (const pod of here.filter((each) => !isLeaving(each))) {
      if (pod.status?.phase === "Failed") this.#replaceFailed(key, set, node, pod);
      else if (pod.status?.phase === "Succeeded") this.#replaceSucceeded(set, node, pod);
      else running.push(pod);
    }
    if (!this.#surges(set)) {
      for (const pod of running.slice(1)) this.#delete(set, pod);
      return;
    }
    const isNew = (pod: StoredObject) => isUpdated(pod, hash);
    const [newest, ...moreNew] = running.filter(isNew);
    const [oldest, ...moreOld] = running.filter((pod) => !isNew(pod));
    for (const pod of [...moreNew, ...moreOld]) this.#delete(set, pod);
    if (newest && oldest && (!isReady(oldest) || this.#isAvailable(set, newest))) this.#delete(set, oldest);
  }

  #replaceFailed(key: string, set: StoredObject, node: string, pod: StoredObject): void {
    const id = `${set.metadata.uid}/${set.status?.observedGeneration ?? 0}/${node}`;
    const now = this.clock.monotonic();
    const known = this.#backoff.get(id);
    if (known && now - known.at < known.pauseMs) {
      this.queue.addAfter(key, known.pauseMs - (now - known.at));
      return;
    }
    // After a long time without failures it starts from the beginning.
    const isStale = known && now - known.at > 2 * BACKOFF_MS.max;
    const pauseMs = known && !isStale ? Math.min(known.pauseMs * 2, BACKOFF_MS.max) : BACKOFF_MS.first;
    this.#backoff.set(id, { pauseMs, at: now });
    const { namespace, name } = pod.metadata;
    const message = `Found failed daemon pod ${namespace}/${name} on node ${node}, will try to kill it`;
    this.actor.event(set, "Warning", "FailedDaemonPod", message);
    this.#delete(set, pod);
  }

  #replaceSucceeded(set: StoredObject, node: string, pod: StoredObject): void {
    const { namespace, name } = pod.metadata;
    const message = `Found succeeded daemon pod ${namespace}/${name} on node ${node}, will try to delete it`;
    this.actor.event(set, "Normal", "SucceededDaemonPod", message);
    this.#delete(set, pod);
  }

  /** Replaces pods of an old template, as many at once as the strategy allows. */
  #roll(set: StoredObject, nodes: StoredObject[], hash: string): void {
    const pods = this.index.controlled("/pods", set.metadata.uid);
    const byNode = this.#byNode(pods);
    const wanted = nodes.filter((node) => fits(set, node).run);
    const { maxUnavailable, maxSurge } = set.spec.updateStrategy.rollingUpdate;
    const surge = resolveIntOrPercent(maxSurge, wanted.length, "up");
    const unavailable = resolveIntOrPercent(maxUnavailable, wanted.length, "up");
    if (surge > 0) this.#rollBySurge(set, wanted, byNode, hash, surge);
    else this.#rollInPlace(set, wanted, byNode, hash, Math.max(1, unavailable));
  }

  #rollInPlace(
    set: StoredObject,
    wanted: readonly StoredObject[],
    byNode: ReadonlyMap<string, StoredObject[]>,
    hash: string,
    most: number,
  ): void {
    let missing = 0;
    const candidates: StoredObject[] = [];
    for (const node of wanted) {
      const here = (byNode.get(node.metadata.name) ?? []).filter((pod) => !isLeaving(pod));
      const old = here.find((pod) => !isUpdated(pod, hash));
      if (here.length !== 1) missing++;
      else if (old && !this.#isAvailable(set, old)) {
        // Nobody misses it.
        this.#delete(set, old);
        missing++;
      } else if (old) candidates.push(old);
      else if (!this.#isAvailable(set, here[0]!)) missing++;
    }
    for (const pod of candidates.slice(0, Math.max(0, most - missing))) this.#delete(set, pod);
  }

  #rollBySurge(
    set: StoredObject,
    wanted: readonly StoredObject[],
    byNode: ReadonlyMap<string, StoredObject[]>,
    hash: string,
    most: number,
  ): void {
    let surging = 0;
    const candidates: string[] = [];
    for (const { metadata } of wanted) {
      const here = (byNode.get(metadata.name) ?? []).filter((pod) => !isLeaving(pod));
      const old = here.find((pod) => !isUpdated(pod, hash));
      const fresh = here.find((pod) => isUpdated(pod, hash));
      if (old && fresh && !this.#isAvailable(set, fresh)) surging++;
      else if (old && !fresh && !this.#isAvailable(set, old)) this.#create(set, metadata.name, hash);
      else if (old && !fresh) candidates.push(metadata.name);
    }
    for (const node of candidates.slice(0, Math.max(0, most - surging))) this.#create(set, node, hash);
  }

  #surges(set: StoredObject): boolean {
    const { type, rollingUpdate } = set.spec.updateStrategy;
    return type === "RollingUpdate" && resolveIntOrPercent(rollingUpdate?.maxSurge ?? 0, 1, "up") > 0;
  }

  #isAvailable(set: StoredObject, pod: StoredObject): boolean {
    return isAvailable(pod, set.spec.minReadySeconds ?? 0, this.clock.now());
  }

  #create(set: StoredObject, node: string, hash: string): void {
    const pod = podOf(set.spec.template, set);
    const generation = set.metadata.annotations?.["deprecated.daemonset.template.generation"];
    pod.metadata.labels = {
      ...pod.metadata.labels,
      [REVISION_HASH]: hash,
      ...(generation && { [GENERATION]: generation }),
    };
    pod.spec.tolerations = tolerationsOf(pod.spec);
    const nodeSelectorTerms = [{ matchFields: [{ key: "metadata.name", operator: "In", values: [node] }] }];
    pod.spec.affinity = {
      ...pod.spec.affinity,
      nodeAffinity: {
        ...pod.spec.affinity?.nodeAffinity,
        requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms },
      },
    };
    createPod(this.actor, set, pod);
  }

  #delete(set: StoredObject, pod: StoredObject): void {
    if (!isLeaving(pod)) deletePod(this.actor, set, pod);
  }

  #writeStatus(before: StoredObject, nodes: StoredObject[], pods: StoredObject[], hash: string): void {
    const set = this.actor.fresh(before);
    if (!set) return;
    const byNode = this.#byNode(pods);
    const status = {
      currentNumberScheduled: 0,
      numberMisscheduled: 0,
      desiredNumberScheduled: 0,
      numberReady: 0,
      updatedNumberScheduled: 0,
      numberAvailable: 0,
    };
    for (const node of nodes) {
      const pod = byNode.get(node.metadata.name)?.[0];
      if (!fits(set, node).run) {
        if (pod) status.numberMisscheduled++;
        continue;
      }
      status.desiredNumberScheduled++;
      if (!pod) continue;
      status.currentNumberScheduled++;
      if (isReady(pod)) status.numberReady++;
      if (this.#isAvailable(set, pod)) status.numberAvailable++;
      if (isUpdated(pod, hash)) status.updatedNumberScheduled++;
    }
    this.actor.updateStatus(set, {
      ...status,
      numberUnavailable: status.desiredNumberScheduled - status.numberAvailable,
      observedGeneration: set.metadata.generation,
      ...(set.status?.collisionCount !== undefined && { collisionCount: set.status.collisionCount }),
    });
  }
}
