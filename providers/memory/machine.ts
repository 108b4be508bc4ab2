/**
 * One machine of the memory provider: the life of its containers, without any I/O. Every change is handed out as a new,
 * whole and immutable Machine.
 */
import { PassThrough } from "node:stream";
import {
  type Clock,
  type ContainerSpec,
  type ContainerState,
  type ContainerTermination,
  type FileVersion,
  isOver,
  type Machine,
  type MachineNotice,
  type MachinePatch,
  type MachineSpec,
  type MachineState,
  OutputLog,
  Prober,
  withFileVersion,
} from "../../src/provider/kit/index.ts";
import { RunningProgram, type Program, type Surroundings } from "./program.ts";
import { shellProgram } from "./shell.ts";

/** How long a machine stays in each state before it runs, in milliseconds. 0 skips the state. */
export interface Stages {
  pendingMs: number;
  creatingMs: number;
  startingMs: number;
}

/** What a container does: its program, or undefined to run until it is stopped. */
export type Behaviour = (
  container: ContainerSpec,
  context: { machineId: string; restarts: number },
) => Program | undefined;

/** Why an image cannot be pulled, or undefined when it can. */
export type ImagePolicy = (image: string) => { reason: string; message: string } | undefined;

interface MachineContext {
  clock: Clock;
  stages: Stages;
  behaviour: Behaviour;
  images: ImagePolicy;
  address: string | undefined;
  /** Called with every new snapshot; the receiver adds its revision. */
  commit: (machine: MemoryMachine, snapshot: Omit<Machine, "revision">) => void;
}

interface Instance {
  id: string;
  startedAt: string;
  log: OutputLog;
  run: RunningProgram;
  /** Made when a client attaches or the program reads. */
  stdin: PassThrough;
  /** Attached readers. */
  taps: Set<(stream: "stdout" | "stderr", bytes: Buffer) => Promise<void>>;
  exit: Promise<number>;
  surroundings: Surroundings;
  probers: Prober[];
}

interface Slot {
  spec: ContainerSpec;
  kind: ContainerState["kind"];
  sidecar: boolean;
  state: ContainerState["state"];
  /** What its readiness probe says; true without one. */
  ready: boolean;
  reason: string | undefined;
  message: string | undefined;
  restarts: number;
  current: Instance | undefined;
  previous: Instance | undefined;
  terminated: ContainerTermination | undefined;
  last: ContainerTermination | undefined;
  cancelRestart: (() => void) | undefined;
}

const MAX_NOTICES = 20;

export class MemoryMachine {
  readonly id: string;
  readonly spec: MachineSpec;
  readonly fingerprint: string;
  readonly #context: MachineContext;
  readonly #slots: Slot[];
  readonly #createdAt: string;
  #state: MachineState = "pending";
  #reachability: Machine["reachability"] = "ok";
  #version = 0;
  #startedAt: string | undefined;
  #stoppedAt: string | undefined;
  #deletedAt: string | undefined;
  #sandboxReady = false;
  #isDeleting = false;
  #discarded = false;
  #notices: MachineNotice[] = [];
  #noticeSeq = 0;
  #fileVersions: FileVersion[] = [];
  #registryAuthVersion: string | undefined;
  /** What programs have written, by volume or container and path. */
  readonly #files = new Map<string, string>();
  #cancelStage: (() => void) | undefined;
  #cancelKill: (() => void) | undefined;
  #killAt = Infinity;
  #depth = 0;
  #dirty = false;

  constructor(id: string, spec: MachineSpec, fingerprint: string, context: MachineContext) {
    this.id = id;
    this.spec = spec;
    this.fingerprint = fingerprint;
    this.#context = context;
    this.#createdAt = this.#now();
    this.#slots = [
      ...(spec.init_containers ?? []).map((container) => newSlot(container, "init")),
      ...spec.containers.map((container) => newSlot(container, "main")),
      ...(spec.ephemeral_containers ?? []).map((container) => newSlot(container, "ephemeral")),
    ];
    this.#registryAuthVersion = spec.registry_auth_version;
    for (const volume of spec.volumes ?? [])
      if (volume.type === "files") this.#fileVersions.push({ volume: volume.name, version: volume.version });
  }

  /** With what patches have changed. */
  get currentSpec(): MachineSpec {
    const specs = (kind: Slot["kind"]) => this.#slots.filter((slot) => slot.kind === kind).map(({ spec }) => spec);
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

  /** Goes through the stages and starts; with all stages 0 it runs when this returns. */
  start(): void {
    this.#change(() => this.#enterStage(0));
  }

  /** A shorter grace than that of a stop under way shortens it. */
  stop(graceSeconds: number): void {
    this.#change(() => {
      if (this.isOver) return;
      const { clock } = this.#context;
      const killAt = clock.monotonic() + graceSeconds * 1000;
      const isFirst = this.#state !== "stopping" && this.#state !== "deleting";
      if (isFirst) {
        this.#state = this.#isDeleting ? "deleting" : "stopping";
        this.#abandonStart();
        for (const slot of this.#slots) {
          if (slot.current !== undefined && slot.state === "running" && !slot.sidecar) {
            this.#notice("Normal", "Killing", `Stopping container ${slot.spec.name}`, slot.spec.name);
          }
        }
      }
      if (killAt < this.#killAt) {
        this.#killAt = killAt;
        this.#cancelKill?.();
        if (graceSeconds > 0)
          this.#cancelKill = clock.after(graceSeconds * 1000, () => this.#change(() => this.#killAll()));
      }
      if (graceSeconds <= 0) this.#killAll();
      else if (isFirst) for (const slot of this.#running()) if (!slot.sidecar) slot.current?.run.stop();
      this.#settle();
    });
  }

  delete(force: boolean): void {
    this.#change(() => {
      if (this.#state === "deleted") return;
      this.#isDeleting = true;
      if (this.isOver) this.#bury();
      else if (force) this.stop(0);
      else {
        if (this.#state === "stopping") this.#state = "deleting";
        this.stop(this.spec.termination_grace_s ?? 30);
      }
    });
  }

  /** Everything ends without a word: the machine was lost. */
  discard(): void {
    this.#discarded = true;
    this.#abandonStart();
    this.#cancelKill?.();
    for (const slot of this.#running()) slot.current?.run.kill();
  }

  update(patch: MachinePatch): void {
    this.#change(() => {
      for (const { volume, version } of patch.files ?? [])
        this.#fileVersions = withFileVersion(this.#fileVersions, { volume, version });
      if (patch.registry_auth !== undefined) this.#registryAuthVersion = patch.registry_auth_version;
      for (const { name, image } of patch.containers ?? []) {
        const slot = this.slot(name);
        if (slot === undefined) continue;
        slot.spec = { ...slot.spec, image };
        // As kubelet does: the old instance ends and a new one, of the new image, takes its place.
        if (slot.state === "running") slot.current?.run.kill();
      }
      for (const { container, resources, restart } of patch.resources ?? []) {
        const slot = this.slot(container);
        if (slot === undefined) continue;
        slot.spec = { ...slot.spec, resources };
        if (restart && slot.state === "running") slot.current?.run.kill();
      }
      for (const container of patch.ephemeral_containers ?? []) {
        if (this.slot(container.name) !== undefined) continue;
        const slot = newSlot(container, "ephemeral");
        this.#slots.push(slot);
        if (this.#state === "running") this.#run(slot);
      }
      this.#dirty = true;
    });
  }

  setReachability(reachability: Machine["reachability"]): void {
    this.#change(() => {
      this.#reachability = reachability;
      this.#dirty = true;
    });
  }

  /** Ends a running container from outside, as the kernel or a fault would. */
  endContainer(name: string, end: { exitCode: number; reason?: string; oomKilled?: boolean }): void {
    const slot = this.slot(name);
    if (slot?.current === undefined || slot.state !== "running") return;
    this.#ends.set(slot.current, end);
    slot.current.run.exit(end.exitCode);
  }
  readonly #ends = new Map<Instance, { exitCode: number; reason?: string; oomKilled?: boolean }>();

  slot(name: string): Slot | undefined {
    return this.#slots.find((slot) => slot.spec.name === name);
  }

  /** Whose log is the current one, and whose the previous, by kubelet's rules. */
  logOf(name: string, previous: boolean): { container: boolean; log: OutputLog | undefined } {
    const slot = this.slot(name);
    if (slot === undefined) return { container: false, log: undefined };
    const ended = slot.state === "waiting" ? slot.current : slot.previous;
    return { container: true, log: (previous ? ended : slot.current)?.log };
  }

  runningInstance(name: string): Instance | undefined {
    const slot = this.slot(name);
    return slot?.state === "running" ? slot.current : undefined;
  }

  /** Changes made inside come out as one snapshot. */
  #change(work: () => void): void {
    if (this.#discarded) return;
    this.#depth++;
    try {
      work();
    } finally {
      this.#depth--;
      if (this.#depth === 0 && this.#dirty) {
        this.#dirty = false;
        this.#context.commit(this, this.#render());
      }
    }
  }

  #enterStage(index: number): void {
    const { stages, clock } = this.#context;
    const plan = [
      { state: "pending", ms: stages.pendingMs },
      { state: "creating", ms: stages.creatingMs },
      { state: "starting", ms: stages.startingMs },
    ] as const;
    for (let at = index; at < plan.length; at++) {
      const { state, ms } = plan[at]!;
      if (ms <= 0) continue;
      this.#state = state;
      this.#dirty = true;
      this.#cancelStage = clock.after(ms, () => this.#change(() => this.#enterStage(at + 1)));
      return;
    }
    this.#sandboxReady = true;
    this.#state = "starting";
    this.#dirty = true;
    this.#startInit(0);
  }

  #startInit(index: number): void {
    const slot = this.#slots[index];
    if (slot?.kind === "init") {
      if (!this.#run(slot)) return;
      if (slot.sidecar) this.#startInit(index + 1);
      return;
    }
    for (const main of this.#slots) {
      if (main.kind !== "init" && this.#run(main) && this.#state === "starting") {
        this.#state = "running";
        this.#startedAt = this.#now();
      }
    }
  }

  /** @returns false when the container could not be started. */
  #run(slot: Slot): boolean {
    this.#dirty = true;
    const refusal = this.#context.images(slot.spec.image);
    if (refusal !== undefined) {
      slot.state = "waiting";
      slot.reason = refusal.reason;
      slot.message = refusal.message;
      this.#notice("Warning", "Failed", refusal.message, slot.spec.name);
      return false;
    }
    slot.previous = slot.current ?? slot.previous;
    slot.state = "running";
    slot.reason = undefined;
    slot.message = undefined;
    slot.terminated = undefined;
    if (slot.spec.termination_message !== undefined)
      this.#files.delete(fileKey(slot.spec, slot.spec.termination_message.path));
    slot.ready = runnable(slot.spec.probes?.readiness?.exec?.command) === undefined;
    slot.current = this.#newInstance(slot);
    this.#notice("Normal", "Started", "Container started", slot.spec.name);
    this.#postStart(slot, slot.current);
    this.#probe(slot, slot.current);
    return true;
  }

  /** A hook that fails ends the container. */
  #postStart(slot: Slot, instance: Instance): void {
    const run = this.#runner(slot.spec, slot.spec.hooks?.post_start?.exec?.command);
    void run?.().then((exitCode) => {
      if (exitCode !== 0) instance.run.kill();
    });
  }

  /** Probes by command are run; those of other kinds, and of commands that are not known, succeed. */
  #probe(slot: Slot, instance: Instance): void {
    const { clock } = this.#context;
    for (const kind of ["readiness", "liveness"] as const) {
      const probe = slot.spec.probes?.[kind];
      const run = this.#runner(slot.spec, probe?.exec?.command);
      if (probe === undefined || run === undefined || slot.state !== "running") continue;
      const attempt = async () => ({
        outcome: (await run()) === 0 ? ("success" as const) : ("failure" as const),
        output: "",
      });
      const prober = new Prober(kind, probe, clock, attempt, {
        verdict: (_, healthy) =>
          this.#change(() => {
            if (kind === "readiness") slot.ready = healthy;
            else if (!healthy) instance.run.kill();
            this.#dirty = true;
          }),
        complaint: (reason, message) =>
          this.#change(() => {
            this.#notice("Warning", reason, message, slot.spec.name);
            this.#dirty = true;
          }),
      });
      instance.probers.push(prober);
      prober.start(Date.parse(instance.startedAt));
    }
  }

  /** Runs a command beside the container's own and tells its exit code; undefined for one that is not known. */
  #runner(spec: ContainerSpec, command: readonly string[] | undefined): (() => Promise<number>) | undefined {
    const program = runnable(command);
    if (program === undefined) return undefined;
    const { clock } = this.#context;
    const streams = { stdin: PassThrough.from([]), write: () => Promise.resolve() };
    const surroundings = this.#surroundingsOf(spec);
    return () =>
      new Promise((resolve) => {
        new RunningProgram(program, { argv: command ?? [], env: {}, clock, surroundings, streams }, resolve);
      });
  }

  /** What programs of the container find around them. */
  #surroundingsOf(spec: ContainerSpec): Surroundings {
    return {
      folder: spec.working_dir ?? "/",
      user: spec.security?.user ?? 0,
      hostname: this.spec.hostname ?? "memory",
      readFile: (path) => this.#files.get(fileKey(spec, path)),
      writeFile: (path, text) => void this.#files.set(fileKey(spec, path), text),
    };
  }

  #newInstance(slot: Slot): Instance {
    const { clock, behaviour } = this.#context;
    const spec = this.#withAddresses(slot.spec);
    const log = new OutputLog(clock);
    const taps: Instance["taps"] = new Set();
    const exit = Promise.withResolvers<number>();
    let stdin: PassThrough | undefined;
    const input = () => {
      stdin ??= new PassThrough();
      return stdin;
    };
    const instance: Instance = {
      id: `${this.id}/${spec.name}/${slot.restarts}`,
      startedAt: this.#now(),
      log,
      get stdin() {
        return input();
      },
      taps,
      exit: exit.promise,
      surroundings: this.#surroundingsOf(spec),
      probers: [],
      run: undefined as unknown as RunningProgram,
    };
    instance.run = new RunningProgram(
      behaviour(spec, { machineId: this.id, restarts: slot.restarts }),
      {
        argv: [...(spec.command ?? []), ...(spec.args ?? [])],
        env: Object.fromEntries((spec.env ?? []).map(({ name, value }) => [name, value])),
        clock,
        surroundings: instance.surroundings,
        streams: {
          stdin: {
            [Symbol.asyncIterator]: () =>
              (spec.stdin === true ? input() : PassThrough.from([]))[Symbol.asyncIterator]() as AsyncIterator<Buffer>,
          },
          write: async (stream, bytes) => {
            log.append(stream, bytes);
            if (taps.size > 0) await Promise.all([...taps].map((tap) => tap(stream, bytes)));
          },
        },
      },
      (exitCode, isOutOfMemory) => {
        if (isOutOfMemory) this.#ends.set(instance, { exitCode, oomKilled: true });
        log.end();
        for (const prober of instance.probers) prober.stop();
        this.#change(() => this.#exited(slot, instance, exitCode));
        exit.resolve(exitCode);
      },
    );
    return instance;
  }

  #withAddresses(spec: ContainerSpec): ContainerSpec {
    const tokens = this.spec.address_tokens;
    const address = this.#context.address;
    if (tokens === undefined || address === undefined) return spec;
    const replace = (text: string) => text.replaceAll(tokens.pod_ips, address).replaceAll(tokens.pod_ip, address);
    return {
      ...spec,
      ...(spec.command === undefined ? {} : { command: spec.command.map(replace) }),
      ...(spec.args === undefined ? {} : { args: spec.args.map(replace) }),
      ...(spec.env === undefined ? {} : { env: spec.env.map(({ name, value }) => ({ name, value: replace(value) })) }),
    };
  }

  #exited(slot: Slot, instance: Instance, exitCode: number): void {
    if (slot.current !== instance) return;
    this.#dirty = true;
    const end = this.#ends.get(instance);
    this.#ends.delete(instance);
    const isStopping = this.#state === "stopping" || this.#state === "deleting";
    const messagePath = slot.spec.termination_message?.path;
    const message = messagePath && this.#files.get(fileKey(slot.spec, messagePath));
    slot.terminated = {
      exit_code: exitCode,
      reason: end?.reason ?? (end?.oomKilled === true ? "OOMKilled" : exitCode === 0 ? "Completed" : "Error"),
      ...(end?.oomKilled === true ? { oom_killed: true } : {}),
      ...(message ? { message } : {}),
      started_at: instance.startedAt,
      finished_at: this.#now(),
      id: instance.id,
    };
    if (!isStopping && this.#shouldRestart(slot, exitCode)) {
      this.#scheduleRestart(slot);
      return;
    }
    slot.state = "terminated";
    if (isStopping) this.#settle();
    else if (slot.kind === "init" && !slot.sidecar) {
      if (exitCode === 0) this.#startInit(this.#slots.indexOf(slot) + 1);
      else this.#finish();
    } else if (
      slot.kind === "main" &&
      this.#slots.every((other) => other.kind !== "main" || other.state === "terminated")
    ) {
      this.#finish();
    }
  }

  #shouldRestart(slot: Slot, exitCode: number): boolean {
    if (slot.kind === "ephemeral") return false;
    if (slot.sidecar) return true;
    const policy = slot.spec.restart_policy ?? this.spec.restart_policy;
    const rule = slot.spec.restart_rules?.find(
      ({ exit_codes: { operator, values } }) => values.includes(exitCode) === (operator === "in"),
    );
    if (rule !== undefined) return true;
    if (slot.kind === "init" && exitCode === 0) return false;
    return policy === "always" || (policy === "on_failure" && exitCode !== 0);
  }

  /** Kubelet's order: the first restart at once, then `initial`, doubled each time. */
  #scheduleRestart(slot: Slot): void {
    const { initial_ms, max_ms } = this.spec.backoff ?? { initial_ms: 10_000, max_ms: 300_000 };
    const delayMs = slot.restarts === 0 ? 0 : Math.min(initial_ms * 2 ** (slot.restarts - 1), max_ms);
    slot.state = "waiting";
    slot.last = slot.terminated;
    slot.terminated = undefined;
    slot.reason = "CrashLoopBackOff";
    slot.message = `back-off ${delayMs / 1000}s restarting failed container=${slot.spec.name}`;
    if (delayMs > 0)
      this.#notice("Warning", "BackOff", `Back-off restarting failed container ${slot.spec.name}`, slot.spec.name);
    slot.cancelRestart = this.#context.clock.after(delayMs, () =>
      this.#change(() => {
        slot.cancelRestart = undefined;
        slot.restarts++;
        this.#run(slot);
      }),
    );
  }

  /** All main containers are over: sidecars end too, and then the machine. */
  #finish(): void {
    this.#state = "stopping";
    this.#abandonStart();
    this.#settle();
  }

  /** While stopping: once the others are over sidecars are told to end; once nothing runs, the machine is over. */
  #settle(): void {
    if (this.#state !== "stopping" && this.#state !== "deleting") return;
    this.#dirty = true;
    const running = this.#running();
    if (running.some((slot) => !slot.sidecar)) return;
    for (const slot of running) {
      slot.current?.run.stop();
    }
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
    this.#dirty = true;
  }

  #killAll(): void {
    for (const slot of this.#running()) slot.current?.run.kill();
  }

  #running(): Slot[] {
    return this.#slots.filter((slot) => slot.state === "running");
  }

  #abandonStart(): void {
    this.#cancelStage?.();
    for (const slot of this.#slots) {
      slot.cancelRestart?.();
      slot.cancelRestart = undefined;
      if (slot.state === "waiting" && slot.last !== undefined) {
        slot.state = "terminated";
        slot.terminated = slot.last;
      }
    }
  }

  #notice(type: MachineNotice["type"], reason: string, message: string, container: string): void {
    this.#notices = [
      ...this.#notices.slice(1 - MAX_NOTICES),
      { at: this.#now(), type, reason, message, container, seq: ++this.#noticeSeq },
    ];
  }

  #now(): string {
    return new Date(this.#context.clock.now()).toISOString();
  }

  #render(): Omit<Machine, "revision"> {
    const { address } = this.#context;
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
      host: "memory",
      containers: this.#slots.map((slot) => renderContainer(slot)),
      file_versions: this.#fileVersions,
      ...(this.#registryAuthVersion === undefined ? {} : { registry_auth_version: this.#registryAuthVersion }),
      notices: this.#notices,
    };
  }
}

function runnable(command: readonly string[] | undefined): Program | undefined {
  return command === undefined ? undefined : shellProgram(command);
}

/** Files below a mount are the volume's, others the container's own. */
function fileKey({ name, mounts = [] }: ContainerSpec, path: string): string {
  const mount = mounts.find((candidate) => path.startsWith(`${candidate.path}/`));
  return mount === undefined ? `container ${name} ${path}` : `volume ${mount.volume} ${path.slice(mount.path.length)}`;
}

function newSlot(spec: ContainerSpec, kind: ContainerState["kind"]): Slot {
  return {
    spec,
    kind,
    sidecar: kind === "init" && spec.restart_policy === "always",
    state: "waiting",
    ready: true,
    reason: kind === "main" ? "ContainerCreating" : "PodInitializing",
    message: undefined,
    restarts: 0,
    current: undefined,
    previous: undefined,
    terminated: undefined,
    last: undefined,
    cancelRestart: undefined,
  };
}

function renderContainer(slot: Slot): ContainerState {
  const { spec, state, current, terminated, last, reason, message } = slot;
  const isRunning = state === "running";
  return {
    name: spec.name,
    kind: slot.kind,
    state,
    ...(state === "waiting" && reason !== undefined ? { reason } : {}),
    ...(state === "waiting" && message !== undefined ? { message } : {}),
    ready: (isRunning && slot.ready) || (slot.kind === "init" && !slot.sidecar && terminated?.exit_code === 0),
    started: isRunning,
    restart_count: slot.restarts,
    image: spec.image,
    image_id: `memory://${spec.image}`,
    ...(current === undefined ? {} : { id: current.id }),
    ...(isRunning && current !== undefined ? { started_at: current.startedAt } : {}),
    ...(state === "terminated" && terminated !== undefined ? { terminated } : {}),
    ...(last === undefined ? {} : { last }),
    ...(spec.resources === undefined ? {} : { resources: spec.resources }),
  };
}
