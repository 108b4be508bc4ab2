/**
 * One schedule: a backend on a host of memory, every choice taken by one seeded generator. It is killed at any change of
 * its files, before, in the middle of or after any call of its engine; the host loses its power; sandboxes die. When
 * the schedule is over, nothing fails any more, and everything has to come to rest as it should.
 */
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { LocalProvider } from "../../../providers/local/provider.ts";
import { AgentClock } from "../agent/clock.ts";
import { pick, seeded } from "../seeded.ts";
import { Violation } from "../violation.ts";
import { engineOf, shimsOf } from "./engine.ts";
import type { Fate } from "./files.ts";
import { Host, SECRETS_DIR, STATE_DIR, type CallFate } from "./host.ts";
import { Judge } from "./judge.ts";
import type { Mutant } from "./mutants.ts";
import { Users } from "./users.ts";

const STEPS = 150;
const CALL_MS = 2_000;

/** What is played besides clients, ends of containers and the backend's own death. */
export interface Scenario {
  name: string;
  what: string;
  /** The host loses its power. */
  powerCuts?: boolean;
  /** Secrets lie in the host's memory. */
  secretsInMemory?: boolean;
  /** The disk is full for a moment. */
  fullDisks?: boolean;
  /** Machines have volumes that outlive them. */
  volumes?: boolean;
  share: number;
}

export const SCENARIOS: readonly Scenario[] = [
  { name: "kills", what: "The backend is killed, calls of the engine fail, sandboxes die", share: 4 },
  { name: "power-cuts", what: "The same, and the host loses its power", powerCuts: true, share: 4 },
  {
    name: "power-cuts-memory",
    what: "The same, with machines' secrets in the host's memory",
    powerCuts: true,
    secretsInMemory: true,
    share: 1,
  },
  { name: "full-disks", what: "The backend is killed, and changes of files fail", fullDisks: true, share: 1 },
  {
    name: "volumes",
    what: "Machines have volumes that outlive them; the backend is killed, and the host loses its power",
    powerCuts: true,
    volumes: true,
    share: 4,
  },
];

export interface SimulationOptions {
  seed: number;
  scenario: Scenario;
  mutant?: Mutant | undefined;
  trace?: ((line: string) => void) | undefined;
}

class Simulation {
  readonly host: Host;
  readonly #users: Users;
  readonly #judge: Judge;
  readonly #scenario: Scenario;
  readonly #mutant: Mutant | undefined;
  #life = { isAlive: false };
  #clock: AgentClock | undefined;
  #provider: LocalProvider | undefined;
  #isFair = false;

  constructor({ seed, scenario, mutant, trace }: SimulationOptions) {
    this.#scenario = scenario;
    this.#mutant = mutant;
    this.host = new Host(seeded(seed), scenario.secretsInMemory ?? false);
    if (trace !== undefined) this.host.trace = trace;
    this.#users = new Users(this.host, scenario);
    this.#judge = new Judge(this.host, this.#users);
    this.host.onKilled = this.host.files.onKilled = () => this.#kill();
    this.host.files.mkdirSync("/simulated");
    this.host.files.settle();
    this.host.files.unwritten = mutant?.unwritten;
    this.host.files.isUnflushed = mutant?.unflushed === true;
  }

  async run(): Promise<void> {
    using _planted = this.#mutant?.plant?.();
    await this.#boot();
    for (let i = 0; i < STEPS; i++) {
      await this.#step();
      await this.#settle();
    }
    await this.#fairEnd();
  }

  // --- the backend's lives ---

  async #boot(): Promise<void> {
    const { host } = this;
    const life = { isAlive: true };
    const isAlive = () => life.isAlive;
    this.#life = life;
    const clock = new AgentClock(host);
    this.#clock = clock;
    host.files.fate = () => "done";
    // As config.ts has it made before anything else.
    if (this.#scenario.secretsInMemory) host.files.mkdirSync(SECRETS_DIR, { recursive: true });
    host.files.fate = this.#fates();
    host.trace("the backend starts");
    const engine = engineOf(host, isAlive, { hasDisks: this.#scenario.volumes ?? false });
    const shims = shimsOf(host, isAlive);
    LocalProvider.open({
      engine: this.#mutant?.engine?.(engine) ?? engine,
      shims: this.#mutant?.shims?.(shims, host) ?? shims,
      stateDir: STATE_DIR,
      secrets: this.#scenario.secretsInMemory ? { dir: SECRETS_DIR, maxBytes: 1e9 } : undefined,
      clock,
      logger: silentLogger,
      host: "simulated",
      version: "0",
      lock: () => Promise.resolve(host.files.openSync("/simulated")),
    }).then(
      (provider) => {
        if (life.isAlive) this.#provider = provider;
      },
      (thrown: unknown) => {
        if (!life.isAlive) return;
        host.trace(`the backend does not start: ${(thrown as Error).stack}`);
        // Whoever looks after it starts it again.
        if (this.#isFair) host.fault("B0", `the backend does not start: ${String(thrown)}`);
        this.#kill();
      },
    );
    await this.#settle();
  }

  /** What becomes of this life's changes of files. */
  #fates(): (path: string) => Fate {
    const { random } = this.host;
    if (this.#isFair) return () => "done";
    let left = random() < 0.6 ? Math.floor(random() * 40) : Infinity;
    return () => {
      if (left-- === 0) return pick(random, ["killed before", "killed amid", "killed after"]);
      return this.#scenario.fullDisks && random() < 0.03 ? "full" : "done";
    };
  }

  #kill(): void {
    if (!this.#life.isAlive) return;
    this.host.trace("the backend is killed");
    this.#life.isAlive = false;
    this.#provider = undefined;
    this.#clock?.stop();
    this.host.calls.length = 0;
    this.host.watchers.clear();
    this.host.files.fate = () => "killed before";
    this.#users.backendGone();
  }

  // --- steps ---

  async #settle(): Promise<void> {
    for (let i = 0; i < 2; i++) await new Promise((resolve) => setImmediate(resolve));
    if (this.#provider !== undefined) {
      const list = await this.#provider
        .getPods({ labels: {}, includeDeleted: true, signal: NEVER })
        .catch(() => undefined);
      if (list !== undefined) this.#judge.list(list);
      const volumes = await this.#provider?.volumes?.list({ labels: {}, includeDeleted: true, signal: NEVER });
      if (volumes !== undefined) this.#judge.volumes(volumes.items);
    }
    if (this.host.violation !== undefined) throw this.host.violation;
  }

  async #step(): Promise<void> {
    const { host } = this;
    const { random } = host;
    if (!this.#life.isAlive && random() < 0.5) return await this.#boot();
    const x = random();
    if (x < 0.45) this.#decideCall();
    else if (x < 0.62) this.#arrive();
    else if (x < 0.74) {
      if (this.#provider !== undefined) this.#users.step(this.#provider, this.#isAlive());
    } else if (x < 0.86) this.#containerStep();
    else if (x < 0.965) this.#passTime();
    else if (x < 0.975) this.#kill();
    else if (x < 0.985) this.#loseSandbox();
    else if (this.#scenario.powerCuts && x < 0.995) this.#cutPower();
  }

  #isAlive(): () => boolean {
    const life = this.#life;
    return () => life.isAlive;
  }

  #decideCall(): void {
    const { calls, random } = this.host;
    if (calls.length === 0) return;
    const [call] = calls.splice(Math.floor(random() * calls.length), 1);
    call!.decide(this.#callFate());
  }

  #callFate(): CallFate {
    const { random } = this.host;
    if (random() < 0.85) return "done";
    return pick(random, ["fails", "fails when done", "killed before", "killed amid", "killed after"]);
  }

  #arrive(): void {
    this.host.underway.shift()?.();
  }

  #containerStep(): void {
    const { host } = this;
    const { random } = host;
    const running = host.running();
    if (running.length === 0) return;
    const instance = pick(random, running);
    if (instance.dying !== undefined) host.end(instance, instance.dying, "signal");
    else if (instance.kind === "init" ? random() < 0.8 : random() < 0.3) {
      instance.oomKilled = random() < 0.3;
      host.end(instance, instance.oomKilled ? 137 : pick(random, [0, 0, 1]), "itself");
    }
  }

  /** A call of the engine takes so long at most: what becomes of one that hangs has tests of its own. */
  #passTime(): void {
    const { host } = this;
    const oldest = Math.min(...host.calls.map(({ askedAt }) => askedAt));
    if (host.now - oldest >= CALL_MS) return this.#decideCall();
    const next = this.#clock?.nextAt ?? Infinity;
    const aim = host.random() < 0.7 && next < Infinity ? next : host.now + Math.floor(host.random() * 20_000);
    host.now = Math.max(host.now, Math.min(aim, oldest + CALL_MS));
    this.#clock?.fire();
  }

  #loseSandbox(): void {
    const machines = [...this.host.sandboxes.keys()];
    if (machines.length === 0) return;
    const machine = pick(this.host.random, machines);
    this.host.trace(`the sandbox of ${machine} dies`);
    this.host.lose(machine);
  }

  #cutPower(): void {
    this.#kill();
    this.host.trace("the host loses its power");
    this.host.losePower();
    this.host.now += 60_000;
  }

  // --- the end ---

  async #fairEnd(): Promise<void> {
    const { host } = this;
    this.#isFair = true;
    host.files.fate = this.#life.isAlive ? () => "done" : host.files.fate;
    host.trace("nothing fails any more");
    for (let round = 0; round < 400; round++) {
      if (!this.#life.isAlive) await this.#boot();
      for (const call of host.calls.splice(0)) call.decide("done");
      for (const event of host.underway.splice(0)) event();
      for (const each of host.running()) {
        if (each.dying !== undefined) host.end(each, each.dying, "signal");
        else if (
          each.kind === "init" &&
          host.specs.get(each.machine)?.init_containers?.find(({ name }) => name === each.name)?.restart_policy !==
            "always"
        )
          host.end(each, 0, "itself");
      }
      await this.#settle();
      if (host.calls.length > 0 || host.underway.length > 0) continue;
      host.now += 5_000;
      this.#clock?.fire();
      await this.#settle();
    }
    const { items } = await this.#provider!.getPods({ labels: {}, includeDeleted: true, signal: NEVER });
    this.#judge.atRest(items);
    this.#judge.disksAtRest();
    if (host.violation !== undefined) throw host.violation;
    this.#kill();
  }
}

const NEVER = new AbortController().signal;

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

export function scenarioNamed(name: string): Scenario {
  const found = SCENARIOS.find((each) => each.name === name);
  if (found === undefined)
    throw new Error(`There is no scenario "${name}"; take one of ${SCENARIOS.map((each) => each.name).join(", ")}`);
  return found;
}
