/**
 * One process of the agent: the real controller of pods, with its reflector, store, queue, observer and reconciler, between an API
 * server and a backend that answer when and how the schedule likes. A mutant breaks it at these seams.
 */
import type { EventRecorder } from "../../../src/kube/events.ts";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { Kube, KubeRequest, WatchEvent } from "../../../src/kube/kube.ts";
import { isTerminal } from "../../../src/kube/pod.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { NodeAllocation } from "../../../src/podspec/admission/allocation.ts";
import { parseMachineId } from "../../../src/podspec/machine-id.ts";
import type { PodRenderer } from "../../../src/podspec/pod-renderer.ts";
import { PodController } from "../../../src/pods/controller.ts";
import { plan as realPlan } from "../../../src/pods/planner.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { Random } from "../../../src/util/random.ts";
import type { Machine, UnknownMachine } from "../../../src/provider/machine.ts";
import type { MachineEvent, MachineList, Provider, UnknownMachineEvent } from "../../../src/provider/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { judgeLead, Sweeps } from "../invariants/agent-conduct.ts";
import type { Sender } from "../invariants/sender.ts";
import type { Mutant } from "../mutants/mutant.ts";
import type { Fault, Network } from "../network.ts";
import { seeded } from "../seeded.ts";
import { Violation } from "../violation.ts";
import { CLUSTER, NODE, OWNER, uidOf } from "../world/names.ts";
import type { World } from "../world/world.ts";
import { judgeClaims } from "../invariants/disk-writes.ts";
import { AgentDisks } from "./agent-disks.ts";
import { AgentConfigs } from "./agent-configs.ts";
import { AgentClock } from "./clock.ts";
import { asTold, cloudProviderOf } from "./cloud-provider.ts";
import { BACKEND, rendererOf } from "./renderer.ts";
import { Stream } from "./stream.ts";

export class Agent {
  readonly name: string;
  readonly clock: AgentClock;
  readonly controller: PodController;
  readonly world: World;
  readonly network: Network;
  readonly mutant: Mutant | undefined;
  isLeader = true;
  pods: Stream<WatchEvent<Pod>> | undefined;
  machines: Stream<MachineEvent | UnknownMachineEvent> | undefined;
  /** The newest state of each pod's machine that it was told of. */
  readonly #read = new Map<string, Machine>();
  readonly #told: Machine[] = [];
  readonly configs: AgentConfigs;
  readonly #disks: AgentDisks | undefined;
  readonly #sweeps: Sweeps;
  readonly #stop = new AbortController();

  constructor(options: { world: World; network: Network; mutant: Mutant | undefined; serial: number }) {
    const { world, network, mutant, serial } = options;
    this.name = `agent ${serial}`;
    this.world = world;
    this.network = network;
    this.mutant = mutant;
    this.clock = new AgentClock(world);
    this.#sweeps = new Sweeps(this.clock);
    const random = seeded(Math.floor(world.random() * 2 ** 32));
    this.configs = new AgentConfigs(this, kubeFault(world));
    const kube = this.#kube();
    const allocation = new NodeAllocation();
    const requeue = (uid: string) => this.controller.requeue(uid);
    const fault = { kube: kubeFault(world), backend: backendFault(world) };
    const { disks } = world;
    this.#disks = disks && new AgentDisks({ agent: this, disks, kube, random, requeue, fault });
    const renderer = rendererOf({
      world,
      kube,
      clock: this.clock,
      random,
      allocation,
      requeue,
      disks: this.#disks?.pods,
    });
    this.controller = new PodController({
      kube,
      provider: world.cloud === undefined ? this.#provider() : this.#cloudProvider(random),
      renderer: mutant?.renderer?.(renderer) ?? renderer,
      events: this.#events(),
      nodeName: NODE,
      clusterId: CLUSTER,
      hostIPs: () => ["10.1.1.1"],
      concurrency: 1 + Math.floor(world.random() * 3),
      sweep: { enabled: true, maxPerMinute: mutant?.reapsPerMinute ?? 1 },
      guard: () => {
        if (!this.isLeader && mutant?.ignoresLead !== true) throw new Error("this agent is not the leader");
      },
      plan: mutant?.plan && mutant.plan(realPlan),
      machineId: mutant?.machineId && ((uid: string) => world.idOf(uid)),
      clock: this.clock,
      random,
      logger: silentLogger,
    });
    this.#keepAccounts(allocation, renderer);
  }

  /** As the agent's own wiring does. */
  #keepAccounts(allocation: NodeAllocation, renderer: PodRenderer): void {
    this.controller.store.onChange(({ type, object }) => {
      if (this.#disks !== undefined && (type === "delete" || isTerminal(object))) renderer.rest(object.metadata!.uid!);
      if (type === "delete") allocation.remove(object.metadata!.uid!);
      else allocation.put(object);
    });
  }

  run(): void {
    void this.controller.observe(this.#stop.signal);
    void this.controller.act(this.#stop.signal);
    this.#disks?.run(this.#stop.signal);
  }

  /** The process is gone from one instruction to the next. */
  kill(): void {
    this.world.trace?.(`${this.name} is killed`);
    this.clock.stop();
    this.network.kill(this);
    this.pods = this.machines = undefined;
  }

  #events(): EventRecorder {
    const event = ({ uid }: { uid: string }, _type: string, reason: string, message: string) => {
      // A throw that no step of the reconciler expects.
      if (reason === "FailedSync") this.network.violation ??= new Violation("A1", `reconciling threw: ${message}`);
      if (reason === "Preempting") this.world.history.of(uid).preempted = true;
    };
    return { event } as unknown as EventRecorder;
  }

  /** What this agent knows of a pod at this moment. */
  knows(uid: string): Sender {
    return {
      read: this.#read.get(uid),
      observed: this.controller.machines.observe(this.world.idOf(uid)),
      pod: this.controller.store.get(uid),
      sentAt: this.world.now,
    };
  }

  // -------------------------------------------------------------------------------------------------------- API server

  #kube(): Kube {
    const { world, mutant, network } = this;
    return {
      request: async <T>(request: KubeRequest): Promise<T> => {
        if (request.path === "/api/v1/pods") return this.#listPods() as Promise<T>;
        if (request.path.includes("/configmaps")) return this.configs.read(request) as Promise<T>;
        if (this.#disks !== undefined && isAboutDisks(request)) return this.#disks.request(request) as Promise<T>;
        const uid = uidOfRequest(request) ?? this.#uidByPath(request.path);
        const sender = this.knows(uid);
        const cached = (path: string) => this.#cached(path);
        const mutated = mutant?.kube?.(request, cached) ?? request;
        if ("reply" in mutated) return mutated.reply as T;
        const changes = request.method !== "GET";
        if (changes) judgeLead(this, network);
        try {
          return await network.send<T>({
            agent: this,
            name: `api.${request.method}`,
            uid,
            changes,
            exec: () => world.api.request(mutated, sender),
            fault: kubeFault(world),
          });
        } catch (thrown) {
          throw thrown instanceof KubeApiError && mutant?.kubeError ? mutant.kubeError(thrown, mutated) : thrown;
        }
      },
      watch: <T>({ path, query, signal, onOpen }: Parameters<Kube["watch"]>[0]) => {
        const version = Number(query!["resourceVersion"]);
        onOpen?.();
        if (path === "/api/v1/pods") {
          this.pods = new Stream<WatchEvent<Pod>>(world.api.positionAfter(version), signal);
          return this.pods as unknown as AsyncIterable<WatchEvent<T>>;
        }
        return this.configs.watch(path, version, signal) as unknown as AsyncIterable<WatchEvent<T>>;
      },
    };
  }

  deliverNode(): void {
    this.#disks?.deliverNode();
  }

  #cached(path: string): Pod | undefined {
    return this.controller.store
      .list()
      .find(({ metadata }) => path.startsWith(`/api/v1/namespaces/${metadata!.namespace}/pods/${metadata!.name}`));
  }

  #uidByPath(path: string): string {
    return this.#cached(path)?.metadata?.uid ?? "";
  }

  /** Mostly how things are; now and then what an API server that lags behind has to say. */
  async #listPods(): Promise<unknown> {
    const { world, network } = this;
    const { api, random } = world;
    const least = this.pods?.position ?? 0;
    const exec = () => {
      const length =
        network.isFair || random() < 0.7
          ? api.log.length
          : Math.max(least, Math.floor(random() * (api.log.length + 1)));
      const { items, version } = api.listAt(length, NODE);
      return { kind: "PodList", apiVersion: "v1", metadata: { resourceVersion: String(version) }, items };
    };
    const fault = kubeFault(world);
    const list = await network.send<{ items: Pod[] }>({
      agent: this,
      name: "api.LIST",
      uid: undefined,
      changes: false,
      exec,
      fault,
    });
    for (const { metadata } of list.items) this.#sweeps.met(metadata!.uid!);
    return list;
  }

  /** The next few events of the watch, in order. */
  deliverPods(count: number): void {
    const stream = this.pods;
    const { log } = this.world.api;
    if (stream === undefined || !stream.isOpen) return;
    for (; count > 0 && stream.position < log.length; count--, stream.position++) {
      const { type, pod } = log[stream.position]!;
      if (pod.spec!.nodeName !== NODE) continue;
      // A deletion directly followed by a creation under the same name may arrive as one.
      const next = log[stream.position + 1];
      const isSameName = next?.pod.metadata!.name === pod.metadata!.name && next?.pod.spec!.nodeName === NODE;
      if (type === "DELETED" && next?.type === "ADDED" && isSameName && this.world.random() < 0.5) continue;
      this.#sweeps.met(pod.metadata!.uid!);
      stream.push({ type, object: pod });
    }
  }

  // ----------------------------------------------------------------------------------------------------------- backend

  #provider(): Provider {
    const { world } = this;
    const { backend } = world;
    const call = <T>(name: string, id: string, changes: boolean, exec: (sender: Sender) => T): Promise<T> =>
      this.#call(name, this.#uidOf(id), changes, exec);
    return {
      name: "toy",
      getInfo: () => Promise.resolve({ name: BACKEND.name, version: "0", capabilities: [...BACKEND.capabilities] }),
      createPod: (id, spec) => {
        const asked = { agent: this.name, version: world.disks?.nodeLog.length ?? 0 };
        this.network.violation ??= judgeClaims(world, spec, asked);
        return call("be.create", id, true, (sender) => {
          const isNew = !backend.machines.has(id);
          const machine = backend.put(id, spec, sender);
          const violation = isNew ? judgeClaims(world, spec, asked) : undefined;
          if (violation !== undefined) throw violation;
          return machine;
        });
      },
      getPod: (id) => call("be.get", id, false, () => backend.get(id)),
      getPods: ({ labels }) => this.#listMachines(labels),
      stopPod: (id, { graceSeconds }) => call("be.stop", id, true, (sender) => backend.stop(id, graceSeconds, sender)),
      deletePod: (id, how) => call("be.delete", id, true, (sender) => backend.delete(id, how, sender)),
      updatePod: (id, patch) => call("be.update", id, true, () => backend.update(id, patch)),
      watchPods: (since, { signal, labels }) => this.#watchMachines(since, signal, labels),
      getLogs: () => {
        throw new Error("not simulated");
      },
      close: () => Promise.resolve(),
    };
  }

  /** What it answers is what the agent is told. */
  #cloudProvider(random: Random): Provider {
    const { network, world } = this;
    const uidOf = (id: string) => this.#uidOf(id);
    return asTold(cloudProviderOf(this, { uidOf, fault: backendFault(world), random }), {
      tell: (machine) => this.#tell(machine),
      change: () => judgeLead(this, network),
      end: (id) => this.#sweeps.judge(uidOf(id), network),
    });
  }

  /** A mutant's ids tell no UID; the pod is then whichever of its cache has this one. */
  #uidOf(id: string): string {
    const parsed = parseMachineId(CLUSTER, id);
    if (parsed !== undefined) return parsed;
    const uids = [...this.#sweeps.metPods()];
    return uids.findLast((uid) => this.world.idOf(uid) === id) ?? id;
  }

  async #call<T>(name: string, uid: string, changes: boolean, exec: (sender: Sender) => T): Promise<T> {
    const { network, world, mutant } = this;
    const sender = this.knows(uid);
    if (changes) {
      judgeLead(this, network);
      if (name === "be.stop" || name === "be.delete") this.#sweeps.judge(uid, network);
    }
    const fault = backendFault(world);
    const guarded = () => {
      if (world.isBackendAway) throw fault("unavailable");
      return exec(sender);
    };
    try {
      const value = await network.send<T>({ agent: this, name, uid, changes, exec: guarded, fault });
      // What a stop and a deletion answer is not looked at.
      const unknown = ["be.create", "be.get", "be.update"].includes(name) && this.#nonsense(value as Machine);
      if (unknown) throw new ProviderError("unavailable", "invalid reply", { unknownMachine: unknown });
      this.#tell(value as unknown as Machine | undefined);
      return this.#seen(value as unknown as Machine) as T;
    } catch (thrown) {
      throw thrown instanceof ProviderError && mutant?.provider ? mutant.provider(thrown, name) : thrown;
    }
  }

  async #listMachines(labels: Record<string, string>): Promise<MachineList> {
    const { network, world } = this;
    const fault = backendFault(world);
    const exec = (): MachineList => {
      if (world.isBackendAway) throw fault("unavailable");
      const all = world.backend.list(this.mutant?.seesForeign === true ? {} : labels);
      const isShort = world.scenario.shortLists && !network.isFair && world.random() < 0.3;
      const half = world.random() < 0.5;
      const told = isShort ? all.filter(() => !half && world.random() < 0.5) : all;
      const items: Machine[] = [];
      const unknown: UnknownMachine[] = [];
      for (const machine of told) {
        const nonsense = this.#nonsense(machine);
        if (nonsense === undefined) items.push(machine);
        else unknown.push(nonsense);
      }
      return { items, revision: world.backend.revision, ...(unknown.length > 0 && { unknown }) };
    };
    const list = await network.send<MachineList>({
      agent: this,
      name: "be.list",
      uid: undefined,
      changes: false,
      exec,
      fault,
    });
    this.mutant?.machineList?.(list);
    for (const machine of list.items) this.#tell(machine);
    return { ...list, items: list.items.map((machine) => this.#seen(machine)) };
  }

  #watchMachines(
    since: number,
    signal: AbortSignal,
    labels: Record<string, string>,
  ): AsyncIterable<MachineEvent | UnknownMachineEvent> {
    const { backend } = this.world;
    if (since > backend.revision) throw new ProviderError("gone", "revision is not known");
    const { log } = backend;
    const first = log.findIndex(({ revision }) => revision > since);
    const stream = new Stream<MachineEvent | UnknownMachineEvent>(first === -1 ? log.length : first, signal);
    this.machines = stream;
    this.#labels = labels;
    this.#epoch = backend.epoch;
    return stream;
  }

  #labels: Record<string, string> = {};
  #epoch = 0;

  deliverMachines(count: number): void {
    const stream = this.machines;
    const { backend, isBackendAway } = this.world;
    if (stream === undefined || !stream.isOpen) return;
    if (isBackendAway || this.#epoch !== backend.epoch) {
      stream.fail(new ProviderError("unavailable", "the stream broke"));
      return;
    }
    for (; count > 0 && stream.position < backend.log.length; count--, stream.position++) {
      const machine = backend.log[stream.position]!;
      const mine = Object.entries(this.#labels).every(([k, v]) => machine.labels[k] === v);
      if (!mine && this.mutant?.seesForeign !== true) continue;
      const unknown = this.#nonsense(machine);
      if (unknown !== undefined) {
        stream.push({ revision: machine.revision, unknown });
        continue;
      }
      this.#tell(machine);
      stream.push({ revision: machine.revision, machine: this.#seen(machine) });
    }
  }

  /** What is left of a description that makes no sense; undefined when this one does. */
  #nonsense({ id, state, version, revision, labels }: Machine): UnknownMachine | undefined {
    const { network, world } = this;
    if (world.scenario.nonsense !== true) return undefined;
    const reason = "makes no sense";
    if (world.history.of(uidOf({ labels })).isNonsense) return { id, reason, state, version, revision };
    if (network.isFair || world.random() > 0.15) return undefined;
    return world.random() < 0.5 ? { id, reason, revision } : { id, reason, state, version, revision };
  }

  /** The agent is being told of this machine: it knows of it when everything that can run has run. */
  #tell(machine: Machine | undefined): void {
    if (machine?.labels !== undefined) this.#told.push(machine);
  }

  /** To be called when everything that can run has run. */
  takeIn(): void {
    for (const machine of this.#told.splice(0)) {
      // A tombstone of what never was has no labels.
      const uid = uidOf(machine) || (parseMachineId(CLUSTER, machine.id) ?? "");
      this.#sweeps.sighted(uid);
      const known = this.#read.get(uid);
      if (known === undefined || known.revision < machine.revision) this.#read.set(uid, machine);
    }
  }

  #seen(machine: Machine): Machine {
    return this.mutant?.seesForeign === true && machine?.labels !== undefined
      ? { ...machine, labels: { ...machine.labels, ...OWNER } }
      : machine;
  }
}

function uidOfRequest({ body }: KubeRequest): string | undefined {
  const { metadata, preconditions } = (body ?? {}) as { metadata?: { uid?: string }; preconditions?: { uid?: string } };
  return metadata?.uid ?? preconditions?.uid;
}

const isAboutDisks = ({ path }: KubeRequest): boolean =>
  /^\/api\/v1\/nodes\/|persistentvolume|volumeattachments/.test(path);

const kubeFault = (world: World) => (kind: Fault) => {
  if (kind === "unavailable") return new KubeApiError("simulated", { status: 503, reason: "ServiceUnavailable" });
  const x = world.random();
  if (x < 0.5) return new KubeApiError("a proxy's page", { status: 404, reason: "HTTP404" });
  if (x < 0.75) return new KubeApiError("too many", { status: 429, reason: "HTTP429", retryAfterMs: 3_000 });
  return new KubeApiError("no answer", { status: 0, reason: "Timeout" });
};

/** The client of the Machine API takes a 404 without the envelope for no answer (unit/http-vm/client.test.ts). */
const backendFault = (world: World) => (kind: Fault) =>
  kind === "proxied" && world.random() < 0.3
    ? new ProviderError("rate_limited", "too many", { retryAfterMs: 3_000 })
    : new ProviderError("unavailable", "simulated");
