/**
 * A cluster, a backend in memory and agents that come and go, in time that stands still until it is moved. An agent is here what
 * speaks to both sides: its Node, its lease and its pods. It can die at any of its effects, as a process does.
 */
import { MemoryProvider } from "../../../providers/memory/provider.ts";
import type { EventRecorder } from "../../../src/kube/events.ts";
import { guardedKube } from "../../../src/kube/guarded.ts";
import type { Kube, KubeRequest } from "../../../src/kube/kube.ts";
import { fixedCapacity } from "../../../src/node/capacity.ts";
import { NodeController } from "../../../src/node/node-controller.ts";
import { machineId, machineLabels } from "../../../src/podspec/machine-id.ts";
import { PodController } from "../../../src/pods/controller.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import type { Json } from "../../../src/devcluster/objects/object.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { VirtualCluster, type Line } from "../../support/virtual-cluster.ts";

export const CLUSTER = "c1";
export const NODE = "burst-0";
export const PODS = "/api/v1/namespaces/default/pods";

const CHANGES_OF_BACKEND = ["createPod", "updatePod", "stopPod", "deletePod"] as const;

export interface AgentOptions {
  /** The process dies around its n-th effect among those that match, counted from 1. */
  dies?: { at: number; when: "before" | "after"; among: RegExp } | undefined;
  deliver?: Line["deliver"] | undefined;
  /** Throws while this agent does not lead. */
  guard?: (() => void) | undefined;
}

export class World {
  readonly clock = new VirtualClock();
  readonly cluster = new VirtualCluster(this.clock);
  readonly backend = new MemoryProvider({ clock: this.clock });
  /** What all agents changed, on either side, in order: `createPod ID`, `PATCH PATH`. */
  readonly effects: string[] = [];
  /** Statuses of pods that were written though the API server had them already. */
  readonly vain: string[] = [];

  agent(options: AgentOptions = {}): Agent {
    return new Agent(this, options);
  }

  /** A pod that is bound to the node. */
  createPod(name: string, spec: Json = {}): Json {
    return this.cluster.ask("POST", PODS, {
      metadata: { name },
      spec: {
        nodeName: NODE,
        terminationGracePeriodSeconds: 1,
        containers: [{ name: "app", image: "app:1" }],
        ...spec,
      },
    });
  }

  pods(): Json[] {
    return this.cluster.list("pods");
  }

  deletePod(name: string): void {
    this.cluster.ask("DELETE", `${PODS}/${name}`);
  }

  /** UIDs of the machines that are there, tombstones left out. */
  machines(): string[] {
    return this.backend.machines
      .filter(({ state }) => state !== "deleted")
      .map(({ labels }) => labels["vmlet.dev/uid"] ?? "?")
      .toSorted();
  }

  /** UIDs of the pods that there are. */
  uids(): string[] {
    return this.pods()
      .map(({ metadata }) => metadata.uid as string)
      .toSorted();
  }

  /** The pod's container ends. */
  endContainer(name: string, exitCode: number): void {
    const { uid } = this.cluster.ask("GET", `${PODS}/${name}`).metadata;
    this.backend.endContainer(machineId(CLUSTER, uid as string), "app", { exitCode });
  }

  phases(): Record<string, string> {
    return Object.fromEntries(this.pods().map(({ metadata, status }) => [metadata.name, status.phase]));
  }
}

export class Agent {
  readonly kube: Kube;
  readonly pods: PodController;
  /** Told of each request that it sends. */
  onRequest: (request: KubeRequest) => void = () => undefined;
  /** How often it has looked at a pod. */
  looks = 0;
  readonly node: NodeController;
  readonly #world: World;
  readonly #options: AgentOptions;
  readonly #stop = new AbortController();
  #effects = 0;
  #running: Promise<unknown> = Promise.resolve();
  #isDead = false;

  constructor(world: World, options: AgentOptions) {
    this.#world = world;
    this.#options = options;
    const { clock } = world;
    const random = () => 0.5;
    this.kube = world.cluster.client({
      carry: (request, send) => {
        this.onRequest(request);
        return request.method === "GET"
          ? this.#unlessDead(send)
          : this.#effect(`${request.method} ${request.path}`, () => this.#write(request, send));
      },
      ...(options.deliver && { deliver: options.deliver }),
    });
    const provider = this.#provider();
    const events = { event: () => undefined } as unknown as EventRecorder;
    const kube = options.guard === undefined ? this.kube : guardedKube(this.kube, options.guard);
    const shared = { kube, clock, random, logger: silentLogger, events };
    this.pods = new PodController({
      ...shared,
      provider,
      renderer: {
        render: (pod) =>
          Promise.resolve({
            kind: "ready",
            events: [],
            version: "1",
            spec: {
              labels: machineLabels(CLUSTER, NODE, pod),
              containers: pod.spec!.containers.map(({ name, image = "" }) => ({ name, image })),
              restart_policy: pod.spec!.restartPolicy === "Never" ? "never" : "always",
            },
          }),
        version: () => "1",
        diff: () => Promise.resolve({ patch: undefined, events: [], resize: { kind: "none" }, version: "1" }),
      },
      nodeName: NODE,
      clusterId: CLUSTER,
      hostIPs: () => ["10.1.0.1"],
      concurrency: 8,
      sweep: { enabled: true, maxPerMinute: 10 },
      guard: options.guard,
      hooks: { onReconciled: () => void this.looks++ },
    });
    this.node = new NodeController({
      ...shared,
      settings: {
        name: NODE,
        clusterId: CLUSTER,
        version: "0.1.0",
        addresses: ["10.1.0.1"],
        kubeletPort: 10250,
      },
      report: () => ({ runtime: { name: "memory", version: "1" } }),
      capacity: fixedCapacity(),
      backend: this.pods.observer,
    });
  }

  /** As `vmlet run`: watches both sides, keeps the Node, brings pods and machines together. */
  start(): this {
    const { signal } = this.#stop;
    this.#running = Promise.all([this.observe(signal), this.act(signal)]);
    return this;
  }

  /** All that a standby does. */
  observe(signal: AbortSignal): Promise<void> {
    return this.pods.observe(signal);
  }

  async act(signal: AbortSignal): Promise<void> {
    await Promise.all([this.node.run(signal), this.pods.act(signal)]);
  }

  get isDead(): boolean {
    return this.#isDead;
  }

  /** Dies, if it has not: nothing that it has begun and not sent will happen. */
  kill(): void {
    this.#isDead = true;
    this.#stop.abort(new Error("killed"));
  }

  /** Stops in order. */
  async stop(): Promise<void> {
    this.#stop.abort(new Error("stopped"));
    await this.#running;
  }

  #provider(): Provider {
    const { backend } = this.#world;
    const provider = Object.create(backend) as MemoryProvider;
    for (const name of ["getInfo", "getPod", "getPods", "watchPods", "getCapacity"] as const)
      Object.assign(provider, { [name]: (backend[name] as (...args: unknown[]) => unknown).bind(backend) });
    for (const name of CHANGES_OF_BACKEND) {
      const call = backend[name].bind(backend) as (id: string, ...rest: unknown[]) => Promise<unknown>;
      const effect = (id: string, ...rest: unknown[]) => this.#effect(`${name} ${id}`, () => call(id, ...rest));
      Object.assign(provider, { [name]: effect });
    }
    return provider;
  }

  async #write<T>({ path, body }: KubeRequest, send: () => T): Promise<T> {
    await Promise.resolve();
    const reply = send();
    const { metadata: sent } = (body ?? {}) as Json;
    const { metadata: kept } = (reply ?? {}) as Json;
    if (path.startsWith(PODS) && sent?.resourceVersion !== undefined && sent.resourceVersion === kept?.resourceVersion)
      this.#world.vain.push(path);
    return reply;
  }

  async #unlessDead<T>(read: () => T): Promise<T> {
    await Promise.resolve();
    return this.#isDead ? new Promise<never>(() => undefined) : read();
  }

  async #effect<T>(what: string, happen: () => Promise<T>): Promise<T> {
    const { dies: death } = this.#options;
    if (death?.among.test(what)) this.#effects++;
    const dies = death?.among.test(what) && death.at === this.#effects ? death.when : undefined;
    if (dies === "before") this.kill();
    if (this.#isDead) return new Promise<never>(() => undefined);
    this.#world.effects.push(what);
    const done = happen();
    if (dies === "after") {
      await done.catch(() => undefined);
      this.kill();
      return new Promise<never>(() => undefined);
    }
    return done;
  }
}
