import { MemoryProvider, MEMORY_CAPABILITIES } from "../../../providers/memory/provider.ts";
import type { Kube, KubeRequest } from "../../../src/kube/kube.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import type { PodEvent } from "../../../src/podspec/types.ts";
import type { PodHooks } from "../../../src/pods/hooks.ts";
import { EvictionZones } from "../../../src/pods/eviction-brake.ts";
import { LossBrake } from "../../../src/pods/loss-brake.ts";
import { MachineCache } from "../../../src/pods/machines.ts";
import type { Renderer } from "../../../src/pods/reconciler-options.ts";
import { PodReconciler } from "../../../src/pods/reconciler.ts";
import type { MachineChange, Rendered } from "../../../src/podspec/types.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { Machine, MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { apiError } from "../../support/scripted-kube.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

export const SPEC: MachineSpec = {
  labels: { "vmlet.dev/cluster": "c" },
  containers: [{ name: "app", image: "app:1", resources: { requests: { cpu_millis: 500 } } }],
  restart_policy: "always",
};
/** After so long the queue tries again. */
const RETRY_MS = 10_000;

const NOTHING_MORE = { events: [], unmountedVolumes: [] };
type Optional = "events" | "unmountedVolumes" | "resize";
/** What a test says of a rendering; the rest is nothing to speak of. */
type Short<T> = T extends unknown
  ? Omit<T, "version" | Optional> & Partial<Pick<T, Extract<keyof T, Optional>>>
  : never;

/** One pod, the reconciler, a backend in memory and time that stands still. What the renderer says is the test's to choose. */
export class World {
  readonly clock = new VirtualClock();
  readonly provider: MemoryProvider;
  readonly events: PodEvent[] = [];
  readonly counted: [string, unknown][] = [];
  rendered: Short<Rendered> = { kind: "ready", spec: SPEC };
  difference: Short<MachineChange> = { patch: undefined };
  /** Of what the renderer reads: it is asked for it before and after. */
  version = "1";
  onRender: () => void = () => undefined;
  onDiff: () => void = () => undefined;
  diffs = 0;
  /** What an older API server does with a status before it keeps it. */
  keep = (status: Pod["status"]): Pod["status"] => status;
  readonly requests: KubeRequest[] = [];
  /** Called before each request to the API server: may throw, may let somebody else be faster. */
  onRequest: (request: KubeRequest) => void = () => undefined;
  /** What the watch has brought so far; undefined when it has brought everything. */
  watched: Pod | undefined;
  /** UIDs of pods whose readiness need not be known any more. */
  readonly released: string[] = [];
  /** UIDs of pods of which the renderer need hold nothing any more. */
  readonly letGo: string[] = [];
  isDeleted = false;
  pod: Pod;
  readonly losses: LossBrake;
  /** Lines of the log. */
  readonly warnings: string[] = [];
  /** Of the node's machines. */
  sights = { seen: 9, unseen: 1 };
  readonly #reconciler: PodReconciler;
  readonly #machines: MachineCache;
  readonly #ending = new AbortController();
  #areMachinesHidden = false;

  constructor(
    pod: Pod,
    options: {
      startDelayMs?: number;
      markCheapToDelete?: boolean;
      /** What the renderer knows of secrets. */
      secrets?: Pick<Renderer, "mustLearn" | "learn" | "withoutSecrets">;
    } = {},
  ) {
    this.pod = pod;
    this.provider = new MemoryProvider({
      clock: this.clock,
      capabilities: [...MEMORY_CAPABILITIES],
      stages: { startingMs: options.startDelayMs ?? 0 },
    });
    this.#machines = new MachineCache({ clock: this.clock, onChange: () => undefined, staleMs: Infinity });
    this.#machines.replace([], 0);
    const count = (name: string) => (value: unknown) => void this.counted.push([name, value]);
    const hooks: PodHooks = {
      onCreate: count("create"),
      onRunning: count("running"),
      onTerminated: count("terminated"),
      onRejected: count("rejected"),
      onDeferralEnded: count("deferral"),
      onLost: () => count("lost")(undefined),
    };
    this.losses = new LossBrake({ clock: this.clock, pods: () => 1 });
    this.#reconciler = new PodReconciler({
      losses: this.losses,
      evictions: new EvictionZones(this).zone(() => this.sights),
      kube: { request: async <T>(request: KubeRequest) => Promise.resolve(this.#answer(request) as T) } as Kube,
      provider: this.provider,
      pods: { synced: true, get: () => (this.isDeleted ? undefined : (this.watched ?? this.pod)) },
      machines: this.#machines,
      renderer: {
        render: () => {
          const { version } = this;
          this.onRender();
          return Promise.resolve({ ...NOTHING_MORE, ...this.rendered, version } as Rendered);
        },
        version: () => this.version,
        diff: () => {
          const { version } = this;
          this.diffs++;
          this.onDiff();
          return Promise.resolve({ events: [], resize: { kind: "none" }, ...this.difference, version });
        },
        release: (uid) => void this.letGo.push(uid),
        ...options.secrets,
      },
      machineId: (uid) => `m-${uid}`,
      ownerLabels: {},
      nodeName: "n",
      hostIPs: () => ["10.1.0.1"],
      event: (_pod, event) => this.events.push(event),
      mayReap: () => true,
      markCheapToDelete: options.markCheapToDelete,
      readiness: { apply: (_pod, machine) => machine, release: (uid) => void this.released.push(uid) },
      hooks,
      clock: this.clock,
      logger: { ...silentLogger, warn: (_fields: object, text: string) => void this.warnings.push(text) },
    });
  }

  #answer(request: KubeRequest): unknown {
    this.requests.push(request);
    this.onRequest(request);
    const { method, body } = request;
    if (method !== "PATCH") return this.pod;
    const { status: change, metadata } = body as {
      status: object;
      metadata: { resourceVersion: string; annotations?: Record<string, string> };
    };
    if (metadata.resourceVersion !== this.pod.metadata!.resourceVersion) throw apiError(409, "Conflict");
    const status = this.keep({ ...this.pod.status, ...change });
    if (!metadata.annotations && JSON.stringify(status) === JSON.stringify(this.pod.status)) return this.pod;
    this.change({ status, annotations: metadata.annotations });
    return this.pod;
  }

  /** The pod has a new version in the API server. */
  change({ status, annotations }: { status?: Pod["status"]; annotations?: Record<string, string> | undefined }): void {
    const { metadata } = this.pod;
    const resourceVersion = String(Number(metadata!.resourceVersion) + 1);
    this.pod = {
      ...this.pod,
      metadata: { ...metadata, resourceVersion, annotations: { ...metadata!.annotations, ...annotations } },
      ...(status && { status }),
    };
  }

  /** Reconciles until there is nothing more to do now. */
  async settle() {
    for (;;) {
      if (!this.#areMachinesHidden) for (const machine of this.provider.machines) this.#machines.put(machine);
      const outcome = await this.#reconciler.reconcile(this.pod.metadata!.uid!, this.#ending.signal);
      if (!this.#areMachinesHidden) for (const machine of this.provider.machines) this.#machines.put(machine);
      if (outcome.kind !== "after" || outcome.ms > 0) return outcome;
    }
  }

  /** The backend's newest event about the machine arrives. */
  async hear(change: Partial<Machine> = {}): Promise<void> {
    const id = `m-${this.pod.metadata!.uid}`;
    const machine = await this.provider.getPod(id, { signal: AbortSignal.timeout(1_000) });
    const observed = this.#machines.observe(id);
    const version = Math.max(machine.version, observed.kind === "found" ? observed.machine.version + 1 : 0);
    this.#machines.put({ ...machine, version, ...change });
  }

  /** Somebody deletes the pod, with a grace period of a second. */
  deletePod(): void {
    const metadata = {
      ...this.pod.metadata!,
      deletionTimestamp: new Date(this.clock.now() + 1_000).toISOString(),
      deletionGracePeriodSeconds: 1,
    };
    this.pod = { ...this.pod, metadata };
  }

  /** The agent ends. */
  end(): void {
    this.#ending.abort(new Error("the agent ends"));
  }

  /** The pod's controller makes another in its place, which is bound to this node again. */
  async replacePod(uid: string): Promise<void> {
    this.goneFromCache();
    await this.settle();
    this.isDeleted = false;
    await this.clock.advance(1);
    const { ownerReferences = [], ...metadata } = this.pod.metadata!;
    this.pod = {
      ...this.pod,
      metadata: { ...metadata, ownerReferences, uid, annotations: {} },
      status: { phase: "Pending", qosClass: "BestEffort" },
    };
  }

  /** The backend's lists lack what it has; it does not when it is asked for one machine. */
  hideMachines(): void {
    this.#areMachinesHidden = true;
  }

  /** Nothing has been heard of the backend for long. */
  distrustLists(): void {
    this.#machines.forget(`m-${this.pod.metadata!.uid}`);
    this.#areMachinesHidden = true;
    this.#machines.observe = () => ({ kind: "unknown" });
  }

  /** The watch says that the pod is gone. */
  goneFromCache(): void {
    this.isDeleted = true;
    this.#reconciler.podGone(this.pod);
  }

  /** The backend forgets what it ran. @returns what brings it back */
  loseMachine(): () => void {
    this.provider.getPod = () => Promise.reject(new ProviderError("not_found", "no such machine"));
    this.#machines.drop(`m-${this.pod.metadata!.uid}`, this.#machines.revision);
    Object.defineProperty(this.provider, "machines", { value: [], configurable: true });
    return () => {
      for (const own of ["getPod", "machines"]) Reflect.deleteProperty(this.provider, own);
    };
  }

  /**
   * From now on the backend says of the machine what makes no sense, in each reply and in its lists; its state alone can be told,
   * unless `hidden`.
   */
  confuse({ hidden = false } = {}): void {
    const { createPod, getPod, stopPod } = this.provider;
    const backend = this.provider;
    const sure = () => {
      const machine = Reflect.get(Object.getPrototypeOf(backend) as object, "machines", backend) as Machine[];
      const state = machine.find(({ id }) => id === "m-u1")?.state ?? "deleted";
      return { id: "m-u1", reason: "no sense", ...(!hidden && { state }) };
    };
    const tell = async (call: Promise<unknown>): Promise<never> => {
      await call;
      throw new ProviderError("unavailable", "invalid reply: no sense", { unknownMachine: sure() });
    };
    this.confused = () => void this.#machines.putUnknown(sure());
    backend.createPod = (...args) => tell(createPod.apply(backend, args));
    backend.getPod = (...args) => tell(getPod.apply(backend, args));
    backend.stopPod = async (...args) => void (await stopPod.apply(backend, args)) as never;
    Object.defineProperty(backend, "machines", { value: [], configurable: true });
  }
  /** Nobody can see the machine any more, and the backend says that its pod is to leave it. */
  loseSight(disruption: NonNullable<Machine["disruption"]>): void {
    const unseen = { id: `m-${this.pod.metadata!.uid}`, reason: "its host is out of sight", disruption };
    this.provider.getPod = () => Promise.reject(new ProviderError("unavailable", unseen.reason));
    Object.defineProperty(this.provider, "machines", { value: [], configurable: true });
    this.#machines.putUnknown(unseen);
  }

  /** Lets the cache hear what the backend's lists and events say of a machine that nobody understands. */
  confused: () => void = () => {};

  /** Passes time in the steps that the reconciler asks for. */
  async pass(ms: number): Promise<void> {
    const end = this.clock.now() + ms;
    while (this.clock.now() < end) {
      const outcome = await this.settle();
      const pauseMs = { settled: ms, retry: RETRY_MS, after: outcome.kind === "after" ? outcome.ms : 0 }[outcome.kind];
      await this.clock.advance(Math.min(pauseMs, end - this.clock.now()));
    }
    await this.settle();
  }

  said(reason: string): string[] {
    return this.events.filter((event) => event.reason === reason).map(({ message }) => message);
  }

  condition(type: string) {
    return this.pod.status?.conditions?.find((each) => each.type === type);
  }
}
