/** One container of a machine: what clients see of it, and one instance after another. */
import {
  backoffLimits,
  backOffTexts,
  type Clock,
  type ContainerSpec,
  type ContainerState,
  type ContainerTermination,
  envFilesOf,
  failure,
  firstWaitingReason,
  isSidecar,
  type MachineNotice,
  type MachineSpec,
  type NamedContainer,
  nextRestart,
  type OutputLog,
  type RestartBackoff,
  restartDecision,
  type Result,
  success,
  withAddresses,
  withEnvFiles,
} from "../../src/provider/kit/index.ts";
import type { MachineFiles } from "./files.ts";
import { type ForcedEnd, Instance } from "./instance.ts";
import type { Program } from "./program.ts";
import { shellProgram } from "./shell.ts";

/** What a container does: its program, or undefined to run until it is stopped. */
export type Behaviour = (
  container: ContainerSpec,
  context: { machineId: string; restarts: number },
) => Program | undefined;

/** Why an image cannot be pulled, or undefined when it can. */
export type ImagePolicy = (image: string) => { reason: string; message: string } | undefined;

export interface ContainerContext {
  clock: Clock;
  behaviour: Behaviour;
  images: ImagePolicy;
  address: string | undefined;
}

/** The machine that a container belongs to. */
export interface ContainerHolder {
  readonly id: string;
  readonly spec: MachineSpec;
  readonly files: MachineFiles;
  readonly context: ContainerContext;
  /** What is changed inside, clients see at once, as one change. */
  change(work: () => void): void;
  notice(type: MachineNotice["type"], reason: string, message: string, container: string): void;
  /** The container has ended; what comes next is for the machine to say: `restart` or `finish`. */
  ended(container: MemoryContainer, exitCode: number): void;
}

export class MemoryContainer {
  readonly kind: ContainerState["kind"];
  readonly isSidecar: boolean;
  readonly #machine: ContainerHolder;
  #spec: ContainerSpec;
  #state: ContainerState["state"] = "waiting";
  /** What its readiness probe says; true without one. */
  #ready = true;
  #reason: string | undefined;
  #message: string | undefined;
  #restarts = 0;
  #backoff: RestartBackoff | undefined;
  #current: Instance | undefined;
  #previous: Instance | undefined;
  #terminated: ContainerTermination | undefined;
  #last: ContainerTermination | undefined;
  #cancelRestart: (() => void) | undefined;

  constructor(machine: ContainerHolder, { spec, kind }: NamedContainer) {
    this.kind = kind;
    this.isSidecar = isSidecar(spec, kind);
    this.#machine = machine;
    this.#spec = spec;
    this.#reason = firstWaitingReason(kind, machine.spec);
  }

  get name(): string {
    return this.#spec.name;
  }

  /** With what patches have changed. */
  get spec(): ContainerSpec {
    return this.#spec;
  }

  get isRunning(): boolean {
    return this.#state === "running";
  }

  /** It has ended and does not run again. */
  get isOver(): boolean {
    return this.#state === "terminated";
  }

  get running(): Instance | undefined {
    return this.isRunning ? this.#current : undefined;
  }

  /** Whose log is the current one, and whose the previous, by kubelet's rules. */
  logOf(previous: boolean): OutputLog | undefined {
    const ended = this.#state === "waiting" ? this.#current : this.#previous;
    return (previous ? ended : this.#current)?.log;
  }

  /** @returns false when it could not be started */
  start(): boolean {
    const { context, files } = this.#machine;
    const spec = this.#spec;
    const refusal = context.images(spec.image);
    if (refusal !== undefined) {
      this.#wait(refusal.reason, refusal.message);
      this.#notice("Warning", "Failed", refusal.message);
      return false;
    }
    const filled = this.#filled();
    if (!filled.ok) {
      this.#wait("CreateContainerConfigError", filled.message);
      this.#notice("Warning", "Failed", `Error: ${filled.message}`);
      return false;
    }
    this.#previous = this.#current ?? this.#previous;
    this.#state = "running";
    this.#reason = undefined;
    this.#message = undefined;
    this.#terminated = undefined;
    if (spec.termination_message !== undefined) files.remove(spec, spec.termination_message.path);
    const readiness = spec.probes?.readiness?.exec?.command;
    this.#ready = readiness === undefined || shellProgram(readiness) === undefined;
    const instance = this.#begin(filled.value);
    this.#notice("Normal", "Started", "Container started");
    instance.runPostStart(spec);
    instance.startProbes(spec, {
      verdict: (kind, isHealthy) =>
        this.#machine.change(() => {
          if (kind === "readiness") this.#ready = isHealthy;
          else if (!isHealthy) instance.kill();
        }),
      complaint: (reason, message) => this.#machine.change(() => this.#notice("Warning", reason, message)),
    });
    return true;
  }

  /** Sends the stop signal. */
  stop(): void {
    this.running?.stop();
  }

  kill(): void {
    this.running?.kill();
  }

  /** Ends it, while it runs, from outside. */
  force(end: ForcedEnd): void {
    this.running?.force(end);
  }

  /**
   * Another definition. As kubelet does: the old instance ends and another one takes its place. Without `restart`, only
   * the next one is made by it.
   */
  redefine(change: Partial<ContainerSpec>, { restart }: { restart: boolean }): void {
    this.#spec = { ...this.#spec, ...change };
    if (restart) this.kill();
  }

  /** Whether its rules and policy let it run again after this exit code. */
  mayRestart(exitCode: number): boolean {
    if (this.kind === "ephemeral") return false;
    if (this.kind === "init" && !this.isSidecar && exitCode === 0) return false;
    const policy = this.#spec.restart_policy ?? this.#machine.spec.restart_policy;
    return restartDecision(this.#spec, policy, exitCode) !== "no";
  }

  /** It has ended and waits until its back-off is over. */
  restart(): void {
    const { clock } = this.#machine.context;
    const now = clock.now();
    const next = this.#nextRestart(now);
    const { ms, until } = "until" in next ? next : { ms: 0, until: now };
    const { message, event } = backOffTexts({ id: this.#machine.id, labels: this.#machine.spec.labels }, this.name, ms);
    this.#last = this.#terminated;
    this.#terminated = undefined;
    this.#wait("CrashLoopBackOff", message);
    if (ms > 0) this.#notice("Warning", "BackOff", event);
    this.#cancelRestart = clock.after(until - now, () => this.#machine.change(() => this.#startAgain(until)));
  }

  /** It has ended for good. */
  finish(): void {
    this.#state = "terminated";
  }

  /** It is not to run again. */
  abandonRestart(): void {
    this.#cancelRestart?.();
    this.#cancelRestart = undefined;
    if (this.#state !== "waiting" || this.#last === undefined) return;
    this.#terminated = this.#last;
    this.finish();
  }

  /** As clients see it. */
  render(): ContainerState {
    const { image, name, resources } = this.#spec;
    const { isRunning } = this;
    const isWaiting = this.#state === "waiting";
    const hasPassed = this.kind === "init" && !this.isSidecar && this.#terminated?.exit_code === 0;
    return {
      name,
      kind: this.kind,
      state: this.#state,
      ...(isWaiting && this.#reason !== undefined && { reason: this.#reason }),
      ...(isWaiting && this.#message !== undefined && { message: this.#message }),
      ready: (isRunning && this.#ready) || hasPassed,
      started: isRunning,
      restart_count: this.#restarts,
      image,
      image_id: `memory://${image}`,
      ...(this.#current && { id: this.#current.id }),
      ...(this.running && { started_at: this.running.startedAt }),
      ...(this.isOver && this.#terminated && { terminated: this.#terminated }),
      ...(this.#last && { last: this.#last }),
      ...(resources && { resources }),
    };
  }

  /** With what is known only now: addresses, and what its files of variables have. */
  #filled(): Result<ContainerSpec> {
    const { files, spec: machine, context } = this.#machine;
    const { address } = context;
    const spec = address === undefined ? this.#spec : withAddresses(this.#spec, machine.address_tokens, [address]);
    return withEnvFiles(
      spec,
      envFilesOf(spec).map((file) => {
        const text = files.readVolume(file);
        return { file, text: text === undefined ? failure("it does not exist") : success(text) };
      }),
    );
  }

  #begin(spec: ContainerSpec): Instance {
    const { id, context } = this.#machine;
    const { behaviour, clock } = context;
    const instance: Instance = new Instance({
      id: `${id}/${spec.name}/${this.#restarts}`,
      spec,
      program: behaviour(spec, { machineId: id, restarts: this.#restarts }),
      clock,
      surroundings: this.#surroundings(),
      onExit: (exitCode) => {
        if (this.#current === instance) this.#machine.change(() => this.#exited(instance, exitCode));
      },
    });
    this.#current = instance;
    return instance;
  }

  /** What its programs find around them. */
  #surroundings() {
    const spec = this.#spec;
    const { files, spec: machine } = this.#machine;
    return {
      folder: spec.working_dir ?? "/",
      user: spec.security?.user ?? 0,
      hostname: machine.hostname ?? "memory",
      readFile: (path: string) => files.read(spec, path),
      writeFile: (path: string, text: string) => files.write(spec, path, text),
    };
  }

  #exited(instance: Instance, exitCode: number): void {
    const { files, context } = this.#machine;
    const { reason, oomKilled = false } = instance.forcedEnd ?? {};
    const path = this.#spec.termination_message?.path;
    const message = path && files.read(this.#spec, path);
    this.#terminated = {
      exit_code: exitCode,
      reason: reason ?? (oomKilled ? "OOMKilled" : exitCode === 0 ? "Completed" : "Error"),
      ...(oomKilled && { oom_killed: true }),
      ...(message && { message }),
      started_at: instance.startedAt,
      finished_at: new Date(context.clock.now()).toISOString(),
      id: instance.id,
    };
    this.#machine.ended(this, exitCode);
  }

  #wait(reason: string, message: string): void {
    this.#state = "waiting";
    this.#reason = reason;
    this.#message = message;
  }

  #nextRestart(now: number): ReturnType<typeof nextRestart> {
    const finished = this.#terminated ?? this.#last;
    const finishedAt = finished && Date.parse(finished.finished_at);
    return nextRestart({ backoff: this.#backoff, finishedAt }, backoffLimits(this.#machine.spec), now);
  }

  #startAgain(due: number): void {
    const next = this.#nextRestart(due);
    if ("backoff" in next) this.#backoff = next.backoff;
    this.#cancelRestart = undefined;
    this.#restarts++;
    this.start();
  }

  #notice(type: MachineNotice["type"], reason: string, message: string): void {
    this.#machine.notice(type, reason, message, this.name);
  }
}
