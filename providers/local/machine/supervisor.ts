import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { constants } from "node:os";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import {
  Pulse,
  type Clock,
  type ContainerSpec,
  isOver,
  isProviderError,
  type Logger,
  type LogLine,
  type LogOptions,
  type Machine,
  type MachinePatch,
  type MachineSpec,
  type MachineStats,
  type ProbeKind,
  Prober,
  type ProcessStreams,
  ProviderError,
  runHook,
  runProbe,
  type SharedPlaces,
  type StreamOptions,
  toError,
  type Volume,
  withFileVersion,
} from "../../../src/provider/kit/index.ts";
import {
  type ContainerConclusion,
  ContainerError,
  type ContainerLaunch,
  type ContainerRef,
  type Engine,
  KILLED_EXIT,
  type MachineHome,
  type PreparedImage,
  type Sandbox,
  type SandboxLoss,
  type ShimExit,
} from "../engine.ts";
import { ContainerRun, type StopTask } from "./container-run.ts";
import { MIN_KILL_WAIT_MS, stopContainer } from "./container-stop.ts";
import { obtainImage } from "./image-pull.ts";
import { logBytes, logTail, readLog } from "../shim/log-reader.ts";
import { instanceId, MachineBook, removeQuietly } from "./machine-book.ts";
import { BACKOFF_MAX_MS, type Action, plan } from "./plan.ts";
import { containersOf, newRecord, tenantOf, type ContainerRecord, type Ending, type MachineRecord } from "./record.ts";
import type { ShimEvents, ShimWatch } from "../shim/client.ts";
import type { ShimCommand } from "../shim/shim.ts";
import { Sessions } from "./sessions.ts";
import { signalNumber } from "../host/stop-signal.ts";
import { charged, exceededLimit, hasStorageLimits, type StorageUse } from "./storage-limits.ts";
import { writeJson, type MachineStore } from "./store.ts";

const CONFIG_RETRY_MS = 10_000;
const SANDBOX_RETRY_MS = { first: 1_000, max: 30_000 };
/** After this long, ErrImagePull becomes ImagePullBackOff: kubelet shows the first until its next turn. */
const PULL_BACKOFF_SHOWN_MS = 2_000;
/** kubelet's eviction manager looks this often. */
const STORAGE_CHECK_MS = 10_000;
/** kubelet: immediateEvictionGracePeriodSeconds. */
const EVICTION_GRACE_MS = 1_000;
const MAX_TERMINATION_MESSAGE_BYTES = 4096;
const FALLBACK_LOG = { lines: 80, bytes: 2048 };
const START_ERROR_EXIT = 128;

/** How containers' shims are started and followed; a test puts its own in place of processes. */
export interface Shims {
  start(dir: string, launch: ShimCommand): Promise<void>;
  watch(dir: string, socket: string, events: ShimEvents): ShimWatch;
  everStarted(dir: string): boolean;
  attach(socket: string, options: StreamOptions): Promise<ProcessStreams>;
}

export interface SupervisorContext {
  engine: Engine;
  store: MachineStore;
  shims: Shims;
  clock: Clock;
  logger: Logger;
  /** Bounds how many machines and containers start at once, and shares that out among tenants. */
  starts: SharedPlaces;
  /** A container has a new image: what images are in use has changed. */
  onImagesChanged(): void;
  /** The machine is deleted and nothing is left of it but its folder. May be called again. */
  onDeleted(supervisor: Supervisor): void;
}

/**
 * Runs one machine, on any engine: start and stop order, restarts, probes, hooks, image policy, status. What it must
 * remember is in its record, written before each effect that depends on it; a supervisor made from a record carries on.
 */
export class Supervisor implements MachineHome {
  readonly id: string;
  readonly dir: string;
  readonly #book: MachineBook;
  readonly #tenant: string;
  readonly #context: SupervisorContext;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #runtimes = new Map<string, ContainerRun>();
  readonly #starting = new Set<string>();
  readonly #sessions = new Sessions();
  /** Aborts what must not outlive the backend's own end. */
  readonly #closing = new AbortController();
  /** Aborts what is being prepared for containers that are not wanted any more. */
  #starts = new AbortController();
  #sandbox: Sandbox | undefined;
  #opening: AbortController | undefined;
  /** On the monotonic clock, in milliseconds. */
  #sandboxRetry = { at: 0, ms: 0 };
  /** When the machine's end is to be over; on the monotonic clock, for the wall clock may be set back. */
  #endAt: number | undefined;
  #winding = false;
  #planned = false;
  /** False while a former backend's sandbox has yet to be found again: until then nothing is begun or ended. */
  #ready = false;
  /** Calls of the engine that a next backend must not meet. */
  readonly #work = new Set<Promise<void>>();
  #patching: Promise<void> = Promise.resolve();
  #cancelWake: (() => void) | undefined;
  #cancelStorage: (() => void) | undefined;

  constructor(context: SupervisorContext, spec: MachineSpec, record: MachineRecord) {
    this.id = record.machine.id;
    this.#tenant = tenantOf(spec.labels);
    this.dir = join(context.store.machineDir(this.id), "engine");
    this.#context = context;
    this.#clock = context.clock;
    this.#logger = context.logger.child({ machine: this.id });
    this.#book = new MachineBook({ ...context, logger: this.#logger }, spec, record);
  }

  /** Writes a new machine down and begins it. @throws when it cannot be written: then there is no machine. */
  static create(context: SupervisorContext, id: string, spec: MachineSpec, host: string): Supervisor {
    const record = newRecord(id, spec, context.clock.now());
    record.machine.host = host;
    const supervisor = new Supervisor(context, spec, record);
    context.store.saveSpec(id, spec);
    supervisor.#book.write();
    supervisor.#ready = true;
    supervisor.#replan();
    return supervisor;
  }

  get spec(): MachineSpec {
    return this.#book.spec;
  }

  get record(): Readonly<MachineRecord> {
    return this.#book.record;
  }

  socketPath(name: string): string {
    return this.#context.store.socketPath(this.id, name);
  }

  /** The machine as it was last written. It does not change: callers keep it while the machine goes on. */
  snapshot(): Machine {
    return this.#book.snapshot();
  }

  // --- after a restart of the backend ---

  /**
   * Finds the sandbox and the containers of a former backend again, then carries on. When it rejects, nothing new has
   * been begun; called again, it goes on with what it has not found yet.
   */
  async recover(): Promise<void> {
    if (
      this.#book.spec.registry_auth_version === undefined &&
      this.#book.record.machine.registry_auth_version !== undefined
    ) {
      // The former backend had them in memory. Whoever reads that they are gone sends them again.
      delete this.#book.record.machine.registry_auth_version;
      this.#book.commit();
    }
    this.#book.snapshot();
    if (isOver(this.#book.record.machine)) {
      this.#ready = true;
      if (this.#book.record.deleted) this.#context.onDeleted(this);
      return;
    }
    if (this.#sandbox === undefined && this.#book.record.sandbox !== "none") {
      const sandbox =
        this.#book.record.sandbox === "open" ? await this.#inEngine(this.#context.engine.recover(this)) : undefined;
      if (this.#closing.signal.aborted) {
        await sandbox?.close();
        return;
      }
      if (sandbox !== undefined) this.#adoptSandbox(sandbox);
      else if (this.#book.record.sandbox === "open") {
        this.#sandboxLost({
          reason: "SandboxLost",
          message: "the machine's sandbox was gone when the backend started",
        });
      } else {
        // The former backend ended while it made the sandbox: begin that anew.
        await this.#inEngine(this.#context.engine.destroy(this, { keepVolumes: true }));
        this.#book.record.sandbox = "none";
      }
    }
    if (this.#sandbox !== undefined) {
      const sandbox = this.#sandbox;
      for (const { spec } of containersOf(this.#book.spec)) this.#recoverContainer(spec);
      for (const { spec } of containersOf(this.#book.spec))
        for (const ref of this.#book.unrecordedInstances(spec.name))
          this.#background(this.#giveUp(sandbox, ref, "the former backend ended before it was begun"));
    }
    this.#ready = true;
    if (this.#book.record.machine.reachability !== "ok") {
      this.#book.record.machine.reachability = "ok";
      this.#book.commit();
    }
    this.#replan();
  }

  /** The former backend's machine cannot be looked at just now; its last status stands. */
  outOfSight(): void {
    if (this.#book.record.machine.reachability === "unknown") return;
    this.#book.record.machine.reachability = "unknown";
    this.#book.commit();
  }

  #recoverContainer(spec: ContainerSpec): void {
    const own = this.#book.own(spec.name);
    if ((own.phase !== "starting" && own.phase !== "running") || this.#runtimes.has(spec.name)) return;
    const ref = this.#book.refOf(spec.name);
    if (!this.#context.shims.everStarted(ref.dir)) {
      // Decided, but never begun: it is still to be started.
      own.attempt--;
      if (own.previousFolder === undefined) delete own.folder;
      else own.folder = own.previousFolder;
      delete own.previousFolder;
      own.phase = "new";
      return;
    }
    const runtime = this.#addRuntime(ref);
    this.#watch(spec, runtime);
    if (!own.postStartDone) {
      this.#starting.add(spec.name);
      this.#background(this.#finishStart(spec, runtime));
    } else this.#startProbes(spec, runtime);
    // The former backend ended before the container did: nobody would ask for its end again.
    if (own.definitionChanged) this.#stopToStartAgain(spec.name, definitionChanged(spec.name));
  }

  // --- what clients ask for ---

  /**
   * Begins the end of the machine, or hastens it: a deadline only comes nearer.
   * @throws ProviderError unavailable when that cannot be written down yet; it is done all the same.
   */
  stop(graceSeconds: number, force = false): void {
    if (isOver(this.#book.record.machine)) return;
    this.#hasten(graceSeconds, force);
    this.#book.requireWritten();
  }

  #hasten(graceSeconds: number, force: boolean): void {
    const ending: Ending = { deadline: this.#clock.now() + graceSeconds * 1000, force, state: "stopped" };
    const before = this.#book.record.ending;
    if (before === undefined) this.#end(ending);
    else if (before.deadline > ending.deadline || (force && !before.force))
      this.#end({ ...before, deadline: Math.min(before.deadline, ending.deadline), force: before.force || force });
  }

  /** @throws ProviderError unavailable when that cannot be written down yet; it is done all the same. */
  delete(force: boolean): void {
    const { record } = this.#book;
    const { deleted, ending } = record;
    record.deleted = true;
    // One write for both: what is deleted and is not being stopped would run on after a kill in between.
    if (!isOver(record.machine) && (!deleted || force || ending === undefined))
      this.#hasten(force ? 0 : this.#book.graceMs() / 1000, force);
    if (!deleted && record.ending === ending) this.#book.commit();
    this.#book.requireWritten();
    if (isOver(record.machine)) this.#context.onDeleted(this);
  }

  /** One after the other: a caller whose patience is shorter than the engine's asks again meanwhile. */
  async patch(patch: MachinePatch): Promise<void> {
    const turn = this.#patching.then(() => this.#patch(patch));
    this.#patching = turn.catch(() => {});
    await turn;
  }

  async #patch(patch: MachinePatch): Promise<void> {
    this.#requireChangeable();
    if (patch.registry_auth !== undefined)
      this.#book.replaceCredentials(patch.registry_auth, patch.registry_auth_version);
    for (const change of patch.resources ?? []) await this.#resize(change);
    for (const { name, image } of patch.containers ?? []) this.#changeImage(name, image);
    for (const spec of patch.ephemeral_containers ?? []) this.#book.addEphemeral(spec);
    for (const update of patch.files ?? []) await this.#replaceFiles(update);
    // It may have come to its end meanwhile, and its folder with it.
    this.#requireChangeable();
    this.#context.store.saveSpec(this.id, this.#book.spec);
    this.#book.commit();
    this.#replan();
  }

  /** @throws ProviderError conflict when the machine is at its end, unavailable when it is out of sight */
  #requireChangeable(): void {
    if (isOver(this.#book.record.machine) || this.#book.record.ending !== undefined) {
      throw new ProviderError(
        "conflict",
        `machine ${this.id} is ${this.#book.record.machine.state}: it cannot be changed any more`,
      );
    }
    if (!this.#ready)
      throw new ProviderError("unavailable", `machine ${this.id} cannot be reached just now: it cannot be changed yet`);
  }

  logs(container: string, options: LogOptions): AsyncIterable<LogLine[]> {
    this.#book.findSpec(container);
    const own = this.#book.own(container);
    const folder = this.#book.instanceFolder(container, options.previous ? own.attempt - 1 : own.attempt);
    if (folder === undefined) {
      if (options.previous)
        throw new ProviderError(
          "not_found",
          `previous terminated container "${container}" in machine "${this.id}" not found`,
        );
      throw new ProviderError(
        "conflict",
        `container "${container}" in machine "${this.id}" is waiting to start: ${this.#book.state(container).reason}`,
      );
    }
    const instance = own.attempt;
    const complete = () =>
      options.previous === true || own.attempt !== instance || (own.phase !== "running" && own.phase !== "starting");
    return readLog(folder, {
      clock: this.#clock,
      signal: options.signal,
      follow: options.follow ?? false,
      tail: options.tail,
      since: options.since,
      stream: options.stream,
      limitBytes: options.limitBytes,
      complete,
      changed: (signal) => (complete() || signal.aborted ? Promise.resolve() : this.#book.changed.wait(signal)),
    });
  }

  async exec(container: string, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    const { runtime, sandbox } = this.#running(container);
    const start = () => sandbox.exec(runtime.ref, command, options);
    return await this.#sessions.begin(this.id, start, ({ exit }) => exit);
  }

  async attach(container: string, options: StreamOptions): Promise<ProcessStreams> {
    const { runtime } = this.#running(container);
    const spec = this.#book.findSpec(container);
    if (options.stdin && !spec.stdin)
      throw new ProviderError("invalid", `container "${container}" was not started with stdin`, { field: "stdin" });
    const start = () =>
      this.#context.shims.attach(this.socketPath(runtime.ref.id), { ...options, tty: spec.tty ?? false });
    return await this.#sessions.begin(this.id, start, ({ exit }) => exit);
  }

  async portForward(port: number, signal: AbortSignal) {
    const sandbox = this.#sandbox;
    if (sandbox === undefined)
      throw new ProviderError("conflict", `machine ${this.id} is ${this.#book.record.machine.state}`);
    try {
      const start = () => sandbox.dial(port, "loopback", signal);
      return await this.#sessions.begin(this.id, start, (socket) => once(socket, "close"));
    } catch (cause) {
      if (cause instanceof ProviderError) throw cause;
      throw new ProviderError(
        "unavailable",
        `cannot connect to port ${port} of machine ${this.id}: ${toError(cause).message}`,
        { cause },
      );
    }
  }

  /** Undefined when nothing runs. */
  async stats(): Promise<MachineStats | undefined> {
    const running = [...this.#runtimes].filter(([name]) => this.#book.own(name).phase === "running");
    if (this.#sandbox === undefined || running.length === 0) return undefined;
    const sample = await this.#sandbox.stats(running.map(([, { ref }]) => ref));
    const containers = await Promise.all(
      sample.containers.map(async (container) => ({
        ...container,
        started_at: this.#book.state(container.name).started_at ?? this.#book.record.machine.created_at,
        logs_used_bytes: await logBytes(this.#runtimes.get(container.name)?.ref.dir ?? ""),
        probes: Object.values(this.#runtimes.get(container.name)?.probers ?? {}).map(({ tally }) => ({ ...tally })),
      })),
    );
    return { id: this.id, at: new Date(this.#clock.now()).toISOString(), ...sample, containers };
  }

  /** Lets go of everything; machine and containers live on. */
  async close(): Promise<void> {
    this.#closing.abort(new Error("the backend is stopping"));
    this.#opening?.abort(this.#closing.signal.reason);
    this.#cancelWake?.();
    this.#cancelStorage?.();
    this.#book.close();
    for (const runtime of this.#runtimes.values()) {
      runtime.watch?.close();
      runtime.end(this.#closing.signal.reason);
    }
    await Promise.all(this.#work);
    await this.#sandbox?.close();
  }

  // --- the loop: plan, act, plan again ---

  #replan(): void {
    if (this.#planned || !this.#ready || this.#closing.signal.aborted) return;
    this.#planned = true;
    queueMicrotask(() => {
      this.#planned = false;
      if (this.#closing.signal.aborted) return;
      this.#cancelWake?.();
      const busy = { opening: this.#opening !== undefined || this.#winding, starting: this.#starting };
      const { actions, wakeAt } = plan(this.#book.spec, this.#book.record, busy, this.#clock.now());
      if (wakeAt !== undefined) this.#wakeAfter(wakeAt - this.#clock.now());
      for (const action of actions) this.#act(action);
    });
  }

  #wakeAfter(ms: number): void {
    this.#cancelWake = this.#clock.after(Math.max(0, ms), () => this.#replan());
  }

  #act(action: Action): void {
    switch (action.do) {
      case "open":
        this.#background(this.#open());
        break;
      case "start":
        this.#starting.add(action.container);
        this.#background(this.#start(this.#book.findSpec(action.container), action.backoff));
        break;
      case "back_off":
        this.#book.showBackOff(action.container, action.ms);
        break;
      case "stop":
        this.#stopContainer(action.container, this.#endDeadline(), {
          holdSignal: action.holdSignal,
          force: this.#book.record.ending?.force ?? false,
          message: `Stopping container ${action.container}`,
        });
        break;
      case "restart_all":
        this.#book.record.restarting = { reason: "RestartAllContainers" };
        this.#starts.abort(new Error("all containers are restarted"));
        this.#book.commit();
        this.#replan();
        break;
      case "finish":
        this.#end({ deadline: this.#clock.now() + this.#book.graceMs(), force: false, state: "stopped" });
        break;
      case "begin_again":
        this.#background(this.#beginAgain(action.newSandbox));
        break;
      case "end":
        this.#background(this.#windUp());
        break;
    }
  }

  /** Work that nobody waits for. It handles what can go wrong; a fault of its own must not end the whole backend. */
  #background(work: Promise<void>): void {
    work.catch((error: unknown) => this.#logger.error({ error: toError(error).stack }, "a step of the machine failed"));
  }

  /** A call of the engine that `close` waits for. */
  async #inEngine<T>(call: Promise<T>): Promise<T> {
    const settled = call.then(
      () => {},
      () => {},
    );
    this.#work.add(settled);
    try {
      return await call;
    } finally {
      this.#work.delete(settled);
    }
  }

  #end(ending: Ending): void {
    this.#book.record.ending = ending;
    this.#endAt = undefined;
    if (this.#runtimes.size > 0 || this.#opening !== undefined) this.#book.record.machine.state = "stopping";
    this.#opening?.abort(new Error("the machine is being stopped"));
    this.#starts.abort(new Error("the machine is being stopped"));
    this.#book.commit();
    this.#replan();
  }

  /** On the monotonic clock, like all deadlines of stops. */
  #endDeadline(): number {
    const { ending } = this.#book.record;
    if (ending === undefined) return this.#clock.monotonic() + this.#book.graceMs();
    return (this.#endAt ??= this.#clock.monotonic() + ending.deadline - this.#clock.now());
  }

  // --- sandbox ---

  async #open(): Promise<void> {
    if (this.#sandboxRetry.at > this.#clock.monotonic()) {
      this.#wakeAfter(this.#sandboxRetry.at - this.#clock.monotonic());
      return;
    }
    const opening = new AbortController();
    this.#opening = opening;
    try {
      const open = async () => {
        opening.signal.throwIfAborted();
        this.#book.record.sandbox = "opening";
        this.#book.record.machine.state = "creating";
        this.#book.write();
        await this.#inEngine(this.#openSandbox(opening.signal));
      };
      await this.#context.starts.run(this.#tenant, open, opening.signal);
      this.#sandboxRetry = { at: 0, ms: 0 };
      if (this.#book.record.ending === undefined) this.#book.record.machine.state = "starting";
      this.#book.record.machine.sandbox_ready = true;
      this.#book.record.machine.addresses = this.#sandbox!.addresses.map((ip) => ({ ip }));
      this.#book.commit();
    } catch (error) {
      await this.#openFailed(toError(error));
    } finally {
      this.#opening = undefined;
      this.#replan();
    }
  }

  async #openSandbox(signal: AbortSignal): Promise<void> {
    const sandbox = await this.#context.engine.open(this, signal);
    try {
      // A patch may replace files meanwhile, and leaves it to this to put them in place.
      const applied = new Set<Volume>();
      for (;;) {
        const volume = this.#book.filesVolumes().find((each) => !applied.has(each));
        if (volume === undefined) break;
        applied.add(volume);
        await this.#applyFiles(sandbox, volume);
      }
      // What was opened for a backend that is ending is for the next one to clear away.
      this.#closing.signal.throwIfAborted();
    } catch (error) {
      await sandbox.close().catch(() => {});
      throw error;
    }
    this.#book.record.sandbox = "open";
    this.#adoptSandbox(sandbox);
  }

  async #openFailed(error: Error): Promise<void> {
    if (!(await this.#destroyForSure({ keepVolumes: true })) || this.#book.record.ending !== undefined) return;
    this.#logger.warn({ error: error.message }, "cannot make the machine's sandbox");
    this.#book.notice("Warning", "FailedCreatePodSandBox", `Failed to create pod sandbox: ${error.message}`);
    if (isProviderError(error, "invalid") || isProviderError(error, "unsupported")) {
      this.#end({
        deadline: this.#clock.now(),
        force: true,
        state: "failed",
        reason: "InvalidSpec",
        message: error.message,
      });
      return;
    }
    const ms = Math.min(this.#sandboxRetry.ms * 2 || SANDBOX_RETRY_MS.first, SANDBOX_RETRY_MS.max);
    this.#sandboxRetry = { at: this.#clock.monotonic() + ms, ms };
    this.#book.record.machine.message = `Failed to create pod sandbox: ${error.message}`;
    this.#book.commit();
  }

  #adoptSandbox(sandbox: Sandbox): void {
    this.#sandbox = sandbox;
    this.#watchStorage();
    void sandbox.lost.then((loss) => {
      if (this.#sandbox === sandbox && !this.#closing.signal.aborted && !this.#winding) this.#sandboxLost(loss);
    });
  }

  /** The machine's ground is gone, and its containers with it (kubelet.md §3.4, sandbox change). */
  #sandboxLost(loss: SandboxLoss): void {
    const sandbox = this.#sandbox;
    this.#sandbox = undefined;
    void sandbox?.close().catch(() => {});
    const now = new Date(this.#clock.now()).toISOString();
    let hasRun = false;
    for (const { spec } of containersOf(this.#book.spec)) {
      const own = this.#book.own(spec.name);
      if (own.attempt >= 0) hasRun = true;
      if (own.phase !== "running" && own.phase !== "starting") continue;
      const state = this.#book.state(spec.name);
      this.#dropRuntime(spec.name);
      this.#book.exited(spec.name, {
        exit_code: KILLED_EXIT,
        reason: "ContainerStatusUnknown",
        message: "The container could not be located when the pod was deleted.  The container used to be Running",
        finished_at: now,
        ...(state.started_at === undefined ? {} : { started_at: state.started_at }),
        ...(own.id === undefined ? {} : { id: own.id }),
      });
    }
    this.#book.record.machine.sandbox_ready = false;
    this.#logger.warn(loss, "the machine's sandbox is lost");
    if (this.#book.record.ending === undefined) {
      if (this.#book.spec.restart_policy === "never" && hasRun) {
        this.#book.record.ending = { deadline: this.#clock.now(), force: true, state: "failed", ...loss };
      } else {
        this.#book.notice("Normal", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
        this.#book.record.restarting = { reason: "SandboxChanged" };
      }
      this.#starts.abort(new Error("the machine's sandbox is lost"));
    }
    this.#book.commit();
    this.#replan();
  }

  async #destroySandbox(options: { keepVolumes: boolean }): Promise<void> {
    const sandbox = this.#sandbox;
    this.#sandbox = undefined;
    await sandbox?.close().catch(() => {});
    await this.#context.engine.destroy(this, options);
    this.#book.record.sandbox = "none";
    this.#book.record.machine.sandbox_ready = false;
  }

  /** Nothing runs: remove the sandbox, then say so. */
  async #windUp(): Promise<void> {
    this.#winding = true;
    if (!(await this.#destroyForSure({ keepVolumes: false })) || this.#closing.signal.aborted) return;
    const { machine, ending } = this.#book.record;
    machine.state = ending!.state;
    machine.stopped_at = new Date(this.#clock.now()).toISOString();
    for (const [key, value] of [
      ["reason", ending!.reason],
      ["message", ending!.message],
    ] as const) {
      if (value === undefined) delete machine[key];
      else machine[key] = value;
    }
    this.#book.commit();
    if (this.#book.record.deleted) this.#context.onDeleted(this);
  }

  async #beginAgain(newSandbox: boolean): Promise<void> {
    this.#winding = true;
    // As in a kubelet, volumes live as long as the pod.
    if (newSandbox && (!(await this.#destroyForSure({ keepVolumes: true })) || this.#closing.signal.aborted)) return;
    this.#winding = false;
    const all = this.#book.record.restarting!.reason === "RestartAllContainers";
    delete this.#book.record.restarting;
    this.#book.record.initialized = false;
    this.#starts = new AbortController();
    const hasInit = (this.#book.spec.init_containers?.length ?? 0) > 0;
    for (const { spec, kind } of containersOf(this.#book.spec)) {
      if (kind === "ephemeral") continue;
      const own = this.#book.own(spec.name);
      // What has done its work is not done again for the want of a sandbox (kubelet: computePodActions).
      const hasSucceeded = own.phase === "exited" && this.#book.lastExitCode(spec.name) === 0;
      if (newSandbox && !all && kind === "main" && hasSucceeded && !this.#book.mayRestart(spec.name)) continue;
      if (all && own.phase === "exited") this.#book.showRestartOfAll(spec.name);
      else this.#book.wait(spec.name, hasInit ? "PodInitializing" : "ContainerCreating");
      own.phase = "new";
    }
    this.#book.record.machine.state = newSandbox ? "creating" : "starting";
    this.#book.commit();
    this.#replan();
  }

  /** Repeats until the engine confirms; false when the backend itself ends before that. */
  async #destroyForSure(options: { keepVolumes: boolean }): Promise<boolean> {
    while (!this.#closing.signal.aborted) {
      try {
        await this.#inEngine(this.#destroySandbox(options));
        return true;
      } catch (error) {
        this.#logger.warn({ error: toError(error).message }, "cannot remove the machine's sandbox yet");
        await this.#clock.sleep(SANDBOX_RETRY_MS.first, this.#closing.signal).catch(() => {});
      }
    }
    return false;
  }

  // --- local storage limits (kubelet.md §3.8) ---

  /** Measures now and then, while there is a limit and an engine that can. */
  #watchStorage(): void {
    if (!hasStorageLimits(this.#book.spec, this.#context.engine.capabilities)) return;
    this.#cancelStorage?.();
    this.#cancelStorage = this.#clock.after(STORAGE_CHECK_MS, () => this.#background(this.#checkStorage()));
  }

  async #checkStorage(): Promise<void> {
    const sandbox = this.#sandbox;
    if (sandbox === undefined || this.#closing.signal.aborted || this.#book.record.ending !== undefined) return;
    const message = exceededLimit(this.#book.spec, await this.#storageUse(sandbox));
    if (message === undefined || this.#book.record.ending !== undefined) return this.#watchStorage();
    this.#book.notice("Warning", "Evicted", message);
    this.#end({
      deadline: this.#clock.now() + EVICTION_GRACE_MS,
      force: false,
      state: "failed",
      reason: "Evicted",
      message,
    });
  }

  async #storageUse(sandbox: Sandbox): Promise<StorageUse> {
    const running = [...this.#runtimes.values()].map(({ ref }) => ref);
    const { volumes = [], containers } = await sandbox.stats(running).catch(() => ({ volumes: [], containers: [] }));
    const inodes = await sandbox.inodes?.(running).catch(() => undefined);
    const layers = new Map(
      containers.map(({ name, fs_used_bytes = 0 }) => [
        name,
        charged(fs_used_bytes, inodes?.containers.get(name) ?? 0),
      ]),
    );
    const used = running.map(
      async ({ name, dir }) => [name, (layers.get(name) ?? 0) + (await logBytes(dir).catch(() => 0))] as const,
    );
    return {
      volumes: new Map(
        volumes.map(({ name, used_bytes }) => [name, charged(used_bytes, inodes?.volumes.get(name) ?? 0)]),
      ),
      containers: new Map(await Promise.all(used)),
    };
  }

  // --- start ---

  async #start(spec: ContainerSpec, backoff: ContainerRecord["backoff"]): Promise<void> {
    const { name } = spec;
    const own = this.#book.own(name);
    const abandoned = () =>
      this.#closing.signal.aborted ||
      this.#book.record.ending !== undefined ||
      this.#book.record.restarting !== undefined;
    // Nothing is begun of what a patch has changed meanwhile: the next plan starts the container as it is to be now.
    const outdated = () => this.#book.findSpec(name) !== spec;
    let runtime: ContainerRun | undefined;
    try {
      if (own.kind === "main") this.#book.record.initialized = true;
      const images = await this.#obtainImages(spec, own);
      await this.#context.starts.run(this.#tenant, async () => {
        const sandbox = this.#sandbox;
        if (sandbox === undefined || abandoned() || outdated()) return;
        const attempt = own.attempt + 1;
        const folder = `${attempt}-${randomBytes(6).toString("hex")}`;
        const id = instanceId(name, folder);
        const dir = join(this.#book.containerDir(name), folder);
        mkdirSync(dir, { recursive: true, mode: 0o700 });
        let prepared: Awaited<ReturnType<Sandbox["launch"]>>;
        try {
          prepared = await sandbox.launch({
            name,
            attempt,
            id,
            dir,
            kind: own.kind,
            spec: this.#withAddresses(spec, sandbox),
            ...images,
            target: this.#runtimes.get(spec.target ?? "")?.ref,
          });
        } catch (error) {
          // It is tried again, perhaps for days: no try may leave a folder behind.
          removeQuietly(dir);
          throw error;
        }
        const notStarted = (why: string) => this.#giveUp(sandbox, { name, attempt, id, dir }, why);
        if (abandoned() || outdated()) return await notStarted("the start was given up");
        const before = structuredClone(own);
        Object.assign(own, {
          attempt,
          id,
          folder,
          phase: "starting",
          postStartDone: false,
          preStopDone: false,
        });
        if (before.folder !== undefined) own.previousFolder = before.folder;
        if (backoff !== undefined) own.backoff = backoff;
        if (prepared.user === undefined) delete own.user;
        else own.user = prepared.user;
        delete own.retry;
        try {
          this.#book.write();
        } catch (error) {
          // A container that the next backend would not know of must not run.
          this.#book.record.containers[name] = before;
          await notStarted("the machine's state cannot be written");
          throw error;
        }
        this.#book.notice("Normal", "Created", "Container created", name);
        this.#book.forgetOldInstances(name);
        const { user: _user, ...command } = prepared;
        runtime = this.#addRuntime({ name, attempt, id, dir });
        try {
          await this.#context.shims.start(dir, {
            ...command,
            tty: spec.tty ?? false,
            stdin: spec.stdin ?? false,
            stdinOnce: spec.stdin_once ?? false,
            socket: this.socketPath(id),
          });
        } catch (error) {
          await this.#concluded(spec, runtime, {
            exitCode: START_ERROR_EXIT,
            startError: toError(error).message,
            finishedAt: this.#clock.now(),
          });
          return;
        }
        this.#watch(spec, runtime);
      });
    } catch (error) {
      if (!abandoned() && !outdated()) this.#startFailed(spec, toError(error));
    }
    if (runtime !== undefined) await this.#finishStart(spec, runtime);
    this.#starting.delete(name);
    this.#replan();
  }

  /** Removes what was prepared for an instance that is never begun. */
  async #giveUp(sandbox: Sandbox, ref: ContainerRef, startError: string): Promise<void> {
    await this.#inEngine(sandbox.conclude(ref, { exitCode: START_ERROR_EXIT, startError }));
    removeQuietly(ref.dir);
  }

  /** From the shim's start to the end of post_start. */
  async #finishStart(spec: ContainerSpec, runtime: ContainerRun): Promise<void> {
    try {
      const started = await runtime.started;
      const own = this.#book.own(spec.name);
      if (!started || this.#runtimes.get(spec.name) !== runtime) return;
      const hook = spec.hooks?.post_start;
      if (hook !== undefined && !own.postStartDone) {
        try {
          await this.#hook(hook, spec, runtime);
        } catch (error) {
          if (runtime.ended.signal.aborted) return;
          this.#book.notice("Warning", "FailedPostStartHook", "PostStartHook failed", spec.name);
          this.#logger.info({ container: spec.name, error: toError(error).message }, "post_start hook failed");
          this.#stopContainer(spec.name, this.#clock.monotonic() + this.#book.graceMs(), {
            holdSignal: false,
            force: false,
            message: "FailedPostStartHook",
          });
          await runtime.over;
          this.#book.showFailedStart(spec, "PostStartHookError", toError(error).message);
          return;
        }
      }
      if (this.#runtimes.get(spec.name) !== runtime || runtime.ended.signal.aborted) return;
      own.postStartDone = true;
      this.#showRunning(spec, runtime);
    } finally {
      this.#starting.delete(spec.name);
      this.#replan();
    }
  }

  /** There is no instance: the image or the configuration does not allow one yet. */
  #startFailed(spec: ContainerSpec, error: Error): void {
    const own = this.#book.own(spec.name);
    const reason = error instanceof ContainerError ? error.reason : "CreateContainerError";
    const isPull = ["ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed"].includes(reason);
    const ms = isPull
      ? Math.min(
          (own.retry?.ms ?? 0) * 2 || this.#book.backoffInitial(),
          this.#book.spec.backoff?.max_ms ?? BACKOFF_MAX_MS,
        )
      : CONFIG_RETRY_MS;
    own.retry = { at: this.#clock.now() + ms, ms };
    this.#book.wait(spec.name, reason, error.message);
    this.#book.notice("Warning", "Failed", `Error: ${isPull ? reason : error.message}`, spec.name);
    this.#book.commit();
    if (isPull)
      this.#clock.after(Math.min(PULL_BACKOFF_SHOWN_MS, ms / 2), () =>
        this.#showPullBackOff(spec, reason, error.message),
      );
  }

  #showPullBackOff(spec: ContainerSpec, reason: string, message: string): void {
    const state = this.#book.state(spec.name);
    if (
      this.#closing.signal.aborted ||
      isOver(this.#book.record.machine) ||
      state.state !== "waiting" ||
      state.reason !== reason
    )
      return;
    this.#book.wait(spec.name, "ImagePullBackOff", `Back-off pulling image "${spec.image}": ${reason}: ${message}`);
    this.#book.notice("Normal", "BackOff", `Back-off pulling image "${spec.image}"`, spec.name);
    this.#book.notice("Warning", "Failed", "Error: ImagePullBackOff", spec.name);
    this.#book.commit();
  }

  /** The record has of them what outlives the start: it is written at every change, their configurations are not small. */
  async #obtainImages(
    spec: ContainerSpec,
    own: ContainerRecord,
  ): Promise<Pick<ContainerLaunch, "image" | "imageVolumes">> {
    const { images } = this.#context.engine;
    if (images === undefined) return { image: undefined, imageVolumes: {} };
    const auth = this.#book.spec.registry_auth ?? [];
    const surroundings = {
      clock: this.#clock,
      tenant: this.#tenant,
      signal: AbortSignal.any([this.#closing.signal, this.#starts.signal]),
      notify: (type: "Normal" | "Warning", reason: string, message: string) => {
        this.#book.notice(type, reason, message, spec.name);
        this.#book.commit();
      },
    };
    const image = await obtainImage(images, spec, auth, surroundings);
    const { stopSignal } = image.config;
    own.image = { ...image, config: stopSignal === undefined ? {} : { stopSignal } };
    // At once: the pull of the next one may take long, and may need room.
    this.#context.onImagesChanged();
    const mounted = new Set((spec.mounts ?? []).map((mount) => mount.volume));
    const imageVolumes: Record<string, PreparedImage> = {};
    for (const volume of this.#book.spec.volumes ?? []) {
      if (volume.type !== "image" || !mounted.has(volume.name)) continue;
      const obtained = await obtainImage(images, volume, auth, surroundings);
      imageVolumes[volume.name] = obtained;
      own.imageVolumes = { ...own.imageVolumes, [volume.name]: { ...obtained, config: {} } };
      this.#context.onImagesChanged();
    }
    return { image, imageVolumes };
  }

  #withAddresses(spec: ContainerSpec, sandbox: Sandbox): ContainerSpec {
    const tokens = this.#book.spec.address_tokens;
    if (tokens === undefined) return spec;
    const fill = (text: string) =>
      text
        .replaceAll(tokens.pod_ips, sandbox.addresses.join(","))
        .replaceAll(tokens.pod_ip, sandbox.addresses[0] ?? "");
    return {
      ...spec,
      ...(spec.env === undefined ? {} : { env: spec.env.map(({ name, value }) => ({ name, value: fill(value) })) }),
      ...(spec.command === undefined ? {} : { command: spec.command.map(fill) }),
      ...(spec.args === undefined ? {} : { args: spec.args.map(fill) }),
    };
  }

  #addRuntime(ref: ContainerRef): ContainerRun {
    const runtime = new ContainerRun(ref);
    this.#runtimes.set(ref.name, runtime);
    return runtime;
  }

  #watch(spec: ContainerSpec, runtime: ContainerRun): void {
    if (this.#closing.signal.aborted) return;
    runtime.watch = this.#context.shims.watch(runtime.ref.dir, this.socketPath(runtime.ref.id), {
      started: (status) => {
        const own = this.#book.own(spec.name);
        runtime.ref = { ...runtime.ref, ...(status.pid === undefined ? {} : { pid: status.pid }) };
        if (own.phase === "starting") {
          own.phase = "running";
          this.#book.state(spec.name).started_at = new Date(status.startedAt!).toISOString();
          this.#book.notice("Normal", "Started", "Container started", spec.name);
        }
        runtime.hasStarted();
      },
      exited: (exit) => this.#background(this.#concluded(spec, runtime, exit)),
      gone: () => runtime.outputClosed(),
    });
  }

  #showRunning(spec: ContainerSpec, runtime: ContainerRun): void {
    const own = this.#book.own(spec.name);
    const state = this.#book.state(spec.name);
    const { machine } = this.#book.record;
    if (state.terminated !== undefined) state.last = state.terminated;
    delete state.terminated;
    delete state.reason;
    delete state.message;
    state.state = "running";
    state.restart_count = own.attempt;
    this.#book.showInstance(spec, runtime.ref.id);
    state.started = spec.probes?.startup === undefined;
    state.ready =
      state.started &&
      own.kind !== "ephemeral" &&
      spec.probes?.readiness === undefined &&
      !this.#book.isPlainInit(spec);
    if (own.kind === "main" && machine.state === "starting") {
      machine.state = "running";
      machine.started_at ??= new Date(this.#clock.now()).toISOString();
      delete machine.message;
    }
    this.#book.commit();
    this.#startProbes(spec, runtime);
  }

  // --- probes and hooks ---

  #startProbes(spec: ContainerSpec, runtime: ContainerRun): void {
    const state = this.#book.state(spec.name);
    if (state.state !== "running") return;
    if (!state.started) this.#startProbe("startup", spec, runtime);
    else {
      this.#startProbe("readiness", spec, runtime);
      if (this.#book.record.ending === undefined) this.#startProbe("liveness", spec, runtime);
    }
  }

  #startProbe(kind: ProbeKind, spec: ContainerSpec, runtime: ContainerRun): void {
    const probe = spec.probes?.[kind];
    const sandbox = this.#sandbox;
    if (probe === undefined || sandbox === undefined) return;
    const state = this.#book.state(spec.name);
    const attempt = () => runProbe(probe, runtime.target(sandbox), probe.timeout_s * 1000, this.#clock);
    const prober = new Prober(
      kind,
      probe,
      this.#clock,
      attempt,
      {
        complaint: (reason, message) => {
          this.#book.notice("Warning", reason, message, spec.name);
          this.#book.commit();
        },
        verdict: (which, healthy) => this.#verdict(which, healthy, spec, runtime),
      },
      kind === "readiness" ? state.ready : kind === "liveness" ? true : undefined,
    );
    runtime.probers[kind] = prober;
    prober.start(Date.parse(state.started_at!));
  }

  #verdict(kind: ProbeKind, healthy: boolean, spec: ContainerSpec, runtime: ContainerRun): void {
    if (this.#runtimes.get(spec.name) !== runtime || runtime.ended.signal.aborted) return;
    const state = this.#book.state(spec.name);
    if (kind === "readiness") {
      state.ready = healthy;
      this.#book.commit();
    } else if (!healthy) {
      const grace = spec.probes?.[kind]?.termination_grace_s;
      const graceMs = grace === undefined ? this.#book.graceMs() : grace * 1000;
      this.#stopContainer(spec.name, this.#clock.monotonic() + graceMs, {
        holdSignal: false,
        force: false,
        message: `Container ${spec.name} failed ${kind} probe, will be restarted`,
      });
    } else if (kind === "startup") {
      state.started = true;
      state.ready = this.#book.own(spec.name).kind !== "ephemeral" && spec.probes?.readiness === undefined;
      this.#book.commit();
      this.#startProbes(spec, runtime);
      this.#replan();
    }
  }

  async #hook(
    handler: Parameters<typeof runHook>[0],
    spec: ContainerSpec,
    runtime: ContainerRun,
    signal = runtime.ended.signal,
  ): Promise<void> {
    await runHook(handler, runtime.target(this.#sandbox!), {
      clock: this.#clock,
      signal,
      onFallback: (message) => this.#book.notice("Warning", "LifecycleHTTPFallback", message, spec.name),
    });
  }

  // --- stop ---

  #stopContainer(name: string, deadline: number, how: { holdSignal: boolean; force: boolean; message: string }): void {
    const runtime = this.#runtimes.get(name);
    if (runtime === undefined) return;
    if (runtime.stop !== undefined) {
      const task = runtime.stop;
      const nearer = Math.min(task.deadline, deadline);
      if (nearer === task.deadline && task.holdSignal === how.holdSignal && task.force === (task.force || how.force))
        return;
      Object.assign(task, { deadline: nearer, holdSignal: how.holdSignal, force: task.force || how.force });
      task.changed.fire();
      return;
    }
    runtime.stop = { deadline, holdSignal: how.holdSignal, force: how.force, changed: new Pulse() };
    this.#book.notice("Normal", "Killing", how.message, name);
    this.#book.commit();
    this.#background(this.#runStop(this.#book.findSpec(name), runtime, runtime.stop));
  }

  async #runStop(spec: ContainerSpec, runtime: ContainerRun, task: StopTask): Promise<void> {
    const own = this.#book.own(spec.name);
    const hook = spec.hooks?.pre_stop;
    await stopContainer(runtime, task, {
      clock: this.#clock,
      logger: this.#logger,
      sandbox: () => this.#sandbox,
      signal: this.#stopSignal(spec),
      ...(hook !== undefined &&
        !own.preStopDone && {
          preStop: async (signal) => {
            try {
              await this.#hook(hook, spec, runtime, signal);
            } catch (error) {
              if (runtime.ended.signal.aborted) return;
              this.#book.notice("Warning", "FailedPreStopHook", "PreStopHook failed", spec.name);
              this.#logger.info({ container: spec.name, error: toError(error).message }, "pre_stop hook failed");
            }
          },
          preStopDone: () => {
            own.preStopDone = true;
            this.#book.commit();
          },
        }),
    });
  }

  #stopSignal(spec: ContainerSpec): number {
    const signal = spec.stop?.signal ?? this.#book.own(spec.name).image?.config.stopSignal ?? "SIGTERM";
    const number = signalNumber(signal);
    if (number === undefined)
      this.#logger.warn({ container: spec.name, signal }, "unknown stop signal: SIGTERM is sent");
    return number ?? constants.signals.SIGTERM;
  }

  // --- end of a container ---

  async #concluded(
    spec: ContainerSpec,
    runtime: ContainerRun,
    exit: ShimExit & { startedAt?: number; finishedAt: number },
  ): Promise<void> {
    const sandbox = this.#sandbox;
    runtime.end(new Error("the container has ended"));
    let conclusion: ContainerConclusion = {};
    if (sandbox !== undefined) {
      await this.#killAll(sandbox, runtime);
      // The shim writes the last of the log when nobody holds the container's output any more.
      if (!exit.lost && runtime.watch !== undefined) await runtime.drained(this.#clock);
      // What a next backend can ask for, it had better ask for itself.
      if (this.#closing.signal.aborted) return;
      conclusion = await this.#inEngine(this.#conclude(sandbox, runtime, exit)).catch((error: unknown) => {
        this.#logger.warn(
          { container: spec.name, error: toError(error).message },
          "cannot learn all about the container's end",
        );
        return {};
      });
    }
    if (this.#runtimes.get(spec.name) !== runtime || this.#closing.signal.aborted) return;
    const exitCode = conclusion.startError !== undefined ? START_ERROR_EXIT : (conclusion.exitCode ?? exit.exitCode);
    const startError = conclusion.startError ?? exit.startError;
    const message =
      startError ??
      (exit.lost
        ? "The container could not be located"
        : await this.#terminationMessage(spec, runtime, exitCode, conclusion.terminationMessage));
    // While the log was read, the sandbox may have been lost: the end is told, and another instance may run.
    if (this.#runtimes.get(spec.name) !== runtime) return;
    if (startError !== undefined) this.#book.notice("Warning", "Failed", `Error: ${startError}`, spec.name);
    this.#dropRuntime(spec.name);
    this.#book.exited(spec.name, {
      exit_code: exitCode,
      ...(exit.signal === undefined ? {} : { signal: exit.signal }),
      reason: endReason(exitCode, { startError, lost: exit.lost, oomKilled: conclusion.oomKilled }),
      ...(message ? { message } : {}),
      ...(conclusion.oomKilled ? { oom_killed: true } : {}),
      ...(exit.startedAt === undefined ? {} : { started_at: new Date(exit.startedAt).toISOString() }),
      finished_at: new Date(exit.finishedAt).toISOString(),
      id: runtime.ref.id,
    });
    if (startError !== undefined) this.#book.showFailedStart(spec, "RunContainerError", startError);
    this.#book.commit();
    runtime.concluded();
    this.#book.changed.fire();
    this.#replan();
  }

  /** The engine tells once how a container ended: its answer is kept for a next backend, which may have to ask again. */
  async #conclude(sandbox: Sandbox, runtime: ContainerRun, exit: ShimExit): Promise<ContainerConclusion> {
    const file = join(runtime.ref.dir, "conclusion.json");
    if (existsSync(file)) return JSON.parse(readFileSync(file, "utf8")) as ContainerConclusion;
    const conclusion = await sandbox.conclude(runtime.ref, exit);
    try {
      writeJson(file, conclusion);
    } catch (error) {
      this.#logger.warn({ container: runtime.ref.name, error: toError(error).message }, "cannot keep how it ended");
    }
    return conclusion;
  }

  async #killAll(sandbox: Sandbox, runtime: ContainerRun): Promise<void> {
    while (this.#sandbox === sandbox && !this.#closing.signal.aborted) {
      try {
        await sandbox.kill(runtime.ref);
        return;
      } catch (error) {
        this.#logger.warn(
          { container: runtime.ref.name, error: toError(error).message },
          "something of the container still runs",
        );
        await this.#clock.sleep(MIN_KILL_WAIT_MS, this.#closing.signal).catch(() => {});
      }
    }
  }

  async #terminationMessage(
    spec: ContainerSpec,
    runtime: ContainerRun,
    exitCode: number,
    file: string | undefined,
  ): Promise<string> {
    const text = Buffer.from(file ?? "")
      .subarray(-MAX_TERMINATION_MESSAGE_BYTES)
      .toString();
    if (text !== "" || exitCode === 0 || spec.termination_message?.policy !== "fallback_to_logs") return text;
    return await logTail(runtime.ref.dir, FALLBACK_LOG.lines, FALLBACK_LOG.bytes).catch(() => "");
  }

  #dropRuntime(name: string): void {
    const runtime = this.#runtimes.get(name);
    if (runtime === undefined) return;
    this.#runtimes.delete(name);
    runtime.drop();
  }

  // --- changes to a running machine ---

  async #applyFiles(sandbox: Sandbox, volume: Extract<Volume, { type: "files" }>): Promise<void> {
    if (sandbox.applyFiles === undefined)
      throw new ProviderError("unsupported", `engine ${this.#context.engine.name} has no file volumes`, {
        field: "volumes",
      });
    await sandbox.applyFiles(volume);
    const { machine } = this.#book.record;
    machine.file_versions = withFileVersion(machine.file_versions, { volume: volume.name, version: volume.version });
  }

  async #replaceFiles(update: NonNullable<MachinePatch["files"]>[number]): Promise<void> {
    const volume = this.#book.filesVolumes().find(({ name }) => name === update.volume);
    if (volume === undefined)
      throw new ProviderError("invalid", `machine ${this.id} has no files volume "${update.volume}"`, {
        field: "files.volume",
      });
    const next = { ...volume, version: update.version, files: update.files };
    this.#book.spec = {
      ...this.#book.spec,
      volumes: this.#book.spec.volumes!.map((other) => (other === volume ? next : other)),
    };
    if (this.#sandbox !== undefined) await this.#applyFiles(this.#sandbox, next);
  }

  #changeImage(name: string, image: string): void {
    const before = this.#book.findSpec(name);
    if (before.image === image) return;
    this.#book.changeContainer(name, { image });
    const own = this.#book.own(name);
    delete own.retry;
    delete own.backoff;
    if (this.#runtimes.has(name)) {
      this.#stopToStartAgain(name, definitionChanged(name));
    } else if (own.phase === "exited" && own.kind === "main" && this.#book.mayRestart(name)) own.phase = "new";
  }

  /** Whatever its restart policy, and without back-off. */
  #stopToStartAgain(name: string, message: string): void {
    this.#book.own(name).definitionChanged = true;
    const deadline = this.#clock.monotonic() + this.#book.graceMs();
    this.#stopContainer(name, deadline, { holdSignal: false, force: false, message });
  }

  async #resize({
    container: name,
    resources,
    restart,
  }: NonNullable<MachinePatch["resources"]>[number]): Promise<void> {
    const before = this.#book.findSpec(name).resources;
    const runtime = this.#runtimes.get(name);
    const restarts = restart === true && runtime !== undefined;
    if (restarts && isDeepStrictEqual(resources, before)) return;
    if (runtime !== undefined && this.#sandbox !== undefined) {
      if (this.#sandbox.resize === undefined)
        throw new ProviderError("unsupported", `engine ${this.#context.engine.name} cannot resize`, {
          field: "resources",
        });
      // What does not fit is refused before the container is stopped; a restart is what makes room for less memory.
      if (!restarts || memoryLimit(resources) >= memoryLimit(before))
        await this.#sandbox.resize(runtime.ref, resources);
    }
    this.#book.changeContainer(name, { resources });
    if (restarts) this.#stopToStartAgain(name, `Container ${name} resize requires restart`);
    else this.#book.state(name).resources = resources;
  }

  // --- look-ups ---

  #running(name: string): { runtime: ContainerRun; sandbox: Sandbox } {
    this.#book.findSpec(name);
    const runtime = this.#runtimes.get(name);
    if (runtime === undefined || this.#sandbox === undefined || this.#book.own(name).phase !== "running") {
      throw new ProviderError("conflict", `container "${name}" in machine "${this.id}" is not running`);
    }
    return { runtime, sandbox: this.#sandbox };
  }
}

const definitionChanged = (name: string) => `Container ${name} definition changed, will be restarted`;

const memoryLimit = (resources: ContainerSpec["resources"]) => resources?.limits?.memory_bytes ?? Infinity;

function endReason(
  exitCode: number,
  how: { startError: string | undefined; lost: boolean | undefined; oomKilled: boolean | undefined },
): string {
  if (how.startError !== undefined) return "StartError";
  if (how.lost) return "ContainerStatusUnknown";
  if (how.oomKilled) return "OOMKilled";
  return exitCode === 0 ? "Completed" : "Error";
}
