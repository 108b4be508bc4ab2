/**
 * The part of a cluster that the page shows, kept current by watches with the user's own rights: the vmlet nodes, the
 * pods on them, and pods without a node that could come to one. Of each object only its row is kept, so a cluster with
 * many other pods costs little.
 */
import type { Kube, KubeRequest, WatchEvent, WatchRequest } from "../kube/kube.ts";
import { nodesPath, resourcePath } from "../kube/paths.ts";
import { Reflector } from "../kube/reflector.ts";
import { Store } from "../kube/store.ts";
import type { KubeObject, Node, Pod } from "../kube/wire.ts";
import type { Logger } from "../telemetry/logger.ts";
import { pause } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";
import { countPhases, History, pastOf, STEP_MS, type Point } from "./history.ts";
import { obstacles, offerOf, wishesOf, type Offer, type Wishes } from "./placement.ts";
import { isVmletNode, nodeRow, podRow, type NodeRow, type PodRow } from "./rows.ts";

type SeenNode = KubeObject & { readonly seen: { row: NodeRow; offer: Offer } | undefined };
type SeenPod = KubeObject & { readonly row: PodRow; readonly wishes: Wishes | undefined };

/** Why a collection is not shown, or no more current; undefined while it is. */
export interface Faults {
  nodes: string | undefined;
  pods: string | undefined;
}

/** What a subscriber is told of, by UID; the rows themselves are in the view. */
interface Change {
  kind: "node" | "pod" | "fault" | "synced";
  uid: string;
}

interface ClusterViewOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Pods of this namespace only; undefined for all. */
  namespace: string | undefined;
}

export class ClusterView {
  readonly #options: ClusterViewOptions;
  readonly #nodes: Store<SeenNode>;
  readonly #pods: Store<SeenPod>;
  readonly #shown = new Map<string, PodRow>();
  readonly #listeners = new Set<(change: Change) => void>();
  readonly #pointListeners = new Set<(point: Point) => void>();
  readonly #history = new History();
  readonly #faults: Faults = { nodes: undefined, pods: undefined };
  #offers = new Map<string, Offer>();

  constructor(options: ClusterViewOptions) {
    this.#options = options;
    const { logger } = options;
    this.#nodes = new Store<SeenNode>({ logger });
    this.#pods = new Store<SeenPod>({ logger });
    this.#nodes.onChange(({ type, object }) => this.#nodeChanged(type === "delete" ? undefined : object, object));
    this.#pods.onChange(({ type, object }) => {
      this.#recovered("pods");
      this.#show(object, type === "upsert" && this.#isOfInterest(object));
    });
  }

  get faults(): Readonly<Faults> {
    return this.#faults;
  }

  /** Both collections were read in whole, or will not be. */
  get synced(): boolean {
    return (
      (this.#nodes.synced || this.#faults.nodes !== undefined) && (this.#pods.synced || this.#faults.pods !== undefined)
    );
  }

  get history(): readonly Point[] {
    return this.#history.points;
  }

  node(uid: string): NodeRow | undefined {
    return this.#nodes.get(uid)?.seen?.row;
  }

  pod(uid: string): PodRow | undefined {
    return this.#shown.get(uid);
  }

  nodes(): NodeRow[] {
    return this.#nodes.list().flatMap(({ seen }) => seen?.row ?? []);
  }

  pods(): PodRow[] {
    return [...this.#shown.values()];
  }

  onChange(listener: (change: Change) => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => this.#listeners.delete(listener) };
  }

  onPoint(listener: (point: Point) => void): Disposable {
    this.#pointListeners.add(listener);
    return { [Symbol.dispose]: () => this.#pointListeners.delete(listener) };
  }

  /** Resolves when `signal` aborts; never rejects. */
  async run(signal: AbortSignal): Promise<void> {
    const { kube, clock, random, logger, namespace } = this.#options;
    const shared = { clock, random, logger, pageSize: 500 };
    const nodes = new Reflector<SeenNode>({
      ...shared,
      kube: digesting(kube, (node) => seeNode(node as Node)),
      path: nodesPath(),
      store: this.#nodes,
      onError: (error) => this.#failed("nodes", error),
    });
    const pods = new Reflector<SeenPod>({
      ...shared,
      kube: digesting(kube, (pod) => seePod(pod as Pod)),
      path: resourcePath({ resource: "pods", ...(namespace !== undefined && { namespace }) }),
      store: this.#pods,
      onError: (error) => this.#failed("pods", error),
    });
    await Promise.all([nodes.run(signal), pods.run(signal), this.#recordHistory(signal), this.#tellSynced(signal)]);
  }

  async #tellSynced(signal: AbortSignal): Promise<void> {
    const waits = [this.#nodes, this.#pods].map((store) => store.hasSynced(signal));
    for (const [index, kind] of (["nodes", "pods"] as const).entries())
      waits[index]!.then(() => this.#recovered(kind)).catch(() => undefined);
    await Promise.allSettled(waits);
    this.#tell({ kind: "synced", uid: "" });
  }

  async #recordHistory(signal: AbortSignal): Promise<void> {
    const { clock } = this.#options;
    let begun = false;
    while (!signal.aborted) {
      const now = clock.now();
      if (!begun && this.synced) {
        begun = true;
        this.#history.begin(pastOf(this.pods(), now));
        for (const point of this.#history.points) this.#tellPoint(point);
      }
      if (begun) {
        const point = countPhases(this.#shown.values(), now);
        this.#history.add(point);
        this.#tellPoint(point);
      }
      await pause(clock, STEP_MS, signal);
    }
  }

  /** A node that comes, goes or changes its taints changes which pods without a node are of interest. */
  #nodeChanged(now: SeenNode | undefined, { seen, metadata }: SeenNode): void {
    this.#recovered("nodes");
    const name = seen?.offer.name ?? metadata?.name ?? "";
    const before = this.#offers.get(name);
    const after = now?.seen?.offer;
    if (before === undefined && after === undefined) return;
    if (after === undefined) this.#offers.delete(name);
    else this.#offers.set(name, after);
    this.#tell({ kind: "node", uid: metadata?.uid ?? "" });
    if (JSON.stringify(before) === JSON.stringify(after)) return;
    for (const pod of this.#pods.list()) this.#show(pod, this.#isOfInterest(pod));
  }

  #isOfInterest({ row, wishes }: SeenPod): boolean {
    if (row.machine !== "" || this.#offers.has(row.node)) return true;
    if (row.node !== "" || wishes === undefined) return false;
    return this.#offers.values().some((offer) => obstacles(wishes, offer).length === 0);
  }

  #show({ row }: SeenPod, isShown: boolean): void {
    const before = this.#shown.get(row.uid);
    if (isShown) this.#shown.set(row.uid, row);
    else this.#shown.delete(row.uid);
    if (isShown ? before !== row : before !== undefined) this.#tell({ kind: "pod", uid: row.uid });
  }

  #failed(kind: keyof Faults, error: Error): void {
    this.#setFault(kind, error.message.slice(0, 1_000));
  }

  #recovered(kind: keyof Faults): void {
    this.#setFault(kind, undefined);
  }

  #setFault(kind: keyof Faults, fault: string | undefined): void {
    if (this.#faults[kind] === fault) return;
    this.#faults[kind] = fault;
    this.#tell({ kind: "fault", uid: "" });
  }

  #tell(change: Change): void {
    for (const listener of this.#listeners) listener(change);
  }

  #tellPoint(point: Point): void {
    for (const listener of this.#pointListeners) listener(point);
  }
}

const head = ({ metadata }: KubeObject): KubeObject => ({
  metadata: {
    uid: metadata?.uid,
    name: metadata?.name,
    namespace: metadata?.namespace,
    resourceVersion: metadata?.resourceVersion,
  } as NonNullable<KubeObject["metadata"]>,
});

function seeNode(node: Node): SeenNode {
  return { ...head(node), seen: isVmletNode(node) ? { row: nodeRow(node), offer: offerOf(node) } : undefined };
}

function seePod(pod: Pod): SeenPod {
  return { ...head(pod), row: podRow(pod), wishes: pod.spec?.nodeName ? undefined : wishesOf(pod) };
}

/** The same collection with what is kept of each object in its place, so that the whole of it is never held. */
function digesting(kube: Kube, digest: (object: KubeObject) => KubeObject): Kube {
  return {
    async request<R>(request: KubeRequest): Promise<R> {
      const list = await kube.request<{ items?: KubeObject[] | null }>(request);
      return { ...list, items: (list.items ?? []).map(digest) } as R;
    },
    async *watch<R>(request: WatchRequest): AsyncIterable<WatchEvent<R>> {
      for await (const event of kube.watch<KubeObject>(request)) {
        const isObject = event.type === "ADDED" || event.type === "MODIFIED" || event.type === "DELETED";
        yield (isObject ? { ...event, object: digest(event.object) } : event) as WatchEvent<R>;
      }
    },
  };
}
