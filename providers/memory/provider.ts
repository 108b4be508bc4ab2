/**
 * A provider whose machines are objects of this process: for tests, demos and scale. It keeps every rule of the
 * contract, runs a little sh (shell.ts), and can be told to be slow, to fail, to lose replies and to lose machines
 * (faults.ts).
 */
import { PassThrough, type Duplex } from "node:stream";
import {
  assertCapable,
  containersOf,
  assertTellable,
  type CallOptions,
  type DeleteOptions,
  type Capability,
  type Clock,
  CONTAINER_CAPABILITIES,
  goArchitecture,
  type ImageProvider,
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
  onAbort,
  patchCapabilities,
  patchExcess,
  type ProcessStreams,
  PodRangeBook,
  type PodRangesProvider,
  type Services,
  type ServicesProvider,
  type ServicesSpec,
  ServiceTable,
  type Provider,
  type ProviderCapacity,
  machineIsThere,
  ProviderError,
  type ProviderInfo,
  requiredCapabilities,
  specFingerprint,
  type StreamOptions,
  SUPERVISION_CAPABILITIES,
  systemClock,
  tombstoneOf,
  unseenMachine,
  type VolumeProvider,
} from "../../src/provider/kit/index.ts";
import type { Behaviour, ImagePolicy, MemoryContainer } from "./container.ts";
import { chooseDevices, type Devices } from "./devices.ts";
import { addressOf, DEFAULT_CAPACITY, defaultBehaviour, defaultImages, sampleOf } from "./defaults.ts";
import { underFault, type Fault, type FaultPlan, type Operation } from "./faults.ts";
import { memoryImages } from "./images.ts";
import type { ForcedEnd, Instance } from "./instance.ts";
import { MemoryMachine, type Stages } from "./machine.ts";
import { attachTo, execIn } from "./streams.ts";
import { Tombstones } from "./tombstones.ts";
import { classesOf, type GivenVolumes, MemoryVolumes } from "./volumes.ts";

export const MEMORY_CAPABILITIES: readonly Capability[] = [
  ...SUPERVISION_CAPABILITIES,
  "delete_if_absent",
  ...CONTAINER_CAPABILITIES,
  "env_files",
  "resize_machine",
  "share_process_namespace",
  "volumes.host_path",
  "volumes.persistent",
  "volumes.clone",
  "volumes.exclusive",
  "volumes.force_release",
  "images.prewarm",
];

export interface MemoryProviderOptions {
  name?: string | undefined;
  clock?: Clock | undefined;
  capabilities?: readonly Capability[] | undefined;
  /** What it says that its machines are (GOARCH). Default: this host's. */
  architecture?: string | undefined;
  /** Time in each state before a machine runs; a function is asked for each machine. Default: none. */
  stages?: Partial<Stages> | (() => Partial<Stages>) | undefined;
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
  /** Where its machines and volumes are. Default: there are no zones. */
  zone?: string | undefined;
  /** What is on volumes of class `given`, which are there before they are told of. Default: there is no such class. */
  given?: GivenVolumes | undefined;
  /** More machines than this are refused with `quota`. */
  maxMachines?: number | undefined;
}

export class MemoryProvider implements Provider {
  readonly name: string;
  readonly #clock: Clock;
  readonly #capabilities: readonly Capability[];
  readonly #options: MemoryProviderOptions;
  readonly #machines = new Map<string, { machine: MemoryMachine; snapshot: Machine }>();
  readonly #tombstones: Tombstones;
  readonly #events: MachineEvents;
  readonly #closed = new AbortController();
  readonly #volumes: MemoryVolumes;
  readonly volumes: VolumeProvider;
  readonly images: ImageProvider;
  readonly podRanges: PodRangesProvider;
  readonly services: ServicesProvider;
  readonly #services: { labels: Record<string, string>; table: ServiceTable }[] = [];
  #addresses = 0;

  constructor(options: MemoryProviderOptions = {}) {
    this.name = options.name ?? "memory";
    this.#clock = options.clock ?? systemClock;
    this.#capabilities = options.capabilities ?? MEMORY_CAPABILITIES;
    this.#options = options;
    this.#tombstones = new Tombstones(this.#clock, options.tombstoneMs);
    this.#events = new MachineEvents({ limit: options.historyLimit ?? 10_000 });
    this.#volumes = new MemoryVolumes({
      clock: this.#clock,
      zone: options.zone,
      machines: () => this.#holders(),
      stop: (id) => this.#machines.get(id)?.machine.stop(0),
      given: options.given,
      call: (operation, id, signal, effect) => this.#volumeCall(operation, id, signal, effect),
    });
    this.volumes = this.#volumes.api;
    this.images = memoryImages({
      clock: this.#clock,
      policy: options.images ?? defaultImages,
      call: (operation, id, signal, effect) =>
        this.#call(operation, id, signal, () => {
          this.#assertCapable("images.prewarm");
          return effect();
        }),
    });
    this.podRanges = this.#ranges();
    this.services = {
      put: (spec, { signal }) =>
        this.#call("putServices", undefined, signal, () => {
          this.#assertCapable("services");
          return this.#putServices(spec);
        }),
    };
  }

  /** Its machines reach nothing by them. */
  #putServices({ labels, ...change }: ServicesSpec): Services {
    const known = this.#services.find((each) => isSubset(each.labels, labels) && isSubset(labels, each.labels));
    const { table } = known ?? { table: new ServiceTable() };
    table.apply(change);
    if (known === undefined) this.#services.push({ labels, table });
    return { revision: table.revision!, services: table.size };
  }

  /** Its machines have the addresses that they had. */
  #ranges(): PodRangesProvider {
    const book = new PodRangeBook({ within: ["10.244.0.0/16"] });
    const call = <T>(operation: Operation, signal: AbortSignal, effect: () => Promise<T>) =>
      this.#call(operation, undefined, signal, () => {
        this.#assertCapable("pod_ranges");
        return effect();
      });
    return {
      put: (spec, options) => call("putPodRanges", options.signal, () => book.put(spec, options)),
      get: (options) => call("getPodRanges", options.signal, () => book.get(options)),
      delete: (options) => call("deletePodRanges", options.signal, () => book.delete(options)),
    };
  }

  getInfo({ signal }: CallOptions): Promise<ProviderInfo> {
    return this.#call("getInfo", undefined, signal, () => ({
      name: this.name,
      version: "1",
      capabilities: this.#capabilities,
      os: "linux",
      architecture: this.#options.architecture ?? goArchitecture(process.arch),
      ...(this.#capabilities.includes("volumes.persistent") && { volumeClasses: classesOf(this.#options.given) }),
      ...(this.#options.zone !== undefined && { zone: this.#options.zone }),
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
      if (options.includeDeleted === true)
        for (const machine of this.#tombstones.all()) if (isSubset(options.labels, machine.labels)) items.push(machine);
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

  deletePod(id: string, { signal, force, ifAbsent }: DeleteOptions): Promise<void> {
    return this.#call("deletePod", id, signal, () => {
      const found = this.#machines.get(id);
      if (found !== undefined && ifAbsent === true) throw machineIsThere(id);
      if (found !== undefined) found.machine.delete(force);
      else if (this.#tombstones.get(id) === undefined) this.#buryUnknown(id);
    });
  }

  async *getLogs(id: string, container: string, options: LogOptions): AsyncGenerator<LogLine> {
    const log = await this.#call("getLogs", id, options.signal, () => {
      const found = this.#container(id, container).logOf(options.previous === true);
      if (found === undefined && options.previous === true) {
        throw new ProviderError("not_found", `container ${container} of machine ${id} has no previous instance`, {
          field: "previous",
        });
      }
      if (found === undefined)
        throw new ProviderError("conflict", `container ${container} of machine ${id} is waiting to start`);
      return found;
    });
    yield* log.read(options);
  }

  updatePod(id: string, patch: MachinePatch, { signal }: CallOptions): Promise<Machine> {
    return this.#call("updatePod", id, signal, () => {
      assertCapable(patchCapabilities(patch), this.#capabilities);
      const { currentSpec } = this.#machineOf(id);
      assertTellable(patchExcess(currentSpec, patch));
      const { ephemeral_containers } = patch;
      if (ephemeral_containers !== undefined) this.#volumes.assertJoinable({ ...currentSpec, ephemeral_containers });
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
      for (const { machine, snapshot } of this.#machines.values()) {
        if (snapshot.state !== "running" || !isSubset(labels, snapshot.labels)) continue;
        const volumes = this.#volumes.statsOf(machine.spec);
        stats.push({ ...sampleOf(snapshot, now), ...(volumes && { volumes }) });
      }
      return stats;
    });
  }

  exec(id: string, container: string, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    return this.#call("exec", id, options.signal, () => {
      this.#assertCapable("exec");
      return execIn(this.#instance(id, container), command, this.#clock, options);
    });
  }

  attach(id: string, container: string, options: StreamOptions): Promise<ProcessStreams> {
    return this.#call("attach", id, options.signal, () => {
      this.#assertCapable("attach");
      return attachTo(this.#instance(id, container), options);
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
      const listening = onAbort(signal, () => echo.destroy());
      echo.once("close", () => listening[Symbol.dispose]());
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

  /** Its host is emptied, or it is taken back: its pod is to go. */
  setDisruption(id: string, disruption: Machine["disruption"]): void {
    this.#machines.get(id)?.machine.setDisruption(disruption);
  }

  setReachability(id: string, reachability: Machine["reachability"]): void {
    this.#machines.get(id)?.machine.setReachability(reachability);
  }

  /** Ends a running container, as the kernel or an operator would. */
  endContainer(id: string, container: string, end: ForcedEnd): void {
    this.#machines.get(id)?.machine.container(container)?.force(end);
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

  #call<T>(
    operation: Operation,
    id: string | undefined,
    signal: AbortSignal,
    effect: () => T | Promise<T>,
  ): Promise<T> {
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

  *#holders(): Generator<{ snapshot: Machine; spec: MachineSpec }> {
    for (const { machine, snapshot } of this.#machines.values()) yield { snapshot, spec: machine.spec };
  }

  #volumeCall<T>(operation: Operation, id: string, signal: AbortSignal, effect: () => Promise<T>): Promise<T> {
    return this.#call(operation, id, signal, () => {
      this.#assertCapable("volumes.persistent");
      return effect();
    });
  }

  #create(id: string, spec: MachineSpec): Machine {
    const existing = this.#machines.get(id);
    if (this.#tombstones.get(id) !== undefined || existing?.machine.isDeleting === true)
      throw new ProviderError("gone", `machine ${id} was deleted`);
    const fingerprint = specFingerprint(spec);
    if (existing !== undefined) {
      if (existing.machine.fingerprint === fingerprint) return existing.snapshot;
      throw new ProviderError("conflict", `machine ${id} exists with another specification`);
    }
    assertCapable(requiredCapabilities(spec), this.#capabilities);
    assertUniqueNames(spec);
    this.#volumes.assertClaimable(spec);
    if (this.#machines.size >= (this.#options.maxMachines ?? Infinity)) {
      throw new ProviderError("quota", `there are ${this.#machines.size} machines, which is all there may be`, {
        retryAfterMs: 5000,
      });
    }
    const { stages } = this.#options;
    const devices = this.#chooseDevices(spec);
    // There are none here.
    const driver = spec.resource_claims?.find(({ drivers }) => drivers.length > 0)?.drivers[0];
    const csi = spec.volumes?.find((volume) => volume.type === "csi")?.driver;
    const machine = new MemoryMachine(id, structuredClone(spec), fingerprint, {
      clock: this.#clock,
      stages: {
        ...{ pendingMs: 0, creatingMs: 0, startingMs: 0 },
        ...(typeof stages === "function" ? stages() : stages),
      },
      behaviour: this.#options.behaviour ?? defaultBehaviour,
      images: this.#options.images ?? defaultImages,
      address: this.#capabilities.includes("pod_ip") ? addressOf(++this.#addresses) : undefined,
      textsOf: (volume) => this.#volumes.textsOf(volume),
      commit: (changed, snapshot) => this.#commit(changed, snapshot),
      devices: devices ?? new Map(),
    });
    if (devices === undefined) machine.refuse("Allocate failed due to too few devices");
    else if (driver !== undefined) machine.hold(`DRA driver ${driver} is not registered`);
    else if (csi !== undefined) machine.hold(`driver name ${csi} not found in the list of registered CSI drivers`);
    else machine.start();
    return this.#find(id);
  }

  /** Undefined when there are too few. */
  #chooseDevices(spec: MachineSpec): Devices | undefined {
    if (!this.#capabilities.includes("devices")) return new Map();
    const others = [...this.#machines.values()].filter(({ machine }) => !machine.isOver);
    const given = others.map(({ machine }) => machine.context.devices);
    return chooseDevices(spec, this.#options.capacity ?? DEFAULT_CAPACITY, given);
  }

  #commit(machine: MemoryMachine, partial: Omit<Machine, "revision">): void {
    const snapshot: Machine = { ...partial, revision: this.#events.revision + 1 };
    if (snapshot.state === "deleted") {
      this.#machines.delete(machine.id);
      this.#tombstones.add(snapshot);
    } else this.#machines.set(machine.id, { machine, snapshot });
    this.#events.publish(snapshot);
  }

  #buryUnknown(id: string): void {
    const now = this.#clock.now();
    const machine = { ...tombstoneOf(unseenMachine(id, now), now), version: 1, revision: this.#events.revision + 1 };
    this.#tombstones.add(machine);
    this.#events.publish(machine);
  }

  #find(id: string): Machine {
    const machine = this.#machines.get(id)?.snapshot ?? this.#tombstones.get(id);
    if (machine === undefined) throw noSuchMachine(id);
    return machine;
  }

  #machineOf(id: string): MemoryMachine {
    const found = this.#machines.get(id);
    if (found === undefined) throw noSuchMachine(id);
    return found.machine;
  }

  #container(id: string, name: string): MemoryContainer {
    const container = this.#machineOf(id).container(name);
    if (container === undefined) throw noSuchContainer(id, name);
    return container;
  }

  #instance(id: string, name: string): Instance {
    const { running } = this.#container(id, name);
    if (running === undefined) throw new ProviderError("conflict", `container ${name} of machine ${id} is not running`);
    return running;
  }

  #assertCapable(capability: Capability): void {
    if (!this.#capabilities.includes(capability))
      throw new ProviderError("unsupported", `this provider lacks the capability ${capability}`);
  }
}

function assertUniqueNames(spec: MachineSpec): void {
  const seen = new Set<string>();
  for (const { spec: container } of containersOf(spec)) {
    if (seen.has(container.name))
      throw new ProviderError("invalid", `"${container.name}" is used twice`, { field: "containers.name" });
    seen.add(container.name);
  }
}
