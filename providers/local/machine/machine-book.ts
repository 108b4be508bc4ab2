/**
 * What one machine was told to be and what has become of it: its spec and its record, and how both are written down and
 * shown. Decides nothing and starts nothing: that is the supervisor's.
 */
import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import {
  Pulse,
  type Clock,
  type ContainerSpec,
  type ContainerState,
  type ContainerTermination,
  type Logger,
  type Machine,
  type MachineNotice,
  type MachineSpec,
  ProviderError,
  type RegistryAuth,
  toError,
} from "../../../src/provider/kit/index.ts";
import { type ContainerRef, KILLED_EXIT } from "../engine.ts";
import { BACKOFF_INITIAL_MS, restartDecision } from "./plan.ts";
import {
  containersOf,
  formatOwner,
  newContainerRecord,
  newContainerState,
  type ContainerRecord,
  type MachineRecord,
  type NamedContainer,
} from "./record.ts";
import type { MachineStore } from "./store.ts";

const DEFAULT_GRACE_S = 30;
/** How often a record that could not be written (a full disk) is tried again. */
const COMMIT_RETRY_MS = 1_000;
const NOTICES_KEPT = 30;
/** Some of it is what a container has printed; a client takes no more (validate.ts). */
const MAX_MESSAGE_CHARS = 1024;

export interface MachineBookOptions {
  store: MachineStore;
  clock: Clock;
  logger: Logger;
}

export class MachineBook {
  readonly id: string;
  spec: MachineSpec;
  readonly record: MachineRecord;
  /** Fires at each write. */
  readonly changed = new Pulse();
  readonly #store: MachineStore;
  readonly #clock: Clock;
  readonly #logger: Logger;
  /** The last status that was written: what clients are told, because it is what a next backend would begin with. */
  #written: Machine | undefined;
  #cancelCommit: (() => void) | undefined;
  #isClosed = false;

  constructor(options: MachineBookOptions, spec: MachineSpec, record: MachineRecord) {
    this.id = record.machine.id;
    this.spec = spec;
    this.record = record;
    this.#store = options.store;
    this.#clock = options.clock;
    this.#logger = options.logger;
    // A patch writes the spec first: the former backend may have ended before it wrote the record.
    for (const container of containersOf(spec)) {
      if (!Object.hasOwn(record.containers, container.spec.name)) this.addRecord(container);
    }
  }

  /** Writes nothing more: the next backend goes on from what is written. */
  close(): void {
    this.#isClosed = true;
    this.#cancelCommit?.();
  }

  /** The machine as it was last written. It does not change: callers keep it while the machine goes on. */
  snapshot(): Machine {
    return (this.#written ??= structuredClone(this.record.machine));
  }

  /** @throws ProviderError unavailable when the last commit has not reached the disk yet */
  requireWritten(): void {
    if (this.#cancelCommit === undefined) return;
    throw new ProviderError("unavailable", `the state of machine ${this.id} cannot be written just now`);
  }

  /** What the backend remembers of a container. */
  own(name: string): ContainerRecord {
    return this.record.containers[name]!;
  }

  /** What clients see of a container. */
  state(name: string): ContainerState {
    return this.record.machine.containers.find((container) => container.name === name)!;
  }

  /** @throws ProviderError not_found */
  findSpec(name: string): ContainerSpec {
    const found = containersOf(this.spec).find(({ spec }) => spec.name === name);
    if (found === undefined)
      throw new ProviderError("not_found", `machine ${this.id} has no container "${name}"`, { field: "container" });
    return found.spec;
  }

  graceMs(): number {
    return (this.spec.termination_grace_s ?? DEFAULT_GRACE_S) * 1000;
  }

  backoffInitial(): number {
    return this.spec.backoff?.initial_ms ?? BACKOFF_INITIAL_MS;
  }

  /** An init container that is no sidecar. */
  isPlainInit(spec: ContainerSpec): boolean {
    return this.own(spec.name).kind === "init" && spec.restart_policy !== "always";
  }

  filesVolumes() {
    return (this.spec.volumes ?? []).filter((volume) => volume.type === "files");
  }

  /** Shows that the container waits, and what it was before as its last state. */
  wait(name: string, reason: string, message?: string): void {
    const state = this.state(name);
    if (state.terminated !== undefined) state.last = state.terminated;
    delete state.terminated;
    state.state = "waiting";
    state.ready = false;
    state.started = false;
    state.reason = reason;
    if (message === undefined) delete state.message;
    else state.message = message.slice(0, MAX_MESSAGE_CHARS);
  }

  /** Shows which instance it is that runs or has run, and what it was made of. */
  showInstance(spec: ContainerSpec, id: string): void {
    const { image, user } = this.own(spec.name);
    const state = this.state(spec.name);
    state.id = id;
    state.image = image?.image ?? spec.image;
    state.image_id = image?.imageId ?? "";
    if (user !== undefined) state.user = user;
    if (spec.resources !== undefined) state.resources = spec.resources;
  }

  /** Shows the end of the container's instance. */
  exited(name: string, terminated: ContainerTermination): void {
    const own = this.own(name);
    const state = this.state(name);
    own.phase = "exited";
    own.finishedAt = Date.parse(terminated.finished_at);
    if (state.terminated !== undefined) state.last = state.terminated;
    state.state = "terminated";
    state.terminated = terminated;
    // It may have ended before it could be shown as running.
    if (terminated.id !== undefined && terminated.id !== state.id)
      this.showInstance(this.findSpec(name), terminated.id);
    state.restart_count = Math.max(state.restart_count, own.attempt);
    state.started = false;
    state.ready = own.kind === "init" && terminated.exit_code === 0 && this.isPlainInit(this.findSpec(name));
    delete state.reason;
    delete state.message;
    if (own.definitionChanged) {
      own.phase = "new";
      delete own.definitionChanged;
      delete own.backoff;
      // A container that was shown to have ended may never be shown to run, under some policies (API: validatePodStatus).
      if (this.record.ending === undefined) this.wait(name, "ContainerCreating");
    }
  }

  lastExitCode(name: string): number {
    const { terminated, last } = this.state(name);
    return (terminated ?? last)?.exit_code ?? 0;
  }

  /** Whether its rules and policy let the container, which has ended, run again. */
  mayRestart(name: string): boolean {
    const spec = this.findSpec(name);
    const policy = spec.restart_policy ?? this.spec.restart_policy;
    return restartDecision(spec, policy, this.lastExitCode(name)) !== "no";
  }

  /** Until the next start or back-off, a container that failed to start waits for that reason (kubelet.md §2.5). */
  showFailedStart(spec: ContainerSpec, reason: string, message: string): void {
    const { kind } = this.own(spec.name);
    const { terminated } = this.state(spec.name);
    const isAtEnd = this.record.ending !== undefined || this.record.restarting !== undefined;
    if (terminated === undefined || kind === "ephemeral" || isAtEnd || !this.mayRestart(spec.name)) return;
    this.wait(spec.name, reason, message);
    this.commit();
  }

  showBackOff(name: string, ms: number): void {
    const pod = formatOwner(this.id, this.record.machine.labels);
    const message = `back-off ${duration(ms)} restarting failed container=${name} pod=${pod}`;
    const state = this.state(name);
    if (state.reason === "CrashLoopBackOff" && state.message === message) return;
    this.wait(name, "CrashLoopBackOff", message);
    this.notice("Warning", "BackOff", `Back-off restarting failed container ${name} in pod ${pod}`, name);
    this.commit();
  }

  /** As a kubelet shows each container that a rule of another, or its own, has ended (convertToAPIContainerStatuses). */
  showRestartOfAll(name: string): void {
    const reason = "RestartingAllContainers";
    const message = "The container is removed because RestartAllContainers in place";
    this.wait(name, reason, message);
    const state = this.state(name);
    if (state.last !== undefined) state.last = { ...state.last, exit_code: KILLED_EXIT, reason, message };
  }

  /** Adds an event for the pod; it is told with the next commit. */
  notice(type: MachineNotice["type"], reason: string, message: string, container?: string): void {
    const { machine } = this.record;
    const seq = ++this.record.noticeSeq;
    const at = new Date(this.#clock.now()).toISOString();
    machine.notices = [
      ...(machine.notices ?? []),
      {
        at,
        type,
        reason,
        message: message.slice(0, MAX_MESSAGE_CHARS),
        seq,
        ...(container === undefined ? {} : { container }),
      },
    ].slice(-NOTICES_KEPT);
  }

  /**
   * Writes the record down. What cannot be written now is tried again until it can; meanwhile the machine goes on, and
   * clients see what was written last.
   */
  commit(): void {
    if (this.#isClosed) return;
    try {
      this.write();
    } catch (error) {
      this.#logger.error({ error: toError(error).message }, "cannot write the machine's state yet");
      this.#cancelCommit ??= this.#clock.after(COMMIT_RETRY_MS, () => {
        this.#cancelCommit = undefined;
        this.commit();
      });
    }
  }

  /** The same for a step that must not be taken before it is written. @throws when it cannot be written */
  write(): void {
    this.#written = this.#store.commit(this.record);
    this.#cancelCommit?.();
    this.#cancelCommit = undefined;
    this.changed.fire();
  }

  /** Registry credentials live in memory only. */
  replaceCredentials(auth: RegistryAuth[], version: string | undefined): void {
    // What failed for the want of any is not to wait longer; what failed with others keeps its back-off, as in a kubelet.
    if (this.spec.registry_auth === undefined) {
      for (const own of Object.values(this.record.containers)) delete own.retry;
    }
    const { registry_auth_version: _before, ...rest } = this.spec;
    const shown = version === undefined ? {} : { registry_auth_version: version };
    this.spec = { ...rest, registry_auth: auth, ...shown };
    delete this.record.machine.registry_auth_version;
    Object.assign(this.record.machine, shown);
  }

  /**
   * Does nothing when it is there already: a patch may be repeated. Written first, for a container of which only the record
   * knows could not be supervised by a next backend.
   * @throws ProviderError conflict when there is another container of this name
   */
  addEphemeral(spec: ContainerSpec): void {
    if (this.spec.ephemeral_containers?.some((known) => isDeepStrictEqual(known, spec))) return;
    if (Object.hasOwn(this.record.containers, spec.name)) {
      throw new ProviderError("conflict", `machine ${this.id} has a container "${spec.name}" already`, {
        field: "ephemeral_containers.name",
      });
    }
    const next = { ...this.spec, ephemeral_containers: [...(this.spec.ephemeral_containers ?? []), spec] };
    this.#store.saveSpec(this.id, next);
    this.spec = next;
    this.addRecord({ spec, kind: "ephemeral" });
  }

  /** Puts another definition in the place of the container's own. */
  changeContainer(name: string, change: Partial<ContainerSpec>): void {
    const apply = (list: ContainerSpec[]) =>
      list.map((container) => (container.name === name ? { ...container, ...change } : container));
    const { init_containers } = this.spec;
    this.spec = {
      ...this.spec,
      containers: apply(this.spec.containers),
      ...(init_containers && { init_containers: apply(init_containers) }),
    };
  }

  /** Begins to remember a container. */
  addRecord(container: NamedContainer): void {
    this.record.containers[container.spec.name] = newContainerRecord(container.kind);
    this.record.machine.containers.push(newContainerState(container, false));
  }

  containerDir(name: string): string {
    return join(this.#store.machineDir(this.id), "containers", name);
  }

  refOf(name: string): ContainerRef {
    const own = this.own(name);
    return { name, attempt: own.attempt, id: own.id!, dir: join(this.containerDir(name), own.folder!) };
  }

  /** The folder of an instance, or undefined when there never was one or it is forgotten. */
  instanceFolder(name: string, attempt: number): string | undefined {
    if (attempt < 0) return undefined;
    const own = this.own(name);
    if (attempt === own.attempt)
      return own.folder === undefined ? undefined : join(this.containerDir(name), own.folder);
    return own.previousFolder === undefined ? undefined : join(this.containerDir(name), own.previousFolder);
  }

  /** The newest instance and the one before it are kept: `logs --previous`. */
  forgetOldInstances(name: string): void {
    for (const { dir } of this.unrecordedInstances(name)) removeQuietly(dir);
  }

  /** Instances of which there is only a folder: forgotten ones, and those that were prepared and never begun. */
  unrecordedInstances(name: string): ContainerRef[] {
    const { folder, previousFolder } = this.own(name);
    return readFolders(this.containerDir(name))
      .filter((entry) => entry !== folder && entry !== previousFolder)
      .map((entry) => ({
        name,
        attempt: Number.parseInt(entry, 10),
        id: instanceId(name, entry),
        dir: join(this.containerDir(name), entry),
      }));
  }
}

/** Unique in the backend, and legal as the id of an OCI container. `folder` is `ATTEMPT-RANDOM`. */
export function instanceId(name: string, folder: string): string {
  return `${name.slice(0, 40)}-${folder}`;
}

/** What cannot be removed now goes with the next instance, or with the machine. */
export function removeQuietly(dir: string): void {
  try {
    rmSync(dir, { recursive: true, force: true });
  } catch {
    // See above.
  }
}

function readFolders(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch {
    return [];
  }
}

/** As Go prints a time.Duration of whole seconds: `20s`, `2m40s`, `5m0s`; below a second `500ms`. */
export function duration(ms: number): string {
  if (ms < 1000) return `${ms}ms`;
  const seconds = ms / 1000;
  return seconds < 60 ? `${seconds}s` : `${Math.floor(seconds / 60)}m${seconds % 60}s`;
}
