/**
 * One schedule: agents in a toy world, every choice taken by one seeded generator. At each request an agent's call may fail before
 * it happened, be done with the reply lost, stay in flight and land later, or the agent may be killed before or after. In between
 * users act, machines live and die, caches lag, watches break, lists travel back in time. The world judges the safety invariants at
 * each request; when the schedule is over, `fair.ts` judges the liveness ones.
 */
import { KubeApiError } from "../../src/kube/errors.ts";
import { ProviderError } from "../../src/provider/errors.ts";
import { isOver } from "../../src/provider/machine.ts";
import type { Random } from "../../src/util/random.ts";
import { Agent } from "./agent/agent.ts";
import { judgeFairEnd } from "./fair.ts";
import type { Mutant } from "./mutants/mutant.ts";
import { Network } from "./network.ts";
import type { Scenario } from "./scenarios.ts";
import { pick, seeded } from "./seeded.ts";
import { Violation } from "./violation.ts";
import { userStep } from "./world/users.ts";
import { NAMESPACES, OTHER_NODE, OWNER } from "./world/names.ts";
import type { DiskWorld } from "./world/disks.ts";
import { World } from "./world/world.ts";

const STEPS = 170;
const FAULT_RATE = 0.15;
const FAULT_RATE_OF_MANY = 0.05;
const DAY_MS = 86_400_000;

export interface SimulationOptions {
  seed: number;
  scenario: Scenario;
  mutant?: Mutant | undefined;
  trace?: ((line: string) => void) | undefined;
}

export class Simulation {
  readonly world: World;
  readonly network: Network;
  readonly seed: number;
  readonly #random: Random;
  readonly #mutant: Mutant | undefined;
  agents: Agent[] = [];
  #serial = 0;

  constructor({ seed, scenario, mutant, trace }: SimulationOptions) {
    this.seed = seed;
    this.#mutant = mutant;
    this.#random = seeded(seed);
    this.world = new World({
      random: this.#random,
      scenario: scenario.switches,
      flaws: mutant?.world ?? {},
      seed,
      machineId: mutant?.machineId,
    });
    this.world.trace = trace;
    this.network = new Network(this.world);
    if (scenario.switches.updates) for (const namespace of NAMESPACES) this.world.configMaps.write(namespace);
    this.#plantStrangers();
    this.#start();
  }

  /** Another node's machine, and in some worlds some of ours that no agent of this history has heard of. */
  #plantStrangers(): void {
    const plant = (name: string, node: string) => {
      const uid = `uid-${name}`;
      this.world.history.of(uid).removedByForce = true;
      const labels = {
        ...OWNER,
        "vmlet.dev/node": node,
        "vmlet.dev/uid": uid,
        "vmlet.dev/namespace": "a",
        "vmlet.dev/pod": name,
      };
      (this.world.cloud ?? this.world.backend).plant(uid, {
        labels,
        restart_policy: "always",
        containers: [{ name: "main", image: "x:1" }],
      });
    };
    plant("foreign", OTHER_NODE);
    if (this.seed % 5 === 0)
      for (const name of ["leak-1", "leak-2", "leak-3", "leak-4"]) plant(name, OWNER["vmlet.dev/node"]!);
  }

  #start(): Agent {
    const { world, network } = this;
    const agent = new Agent({ world, network, mutant: this.#mutant, serial: ++this.#serial });
    if (world.scenario.clocks) agent.clock.wallOffsetMs = this.#skew();
    this.agents.push(agent);
    agent.run();
    return agent;
  }

  kill(agent: Agent): void {
    agent.kill();
    this.agents = this.agents.filter((other) => other !== agent);
    if (this.agents.length === 0) this.#start();
  }

  /** @throws Violation */
  async run(): Promise<void> {
    for (let i = 0; i < STEPS; i++) {
      this.#step();
      await this.settle();
      if (this.world.cloud !== undefined) await this.#goOn();
      if (this.world.disks !== undefined) await this.#moveVolumes(this.world.disks);
    }
    await judgeFairEnd(this);
  }

  /** Lets everything run that can, and reports what it broke. @throws Violation */
  async settle(): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve));
    for (const agent of this.agents) agent.takeIn();
    const violation = this.network.violation ?? this.world.disks?.violation;
    if (violation !== undefined) throw violation;
  }

  /** Moves time on; whatever timers that sets off run at its end. */
  advance(ms: number): void {
    this.world.now += ms;
    this.network.landOverdue();
    this.world.backend.sweepTombstones();
    for (const agent of this.agents) agent.clock.fire();
  }

  /** Milliseconds until the next timer of any agent. */
  get untilTimer(): number {
    return Math.max(0, Math.min(...this.agents.map(({ clock }) => clock.nextAt)) - this.world.now);
  }

  /** Where machines are VMs, each step of an agent takes a dozen requests. */
  async #goOn(): Promise<void> {
    const r = this.#random;
    for (let left = Math.floor(r() * 16); left > 0; left--) {
      const agent = pick(r, this.agents);
      const x = r();
      if (this.network.of(agent).length > 0 && x < 0.8) this.#networkStep(agent);
      else if (x < 0.85) agent.deliverPods(1);
      else if (x < 0.9) this.advance(Math.min(this.untilTimer, 5_000));
      else if (x < 0.95) this.#machineStep();
      else this.world.cloud!.liveOn();
      await this.settle();
    }
  }

  /** What becomes of volumes takes its controllers and the agent a dozen requests. */
  async #moveVolumes(disks: DiskWorld): Promise<void> {
    const r = this.#random;
    for (let left = Math.floor(r() * 6); left > 0; left--) {
      const agent = pick(r, this.agents);
      const x = r();
      if (x < 0.5) this.#networkStep(agent);
      else if (x < 0.8) disks.step();
      else if (x < 0.9) agent.deliverNode();
      else if (x < 0.97) this.advance(Math.min(this.untilTimer, 2_000));
      else disks.loseOther();
      await this.settle();
    }
  }

  #step(): void {
    const r = this.#random;
    const { world, network } = this;
    const agent = pick(r, this.agents);
    const x = r();
    if (x < 0.38) this.#networkStep(agent);
    else if (x < 0.48) agent.deliverPods(1 + Math.floor(r() * 3));
    else if (x < 0.56) agent.deliverMachines(1 + Math.floor(r() * 3));
    else if (x < 0.58) network.answerOne();
    else if (x < 0.6) network.landOne();
    else if (x < 0.7) this.advance(r() < 0.7 ? Math.min(this.untilTimer, 40_000) : 1000 * Math.floor(r() * 40));
    else if (x < 0.71) this.kill(agent);
    else if (x < 0.72) {
      if (this.agents.length < 2) this.#start();
    } else if (x < 0.73) this.#breakWatch(agent);
    else if (x < 0.83) userStep(world);
    else if (x < 0.95) {
      this.#machineStep();
      // No draw where there is no cloud: seeds of other scenarios stay what they were.
      if (world.cloud !== undefined && r() < 0.5) world.cloud.step();
    } else if (x < 0.955) this.#vanish();
    else if (x < 0.965) agent.configs.deliver(1);
    else this.#scenarioStep(agent);
  }

  #networkStep(agent: Agent): void {
    const waiting = this.network.of(agent);
    const rate = this.world.cloud === undefined ? FAULT_RATE : FAULT_RATE_OF_MANY;
    if (waiting.length > 0) this.network.decide(pick(this.#random, waiting), rate, (dead) => this.kill(dead));
    else {
      agent.deliverPods(1);
      agent.deliverMachines(1);
    }
  }

  #breakWatch(agent: Agent): void {
    const r = this.#random;
    if (r() < 0.5) {
      const status = pick(r, [0, 410, 500] as const);
      const reason = { 0: "Transport", 410: "Expired", 500: "InternalError" }[status];
      agent.pods?.fail(r() < 0.2 ? undefined : new KubeApiError("the watch broke", { status, reason }));
    } else
      agent.machines?.fail(
        r() < 0.2 ? undefined : new ProviderError(pick(r, ["gone", "unavailable"]), "the watch broke"),
      );
  }

  #machineStep(): void {
    const ids = [...this.world.backend.machines]
      .filter(([, { machine }]) => machine.state !== "deleted")
      .map(([id]) => id);
    if (ids.length > 0) this.world.backend.progress(pick(this.#random, ids));
  }

  #vanish(): void {
    const ids = [...this.world.backend.machines].filter(([, { machine }]) => !isOver(machine)).map(([id]) => id);
    if (ids.length > 0) this.world.backend.vanish(pick(this.#random, ids));
  }

  /** Something of what this scenario is about. */
  #scenarioStep(agent: Agent): void {
    const r = this.#random;
    const { world } = this;
    const { scenario, backend, capacity, configMaps } = world;
    const steps: (() => void)[] = [];
    if (scenario.updates)
      steps.push(
        () => agent.configs.deliver(2),
        () => configMaps.write(pick(r, NAMESPACES)),
      );
    if (scenario.deadlines) steps.push(() => this.advance(30_000));
    if (scenario.admission) {
      steps.push(
        () => capacity.setCpus(pick(r, [0, 1, 2, 4])),
        () => capacity.restore(),
      );
      steps.push(
        () => configMaps.remove(pick(r, NAMESPACES)),
        () => configMaps.write(pick(r, NAMESPACES)),
      );
      steps.push(() => agent.configs.deliver(2));
    }
    if (scenario.dataLoss) steps.push(() => r() < 0.3 && backend.loseEverything());
    if (scenario.restore)
      steps.push(
        () => backend.backUp(),
        () => backend.restore(),
      );
    if (scenario.tombstonesExpire)
      steps.push(
        () => this.advance(120_000),
        () => this.advance(600_000),
      );
    if (scenario.revival) steps.push(() => this.#revive());
    if (scenario.clocks) {
      steps.push(() => (agent.clock.wallOffsetMs = this.#skew()));
      steps.push(() => (backend.clockOffsetMs = this.#skew()));
    }
    if (scenario.outages)
      steps.push(
        () => (world.isBackendAway = !world.isBackendAway),
        () => world.isBackendAway && this.advance(160_000),
      );
    if (scenario.leadership) steps.push(() => (agent.isLeader = !agent.isLeader));
    if (scenario.flapping) steps.push(() => this.#flap());
    if (scenario.nonsense) steps.push(() => this.#talkNonsense());
    if (scenario.cloud) steps.push(() => world.cloud!.step());
    if (steps.length > 0) pick(r, steps)();
  }

  #skew(): number {
    return Math.floor((this.#random() * 2 - 1) * DAY_MS);
  }

  #revive(): void {
    const ids = [...this.world.backend.machines]
      .filter(([, { machine }]) => ["stopped", "failed"].includes(machine.state))
      .map(([id]) => id);
    if (ids.length > 0) this.world.backend.revive(pick(this.#random, ids));
  }

  /** From now on nobody understands what the backend says of one of its machines. */
  #talkNonsense(): void {
    const uids = [...this.world.api.pods.values()].map(({ metadata }) => metadata.uid as string);
    if (uids.length > 0) this.world.history.of(pick(this.#random, uids)).isNonsense = true;
  }

  #flap(): void {
    const { backend } = this.world;
    for (const [id, { machine }] of backend.machines) {
      if (machine.state !== "running") continue;
      backend.change(id, {
        containers: machine.containers.map((c) => (c.state === "running" ? { ...c, ready: !c.ready } : c)),
      });
    }
  }
}

/** Undefined when the schedule keeps every invariant, else what broke. */
export async function simulate(options: SimulationOptions): Promise<Violation | undefined> {
  try {
    await new Simulation(options).run();
    return undefined;
  } catch (thrown) {
    if (thrown instanceof Violation) return thrown;
    throw thrown;
  }
}
