/**
 * Runs one machine, on any engine: start and stop order, restarts, probes, hooks, image policy, status. What it must
 * remember is in its state, written before each effect that depends on it; a supervisor made from a record carries on.
 *
 * Here is the loop: plan, act, plan again. What an action does is in the files beside it: sandbox-keeper.ts,
 * container-start.ts, container-instance.ts; what clients ask of a machine in changes.ts and access.ts.
 */
import { join } from "node:path";
import {
  type Clock,
  isOver,
  type Logger,
  type LogLine,
  type LogOptions,
  type Machine,
  type MachinePatch,
  type MachineSpec,
  type MachineStats,
  type ProcessStreams,
  type SharedPlaces,
  type StreamOptions,
  tenantOf,
  type Tracing,
} from "../../../src/provider/kit/index.ts";
import type { ClaimSource } from "../claims.ts";
import type { CsiSource } from "../csi-volumes.ts";
import type { DeviceSource } from "../devices.ts";
import type { Engine, MachineHome, Sandbox, SandboxLoss } from "../engine.ts";
import type { Shims } from "../engine.ts";
import type { MachineUse } from "../pressure/eviction.ts";
import { MachineAccess } from "./access.ts";
import { definitionChanged, MachineChanges } from "./changes.ts";
import { isCleared } from "./conclusion.ts";
import { recordedEnds } from "./recorded-ends.ts";
import { ContainerStarter } from "./container-start.ts";
import type { ContainerStatus } from "./container-status.ts";
import { InstanceFolders } from "./instance-folders.ts";
import { Instances } from "./instances.ts";
import type { MachineVolumes } from "../volume-contents.ts";
import type { MachineContext } from "./machine-context.ts";
import { MachineState } from "./machine-state.ts";
import { MachineTrace } from "./machine-trace.ts";
import { MachineWork } from "./machine-work.ts";
import { type Action, plan } from "./plan.ts";
import { type Ending, type MachineRecord, newRecord } from "./record.ts";
import { LastResort } from "./last-resort.ts";
import { SandboxKeeper } from "./sandbox-keeper.ts";
import type { MachineStore } from "./machine-store.ts";

/** kubelet: immediateEvictionGracePeriodSeconds. */
const EVICTION_GRACE_MS = 1_000;

export interface SupervisorContext {
  engine: Engine;
  /** Absent: the engine has none. */
  volumes: MachineVolumes | undefined;
  store: MachineStore;
  shims: Shims;
  /** Absent: there are no plugins. */
  devices?: DeviceSource | undefined;
  claims?: ClaimSource | undefined;
  csi?: CsiSource | undefined;
  /** Absent: nothing is traced. */
  tracing?: Tracing | undefined;
  clock: Clock;
  logger: Logger;
  /** Bounds how many machines and containers start at once, and shares that out among tenants. */
  starts: SharedPlaces;
  /** A container has a new image: what images are in use has changed. */
  onImagesChanged(): void;
  /** The machine is deleted and nothing is left of it but its folder. May be called again. */
  onDeleted(supervisor: Supervisor): void;
}

export class Supervisor implements MachineHome {
  readonly id: string;
  readonly dir: string;
  readonly secretDir: string;
  readonly volumes: MachineVolumes | undefined;
  readonly #context: SupervisorContext;
  readonly #clock: Clock;
  readonly #state: MachineState;
  readonly #folders: InstanceFolders;
  readonly #work: MachineWork;
  readonly #trace: MachineTrace;
  readonly #instances: Instances;
  readonly #keeper: SandboxKeeper;
  readonly #starter: ContainerStarter;
  readonly #changes: MachineChanges;
  readonly #access: MachineAccess;
  readonly #lastResort: LastResort;
  /** When the machine's end is to be over; on the monotonic clock, for the wall clock may be set back. */
  #endAt: number | undefined;
  /** The sandbox is being removed because nothing runs in it any more. */
  #isClearing = false;
  #planned = false;
  /** False while a former backend's sandbox has yet to be found again: until then nothing is begun or ended. */
  #ready = false;
  #cancelWake: (() => void) | undefined;

  constructor(context: SupervisorContext, spec: MachineSpec, record: MachineRecord) {
    const { store, clock } = context;
    const { id } = record.machine;
    const logger = context.logger.child({ machine: id });
    this.id = id;
    this.dir = join(store.machineDir(id), "engine");
    this.secretDir = join(store.secretDir(id), "engine");
    this.volumes = context.volumes;
    this.#context = context;
    this.#clock = clock;
    this.#state = new MachineState({ store, clock, logger }, spec, record);
    this.#folders = new InstanceFolders(store.machineDir(id));
    this.#work = new MachineWork(logger);
    this.#trace = new MachineTrace({ tracing: context.tracing, clock, id, labels: spec.labels });
    const shared: MachineContext = {
      ...context,
      ...{ devices: context.devices, claims: context.claims, csi: context.csi, logger },
      tenant: tenantOf(spec.labels),
      home: this,
      state: this.#state,
      ...{ folders: this.#folders, work: this.#work, trace: this.#trace },
      isReady: () => this.#ready,
      sandbox: () => this.#keeper.sandbox,
      haveVolumes: () => this.#keeper.haveVolumes(),
      onImagesChanged: () => context.onImagesChanged(),
      replan: () => this.#replan(),
    };
    this.#instances = new Instances(shared);
    this.#keeper = new SandboxKeeper(shared, () => this.#instances.refs(), {
      onOpening: () => this.#starter.prepare(),
      onLost: (loss) => this.#sandboxLost(loss),
      onHealth: (health) => this.#state.showHealth(health),
      onInvalid: ({ message }) => this.#fail(0, { force: true, reason: "InvalidSpec", message }),
      onRefused: ({ message }) => this.#refuse("UnexpectedAdmissionError", message),
      onOverLimit: (message) => this.#evict(message),
    });
    this.#starter = new ContainerStarter(shared, this.#instances);
    this.#changes = new MachineChanges(shared, this.#instances, this.#keeper);
    this.#access = new MachineAccess(shared, this.#instances);
    this.#lastResort = new LastResort(clock, logger, (loss) => this.#giveUp(loss));
  }

  /** Writes a new machine down and begins it. @throws when it cannot be written: then there is no machine. */
  static create(context: SupervisorContext, id: string, spec: MachineSpec, host: string): Supervisor {
    const supervisor = new Supervisor(context, spec, newRecord(id, spec, host, context.clock.now()));
    supervisor.#state.saveSpec();
    supervisor.#state.write();
    supervisor.#ready = true;
    supervisor.#replan();
    return supervisor;
  }

  readonly csiPath = (volume: string): string | undefined => this.#state.csi.pathOf(volume);

  get spec(): MachineSpec {
    return this.#state.spec;
  }

  get record(): MachineState["record"] {
    return this.#state.record;
  }

  socketPath(name: string): string {
    return this.#context.store.socketPath(this.id, name);
  }

  /** The machine as it was last written. It does not change: callers keep it while the machine goes on. */
  snapshot(): Machine {
    return this.#state.snapshot();
  }

  // --- after a restart of the backend ---

  /**
   * Finds the sandbox and the containers of a former backend again, then carries on. When it rejects, nothing new has
   * been begun; called again, it goes on with what it has not found yet.
   */
  async recover(): Promise<void> {
    this.#state.forgetCredentials();
    this.#state.catchUp();
    this.#state.snapshot();
    this.#ready = isOver(this.record.machine);
    if (this.#ready && this.record.deleted) this.#context.onDeleted(this);
    if (this.#ready) return;
    if (!(await this.#keeper.recover())) return;
    const { sandbox } = this.#keeper;
    if (sandbox !== undefined) {
      for (const container of this.#state.containers()) this.#recoverContainer(container);
      for (const container of this.#state.containers()) this.#clearLeftovers(sandbox, container);
    }
    this.#ready = true;
    this.#state.showReachability("ok");
    this.#work.background(this.#changes.settle());
    this.#limitEnd();
    this.#replan();
  }

  /** What the former backend has prepared and not begun, or not cleared when it had ended. */
  #clearLeftovers(sandbox: Sandbox, { name, own }: ContainerStatus): void {
    for (const ref of this.#folders.unrecorded(name, own))
      this.#work.background(this.#starter.giveUp(sandbox, ref, "the former backend ended before it was begun"));
    const current = this.#instances.get(name)?.ref.id;
    for (const ref of this.#folders.recorded(name, own))
      if (ref.id !== current && !isCleared(ref)) this.#work.background(this.#starter.clear(sandbox, ref));
  }

  /** The former backend's machine cannot be looked at just now; its last status stands. */
  outOfSight(): void {
    this.#state.showReachability("unknown");
  }

  #recoverContainer(container: ContainerStatus): void {
    const { name, own } = container;
    if (!container.isUp || this.#instances.get(name) !== undefined) return;
    const ref = this.#folders.newest(name, own);
    if (!this.#context.shims.everStarted(ref)) return container.takeBackInstance();
    const instance = this.#instances.add(container.spec, ref);
    instance.watch();
    if (own.postStartDone) instance.startProbes();
    else this.#starter.resume(instance);
    // The former backend ended before the container did: without this, nothing would ask for its end again.
    if (own.definitionChanged) instance.stopToStartAgain(definitionChanged(name));
  }

  // --- what clients ask for ---

  /**
   * Begins the end of the machine, or brings it nearer.
   * @throws ProviderError unavailable when that cannot be written down yet; it is done all the same.
   */
  stop(graceSeconds: number, force = false): void {
    if (isOver(this.record.machine)) return;
    this.#endBy(graceSeconds, force);
    this.#state.requireWritten();
  }

  #endBy(graceSeconds: number, force: boolean): void {
    this.#trace.asked();
    const ending: Ending = { deadline: this.#clock.now() + graceSeconds * 1000, force, state: "stopped" };
    const before = this.record.ending;
    if (before === undefined) this.#end(ending);
    else if (before.deadline > ending.deadline || (force && !before.force))
      this.#end({ ...before, deadline: Math.min(before.deadline, ending.deadline), force: before.force || force });
  }

  /** @throws ProviderError unavailable when that cannot be written down yet; it is done all the same. */
  delete(force: boolean): void {
    const { deleted, ending } = this.record;
    this.#state.markDeleted();
    // One write for both: what is deleted and is not being stopped would run on after a kill in between.
    if (!isOver(this.record.machine) && (!deleted || force || ending === undefined))
      this.#endBy(force ? 0 : this.#state.graceMs / 1000, force);
    if (!deleted && this.record.ending === ending) this.#state.commitForSure();
    this.#state.requireWritten();
    if (isOver(this.record.machine)) this.#context.onDeleted(this);
  }

  /**
   * @throws ProviderError conflict when the machine is at its end, unavailable when it is out of sight, or what the
   *   engine throws
   */
  async patch(patch: MachinePatch, signal: AbortSignal): Promise<void> {
    await this.#changes.apply(patch, signal);
  }

  logs(container: string, options: LogOptions): AsyncIterable<LogLine[]> {
    return this.#access.logs(container, options);
  }

  exec(container: string, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    return this.#access.exec(container, command, options);
  }

  attach(container: string, options: StreamOptions): Promise<ProcessStreams> {
    return this.#access.attach(container, options);
  }

  portForward(port: number, signal: AbortSignal): ReturnType<MachineAccess["portForward"]> {
    return this.#access.portForward(port, signal);
  }

  stats(): Promise<MachineStats | undefined> {
    return this.#access.stats();
  }

  get isOver(): boolean {
    return isOver(this.record.machine);
  }

  /** It has, or will have, something of the host, and its end is not decided. */
  get isActive(): boolean {
    return !this.isOver && this.record.ending === undefined;
  }

  /** What it takes of the host; undefined when nothing of it runs. */
  use(): Promise<MachineUse | undefined> {
    return this.#access.use();
  }

  /** The health of what it has may have changed. */
  showDevices(): void {
    const { devices, claims } = this.#context;
    if ((devices !== undefined || claims !== undefined) && !this.isOver) this.#state.devices.show({ devices, claims });
  }

  /** The host cannot keep it any longer (kubelet: evictPod). */
  evict(message: string, graceMs: number): void {
    if (this.isActive) this.#evict(message, graceMs);
  }

  /**
   * The host goes down. A machine that is being stopped already keeps its reason, and is to be over by then.
   * @throws ProviderError unavailable when that cannot be written down yet; it is done all the same.
   */
  terminate(why: { reason: string; message: string }, graceMs: number): void {
    if (this.isActive) this.#fail(graceMs, { force: false, ...why });
    else if (!this.isOver) this.#endBy(graceMs / 1000, false);
    this.#state.requireWritten();
  }

  /** Stops watching everything; machine and containers live on. */
  async close(): Promise<void> {
    this.#work.close();
    const { reason } = this.#work.closing;
    this.#keeper.release(reason);
    this.#cancelWake?.();
    this.#lastResort.cancel();
    this.#state.close();
    this.#instances.releaseAll(reason);
    await this.#work.settled();
    await this.#keeper.close();
  }

  // --- the loop: plan, act, plan again ---

  #replan(): void {
    if (this.#planned || !this.#ready || this.#work.isClosing) return;
    this.#planned = true;
    queueMicrotask(() => {
      this.#planned = false;
      if (this.#work.isClosing) return;
      this.#cancelWake?.();
      const busy = { opening: this.#keeper.isOpening || this.#isClearing, starting: this.#starter.starting };
      const { actions, wakeAt } = plan(this.spec, this.record, busy, this.#clock.now());
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
        if (this.#keeper.retryInMs > 0) this.#wakeAfter(this.#keeper.retryInMs);
        else this.#work.background(this.#keeper.open());
        break;
      case "start":
        this.#starter.start(action.container, action.backoff);
        break;
      case "back_off":
        this.#state.container(action.container).showBackOff(action.ms);
        break;
      case "stop":
        this.#stopContainer(action.container, action.holdSignal);
        break;
      case "restart_all":
        this.#starter.abandon("all containers are restarted");
        this.#state.restartAll();
        this.#replan();
        break;
      case "finish":
        this.#end({ deadline: this.#clock.now() + this.#state.graceMs, force: false, state: "stopped" });
        break;
      case "start_over":
        this.#work.background(this.#startOver(action.newSandbox));
        break;
      case "end":
        this.#work.background(this.#finish());
        break;
    }
  }

  #stopContainer(name: string, holdSignal: boolean): void {
    const { ending } = this.record;
    this.#instances
      .get(name)
      ?.stop(
        { deadline: this.#endDeadline(), holdSignal, force: ending?.force ?? false },
        `Stopping container ${name}`,
      );
  }

  /** On the monotonic clock, like all deadlines of stops. */
  #endDeadline(): number {
    const { ending } = this.record;
    if (ending === undefined) return this.#clock.monotonic() + this.#state.graceMs;
    const leftMs = Math.min(ending.deadline - this.#clock.now(), ending.graceMs ?? Infinity);
    return (this.#endAt ??= this.#clock.monotonic() + leftMs);
  }

  // --- the end, and the beginning again ---

  #end(ending: Ending): void {
    this.#endAt = undefined;
    const reason = "the machine is being stopped";
    const showStopping = !this.#instances.isEmpty || this.#keeper.isOpening;
    this.#keeper.abandon(new Error(reason));
    this.#starter.abandon(reason);
    this.#state.end({ ...ending, graceMs: Math.max(0, ending.deadline - this.#clock.now()) }, showStopping);
    this.#limitEnd();
    this.#replan();
  }

  #limitEnd(): void {
    const { ending } = this.record;
    if (ending !== undefined) this.#lastResort.arm(ending, this.#endDeadline() - this.#clock.monotonic());
  }

  #giveUp(loss: SandboxLoss): void {
    if (this.#work.isClosing || isOver(this.record.machine)) return;
    this.#keeper.giveUp(loss);
    this.#starter.forget();
    this.#replan();
  }

  #evict(message: string, graceMs = EVICTION_GRACE_MS): void {
    this.#state.notice("Warning", "Evicted", message);
    this.#fail(graceMs, { force: false, reason: "Evicted", message });
  }

  /** As a kubelet that does not admit a pod. */
  #refuse(reason: string, message: string): void {
    this.#state.notice("Warning", reason, message);
    this.#fail(0, { force: true, reason, message: `Pod was rejected: ${message}` });
  }

  #fail(graceMs: number, why: Pick<Ending, "force" | "reason" | "message">): void {
    this.#end({ deadline: this.#clock.now() + graceMs, state: "failed", ...why });
  }

  /**
   * The machine's ground is gone, and its containers with it. What their keepers wrote down of their ends is known.
   * @throws what the system says when that cannot be read just now: then nothing has been done yet
   */
  #sandboxLost(loss: SandboxLoss): void {
    const ends = recordedEnds(this.#state, this.#folders, this.#context.shims);
    this.#instances.dropAll();
    for (const { container, termination } of ends) container.exited(termination);
    this.#starter.abandon("the machine's sandbox is lost");
    this.#state.showLost(loss);
    this.#replan();
  }

  /** Nothing runs: remove the sandbox, then say so. */
  async #finish(): Promise<void> {
    this.#isClearing = true;
    if (!(await this.#keeper.destroy({ keepVolumes: false })) || this.#work.isClosing) return;
    this.#state.showEnded();
    if (this.record.deleted) this.#context.onDeleted(this);
  }

  async #startOver(newSandbox: boolean): Promise<void> {
    this.#isClearing = true;
    // As in a kubelet, volumes live as long as the pod.
    if (newSandbox && (!(await this.#keeper.destroy({ keepVolumes: true })) || this.#work.isClosing)) return;
    this.#isClearing = false;
    this.#starter.reset();
    this.#state.showRestart(newSandbox);
    this.#replan();
  }
}
