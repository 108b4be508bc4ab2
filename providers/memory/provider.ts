/**
 * A provider whose machines are objects of this process: for tests, demos and scale. It keeps every rule of the
 * contract, runs a little sh (shell.ts), and can be told to be slow, to fail, to lose replies and to lose machines
 * (faults.ts).
 */
import { PassThrough, type Duplex } from "node:stream";
import {
  assertCapable,
  assertTellable,
  type CallOptions,
  type Capability,
  type Clock,
  CONTAINER_CAPABILITIES,
  goArchitecture,
  isSubset,
  linkAbort,
  type LogLine,
  type LogOptions,
  type Machine,
  type MachineEvent,
  MachineEvents,
  type MachineList,
  type MachinePatch,
  type MachineSpec,
  type MachineStats,
  noSuchContainer,
  noSuchMachine,
  patchCapabilities,
  patchExcess,
  type ProcessStreams,
  type Provider,
  type ProviderCapacity,
  ProviderError,
  type ProviderInfo,
  requiredCapabilities,
  specFingerprint,
  type StreamOptions,
  SUPERVISION_CAPABILITIES,
  systemClock,
  tombstoneOf,
  unseenMachine,
} from "../../src/provider/kit/index.ts";
import { underFault, type Fault, type FaultPlan, type Operation } from "./faults.ts";
import { MemoryMachine, type Behaviour, type ImagePolicy, type Stages } from "./machine.ts";
import { RunningProgram } from "./program.ts";
import { shellProgram } from "./shell.ts";

export const MEMORY_CAPABILITIES: readonly Capability[] = [
  ...SUPERVISION_CAPABILITIES,
  ...CONTAINER_CAPABILITIES,
  "share_process_namespace",
];

export interface MemoryProviderOptions {
  name?: string | undefined;
  clock?: Clock | undefined;
  capabilities?: readonly Capability[] | undefined;
  /** What it says that its machines are (GOARCH). Default: this host's. */
  architecture?: string | undefined;
  /** Time in each state before a machine runs. Default: none, it runs when createPod returns. */
  stages?: Partial<Stages> | undefined;
  /** Default: what its command says, as far as shell.ts knows it; any other command runs until it is stopped. */
  behaviour?: Behaviour | undefined;
  /** Default: images of a registry in `.invalid` cannot be pulled. */
  images?: ImagePolicy | undefined;
  faults?: FaultPlan | undefined;
  /** getPods hides machines that are younger than this: a backend that breaks "read your writes". */
  listLagMs?: number | undefined;
  /** Events that are remembered; a watch from before them is `gone`. Default 10,000. */
  historyLimit?: number | undefined;
  /** Default one hour. */
  tombstoneMs?: number | undefined;
  capacity?: ProviderCapacity | undefined;
  /** More machines than this are refused with `quota`. */
  maxMachines?: number | undefined;
}

const DEFAULT_CAPACITY: ProviderCapacity = {
  allocatable: { cpu_millis: 1_000_000, memory_bytes: 4 * 2 ** 40, ephemeral_bytes: 16 * 2 ** 40, pods: 10_000 },
};

interface Tombstone {
  machine: Machine;
  expiresAt: number;
}

export class MemoryProvider implements Provider {
  readonly name: string;
  readonly #clock: Clock;
  readonly #capabilities: readonly Capability[];
  readonly #options: MemoryProviderOptions;
  readonly #machines = new Map<string, { machine: MemoryMachine; snapshot: Machine }>();
  readonly #tombstones = new Map<string, Tombstone>();
  readonly #events: MachineEvents;
  readonly #closed = new AbortController();
  #addresses = 0;

  constructor(options: MemoryProviderOptions = {}) {
    this.name = options.name ?? "memory";
    this.#clock = options.clock ?? systemClock;
    this.#capabilities = options.capabilities ?? MEMORY_CAPABILITIES;
    this.#options = options;
    this.#events = new MachineEvents({ limit: options.historyLimit ?? 10_000 });
  }

  getInfo({ signal }: CallOptions): Promise<ProviderInfo> {
    return this.#call("getInfo", undefined, signal, () => ({
      name: this.name,
      version: "1",
      capabilities: this.#capabilities,
      os: "linux",
      architecture: this.#options.architecture ?? goArchitecture(process.arch),
    }));
  }

  createPod(id: string, spec: MachineSpec, { signal }: CallOptions): Promise<Machine> {
    return this.#call("createPod", id, signal, () => this.#create(id, spec));
  }

  getPod(id: string, { signal }: CallOptions): Promise<Machine> {
    return this.#call("getPod", id, signal, () => this.#find(id));
  }

  getPods(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined },
  ): Promise<MachineList> {
    return this.#call("getPods", undefined, options.signal, () => {
      const visibleUntil = this.#clock.now() - (this.#options.listLagMs ?? 0);
      const items: Machine[] = [];
      for (const { snapshot } of this.#machines.values()) {
        const isVisible = this.#options.listLagMs === undefined || Date.parse(snapshot.created_at) <= visibleUntil;
        if (isVisible && isSubset(options.labels, snapshot.labels)) items.push(snapshot);
      }
      if (options.includeDeleted === true) {
        this.#dropOldTombstones();
        for (const { machine } of this.#tombstones.values())
          if (isSubset(options.labels, machine.labels)) items.push(machine);
      }
      return { items, revision: this.#events.revision };
    });
  }

  stopPod(id: string, { signal, graceSeconds }: CallOptions & { graceSeconds: number }): Promise<Machine> {
    return this.#call("stopPod", id, signal, () => {
      const found = this.#machines.get(id);
      found?.machine.stop(graceSeconds);
      return this.#find(id);
    });
  }

  deletePod(id: string, { signal, force }: CallOptions & { force: boolean }): Promise<void> {
    return this.#call("deletePod", id, signal, () => {
      const found = this.#machines.get(id);
      if (found !== undefined) found.machine.delete(force);
      else if (!this.#tombstones.has(id)) this.#buryUnknown(id);
    });
  }

  async *getLogs(id: string, container: string, options: LogOptions): AsyncGenerator<LogLine> {
    const log = await this.#call("getLogs", id, options.signal, () => {
      const machine = this.#machineOf(id);
      const found = machine.logOf(container, options.previous === true);
      if (!found.container) throw noSuchContainer(id, container);
      if (found.log === undefined && options.previous === true) {
        throw new ProviderError("not_found", `container ${container} of machine ${id} has no previous instance`, {
          field: "previous",
        });
      }
      return found.log;
    });
    if (log !== undefined) yield* log.read(options);
  }

  updatePod(id: string, patch: MachinePatch, { signal }: CallOptions): Promise<Machine> {
    return this.#call("updatePod", id, signal, () => {
      assertCapable(patchCapabilities(patch), this.#capabilities);
      assertTellable(patchExcess(this.#machineOf(id).currentSpec, patch));
      this.#machineOf(id).update(patch);
      return this.#find(id);
    });
  }

  async *watchPods(
    since: number,
    { signal, labels }: CallOptions & { labels: Record<string, string> },
  ): AsyncGenerator<MachineEvent> {
    this.#assertCapable("events");
    await this.#call("watchPods", undefined, signal, () => {});
    using watched = linkAbort(signal, this.#closed.signal);
    for await (const event of this.#events.watch(since, watched.signal))
      if (isSubset(labels, event.machine.labels)) yield event;
  }

  getCapacity({ signal }: CallOptions): Promise<ProviderCapacity> {
    return this.#call("getCapacity", undefined, signal, () => {
      this.#assertCapable("capacity");
      return this.#options.capacity ?? DEFAULT_CAPACITY;
    });
  }

  getStats({ signal, labels }: CallOptions & { labels: Record<string, string> }): Promise<MachineStats[]> {
    return this.#call("getStats", undefined, signal, () => {
      this.#assertCapable("stats");
      const now = this.#clock.now();
      const stats: MachineStats[] = [];
      for (const { snapshot } of this.#machines.values()) {
        if (snapshot.state !== "running" || !isSubset(labels, snapshot.labels)) continue;
        stats.push(sample(snapshot, now));
      }
      return stats;
    });
  }

  exec(id: string, container: string, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    return this.#call("exec", id, options.signal, () => {
      this.#assertCapable("exec");
      const instance = this.#instanceOf(id, container);
      const stdin = new PassThrough();
      const outputs = openOutputs(options);
      const exit = Promise.withResolvers<{ exitCode: number }>();
      const program =
        shellProgram(command) ??
        (async (io) => {
          await io.write("stderr", Buffer.from(`exec: ${command[0] ?? ""}: not found\n`));
          return 127;
        });
      if (!options.stdin) stdin.end();
      const run = new RunningProgram(
        program,
        {
          argv: command,
          env: {},
          clock: this.#clock,
          surroundings: instance.surroundings,
          streams: { stdin: stdin as AsyncIterable<Buffer>, write: outputs.write },
        },
        (exitCode) => {
          outputs.end();
          exit.resolve({ exitCode });
        },
      );
      const close = () => {
        run.kill();
        outputs.end();
      };
      void instance.exit.then(close);
      options.signal.addEventListener("abort", close, { once: true });
      return {
        stdin: options.stdin ? stdin : null,
        stdout: outputs.stdout,
        stderr: outputs.stderr,
        resize: (columns, rows) => run.resize(columns, rows),
        exit: exit.promise,
        close,
      };
    });
  }

  attach(id: string, container: string, options: StreamOptions): Promise<ProcessStreams> {
    return this.#call("attach", id, options.signal, () => {
      this.#assertCapable("attach");
      const instance = this.#instanceOf(id, container);
      const outputs = openOutputs(options);
      instance.taps.add(outputs.write);
      const close = () => {
        instance.taps.delete(outputs.write);
        outputs.end();
      };
      options.signal.addEventListener("abort", close, { once: true });
      return {
        stdin: options.stdin ? instance.stdin : null,
        stdout: outputs.stdout,
        stderr: outputs.stderr,
        resize: (columns, rows) => instance.run.resize(columns, rows),
        exit: instance.exit.then((exitCode) => {
          close();
          return { exitCode };
        }),
        close,
      };
    });
  }

  /** Ports that the spec declares echo what they get; the others refuse. */
  portForward(id: string, port: number, { signal }: CallOptions): Promise<Duplex> {
    return this.#call("portForward", id, signal, () => {
      this.#assertCapable("port_forward");
      const { spec } = this.#machineOf(id);
      if (!spec.containers.some((container) => container.ports?.some((declared) => declared.port === port))) {
        throw new ProviderError("conflict", `nothing listens on port ${port} of machine ${id}`);
      }
      const echo = new PassThrough();
      signal.addEventListener("abort", () => echo.destroy(), { once: true });
      return echo;
    });
  }

  /** Its machines are this process's own: they end with it. */
  async close(): Promise<void> {
    this.#closed.abort(new Error("the provider is closed"));
    for (const { machine } of this.#machines.values()) machine.discard();
    this.#machines.clear();
  }

  // ---- for tests and demos

  /** The machine is gone without a trace, as if its host had burnt. */
  vanish(id: string): void {
    this.#machines.get(id)?.machine.discard();
    this.#machines.delete(id);
  }

  setReachability(id: string, reachability: Machine["reachability"]): void {
    this.#machines.get(id)?.machine.setReachability(reachability);
  }

  /** Ends a running container, as the kernel or an operator would. */
  endContainer(id: string, container: string, end: { exitCode: number; reason?: string; oomKilled?: boolean }): void {
    this.#machines.get(id)?.machine.endContainer(container, end);
  }

  /** What is there now, tombstones left out. */
  get machines(): readonly Machine[] {
    return [...this.#machines.values()].map(({ snapshot }) => snapshot);
  }

  /** A machine that no pod asked for: the leftover of another agent. */
  insert(id: string, spec: MachineSpec): Machine {
    return this.#create(id, spec);
  }

  // ---- inside

  #call<T>(operation: Operation, id: string | undefined, signal: AbortSignal, effect: () => T): Promise<T> {
    const fault: Fault | undefined = this.#options.faults?.(operation, id);
    if (fault !== undefined) return underFault(fault, effect, this.#clock, signal);
    // Not async: one promise per call is what makes this fast.
    return new Promise((resolve) => {
      if (signal.aborted) throw new ProviderError("unavailable", "the call was aborted", { cause: signal.reason });
      // Its machines went with it, but that they are absent is nothing that it may say.
      if (this.#closed.signal.aborted) throw new ProviderError("unavailable", "the provider is closed");
      resolve(effect());
    });
  }

  #create(id: string, spec: MachineSpec): Machine {
    const existing = this.#machines.get(id);
    this.#dropOldTombstones();
    if (this.#tombstones.has(id) || existing?.machine.isDeleting === true)
      throw new ProviderError("gone", `machine ${id} was deleted`);
    const fingerprint = specFingerprint(spec);
    if (existing !== undefined) {
      if (existing.machine.fingerprint === fingerprint) return existing.snapshot;
      throw new ProviderError("conflict", `machine ${id} exists with another specification`);
    }
    assertCapable(requiredCapabilities(spec), this.#capabilities);
    if (this.#machines.size >= (this.#options.maxMachines ?? Infinity)) {
      throw new ProviderError("quota", `there are ${this.#machines.size} machines, which is all there may be`, {
        retryAfterMs: 5000,
      });
    }
    const machine = new MemoryMachine(id, structuredClone(spec), fingerprint, {
      clock: this.#clock,
      stages: { pendingMs: 0, creatingMs: 0, startingMs: 0, ...this.#options.stages },
      behaviour: this.#options.behaviour ?? defaultBehaviour,
      images: this.#options.images ?? defaultImages,
      address: this.#capabilities.includes("pod_ip") ? addressOf(++this.#addresses) : undefined,
      commit: (changed, snapshot) => this.#commit(changed, snapshot),
    });
    machine.start();
    return this.#find(id);
  }

  #commit(machine: MemoryMachine, partial: Omit<Machine, "revision">): void {
    const snapshot: Machine = { ...partial, revision: this.#events.revision + 1 };
    if (snapshot.state === "deleted") {
      this.#machines.delete(machine.id);
      this.#addTombstone(snapshot);
    } else this.#machines.set(machine.id, { machine, snapshot });
    this.#events.publish(snapshot);
  }

  #buryUnknown(id: string): void {
    const now = this.#clock.now();
    const machine = { ...tombstoneOf(unseenMachine(id, now), now), version: 1, revision: this.#events.revision + 1 };
    this.#addTombstone(machine);
    this.#events.publish(machine);
  }

  #addTombstone(machine: Machine): void {
    this.#tombstones.set(machine.id, {
      machine,
      expiresAt: this.#clock.monotonic() + (this.#options.tombstoneMs ?? 3_600_000),
    });
  }

  /** They expire in the order in which they were made. */
  #dropOldTombstones(): void {
    const now = this.#clock.monotonic();
    for (const [id, { expiresAt }] of this.#tombstones) {
      if (expiresAt > now) return;
      this.#tombstones.delete(id);
    }
  }

  #find(id: string): Machine {
    this.#dropOldTombstones();
    const machine = this.#machines.get(id)?.snapshot ?? this.#tombstones.get(id)?.machine;
    if (machine === undefined) throw noSuchMachine(id);
    return machine;
  }

  #machineOf(id: string): MemoryMachine {
    const found = this.#machines.get(id);
    if (found === undefined) throw noSuchMachine(id);
    return found.machine;
  }

  #instanceOf(id: string, container: string) {
    const machine = this.#machineOf(id);
    if (machine.slot(container) === undefined) throw noSuchContainer(id, container);
    const instance = machine.runningInstance(container);
    if (instance === undefined)
      throw new ProviderError("conflict", `container ${container} of machine ${id} is not running`);
    return instance;
  }

  #assertCapable(capability: Capability): void {
    if (!this.#capabilities.includes(capability))
      throw new ProviderError("unsupported", `this provider lacks the capability ${capability}`);
  }
}

const defaultBehaviour: Behaviour = ({ command, args }) => shellProgram([...(command ?? []), ...(args ?? [])]);

const defaultImages: ImagePolicy = (image) => {
  const registry = image.split("/")[0]!.split(":")[0]!;
  if (!registry.endsWith(".invalid")) return undefined;
  return { reason: "ImagePullBackOff", message: `Back-off pulling image "${image}"` };
};

/** 10.64.0.1 and up. */
function addressOf(count: number): string {
  return `10.${64 + ((count >> 16) & 63)}.${(count >> 8) & 255}.${count & 255}`;
}

/** A hundredth of a core and 16 MiB per container: a node that is not idle, and figures that a test can foretell. */
function sample(machine: Machine, now: number): MachineStats {
  return {
    id: machine.id,
    at: new Date(now).toISOString(),
    containers: machine.containers
      .filter((container) => container.state === "running")
      .map((container) => {
        const startedAt = container.started_at ?? machine.created_at;
        return {
          name: container.name,
          started_at: startedAt,
          cpu_usage_ns_total: Math.max(0, now - Date.parse(startedAt)) * 10_000,
          memory_working_set_bytes: 16 * 2 ** 20,
          memory_usage_bytes: 18 * 2 ** 20,
          memory_rss_bytes: 14 * 2 ** 20,
        };
      }),
    network: { rx_bytes: 0, tx_bytes: 0 },
  };
}

/** Two pipes, or with a terminal one, that hold a writer back until its output is read. */
function openOutputs(options: StreamOptions) {
  const stdout = options.stdout ? new PassThrough() : null;
  const stderr = options.stderr && !options.tty ? new PassThrough() : null;
  return {
    stdout,
    stderr,
    write: (stream: "stdout" | "stderr", bytes: Buffer): Promise<void> => {
      const pipe = stream === "stdout" || options.tty ? stdout : stderr;
      if (pipe === null || pipe.destroyed || pipe.writableEnded) return Promise.resolve();
      return new Promise((resolve) => {
        if (pipe.write(bytes)) {
          resolve();
          return;
        }
        const done = () => {
          pipe.off("drain", done).off("close", done);
          resolve();
        };
        pipe.on("drain", done).on("close", done);
      });
    },
    end: () => {
      stdout?.end();
      stderr?.end();
    },
  };
}
