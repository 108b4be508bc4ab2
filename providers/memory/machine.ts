/**
 * One machine of the memory provider: the life of its containers, without any I/O. Every change is handed out as a new,
 * whole and immutable Machine.
 */
import {
  type Clock,
  containersOf,
  type FileVersion,
  graceMs,
  isOver,
  type Machine,
  type MachineNotice,
  type MachinePatch,
  type MachineSpec,
  type MachineState,
  outlivingCsiVolumes,
  withFileVersion,
} from "../../src/provider/kit/index.ts";
import { type ContainerContext, type ContainerHolder, MemoryContainer } from "./container.ts";
import type { Devices } from "./devices.ts";
import { MachineFiles, type Texts } from "./files.ts";

/** How long a machine stays in each state before it runs, in milliseconds. 0 skips the state. */
export interface Stages {
  pendingMs: number;
  creatingMs: number;
  startingMs: number;
}

interface MachineContext extends ContainerContext {
  clock: Clock;
  stages: Stages;
  /** What is on a volume that outlives the machine, by its id. */
  textsOf: (volume: string) => Texts;
  /** What its containers have, by name. */
  devices: Devices;
  /** Called with every new snapshot; the receiver adds its revision. */
  commit: (machine: MemoryMachine, snapshot: Omit<Machine, "revision">) => void;
}

const MAX_NOTICES = 20;

export class MemoryMachine implements ContainerHolder {
  readonly id: string;
  readonly spec: MachineSpec;
  readonly fingerprint: string;
  readonly files: MachineFiles;
  readonly context: MachineContext;
  readonly #containers: MemoryContainer[];
  readonly #createdAt: string;
  #state: MachineState = "pending";
  #reachability: Machine["reachability"] = "ok";
  #disruption: Machine["disruption"];
  #version = 0;
  #startedAt: string | undefined;
  #stoppedAt: string | undefined;
  #deletedAt: string | undefined;
  #sandboxReady = false;
  #isDeleting = false;
  #refusal: string | undefined;
  #held: string | undefined;
  #discarded = false;
  #notices: MachineNotice[] = [];
  #noticeSeq = 0;
  #fileVersions: FileVersion[] = [];
  #registryAuthVersion: string | undefined;
  /** Those that it may have until it is over. */
  readonly #csiVolumes: NonNullable<Machine["csi_volumes"]>;
  #resources: MachineSpec["resources"];
  #cancelStage: (() => void) | undefined;
  #cancelKill: (() => void) | undefined;
  #killAt = Infinity;
  /** Calls of `change` that are under way, one within another. */
  #depth = 0;

  constructor(id: string, spec: MachineSpec, fingerprint: string, context: MachineContext) {
    this.id = id;
    this.spec = spec;
    this.fingerprint = fingerprint;
    this.context = context;
    this.files = new MachineFiles(spec, context.textsOf);
    this.#createdAt = this.#now();
    this.#containers = containersOf(spec).map((container) => new MemoryContainer(this, container));
    this.#registryAuthVersion = spec.registry_auth_version;
    this.#csiVolumes = outlivingCsiVolumes(spec);
    this.#resources = spec.resources;
    for (const volume of spec.volumes ?? [])
      if (volume.type === "files") {
        this.#fileVersions.push({ volume: volume.name, version: volume.version });
        this.files.replace(volume.name, volume.files);
      }
  }

  /** With what patches have changed. */
  get currentSpec(): MachineSpec {
    const specs = (kind: MemoryContainer["kind"]) =>
      this.#containers.filter((container) => container.kind === kind).map(({ spec }) => spec);
    return {
      ...this.spec,
      containers: specs("main"),
      init_containers: specs("init"),
      ephemeral_containers: specs("ephemeral"),
    };
  }

  get isOver(): boolean {
    return isOver({ state: this.#state });
  }

  get isDeleting(): boolean {
    return this.#isDeleting;
  }

  container(name: string): MemoryContainer | undefined {
    return this.#containers.find((container) => container.name === name);
  }

  // ---- what clients ask for

  /** Goes through the stages and starts; with all stages 0 it runs when this returns. */
  start(): void {
    this.change(() => this.#enterStage(0));
  }

  /** It never runs: it cannot have what it asks for. */
  refuse(message: string): void {
    this.change(() => {
      this.#state = "failed";
      this.#refusal = message;
      this.#stoppedAt = this.#now();
    });
  }

  /** It is not begun: something that it needs is not there. */
  hold(message: string): void {
    this.change(() => void (this.#held = message));
  }

  /** A shorter grace than that of a stop under way shortens it. */
  stop(graceSeconds: number): void {
    if (this.isOver) return;
    this.change(() => {
      const { clock } = this.context;
      const killAt = clock.monotonic() + graceSeconds * 1000;
      const isFirst = !this.#isEnding;
      if (isFirst) {
        this.#state = this.#isDeleting ? "deleting" : "stopping";
        this.#abandonStart();
        for (const { name } of this.#running().filter(({ isSidecar }) => !isSidecar))
          this.notice("Normal", "Killing", `Stopping container ${name}`, name);
      }
      if (killAt < this.#killAt) {
        this.#killAt = killAt;
        this.#cancelKill?.();
        if (graceSeconds > 0)
          this.#cancelKill = clock.after(graceSeconds * 1000, () => this.change(() => this.#killAll()));
      }
      if (graceSeconds <= 0) this.#killAll();
      else if (isFirst) for (const container of this.#running()) if (!container.isSidecar) container.stop();
      this.#settle();
    });
  }

  delete(force: boolean): void {
    if (this.#state === "deleted") return;
    this.change(() => {
      this.#isDeleting = true;
      if (this.isOver) this.#bury();
      else if (force) this.stop(0);
      else {
        if (this.#state === "stopping") this.#state = "deleting";
        this.stop(graceMs(this.spec) / 1000);
      }
    });
  }

  update(patch: MachinePatch): void {
    this.change(() => {
      for (const { volume, version, files } of patch.files ?? []) {
        this.files.replace(volume, files);
        this.#fileVersions = withFileVersion(this.#fileVersions, { volume, version });
      }
      if (patch.registry_auth !== undefined) this.#registryAuthVersion = patch.registry_auth_version;
      for (const { name, image } of patch.containers ?? [])
        this.container(name)?.redefine({ image }, { restart: true });
      if (patch.machine_resources !== undefined) this.#resources = patch.machine_resources;
      for (const { container, resources, restart = false } of patch.resources ?? [])
        this.container(container)?.redefine({ resources }, { restart });
      for (const spec of patch.ephemeral_containers ?? []) {
        if (this.container(spec.name) !== undefined) continue;
        const container = new MemoryContainer(this, { spec, kind: "ephemeral" });
        this.#containers.push(container);
        if (this.#state === "running") container.start();
      }
    });
  }

  // ---- faults

  /** Everything ends without a word: the machine was lost. */
  discard(): void {
    this.#discarded = true;
    this.#abandonStart();
    this.#cancelKill?.();
    this.#killAll();
  }

  setDisruption(disruption: Machine["disruption"]): void {
    this.change(() => {
      this.#disruption = disruption;
    });
  }

  setReachability(reachability: Machine["reachability"]): void {
    this.change(() => {
      this.#reachability = reachability;
    });
  }

  // ---- what its containers need

  /** What is changed inside, clients see at once, as one change. */
  change(work: () => void): void {
    if (this.#discarded) return;
    this.#depth++;
    try {
      work();
    } finally {
      this.#depth--;
      if (this.#depth === 0) this.context.commit(this, this.#render());
    }
  }

  notice(type: MachineNotice["type"], reason: string, message: string, container: string): void {
    this.#notices = [
      ...this.#notices.slice(1 - MAX_NOTICES),
      { at: this.#now(), type, reason, message, container, seq: ++this.#noticeSeq },
    ];
  }

  ended(container: MemoryContainer, exitCode: number): void {
    if (!this.#isEnding && container.mayRestart(exitCode)) {
      container.restart();
      return;
    }
    container.finish();
    if (this.#isEnding) this.#settle();
    else if (container.kind === "init" && !container.isSidecar) {
      if (exitCode === 0) this.#startFrom(this.#containers.indexOf(container) + 1);
      else this.#finish();
    } else if (container.kind === "main" && this.#mains().every((main) => main.isOver)) this.#finish();
  }

  // ---- from the first stage to the last container's start

  #enterStage(index: number): void {
    const { stages, clock } = this.context;
    const plan = [
      { state: "pending", ms: stages.pendingMs },
      { state: "creating", ms: stages.creatingMs },
      { state: "starting", ms: stages.startingMs },
    ] as const;
    for (let at = index; at < plan.length; at++) {
      const { state, ms } = plan[at]!;
      if (ms <= 0) continue;
      this.#state = state;
      this.#cancelStage = clock.after(ms, () => this.change(() => this.#enterStage(at + 1)));
      return;
    }
    this.#sandboxReady = true;
    this.#state = "starting";
    this.#startFrom(0);
  }

  /** The init container of this index, or when there is none left, all others. */
  #startFrom(index: number): void {
    const container = this.#containers[index];
    if (container?.kind === "init") {
      if (container.start() && container.isSidecar) this.#startFrom(index + 1);
      return;
    }
    for (const other of this.#containers) {
      if (other.kind === "init" || !other.start() || this.#state !== "starting") continue;
      this.#state = "running";
      this.#startedAt = this.#now();
    }
  }

  #abandonStart(): void {
    this.#cancelStage?.();
    for (const container of this.#containers) container.abandonRestart();
  }

  // ---- the end

  get #isEnding(): boolean {
    return this.#state === "stopping" || this.#state === "deleting";
  }

  /** All main containers are over: sidecars end too, and then the machine. */
  #finish(): void {
    this.#state = "stopping";
    this.#abandonStart();
    for (const container of this.#running()) if (container.kind === "ephemeral") container.kill();
    this.#settle();
  }

  /** While stopping: once the others are over sidecars are told to end; once nothing runs, the machine is over. */
  #settle(): void {
    if (!this.#isEnding) return;
    const running = this.#running();
    if (running.some(({ isSidecar }) => !isSidecar)) return;
    for (const sidecar of running) sidecar.stop();
    if (this.#running().length > 0 || this.isOver) return;
    this.#cancelKill?.();
    this.#state = "stopped";
    this.#stoppedAt ??= this.#now();
    this.#sandboxReady = false;
    if (this.#isDeleting) this.#bury();
  }

  #bury(): void {
    this.#state = "deleted";
    this.#deletedAt = this.#now();
  }

  #killAll(): void {
    for (const container of this.#running()) container.kill();
  }

  #running(): MemoryContainer[] {
    return this.#containers.filter(({ isRunning }) => isRunning);
  }

  #mains(): MemoryContainer[] {
    return this.#containers.filter(({ kind }) => kind === "main");
  }

  #now(): string {
    return new Date(this.context.clock.now()).toISOString();
  }

  #render(): Omit<Machine, "revision"> {
    const { address } = this.context;
    return {
      id: this.id,
      version: ++this.#version,
      labels: this.spec.labels,
      state: this.#state,
      reachability: this.#reachability,
      sandbox_ready: this.#sandboxReady,
      created_at: this.#createdAt,
      ...(this.#startedAt === undefined ? {} : { started_at: this.#startedAt }),
      ...(this.#stoppedAt === undefined ? {} : { stopped_at: this.#stoppedAt }),
      ...(this.#deletedAt === undefined ? {} : { deleted_at: this.#deletedAt }),
      addresses: address === undefined || !this.#sandboxReady ? [] : [{ ip: address }],
      ...(this.#resources === undefined ? {} : { resources: this.#resources }),
      host: "memory",
      ...(this.#disruption === undefined ? {} : { disruption: this.#disruption }),
      ...(this.#refusal === undefined ? {} : { reason: "UnexpectedAdmissionError", message: this.#refusal }),
      ...(this.#held !== undefined && !this.isOver && { message: this.#held }),
      ...(this.#csiVolumes.length > 0 && !this.isOver && { csi_volumes: this.#csiVolumes }),
      containers: this.#containers.map((container) => {
        const devices = this.isOver ? [] : (this.context.devices.get(container.name) ?? []);
        return { ...container.render(), ...(devices.length > 0 && { devices: [...devices] }) };
      }),
      file_versions: this.#fileVersions,
      ...(this.#registryAuthVersion === undefined ? {} : { registry_auth_version: this.#registryAuthVersion }),
      notices: this.#notices,
    };
  }
}
