/**
 * One container of a machine: what the backend remembers of it and what clients see, and the verbs that change the two
 * together. Nothing reaches the disk or a client before the next commit; a verb that commits says so.
 */
import {
  backOffTexts,
  type ContainerSpec,
  type ContainerState,
  type ContainerTermination,
  type MachineNotice,
  type MachineSpec,
  restartDecision,
} from "../../../src/provider/kit/index.ts";
import { KILLED_EXIT, type PreparedImage } from "../engine.ts";
import type { ContainerRecord, MachineRecord } from "./record.ts";

/** Some of it is what a container has printed; a client takes no more (validate.ts). */
export const MAX_MESSAGE_CHARS = 1024;

/** The machine that a container belongs to. */
export interface ContainerHolder {
  readonly id: string;
  readonly spec: MachineSpec;
  /** @throws ProviderError not_found */
  findSpec(name: string): ContainerSpec;
  /** The first main container runs. */
  showMachineRunning(): void;
  notice(type: MachineNotice["type"], reason: string, message: string, container?: string): void;
  commit(): void;
  commitForSure(): void;
  /** @throws when it cannot be written */
  write(): void;
}

/** An instance that is about to be begun. */
interface NextInstance {
  attempt: number;
  id: string;
  folder: string;
  user: ContainerRecord["user"];
  /** Undefined leaves the back-off as it is. */
  backoff: ContainerRecord["backoff"];
}

export class ContainerStatus {
  readonly name: string;
  readonly #machine: ContainerHolder;
  readonly #record: MachineRecord;

  constructor(name: string, machine: ContainerHolder, record: MachineRecord) {
    this.name = name;
    this.#machine = machine;
    this.#record = record;
  }

  /** As it is now: a patch may change it. @throws ProviderError not_found */
  get spec(): ContainerSpec {
    return this.#machine.findSpec(this.name);
  }

  /** What the backend remembers. */
  get own(): Readonly<ContainerRecord> {
    return this.#own;
  }

  /** What clients see with the next commit. */
  get shown(): Readonly<ContainerState> {
    return this.#shown;
  }

  get #own(): ContainerRecord {
    return this.#record.containers[this.name]!;
  }

  get #shown(): ContainerState {
    return this.#record.machine.containers.find(({ name }) => name === this.name)!;
  }

  /** An instance of it runs, or is being begun. */
  get isUp(): boolean {
    return this.own.phase === "running" || this.own.phase === "starting";
  }

  get lastExitCode(): number {
    const { terminated, last } = this.shown;
    return (terminated ?? last)?.exit_code ?? 0;
  }

  /** Whether its rules and policy let the container, which has ended, run again. */
  get mayRestart(): boolean {
    const { spec } = this;
    const policy = spec.restart_policy ?? this.#machine.spec.restart_policy;
    return restartDecision(spec, policy, this.lastExitCode) !== "no";
  }

  /** An init container that is not a sidecar. */
  get #isPlainInit(): boolean {
    return this.own.kind === "init" && this.spec.restart_policy !== "always";
  }

  /** Adds an event of this container for the pod; it is told with the next commit. */
  notice(type: MachineNotice["type"], reason: string, message: string): void {
    this.#machine.notice(type, reason, message, this.name);
  }

  // --- waiting ---

  /** Shows that the container waits, and what it was before as its last state. */
  wait(reason: string, message?: string): void {
    const shown = this.#shown;
    this.#shiftTermination(shown);
    shown.state = "waiting";
    shown.ready = false;
    shown.started = false;
    shown.reason = reason;
    if (message === undefined) delete shown.message;
    else shown.message = message.slice(0, MAX_MESSAGE_CHARS);
  }

  /** Commits, unless that is what is shown already. */
  showBackOff(ms: number): void {
    const { message, event } = backOffTexts(this.#record.machine, this.name, ms);
    if (this.shown.reason === "CrashLoopBackOff" && this.shown.message === message) return;
    this.wait("CrashLoopBackOff", message);
    this.notice("Warning", "BackOff", event);
    this.#machine.commit();
  }

  /**
   * Commits. Until the next start or back-off, a container that failed to start waits for that reason
   * (pkg/kubelet/kuberuntime/kuberuntime_container.go: startContainer).
   */
  showFailedStart(reason: string, message: string): void {
    const isAtEnd = this.#record.ending !== undefined || this.#record.restarting !== undefined;
    if (this.shown.terminated === undefined || this.own.kind === "ephemeral" || isAtEnd || !this.mayRestart) return;
    this.wait(reason, message);
    this.#machine.commit();
  }

  /**
   * As a kubelet shows each container that a rule of another, or its own, has ended (convertToAPIContainerStatuses).
   */
  showRestartOfAll(): void {
    const reason = "RestartingAllContainers";
    const message = "The container is removed because RestartAllContainers in place";
    this.wait(reason, message);
    const shown = this.#shown;
    if (shown.last !== undefined) shown.last = { ...shown.last, exit_code: KILLED_EXIT, reason, message };
  }

  /** The next plan starts it as if it had never run in this sandbox. */
  showRestart(): void {
    this.#own.phase = "new";
  }

  /**
   * A start without an instance (image, configuration) is tried again in `ms` milliseconds, not before the wall clock
   * says `at`.
   */
  retryAt(at: number, ms: number): void {
    this.#own.retry = { at, ms };
  }

  /** It has another definition now: failures of the former one do not make it wait. */
  forgetBackoff(): void {
    delete this.#own.retry;
    delete this.#own.backoff;
  }

  /** The next instance does not ask the restart policy. */
  markChanged(): void {
    this.#own.definitionChanged = true;
  }

  // --- an instance begins ---

  /**
   * The record has of images what outlives the start: it is written at every change, their configurations are not
   * small.
   */
  keepImage(image: PreparedImage): void {
    const { stopSignal } = image.config;
    this.#own.image = { ...image, config: stopSignal === undefined ? {} : { stopSignal } };
  }

  keepImageVolume(volume: string, image: PreparedImage): void {
    const own = this.#own;
    own.imageVolumes = { ...own.imageVolumes, [volume]: { ...image, config: {} } };
  }

  /**
   * Writes down that an instance is being begun.
   * @throws when that cannot be written: then it is not, and must not be begun, for the next backend would not know of
   *   it
   */
  beginInstance(next: NextInstance): void {
    const own = this.#own;
    const before = structuredClone(own);
    Object.assign(own, {
      attempt: next.attempt,
      id: next.id,
      folder: next.folder,
      phase: "starting",
      postStartDone: false,
      preStopDone: false,
    });
    if (before.folder !== undefined) own.previousFolder = before.folder;
    if (next.backoff !== undefined) own.backoff = next.backoff;
    if (next.user === undefined) delete own.user;
    else own.user = next.user;
    delete own.retry;
    try {
      this.#machine.write();
    } catch (thrown) {
      this.#record.containers[this.name] = before;
      throw thrown;
    }
    this.notice("Normal", "Created", "Container created");
  }

  /** What `beginInstance` wrote down never came about: it is still to be started. */
  takeBackInstance(): void {
    const own = this.#own;
    own.attempt--;
    if (own.previousFolder === undefined) delete own.folder;
    else own.folder = own.previousFolder;
    delete own.previousFolder;
    own.phase = "new";
  }

  /** Its command has been begun, at `startedAt` (wall-clock milliseconds); post_start is still to come. */
  commandStarted(startedAt: number, user?: ContainerRecord["user"]): void {
    if (this.own.phase !== "starting") return;
    this.#own.phase = "running";
    if (user !== undefined) this.#own.user = user;
    this.#shown.started_at = new Date(startedAt).toISOString();
    this.notice("Normal", "Started", "Container started");
  }

  /** Commits. @param spec that the instance was made of */
  showRunning(spec: ContainerSpec, id: string): void {
    const shown = this.#shown;
    const { kind, attempt } = this.own;
    this.#own.postStartDone = true;
    this.#shiftTermination(shown);
    delete shown.reason;
    delete shown.message;
    shown.state = "running";
    shown.restart_count = attempt;
    this.#showInstance(spec, id);
    shown.started = spec.probes?.startup === undefined;
    shown.ready = shown.started && kind !== "ephemeral" && spec.probes?.readiness === undefined && !this.#isPlainInit;
    if (kind === "main") this.#machine.showMachineRunning();
    // A number of restarts that was told must not be taken back by a loss of power.
    if (attempt > 0) this.#machine.commitForSure();
    else this.#machine.commit();
  }

  /** Commits. */
  showReady(isReady: boolean): void {
    this.#shown.ready = isReady;
    this.#machine.commit();
  }

  /** Commits. The startup probe has passed; readiness, where there is a probe for it, is still to be found out. */
  showStartedUp(): void {
    const shown = this.#shown;
    shown.started = true;
    shown.ready = this.own.kind !== "ephemeral" && this.spec.probes?.readiness === undefined;
    this.#machine.commit();
  }

  showResources(resources: NonNullable<ContainerSpec["resources"]>): void {
    this.#shown.resources = resources;
  }

  // --- an instance ends ---

  /** Commits. The next backend must not run the hook again. */
  preStopRan(): void {
    this.#own.preStopDone = true;
    this.#machine.commit();
  }

  /** Shows the end of the container's instance. */
  exited(terminated: ContainerTermination): void {
    const own = this.#own;
    const shown = this.#shown;
    own.phase = "exited";
    own.finishedAt = Date.parse(terminated.finished_at);
    if (shown.terminated !== undefined) shown.last = shown.terminated;
    shown.state = "terminated";
    shown.terminated = terminated;
    // It may have ended before it could be shown as running.
    if (terminated.id !== undefined && terminated.id !== shown.id) this.#showInstance(this.spec, terminated.id);
    shown.restart_count = Math.max(shown.restart_count, own.attempt);
    shown.started = false;
    shown.ready = terminated.exit_code === 0 && this.#isPlainInit;
    delete shown.reason;
    delete shown.message;
    if (own.definitionChanged) {
      own.phase = "new";
      delete own.definitionChanged;
      delete own.backoff;
      // A container that was shown to have ended may never be shown to run, under some policies (API:
      // validatePodStatus).
      if (this.#record.ending === undefined) this.wait("ContainerCreating");
    }
  }

  #shiftTermination(shown: ContainerState): void {
    if (shown.terminated !== undefined) shown.last = shown.terminated;
    delete shown.terminated;
  }

  /** Shows which instance it is that runs or has run, and what it was made of. */
  #showInstance(spec: ContainerSpec, id: string): void {
    const { image, user } = this.own;
    const shown = this.#shown;
    shown.id = id;
    shown.image = image?.image ?? spec.image;
    shown.image_id = image?.imageId ?? "";
    if (user !== undefined) shown.user = user;
    if (spec.resources !== undefined) shown.resources = spec.resources;
  }
}
