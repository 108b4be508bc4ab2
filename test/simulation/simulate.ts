/**
 * One schedule: the real planner and reconciler of one or two agents in a toy world, every choice taken by a seeded
 * generator. At each effect an agent's call may fail before it happened, be done with the reply lost, stay in flight and
 * land later, or the agent may crash before or after. In between users act, machines live and die, caches lag, lists
 * travel back in time. The world checks the safety invariants at each effect, this file the liveness ones at the end.
 */
import { hasRun } from "../../src/pods/status/facts.ts";
import { MachineCache } from "../../src/pods/machines.ts";
import { plan as realPlan } from "../../src/pods/planner.ts";
import { PodReconciler, type Rendered } from "../../src/pods/reconciler.ts";
import type { Kube, KubeRequest } from "../../src/kube/kube.ts";
import { KubeApiError } from "../../src/kube/errors.ts";
import type { Pod } from "../../src/kube/wire.ts";
import { ProviderError } from "../../src/provider/errors.ts";
import type { Machine, MachineSpec } from "../../src/provider/machine.ts";
import type { Provider } from "../../src/provider/provider.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import type { Clock } from "../../src/util/clock.ts";
import { NODE, OWNER, seeded, Violation, World, isAlive, type WorldFlaws } from "./world.ts";

/** A planted bug: what to break in the agent or in its world. */
export interface Mutant {
  name: string;
  /** Which rule of the protocol, or which known bug, it stands for. */
  rule: string;
  world?: WorldFlaws;
  machineId?: (uid: string, pod: Pod | undefined) => string;
  plan?: (real: typeof realPlan) => typeof realPlan;
  /** Rewrites an agent's request to the API server; `cached` is what its lagging cache holds under that path. */
  kube?: (
    request: KubeRequest,
    cached: (path: string) => Pod | undefined,
  ) => KubeRequest | { reply: unknown } | { error: Error };
  /** What the agent makes of an error of the API server. */
  kubeError?: (error: KubeApiError, request: KubeRequest) => KubeApiError;
  /** Lets an uncertain read pass for a certain one. */
  provider?: (error: ProviderError, operation: string) => ProviderError;
  pretendSynced?: boolean;
  ignoreOwner?: boolean;
}

interface Effect {
  agent: Agent;
  name: string;
  exec: () => unknown;
  resolve: (value: unknown) => void;
  reject: (error: Error) => void;
  unavailable: () => Error;
}

class Agent {
  alive = true;
  cache = new Map<string, Pod>();
  position = 0;
  synced = false;
  dirty = new Set<string>();
  running = new Set<string>();
  machinePosition = 0;
  /** UIDs of which it has read a running machine in some reply. */
  seenRunning = new Set<string>();
  machines: MachineCache;
  reconciler: PodReconciler;
  /** The minute in which a machine of an unknown pod was last allowed to be removed. */
  #reapedAt = -1;

  readonly sim: Simulation;

  constructor(sim: Simulation) {
    this.sim = sim;
    const { world, mutant } = sim;
    const clock: Clock = {
      now: () => world.now,
      monotonic: () => world.now,
      sleep: () => new Promise(() => undefined),
      after: () => () => undefined,
    };
    const machineId = (uid: string) => mutant?.machineId?.(uid, this.findPod(uid)) ?? `m-${uid}`;
    this.machines = new MachineCache({ clock, onChange: (id) => this.dirty.add(this.#uidOf(id)), staleMs: Infinity });
    this.reconciler = new PodReconciler({
      kube: this.#kube(),
      provider: this.#provider(),
      pods: this.#pods(),
      machines: this.machines,
      renderer: {
        render: (pod) => Promise.resolve(render(pod)),
        version: () => "1",
        diff: () => Promise.resolve({ patch: undefined, version: "1" }),
      },
      machineId,
      ownerLabels: mutant?.ignoreOwner ? {} : OWNER,
      nodeName: NODE,
      hostIPs: () => ["10.1.1.1"],
      event: () => undefined,
      mayReap: () => this.#mayReap(),
      ...(mutant?.plan && { plan: mutant.plan(realPlan) }),
      clock,
      logger: silentLogger,
    });
  }

  findPod(uid: string): Pod | undefined {
    return this.cache.get(uid) ?? this.sim.everSeen.get(uid);
  }

  /** The least budget of the sweep: one in a minute. */
  #mayReap(): boolean {
    const minute = Math.floor(this.sim.world.now / 60_000);
    const isFirst = minute > this.#reapedAt;
    this.#reapedAt = minute;
    return isFirst;
  }

  #uidOf(id: string): string {
    const machine = this.sim.world.machines.get(id);
    return machine?.labels["vmlet.dev/uid"] ?? id.replace(/^m-/, "").replace(/(uid-\d+)-\d+$/, "$1");
  }

  #pods() {
    const synced = () => this.synced || this.sim.mutant?.pretendSynced === true;
    return {
      get synced() {
        return synced();
      },
      get: (uid: string) => this.cache.get(uid),
    };
  }

  #effect(name: string, exec: () => unknown, unavailable: () => Error): Promise<never> {
    return new Promise((resolve, reject) => {
      this.sim.effects.push({ agent: this, name, exec, resolve: resolve as (v: unknown) => void, reject, unavailable });
    });
  }

  #kube(): Kube {
    const { world, mutant } = this.sim;
    return {
      request: <T>(request: KubeRequest) => {
        const cached = (path: string) =>
          [...this.cache.values()].find((p) =>
            path.startsWith(`/api/v1/namespaces/${p.metadata!.namespace}/pods/${p.metadata!.name}`),
          );
        const mutated = mutant?.kube?.(request, cached) ?? request;
        if ("reply" in mutated) return Promise.resolve(mutated.reply as T);
        if ("error" in mutated) return Promise.reject(mutated.error);
        return this.#effect(
          `api.${request.method}`,
          () => world.kube(mutated, this.seenRunning),
          () => new KubeApiError("simulated", { status: 503, reason: "ServiceUnavailable" }),
        ).catch((thrown: unknown) => {
          throw thrown instanceof KubeApiError && mutant?.kubeError ? mutant.kubeError(thrown, mutated) : thrown;
        });
      },
      watch: () => {
        throw new Error("the simulation feeds the cache itself");
      },
    };
  }

  #provider(): Provider {
    const { world, mutant } = this.sim;
    const call = async <T>(name: string, exec: () => T): Promise<T> => {
      try {
        const value = (await this.#effect(name, exec, () => new ProviderError("unavailable", "simulated"))) as T;
        return this.#saw(value);
      } catch (thrown) {
        throw thrown instanceof ProviderError && mutant?.provider ? mutant.provider(thrown, name) : thrown;
      }
    };
    return {
      name: "sim",
      getInfo: () => Promise.resolve({ name: "sim", version: "0", capabilities: [] }),
      createPod: (id, spec) => {
        if (hasRun(world.byUid(spec.labels["vmlet.dev/uid"]!) ?? {})) {
          this.sim.failed ??= new Violation("S6 a pod that has run is silently given a new machine");
        }
        return call("be.create", () => world.put(id, spec));
      },
      getPod: (id) => call("be.get", () => world.get(id)),
      getPods: ({ labels }) => call("be.list", () => ({ items: world.list(labels), revision: world.revision })),
      stopPod: (id, { graceSeconds }) => call("be.stop", () => world.stop(id, graceSeconds)),
      deletePod: (id, { force }) => call("be.delete", () => world.delete(id, force)),
      getLogs: () => {
        throw new Error("not simulated");
      },
      close: () => Promise.resolve(),
    };
  }

  #saw<T>(value: T): T {
    const machine = value as unknown as Machine;
    if (machine?.containers?.some((c) => c.state === "running")) this.seenRunning.add(machine.labels["vmlet.dev/uid"]!);
    return value;
  }

  /** The next few events of the pod watch, in order, some folded into one. */
  deliver(count: number): void {
    const { log } = this.sim.world;
    for (; count > 0 && this.position < log.length; count--, this.position++) {
      const { type, pod } = log[this.position]!;
      const uid = pod.metadata!.uid!;
      if (type === "DELETED") {
        // A deletion directly followed by a creation of the same name may arrive as one update.
        this.cache.delete(uid);
        this.reconciler.podGone(pod);
      } else {
        for (const [other, known] of this.cache) {
          if (
            other !== uid &&
            known.metadata!.namespace === pod.metadata!.namespace &&
            known.metadata!.name === pod.metadata!.name
          ) {
            this.cache.delete(other);
            this.reconciler.podGone(known);
            this.dirty.add(other);
          }
        }
        this.cache.set(uid, pod);
        this.sim.everSeen.set(uid, pod);
      }
      this.dirty.add(uid);
    }
  }

  /** A complete list, as the log had it at `position`: the present, or some time ago. */
  relist(position: number): void {
    const pods = new Map<string, Pod>();
    for (const { type, pod } of this.sim.world.log.slice(0, position)) {
      if (type === "DELETED") pods.delete(pod.metadata!.uid!);
      else {
        pods.set(pod.metadata!.uid!, pod);
        this.sim.everSeen.set(pod.metadata!.uid!, pod);
      }
    }
    for (const [uid, pod] of this.cache) {
      if (!pods.has(uid)) {
        this.reconciler.podGone(pod);
        this.dirty.add(uid);
      }
    }
    this.cache = pods;
    this.position = position;
    this.synced = true;
    for (const uid of pods.keys()) this.dirty.add(uid);
    for (const machine of this.machines.values()) this.dirty.add(machine.labels["vmlet.dev/uid"]!);
  }

  deliverMachines(count: number): void {
    const { machineLog } = this.sim.world;
    for (; count > 0 && this.machinePosition < machineLog.length; count--, this.machinePosition++) {
      const machine = machineLog[this.machinePosition]!;
      const mine =
        this.sim.mutant?.ignoreOwner === true || Object.entries(OWNER).every(([k, v]) => machine.labels[k] === v);
      if (this.machines.synced && mine) this.machines.put(this.#saw(machine));
    }
  }

  listMachines(items: readonly Machine[], revision: number): void {
    for (const machine of items) this.#saw(machine);
    this.machines.replace(items, revision);
    for (const machine of items) this.dirty.add(machine.labels["vmlet.dev/uid"]!);
  }
}

const KEYS = ["a/b-c", "a-b/c", "a/x"] as const;

export class Simulation {
  readonly world: World;
  readonly effects: Effect[] = [];
  readonly everSeen = new Map<string, Pod>();
  readonly #late: (() => void)[] = [];
  readonly #r: () => number;
  #agents: Agent[];
  #listInFlight: { agent: Agent; items: Machine[]; revision: number } | undefined;
  failed: Violation | undefined;
  faultRate = 0.15;

  readonly mutant: Mutant | undefined;

  constructor(seed: number, mutant?: Mutant) {
    this.mutant = mutant;
    this.#r = seeded(seed);
    this.world = new World({ ...mutant?.world, nodeAuthorizer: seed % 2 === 0, deletesSlowly: seed % 3 === 0 });
    this.#agents = [new Agent(this)];
    // Another node's machine, and one of ours that no agent of this history has heard of.
    this.world.put("m-uid-foreign", spec("uid-foreign", "a/foreign", { ...OWNER, "vmlet.dev/node": "other" }));
  }

  #pick<T>(items: readonly T[]): T {
    return items[Math.floor(this.#r() * items.length)]!;
  }

  /** @throws Violation */
  async run(steps = 110): Promise<void> {
    for (let i = 0; i < steps; i++) {
      this.#step();
      await settle();
      if (this.failed !== undefined) throw this.failed;
    }
    await this.#converge();
  }

  #step(): void {
    const r = this.#r;
    const x = r();
    const agent = this.#pick(this.#agents);
    if (x < 0.4) this.#agentStep(agent);
    else if (x < 0.55) agent.deliver(1 + Math.floor(r() * 3));
    else if (x < 0.65) agent.deliverMachines(1 + Math.floor(r() * 3));
    else if (x < 0.7) {
      if (this.#listInFlight !== undefined) {
        const list = this.#listInFlight;
        this.#listInFlight = undefined;
        if (list.agent.alive) list.agent.listMachines(list.items, list.revision);
      } else this.#listInFlight = { agent, items: this.#list(), revision: this.world.revision };
    } else if (x < 0.73)
      agent.relist(
        r() < 0.7 ? this.world.log.length : Math.max(agent.position, Math.floor(r() * (this.world.log.length + 1))),
      );
    else if (x < 0.74) this.#crash(agent);
    else if (x < 0.75 && this.#agents.length < 2) this.#agents.push(new Agent(this));
    else if (x < 0.77) this.world.now += 1000 * Math.floor(r() * 40);
    else if (x < 0.86) this.#userStep();
    else if (x < 0.96) {
      const ids = [...this.world.machines].filter(([, m]) => m.state !== "deleted").map(([id]) => id);
      if (ids.length > 0) this.world.progress(this.#pick(ids), r);
    } else if (x < 0.965) {
      const ids = [...this.world.machines].filter(([, m]) => isAlive(m.state)).map(([id]) => id);
      if (ids.length > 0) this.world.vanish(this.#pick(ids));
    } else if (this.#late.length > 0) this.#late.shift()!();
  }

  #list(): Machine[] {
    return this.world.list(this.mutant?.ignoreOwner === true ? {} : OWNER);
  }

  #userStep(): void {
    const r = this.#r;
    const key = this.#pick(KEYS);
    const pod = this.world.pods.get(key);
    const x = r();
    if (pod === undefined) {
      if (x < 0.6)
        this.world.createPod(key, {
          restartPolicy: this.#pick(["Always", "OnFailure", "Never"]),
          finalizer: r() < 0.1,
        });
    } else if (x < 0.3) this.world.deletePod(key, 30);
    else if (x < 0.38) this.world.deletePod(key, 0);
    else if (x < 0.45) this.world.dropFinalizers(key);
    else if (x < 0.6)
      this.world.editPod(key, (p) => ({ ...p, metadata: { ...p.metadata, labels: { n: String(r()) } } }));
    // kube-controller-manager's pod GC ends pods of a node that it believes gone.
    else if (x < 0.62)
      this.world.editPod(key, (p) => ({
        ...p,
        status: { ...p.status, phase: p.status.phase === "Succeeded" ? "Succeeded" : "Failed" },
      }));
  }

  #crash(agent: Agent): void {
    agent.alive = false;
    for (let i = this.effects.length - 1; i >= 0; i--) if (this.effects[i]!.agent === agent) this.effects.splice(i, 1);
    this.#agents[this.#agents.indexOf(agent)] = new Agent(this);
  }

  #agentStep(agent: Agent): void {
    const pending = this.effects.filter((e) => e.agent === agent);
    if (pending.length > 0 && this.#r() < 0.8) {
      this.#decide(this.#pick(pending));
      return;
    }
    const free = [...agent.dirty].filter((uid) => !agent.running.has(uid));
    if (free.length > 0) this.#start(agent, this.#pick(free));
  }

  #start(agent: Agent, uid: string): void {
    agent.dirty.delete(uid);
    agent.running.add(uid);
    agent.reconciler.reconcile(uid, new AbortController().signal).then(
      (outcome) => {
        agent.running.delete(uid);
        if (outcome.kind !== "settled") agent.dirty.add(uid);
      },
      (error: unknown) => {
        this.failed ??=
          error instanceof Violation ? error : new Violation(`reconcile threw: ${(error as Error).stack}`);
      },
    );
  }

  #decide(effect: Effect): void {
    this.effects.splice(this.effects.indexOf(effect), 1);
    const p = this.faultRate;
    const x = this.#r();
    if (x < p * 0.3) return effect.reject(effect.unavailable());
    if (x < p * 0.4) return this.#crash(effect.agent);
    if (x < p * 0.65 && effect.name !== "api.GET" && effect.name !== "be.get") {
      this.#late.push(() => this.#exec(effect));
      return effect.reject(effect.unavailable());
    }
    const result = this.#exec(effect);
    if (x < p * 0.9) return effect.reject(effect.unavailable());
    if (x < p) return this.#crash(effect.agent);
    if ("error" in result) effect.reject(result.error);
    else effect.resolve(result.value);
  }

  #exec(effect: Effect): { value: unknown } | { error: Error } {
    try {
      return { value: effect.exec() };
    } catch (thrown) {
      if (thrown instanceof Violation) this.failed ??= thrown;
      return { error: thrown as Error };
    }
  }

  /** No faults any more, one agent, fair turns: everything must come to rest where Kubernetes wants it. */
  async #converge(): Promise<void> {
    while (this.#late.length > 0) this.#late.shift()!();
    for (const effect of this.effects.splice(0)) effect.reject(effect.unavailable());
    await settle();
    this.#agents = [this.#agents[0]!];
    const [agent] = this.#agents as [Agent];
    for (let round = 0; round < 45; round++) {
      this.world.now += 15_000;
      agent.relist(this.world.log.length);
      agent.machinePosition = this.world.machineLog.length;
      agent.listMachines(this.#list(), this.world.revision);
      for (const uid of agent.reconciler.knownUids()) agent.dirty.add(uid);
      for (let guard = 0; guard < 60; guard++) {
        const free = [...agent.dirty].filter((uid) => !agent.running.has(uid));
        for (const uid of free) this.#start(agent, uid);
        await settle();
        const pending = this.effects.splice(0);
        if (pending.length === 0 && free.length === 0) break;
        for (const effect of pending) {
          const result = this.#exec(effect);
          if ("error" in result) effect.reject(result.error);
          else effect.resolve(result.value);
        }
        await settle();
        if (this.failed !== undefined) throw this.failed;
        agent.deliver(1e9);
        agent.deliverMachines(1e9);
        if (guard > 20) break;
      }
      // Machines that were told to stop do so; new ones come up.
      for (const [id, machine] of this.world.machines) {
        if (machine.state !== "running") this.world.progress(id, this.#r);
      }
      if (round > 6 && this.#atRest() === undefined) return;
    }
    const unrest = this.#atRest();
    if (unrest !== undefined) throw new Violation(unrest);
  }

  #atRest(): string | undefined {
    for (const machine of this.world.machines.values()) {
      if (!isAlive(machine.state) || machine.labels["vmlet.dev/node"] !== NODE) continue;
      const pod = this.world.byUid(machine.labels["vmlet.dev/uid"]!);
      if (pod === undefined || pod.status.phase === "Failed" || pod.status.phase === "Succeeded")
        return "L2 leaked machine after convergence";
    }
    for (const pod of this.world.pods.values()) {
      const held = (pod.metadata.finalizers?.length ?? 0) > 0;
      if (pod.metadata.deletionTimestamp !== undefined && !held) return "L3 pod stuck in deletion";
      const over = pod.status.phase === "Failed" || pod.status.phase === "Succeeded";
      if (pod.metadata.deletionTimestamp !== undefined) {
        if (!over) return "L3 held pod has no terminal phase";
        continue;
      }
      if (!over && this.world.alive(pod.metadata.uid).length === 0) return "L1 live pod has no machine";
      if (!over && pod.status.phase !== "Running") return "L4 running machine, pod does not say so";
    }
    return undefined;
  }
}

/** Lets every promise that can move do so. */
async function settle(): Promise<void> {
  for (let i = 0; i < 12; i++) await Promise.resolve();
}

function render(pod: Pod): Rendered {
  return {
    kind: "ready",
    version: "1",
    spec: spec(pod.metadata!.uid!, `${pod.metadata!.namespace}/${pod.metadata!.name}`, OWNER),
  };
}

function spec(uid: string, key: string, owner: Record<string, string>): MachineSpec {
  const [namespace, name] = key.split("/") as [string, string];
  return {
    labels: { ...owner, "vmlet.dev/uid": uid, "vmlet.dev/namespace": namespace, "vmlet.dev/pod": name },
    restart_policy: "always",
    containers: [{ name: "main", image: "x" }],
  };
}

/** Undefined when the schedule keeps every invariant, else what broke. */
export async function simulate(seed: number, mutant?: Mutant): Promise<string | undefined> {
  try {
    await new Simulation(seed, mutant).run();
    return undefined;
  } catch (thrown) {
    if (thrown instanceof Violation) return thrown.message;
    throw thrown;
  }
}
