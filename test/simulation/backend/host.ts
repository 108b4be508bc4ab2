/**
 * The host that outlives its backend: what an engine has made on it, and what really ran in it. Each call of an engine
 * waits for the scheduler, which says what becomes of it.
 */
import { ProviderError } from "../../../src/provider/errors.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { Random } from "../../../src/util/random.ts";
import type { ShimExit } from "../../../providers/local/engine.ts";
import { Violation } from "../violation.ts";
import { Disks } from "./disks.ts";
import { Files } from "./files.ts";

export const STATE_DIR = "/simulated/state";
export const SECRETS_DIR = "/simulated/secrets";

/** One run of a container, or what was prepared for one. */
export interface Instance {
  machine: string;
  name: string;
  id: string;
  kind: "init" | "main" | "ephemeral";
  /** Of the sandbox that it is in. */
  generation: number;
  /** `nobody`: a backend has found that it never began; it never will. */
  phase: "prepared" | "nobody" | "running" | "ended";
  startedAt: number;
  /** What its shim wrote down of its end. */
  exit?: ShimExit & { startedAt: number; finishedAt: number };
  /** How it really ended, though nobody may have been left to write that down. */
  end?: { exitCode: number; by: "itself" | "signal" | "kill" | "loss" | "power" };
  oomKilled: boolean;
  /** The file in which its shim wrote that down went with the host's power. */
  isForgotten?: boolean;
  /** What only the engine knew of its end was gone before anybody could ask. */
  isUnlearned?: boolean;
  /** The exit code with which it will end, for a signal has reached it. */
  dying?: number;
  /** Its definition when it began: a change of it permits another instance. */
  definition: number;
}

interface SandboxOnHost {
  /** It was made to its end. */
  whole: boolean;
  generation: number;
  /** In the life of the backend that holds it. */
  onLost?: (loss: { reason: string; message: string }) => void;
}

/** What becomes of a call of the engine. */
export type CallFate = "done" | "fails" | "fails when done" | "killed before" | "killed amid" | "killed after";

interface AskOptions {
  /** What a kill in the middle of it leaves. Default: nothing. */
  amid?: () => void;
  /** When it fails, nothing was done. */
  failsWhole?: boolean;
}

interface WaitingCall {
  what: string;
  askedAt: number;
  decide(fate: CallFate): void;
}

export class Host {
  readonly random: Random;
  readonly files: Files;
  now = Date.parse("2026-01-01T00:00:00Z");
  readonly sandboxes = new Map<string, SandboxOnHost>();
  /** Machines that have something in volumes. */
  readonly volumes = new Set<string>();
  /** Bundles by instance, with their machine. */
  readonly prepared = new Map<string, string>();
  readonly instances: Instance[] = [];
  /** What the engine still knows of ends, by instance: it is gone with the bundle. */
  readonly known = new Set<string>();
  readonly calls: WaitingCall[] = [];
  /** Events on their way to the backend, and shims that come late. */
  readonly underway: (() => void)[] = [];
  /** How often a container was defined, by machine and name. */
  readonly definitions = new Map<string, number>();
  readonly specs = new Map<string, MachineSpec>();
  readonly disks = new Disks(this);
  violation: Violation | undefined;
  trace: (line: string) => void = () => {};
  onKilled: () => void = () => {};
  /** The host has lost its power so often, when last. */
  powerLostAt = -Infinity;
  #generations = 0;

  constructor(random: Random, secretsInMemory: boolean) {
    this.random = random;
    this.files = new Files(secretsInMemory ? [SECRETS_DIR] : []);
  }

  fault(rule: string, what: string): void {
    this.trace(`!! ${rule} ${what}`);
    this.violation ??= new Violation(rule, what);
  }

  /** A call of the engine: fulfilled when the scheduler says so, and never if the backend is killed before. */
  ask<T>(
    isAlive: () => boolean,
    what: string,
    effect: () => T,
    { amid = () => {}, failsWhole = false }: AskOptions = {},
  ): Promise<T> {
    return new Promise((resolve, reject) => {
      if (!isAlive()) return;
      const decide = (fate: CallFate) => {
        if (!isAlive()) return;
        this.trace(`  ${what}: ${fate}`);
        if (fate === "killed before") return this.onKilled();
        if (fate === "killed amid") {
          amid();
          return this.onKilled();
        }
        if (fate === "fails" || (fate === "fails when done" && failsWhole))
          return reject(new ProviderError("unavailable", `${what} fails`));
        try {
          const result = effect();
          if (fate === "killed after") return this.onKilled();
          if (fate === "done") resolve(result);
          else reject(new ProviderError("unavailable", `${what} fails when it is done`));
        } catch (thrown) {
          reject(thrown);
        }
      };
      this.calls.push({ what, askedAt: this.now, decide });
    });
  }

  // --- sandboxes ---

  open(machine: string, whole: boolean): void {
    if (this.sandboxes.has(machine)) this.fault("B1", `two sandboxes of ${machine}`);
    this.sandboxes.set(machine, { whole, generation: ++this.#generations });
    this.volumes.add(machine);
  }

  /** Kills what runs in it. */
  destroy(machine: string, { keepVolumes = false, half = false } = {}): void {
    for (const each of this.running(machine)) this.end(each, 137, "kill");
    this.#unlearn(machine);
    const sandbox = this.sandboxes.get(machine);
    if (half) {
      if (sandbox !== undefined) sandbox.whole = false;
      return;
    }
    this.sandboxes.delete(machine);
    for (const [id, owner] of this.prepared) if (owner === machine) this.#clear(id);
    if (!keepVolumes) this.volumes.delete(machine);
  }

  /** It dies by itself, with all that runs in it. */
  lose(machine: string): void {
    const sandbox = this.sandboxes.get(machine);
    if (sandbox === undefined) return;
    sandbox.whole = false;
    for (const each of this.running(machine)) this.end(each, 137, "loss");
    this.#unlearn(machine);
    const { onLost } = sandbox;
    if (onLost !== undefined) this.underway.push(() => onLost({ reason: "SandboxLost", message: "it is gone" }));
  }

  #unlearn(machine?: string): void {
    for (const each of this.instances)
      if ((machine === undefined || each.machine === machine) && this.known.has(each.id)) each.isUnlearned = true;
  }

  /** Everything that is not on the disk is gone. */
  losePower(): void {
    this.powerLostAt = this.now;
    for (const each of this.running()) {
      each.phase = "ended";
      each.end = { exitCode: 137, by: "power" };
    }
    this.#unlearn();
    this.sandboxes.clear();
    this.prepared.clear();
    this.known.clear();
    this.disks.losePower();
    this.underway.length = 0;
    this.files.losePower(this.random);
    // A shim's word is a file that nobody flushes.
    for (const each of this.instances) if (this.random() < 0.5) each.isForgotten = true;
  }

  // --- containers ---

  running(machine?: string): Instance[] {
    return this.instances.filter(
      (each) => each.phase === "running" && (machine === undefined || each.machine === machine),
    );
  }

  /** What its shim has written down of its end, as far as that is still there. */
  recorded({ exit, isForgotten }: Instance): Instance["exit"] {
    return isForgotten ? undefined : exit;
  }

  find(id: string): Instance | undefined {
    return this.instances.find((each) => each.id === id);
  }

  prepare(instance: Instance): void {
    this.prepared.set(instance.id, instance.machine);
    this.known.add(instance.id);
    this.instances.push(instance);
  }

  #clear(id: string): void {
    this.prepared.delete(id);
    this.known.delete(id);
  }

  /** What the engine has of an instance goes, and what only it knows of its end. */
  conclude(id: string): void {
    this.#clear(id);
  }

  /** What watches an instance, in the life of the backend that does. */
  readonly watchers = new Map<string, (instance: Instance) => void>();

  begin(instance: Instance): void {
    const sandbox = this.sandboxes.get(instance.machine);
    if (!sandbox?.whole || sandbox.generation !== instance.generation) {
      instance.phase = "ended";
      instance.end = { exitCode: 128, by: "loss" };
      instance.exit = { exitCode: 128, startError: "there is no sandbox", startedAt: this.now, finishedAt: this.now };
      this.trace(`  ${instance.id} finds no sandbox`);
      this.watchers.get(instance.id)?.(instance);
      return;
    }
    this.#judgeBeginning(instance);
    this.disks.begin(instance);
    instance.phase = "running";
    instance.startedAt = this.now;
    this.trace(`  begins ${instance.machine} ${instance.id}`);
    this.watchers.get(instance.id)?.(instance);
  }

  end(instance: Instance, exitCode: number, by: NonNullable<Instance["end"]>["by"]): void {
    if (instance.phase !== "running") return;
    instance.phase = "ended";
    instance.end = { exitCode, by };
    instance.exit = { exitCode, startedAt: instance.startedAt, finishedAt: this.now };
    this.trace(`  ends ${instance.machine} ${instance.id} with ${exitCode} by ${by}`);
    this.watchers.get(instance.id)?.(instance);
  }

  definition(machine: string, name: string): number {
    return this.definitions.get(`${machine}/${name}`) ?? 0;
  }

  /** No instance beside another, and none that the restart policy does not ask for. */
  #judgeBeginning(instance: Instance): void {
    const { machine, name } = instance;
    const before = this.instances.findLast(
      (each) => each !== instance && each.machine === machine && each.name === name && each.startedAt > 0,
    );
    const spec = this.specs.get(machine)!;
    const own = [...spec.containers, ...(spec.init_containers ?? [])].find((each) => each.name === name);
    if (before === undefined) return;
    if (before.phase === "running") return this.fault("B1", `two instances of ${machine} ${name} at the same time`);
    if (instance.kind === "ephemeral") return this.fault("B2", `the ephemeral ${machine} ${name} is run again`);
    const policy = own?.restart_policy ?? spec.restart_policy;
    if (policy === "always" || before.definition !== this.definition(machine, name)) return;
    const what = `${machine} ${name}, policy ${policy}, is run again after ${before.end?.exitCode} by ${before.end?.by}`;
    if (policy === "never") return this.fault("B2", what);
    if (before.end?.exitCode !== 0) return;
    // In another sandbox an init container has its work to do again.
    if (instance.kind === "init" && before.generation !== instance.generation) return;
    // That it was done, the host may have forgotten with its power, unless it was told.
    if (before.isForgotten && !this.toldEnds.has(before.id)) return;
    this.fault("B2", what);
  }

  /** Instances whose end a client has been told. */
  readonly toldEnds = new Set<string>();
}
