/**
 * `metrics.k8s.io`, what metrics-server adds to a cluster: for `kubectl top`. It asks the kubelets when it is asked
 * itself, so that a cluster where nobody looks does nothing.
 */
import type { Logger } from "../../telemetry/logger.ts";
import type { Clock } from "../../util/clock.ts";
import type { KubeletProxy } from "../http/kubelet-proxy.ts";
import { findKind } from "../kinds/kinds.ts";
import type { Json } from "../objects/object.ts";
import type { ObjectApi } from "../kinds/object-api.ts";
import { ApiStatusError } from "../objects/errors.ts";

export const USAGE_GROUP = "metrics.k8s.io";
export const USAGE_VERSION = "v1beta1";
export const usageKinds = [
  { resource: "nodes", kind: "NodeMetrics", namespaced: false },
  { resource: "pods", kind: "PodMetrics", namespaced: true },
] as const;

/** Usage is a rate: what was used between two looks at a kubelet, which are at least and at most so far apart. */
const MIN_WINDOW_MS = 3_500;
const MAX_WINDOW_MS = 60_000;

/** Cumulative CPU time and current memory of one thing, at one time. */
interface Reading {
  /** Milliseconds since the epoch. */
  at: number;
  startedAt: number;
  cpuNanoseconds: number;
  memoryBytes: number;
}

/** What a kubelet said: its node, and its containers by `POD_UID/NAME`. */
interface Look {
  at: number;
  /** The same by the monotonic clock, for the time between two looks. */
  monotonicAt: number;
  node: Reading;
  containers: Map<string, Reading>;
}

export interface UsageQuery {
  resource: string;
  namespace: string | undefined;
  name: string | undefined;
  labelSelector: string | undefined;
}

interface UsageOptions {
  objects: Pick<ObjectApi, "get" | "list">;
  kubelets: Pick<KubeletProxy, "read">;
  clock: Clock;
  logger: Logger;
}

export class Usage {
  readonly #objects: UsageOptions["objects"];
  readonly #kubelets: UsageOptions["kubelets"];
  readonly #clock: Clock;
  readonly #logger: Logger;
  /** The last look at each node. */
  readonly #looks = new Map<string, Look>();

  constructor(options: UsageOptions) {
    this.#objects = options.objects;
    this.#kubelets = options.kubelets;
    this.#clock = options.clock;
    this.#logger = options.logger;
  }

  /**
   * The list, or with a name the one object. It may take some seconds, and a kubelet that does not answer is left out.
   * @throws ApiStatusError 404 while there is no usage of it; the signal's reason
   */
  async answer(query: UsageQuery, signal?: AbortSignal): Promise<Json> {
    const items = query.resource === "nodes" ? await this.#nodes(query, signal) : await this.#pods(query, signal);
    const kind = usageKinds.find(({ resource }) => resource === query.resource)!.kind;
    const apiVersion = `${USAGE_GROUP}/${USAGE_VERSION}`;
    if (query.name === undefined) return { kind: `${kind}List`, apiVersion, metadata: {}, items };
    if (items[0] !== undefined) return { kind, apiVersion, ...items[0] };
    const name = query.namespace === undefined ? query.name : `${query.namespace}/${query.name}`;
    throw new ApiStatusError(404, "NotFound", `${kind.toLowerCase()}.${USAGE_GROUP} "${name}" not found`, {});
  }

  async #nodes(query: UsageQuery, signal: AbortSignal | undefined): Promise<Json[]> {
    const nodes = this.#select(query);
    const windows = await this.#windows(
      nodes.map(({ metadata }) => metadata.name),
      signal,
    );
    return nodes.flatMap((node) => {
      const window = windows.get(node.metadata.name);
      if (window === undefined) return [];
      return [{ ...header(node, window), usage: usage(window.earlier.node, window.later.node) }];
    });
  }

  async #pods(query: UsageQuery, signal: AbortSignal | undefined): Promise<Json[]> {
    const pods = this.#select(query).filter(({ spec }) => spec.nodeName !== undefined);
    const windows = await this.#windows([...new Set(pods.map(({ spec }) => spec.nodeName as string))], signal);
    return pods.flatMap((pod) => {
      const window = windows.get(pod.spec.nodeName);
      if (window === undefined) return [];
      const containers = (pod.spec.containers as Json[]).flatMap(({ name }) => {
        const key = `${pod.metadata.uid}/${name}`;
        const later = window.later.containers.get(key);
        return later ? [{ name, usage: usage(window.earlier.containers.get(key), later) }] : [];
      });
      return containers.length === 0 ? [] : [{ ...header(pod, window), containers }];
    });
  }

  #select({ resource, namespace, name, labelSelector }: UsageQuery): Json[] {
    const kind = findKind("", "v1", resource)!;
    if (name !== undefined) return [this.#objects.get(kind, namespace, name)];
    return [...this.#objects.list(kind, namespace, { labelSelector }).items];
  }

  async #windows(
    nodeNames: readonly string[],
    signal: AbortSignal | undefined,
  ): Promise<Map<string, { earlier: Look; later: Look }>> {
    const windows = await Promise.all(
      nodeNames.map(async (name) => {
        try {
          return [[name, await this.#window(name, signal)] as const];
        } catch (thrown) {
          signal?.throwIfAborted();
          this.#logger.warn({ node: name, err: thrown }, "The kubelet tells no usage");
          return [];
        }
      }),
    );
    return new Map(windows.flat());
  }

  async #window(nodeName: string, signal: AbortSignal | undefined): Promise<{ earlier: Look; later: Look }> {
    let earlier = this.#looks.get(nodeName);
    const age = (look: Look) => this.#clock.monotonic() - look.monotonicAt;
    if (earlier === undefined || age(earlier) > MAX_WINDOW_MS) earlier = await this.#look(nodeName);
    while (age(earlier) < MIN_WINDOW_MS) await this.#clock.sleep(MIN_WINDOW_MS - age(earlier), signal);
    const later = await this.#look(nodeName);
    this.#looks.set(nodeName, later);
    return { earlier, later };
  }

  async #look(nodeName: string): Promise<Look> {
    const text = await this.#kubelets.read(nodeName, "/stats/summary?only_cpu_and_memory=true");
    const { node, pods } = JSON.parse(text);
    const containers = new Map<string, Reading>();
    for (const pod of pods)
      for (const container of pod.containers)
        containers.set(`${pod.podRef.uid}/${container.name}`, readingOf(container));
    return { at: this.#clock.now(), monotonicAt: this.#clock.monotonic(), node: readingOf(node), containers };
  }
}

function readingOf({ startTime, cpu, memory }: Json): Reading {
  return {
    at: Date.parse(cpu.time),
    startedAt: Date.parse(startTime),
    cpuNanoseconds: cpu.usageCoreNanoSeconds,
    memoryBytes: memory.workingSetBytes,
  };
}

function header({ metadata }: Json, { earlier, later }: { earlier: Look; later: Look }): Json {
  const { name, namespace, labels } = metadata;
  return {
    metadata: {
      name,
      ...(namespace !== undefined && { namespace }),
      creationTimestamp: new Date(later.at).toISOString(),
      ...(labels && { labels }),
    },
    timestamp: new Date(later.at).toISOString(),
    window: `${((later.monotonicAt - earlier.monotonicAt) / 1000).toFixed(3)}s`,
  };
}

/** What started since the earlier look has used nothing before its start. */
function usage(earlier: Reading | undefined, later: Reading): Json {
  const since = earlier?.startedAt === later.startedAt ? earlier : { at: later.startedAt, cpuNanoseconds: 0 };
  const seconds = Math.max((later.at - since.at) / 1000, 0.001);
  const nanocores = Math.max(0, Math.round((later.cpuNanoseconds - since.cpuNanoseconds) / seconds));
  return { cpu: `${nanocores}n`, memory: `${Math.ceil(later.memoryBytes / 1024)}Ki` };
}
