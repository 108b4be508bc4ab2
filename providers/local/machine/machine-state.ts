/**
 * What one machine was told to be and what has become of it: its spec and its record, and the verbs that change them.
 * All of it is written down before clients see it. Decides nothing and starts nothing: that is the supervisor's.
 */
import { isDeepStrictEqual } from "node:util";
import {
  type Clock,
  type ContainerResources,
  type ContainerSpec,
  containersOf,
  firstWaitingReason,
  graceMs,
  type Logger,
  type Machine,
  type MachineNotice,
  type MachinePatch,
  type MachineSpec,
  type NamedContainer,
  noSuchContainer,
  ProviderError,
  Pulse,
  type RegistryAuth,
  withFileVersion,
} from "../../../src/provider/kit/index.ts";
import { KILLED_EXIT, type SandboxHealth, type SandboxLoss } from "../engine.ts";
import { type ContainerHolder, ContainerStatus, MAX_MESSAGE_CHARS } from "./container-status.ts";
import { MachineClaims } from "./machine-claims.ts";
import { MachineCsi } from "./machine-csi.ts";
import { MachineDevices } from "./machine-devices.ts";
import { MACHINE_LOST, newContainerRecord, newContainerState, type Ending, type MachineRecord } from "./record.ts";
import type { MachineStore } from "./machine-store.ts";
import { type FilesVolume, filesVolumes, findFiles, specWithContainer, specWithFiles } from "./spec-changes.ts";

/** How often a record that could not be written (a full disk) is tried again. */
const COMMIT_RETRY_MS = 1_000;
const NOTICES_KEPT = 30;

/** A record as others see it: only the verbs here change it. */
type ReadOnlyRecord = { readonly [Key in keyof MachineRecord]: Readonly<MachineRecord[Key]> };

interface MachineStateOptions {
  store: MachineStore;
  clock: Clock;
  logger: Logger;
}

export class MachineState implements ContainerHolder {
  readonly id: string;
  /** Fires at each write. */
  readonly changed = new Pulse();
  readonly devices: MachineDevices;
  readonly claims: MachineClaims;
  readonly csi: MachineCsi;
  readonly #store: MachineStore;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #record: MachineRecord;
  #spec: MachineSpec;
  /** The last status that was written: what clients are told, because it is what a next backend would begin with. */
  #written: Machine | undefined;
  #cancelCommit: (() => void) | undefined;
  /** What could not be written yet is to outlive a loss of power. */
  #mustFlush = false;
  #isClosed = false;
  #isBehind = false;

  constructor(options: MachineStateOptions, spec: MachineSpec, record: MachineRecord) {
    this.id = record.machine.id;
    this.#spec = spec;
    this.#record = record;
    this.devices = new MachineDevices(this, record);
    this.claims = new MachineClaims(this, record);
    this.csi = new MachineCsi(this, record);
    this.#store = options.store;
    this.#clock = options.clock;
    this.#logger = options.logger;
    // A patch writes the spec first: the former backend may have ended before it wrote the record.
    for (const container of containersOf(spec)) {
      if (Object.hasOwn(record.containers, container.spec.name)) continue;
      this.#addRecord(container);
      this.#isBehind = true;
    }
  }

  /** Commits what the spec has and the record had not: clients are told nothing that is not written. */
  catchUp(): void {
    if (!this.#isBehind) return;
    this.#isBehind = false;
    this.commit();
  }

  get spec(): MachineSpec {
    return this.#spec;
  }

  get record(): ReadOnlyRecord {
    return this.#record;
  }

  /** The machine as it was last written. It does not change: callers keep it while the machine goes on. */
  snapshot(): Machine {
    return (this.#written ??= structuredClone(this.#record.machine));
  }

  // --- look-ups ---

  /** @throws ProviderError not_found */
  findSpec(name: string): ContainerSpec {
    const found = containersOf(this.#spec).find(({ spec }) => spec.name === name);
    if (found === undefined) throw noSuchContainer(this.id, name);
    return found.spec;
  }

  /** A container of this machine, by a name that it has. */
  container(name: string): ContainerStatus {
    return new ContainerStatus(name, this, this.#record);
  }

  /** All of them, in start order: init, main, ephemeral. */
  containers(): ContainerStatus[] {
    return containersOf(this.#spec).map(({ spec }) => this.container(spec.name));
  }

  /** The end of the machine is decided, or that everything in it stops and begins again. */
  get isStopping(): boolean {
    return this.#record.ending !== undefined || this.#record.restarting !== undefined;
  }

  get graceMs(): number {
    return graceMs(this.#spec);
  }

  get filesVolumes(): FilesVolume[] {
    return filesVolumes(this.#spec);
  }

  // --- writing down ---

  /**
   * Writes the record down. What cannot be written now is tried again until it can; meanwhile the machine goes on, and
   * clients see what was written last.
   */
  commit(): void {
    this.#commit({ flush: false });
  }

  /** The same for what a loss of power must not take back once clients know it. */
  commitForSure(): void {
    this.#commit({ flush: true });
  }

  #commit(how: { flush: boolean }): void {
    if (this.#isClosed) return;
    try {
      this.#write(how);
    } catch (thrown) {
      this.#logger.error({ err: thrown }, "Cannot write the machine's state yet");
      this.#mustFlush ||= how.flush;
      this.#cancelCommit ??= this.#clock.after(COMMIT_RETRY_MS, () => {
        this.#cancelCommit = undefined;
        this.#commit({ flush: this.#mustFlush });
      });
    }
  }

  /**
   * The same for a step that must not be taken before it is written, not even if the host loses power then.
   * @throws when it cannot be written
   */
  write(): void {
    this.#write({ flush: true });
  }

  #write({ flush }: { flush: boolean }): void {
    this.#written = this.#store.commit(this.#record, { flush: flush || this.#mustFlush });
    this.#mustFlush = false;
    this.#cancelCommit?.();
    this.#cancelCommit = undefined;
    this.changed.fire();
  }

  /** @throws ProviderError unavailable when the last commit has not reached the disk yet */
  requireWritten(): void {
    if (this.#cancelCommit === undefined) return;
    throw new ProviderError("unavailable", `the state of machine ${this.id} cannot be written just now`);
  }

  /** @throws when it cannot be written */
  saveSpec(): void {
    this.#store.saveSpec(this.id, this.#spec);
  }

  /** Writes nothing more: the next backend goes on from what is written. */
  close(): void {
    this.#isClosed = true;
    this.#cancelCommit?.();
  }

  // --- what becomes of the machine ---

  /** Adds an event for the pod; it is told with the next commit. */
  notice(type: MachineNotice["type"], reason: string, message: string, container?: string): void {
    const { machine } = this.#record;
    const seq = ++this.#record.noticeSeq;
    const at = this.#now();
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

  /** Commits, unless that is what is shown already. */
  showReachability(reachability: Machine["reachability"]): void {
    if (this.#record.machine.reachability === reachability) return;
    this.#record.machine.reachability = reachability;
    this.commit();
  }

  /** Commits. What its containers do while it does not answer is unknown: they are shown as they were. */
  showHealth(health: SandboxHealth): void {
    if (health.state === "unknown") this.notice("Warning", health.reason, health.message);
    this.showReachability(health.state);
  }

  /** @throws when it cannot be written: then nothing may be opened */
  beginOpening(): void {
    this.#record.sandbox = "opening";
    this.#record.machine.state = "creating";
    this.write();
  }

  /** Commits. */
  showOpen(addresses: readonly string[]): void {
    this.#record.sandbox = "open";
    if (this.#record.ending === undefined) this.#record.machine.state = "starting";
    this.#record.machine.sandbox_ready = true;
    this.#record.machine.addresses = addresses.map((ip) => ({ ip }));
    this.commit();
  }

  /** Commits. Why the machine does not come on. */
  showMessage(message: string): void {
    this.#record.machine.message = message;
    this.commit();
  }

  /** The engine has nothing of the machine any more. */
  sandboxDestroyed(): void {
    this.#record.sandbox = "none";
    this.#record.machine.sandbox_ready = false;
  }

  /**
   * Commits. The sandbox is gone, its containers with it: they begin again, or what may not ends (kubelet:
   * computePodActions, `KillPod`). What is still shown to run then ended nobody knows how.
   */
  showLost(loss: SandboxLoss): void {
    const containers = this.containers();
    const hasRun = containers.some(({ own }) => own.attempt >= 0);
    const hasDone = containers.every(
      ({ own, mayRestart }) => own.kind !== "main" || (own.phase === "exited" && !mayRestart),
    );
    for (const container of containers) if (container.isUp) this.#showLostContainer(container);
    this.#record.machine.sandbox_ready = false;
    const { ending } = this.#record;
    if (hasDone && hasRun && (ending === undefined || ending.reason === MACHINE_LOST)) {
      // All that was to be done is done, and how it ended is known: nothing is lost.
      this.#record.ending = { deadline: this.#clock.now(), force: true, state: "stopped" };
    } else if (ending === undefined) {
      if (this.#spec.restart_policy === "never" && hasRun) {
        this.#record.ending = { deadline: this.#clock.now(), force: true, state: "failed", ...loss };
      } else {
        this.notice("Normal", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
        this.#record.restarting = { reason: "SandboxChanged" };
      }
    }
    this.commitForSure();
  }

  #showLostContainer(container: ContainerStatus): void {
    const { started_at } = container.shown;
    const { id } = container.own;
    container.exited({
      exit_code: KILLED_EXIT,
      reason: "ContainerStatusUnknown",
      message: "The container could not be located when the pod was deleted.  The container used to be Running",
      finished_at: this.#now(),
      ...(started_at === undefined ? {} : { started_at }),
      ...(id === undefined ? {} : { id }),
    });
  }

  /** Main containers may start: all init containers have passed. */
  initPassed(): void {
    this.#record.initialized = true;
  }

  showMachineRunning(): void {
    const { machine } = this.#record;
    if (machine.state !== "starting") return;
    machine.state = "running";
    machine.started_at ??= this.#now();
    delete machine.message;
  }

  /** Commits. Everything stops and begins again, init containers included. */
  restartAll(): void {
    this.#record.restarting = { reason: "RestartAllContainers" };
    this.commitForSure();
  }

  /** Commits. Nothing runs: all is shown as it was before the first start, but for what need not run again. */
  showRestart(newSandbox: boolean): void {
    const all = this.#record.restarting!.reason === "RestartAllContainers";
    delete this.#record.restarting;
    this.#record.initialized = false;
    for (const container of this.containers()) {
      const { kind, phase } = container.own;
      if (kind === "ephemeral") continue;
      // What has done its work is not done again when only the sandbox was lost (kubelet: computePodActions).
      const hasSucceeded = phase === "exited" && container.lastExitCode === 0;
      if (newSandbox && !all && kind === "main" && hasSucceeded && !container.mayRestart) continue;
      if (all && phase === "exited") container.showRestartOfAll();
      else container.wait(firstWaitingReason(kind, this.#spec));
      container.showRestart();
    }
    this.#record.machine.state = newSandbox ? "creating" : "starting";
    this.commit();
  }

  /** Deleted for its owner. Not committed: if the machine has not ended yet, its end will write this down. */
  markDeleted(): void {
    this.#record.deleted = true;
  }

  /** Commits. @param showStopping false while there is nothing that would have to be stopped */
  end(ending: Ending, showStopping: boolean): void {
    this.#record.ending = ending;
    if (showStopping) this.#record.machine.state = "stopping";
    this.commitForSure();
  }

  /** Commits. The machine has come to the end that was decided. */
  showEnded(): void {
    const { machine, ending } = this.#record;
    const { state, reason, message } = ending!;
    machine.state = state;
    machine.stopped_at = this.#now();
    if (reason === undefined) delete machine.reason;
    else machine.reason = reason;
    if (message === undefined) delete machine.message;
    else machine.message = message;
    this.commitForSure();
  }

  #now(): string {
    return new Date(this.#clock.now()).toISOString();
  }

  // --- changes of what it is to be ---

  /** Commits. The former backend had its credentials in memory; who reads that they are gone sends them again. */
  forgetCredentials(): void {
    if (this.#spec.registry_auth_version !== undefined) return;
    if (this.#record.machine.registry_auth_version === undefined) return;
    delete this.#record.machine.registry_auth_version;
    this.commit();
  }

  /** Registry credentials live in memory only. */
  replaceCredentials(auth: RegistryAuth[], version: string | undefined): void {
    // A pull that failed because there were none must not wait longer; one that failed with others keeps its back-off,
    // as in a kubelet.
    if (this.#spec.registry_auth === undefined) {
      for (const own of Object.values(this.#record.containers)) delete own.retry;
    }
    const { registry_auth_version: _before, ...rest } = this.#spec;
    const shown = version === undefined ? {} : { registry_auth_version: version };
    this.#spec = { ...rest, registry_auth: auth, ...shown };
    delete this.#record.machine.registry_auth_version;
    Object.assign(this.#record.machine, shown);
  }

  /**
   * Does nothing when it is there already: a patch may be repeated. Written first, for a container of which only the
   * record knows could not be supervised by a next backend.
   * @throws ProviderError conflict when there is another container of this name
   */
  addEphemeral(spec: ContainerSpec): void {
    if (this.#spec.ephemeral_containers?.some((known) => isDeepStrictEqual(known, spec))) return;
    if (Object.hasOwn(this.#record.containers, spec.name)) {
      throw new ProviderError("conflict", `machine ${this.id} has a container "${spec.name}" already`, {
        field: "ephemeral_containers.name",
      });
    }
    this.adopt({ ...this.#spec, ephemeral_containers: [...(this.#spec.ephemeral_containers ?? []), spec] });
    this.#addRecord({ spec, kind: "ephemeral" });
  }

  /**
   * Puts another definition in the place of the container's own. Written first, as all that is changed: what is done
   * about it is done again by a next backend, or when the patch is repeated.
   * @throws when it cannot be written: then nothing is changed
   */
  changeContainer(name: string, change: Partial<ContainerSpec>): void {
    this.adopt(specWithContainer(this.#spec, name, change));
  }

  /** The machine has them. */
  showOwnResources(resources: ContainerResources): void {
    this.#record.machine.resources = resources;
  }

  /** The same of the machine itself. */
  adopt(next: MachineSpec): void {
    this.#store.saveSpec(this.id, next);
    this.#spec = next;
  }

  /**
   * Returns the volume as it is to be now.
   * @throws ProviderError invalid when there is none of this name; and as `changeContainer`
   */
  changeFiles(update: NonNullable<MachinePatch["files"]>[number]): FilesVolume {
    this.adopt(specWithFiles(this.#spec, update));
    return findFiles(this.#spec, update.volume);
  }

  /** These files are in place. */
  showFiles({ name, version }: FilesVolume): void {
    this.#record.machine.file_versions = withFileVersion(this.#record.machine.file_versions, { volume: name, version });
  }

  /** Begins to remember a container. */
  #addRecord(container: NamedContainer): void {
    this.#record.containers[container.spec.name] = newContainerRecord(container.kind);
    this.#record.machine.containers.push(newContainerState(container, this.#spec));
  }
}
