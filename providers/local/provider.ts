/**
 * The machines of this host as a Provider: one supervisor per machine, their list, their events and tombstones. What a
 * machine does next is decided in machine/, and how it is done in engines/.
 */
import { closeSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import {
  PTY_MODULE,
  attachShim,
  installShim,
  recordedExit,
  shimEverStarted,
  startShim,
  watchShim,
} from "./shim/client.ts";
import {
  assertCapable,
  assertTellable,
  type CallOptions,
  type Capability,
  type DeleteOptions,
  type Clock,
  goArchitecture,
  type ImageProvider,
  isSubset,
  linkAbort,
  type Logger,
  type LogLine,
  type LogOptions,
  type Machine,
  type MachineEvent,
  type MachineList,
  type MachinePatch,
  type MachineSpec,
  type MachineStats,
  noSuchMachine,
  patchCapabilities,
  patchExcess,
  type PodRangesProvider,
  type ServicesProvider,
  type ProcessStreams,
  type Provider,
  type ProviderCapacity,
  machineIsThere,
  ProviderError,
  type ProviderInfo,
  SharedPlaces,
  tenantOf,
  specExcess,
  type StreamOptions,
  toError,
  unseenMachine,
  specIdentity,
  type Tracing,
  type VolumeProvider,
} from "../../src/provider/kit/index.ts";
import { assertServable, capabilitiesOf } from "./capabilities.ts";
import type { Engine, Shims } from "./engine.ts";
import { type EvictionOptions, HostCare, type ShutdownGrace } from "./host-care.ts";
import { runsInUserNamespace } from "./host/proc.ts";
import { HostPlugins, type PluginOptions } from "./plugins/host-plugins.ts";
import { type PrewarmOptions, type PrewarmedImages, prewarmedOf } from "./images/prewarmed.ts";
import { podRangesOf } from "./pod-ranges.ts";
import { lockFile } from "./host/lock.ts";
import { TornFiles } from "./host/torn-files.ts";
import { wholeMachine } from "./machine/lost-machine.ts";
import { imageLocations } from "./machine/record.ts";
import { patchedSpec, SecretBudget, secretBytes } from "./machine/secret-budget.ts";
import { MachineStore } from "./machine/machine-store.ts";
import { assertId, validateSpec } from "./machine/valid-spec.ts";
import { Supervisor, type SupervisorContext } from "./machine/supervisor.ts";
import type { HostVolumes, VolumePlace } from "./volume-contents.ts";
import { FolderVolumes } from "./volumes/folders.ts";
import { LocalVolumes } from "./volumes/local-volumes.ts";
import type { Observations } from "./pressure/thresholds.ts";

interface LocalProviderOptions {
  engine: Engine;
  stateDir: string;
  /** Where what must not lie on the disk is, and how many bytes of it there may be. Default: on the disk. */
  secrets?: { dir: string; maxBytes: number } | undefined;
  clock: Clock;
  logger: Logger;
  /** Absent: nothing is traced. */
  tracing?: Tracing | undefined;
  /** Shown in the machine's status. */
  host: string;
  version: string;
  capacity?: ProviderCapacity | undefined;
  /** Whether volumes that outlive machines are offered, where the engine has them. Default: they are. */
  persistentVolumes?: boolean | undefined;
  /** Where volumes' bytes are, in place of the engine's own. */
  volumes?: ((place: VolumePlace) => HostVolumes) | undefined;
  /** Where Services lead, where machines reach them by this backend's rules. */
  services?: ServicesProvider | undefined;
  /** Where its machines and their volumes are, for clusters with several such backends. */
  zone?: string | undefined;
  /** Sandboxes and containers that may be starting at once. */
  startConcurrency?: number | undefined;
  logMaxBytes?: number | undefined;
  logMaxFiles?: number | undefined;
  /** When machines go so that the host lives. Absent: never. */
  eviction?: EvictionOptions | undefined;
  /** Absent: plugins of this host are not served. */
  plugins?: PluginOptions | undefined;
  /** Which images are kept ready, where the engine has any. */
  prewarm?: PrewarmOptions | undefined;
  /** For tests; default: what this host has left. */
  observe?: (() => Promise<Observations>) | undefined;
  /** For tests; default: shim processes. */
  shims?: Shims | undefined;
  /**
   * For tests: keeps other backends off the state directory until the descriptor that it returns is closed. Default:
   * flock on a file in it.
   */
  lock?: ((stateDir: string) => Promise<number>) | undefined;
}

const START_CONCURRENCY = 8;
/** Volumes that are measured at a time. */
const VOLUME_WALKS = 2;
/** kubelet's containerLogMaxSize and containerLogMaxFiles. */
const LOG_MAX_BYTES = 10 * 1024 * 1024;
const LOG_MAX_FILES = 5;
/** Enough to tell how it was stopped; there may be tens of thousands of tombstones. */
const TOMBSTONE_NOTICES = 5;
/** Long enough for any create that is still in flight somewhere. */
const TOMBSTONE_MS = 24 * 60 * 60 * 1000;
const PRUNE_EVERY_MS = 10 * 60 * 1000;
/** How often what the disk or the engine did not allow is tried again. */
const RETRY_MS = 5_000;
/** Less than a caller waits for a reply. */
const SAMPLE_MS = 5_000;

/**
 * One host's machines: a Provider over an engine, with its state in a folder. Created by `openLocalProvider`, which
 * finds what a former one left running.
 */
export class LocalProvider implements Provider {
  readonly name: string;
  readonly #options: LocalProviderOptions;
  readonly #engine: Engine;
  readonly #store: MachineStore;
  readonly #supervisors = new Map<string, Supervisor>();
  readonly #secrets: SecretBudget;
  readonly #care: HostCare;
  readonly #plugins: HostPlugins | undefined;
  /** As of now: an engine learns some of them from its runtime. */
  readonly #capabilities: () => readonly Capability[];
  /** Absent: the engine has none. Machines keep theirs though none are offered any more. */
  readonly #volumes: LocalVolumes | undefined;
  readonly volumes?: VolumeProvider;
  readonly #prewarmed: PrewarmedImages | undefined;
  readonly images: ImageProvider | undefined;
  readonly podRanges: PodRangesProvider | undefined;
  readonly services: ServicesProvider | undefined;
  readonly #context: SupervisorContext;
  readonly #closed = new AbortController();
  /** Descriptor of the state directory's lock. */
  readonly #lock: number;
  #cancelPrune: () => void = () => {};
  readonly #retries = new Set<() => void>();

  private constructor(options: LocalProviderOptions, store: MachineStore, lock: number) {
    this.name = options.engine.name;
    this.#options = options;
    this.#engine = options.engine;
    this.#store = store;
    this.#lock = lock;
    this.#secrets = new SecretBudget(options.secrets?.maxBytes ?? Infinity);
    this.#plugins = options.plugins && new HostPlugins(options.plugins, { ...options, supervisors: this.#supervisors });
    this.#care = new HostCare({ ...options, plugins: this.#plugins, supervisors: this.#supervisors });
    this.#capabilities = () => capabilitiesOf(options, this.#care);
    this.#volumes = volumesOf(options, this.#supervisors);
    if (this.#volumes !== undefined && options.persistentVolumes !== false) this.volumes = this.#volumes.api;
    this.#prewarmed = prewarmedOf(options, () => this.#retainImages());
    this.images = this.#prewarmed?.api;
    this.services = options.services;
    this.podRanges = podRangesOf(options.engine, () => this.#assertOpen());
    this.#context = {
      engine: options.engine,
      volumes: this.#volumes,
      store,
      shims: options.shims ?? options.engine.keeper ?? processShims(options),
      ...this.#plugins?.sources,
      ...{ clock: options.clock, logger: options.logger, tracing: options.tracing },
      starts: new SharedPlaces(options.startConcurrency ?? START_CONCURRENCY),
      onImagesChanged: () => this.#retainImages(),
      onDeleted: (supervisor) => this.#bury(supervisor),
    };
  }

  /** @throws Error when the state directory is in use by another backend, or cannot be read. */
  static async open(options: LocalProviderOptions): Promise<LocalProvider> {
    const lock = await (options.lock ?? lockStateDir)(options.stateDir);
    let plugins: HostPlugins | undefined;
    try {
      const provider = new LocalProvider(options, storeOf(options), lock);
      await (plugins = provider.#plugins)?.open();
      await provider.#recover();
      void provider.#care.run(provider.#closed.signal);
      return provider;
    } catch (thrown) {
      await plugins?.close();
      closeSync(lock);
      throw thrown;
    }
  }

  async #recover(): Promise<void> {
    const { logger, host, clock, secrets } = this.#options;
    const { machines, remnants } = this.#store.load();
    await this.#engine.sweep(new Set(machines.map(({ id }) => id)));
    for (const id of remnants) {
      logger.info({ machine: id }, "What is left of a machine that is gone, or never was, is removed");
      this.#remove(id);
    }
    const surroundings = {
      ...{ host, now: clock.now(), revision: this.#store.revision, logger, areSpecsInMemory: secrets !== undefined },
      elsewhere: (id: string) => this.#plugins?.csiVolumes.lastKnown(id),
    };
    for (const kept of machines) {
      const { spec, record } = wholeMachine(kept, surroundings);
      this.#supervisors.set(kept.id, new Supervisor(this.#context, spec, record));
      this.#secrets.count(kept.id, tenantOf(spec.labels), secretBytes(spec));
    }
    this.#plugins?.follow(this.#closed.signal);
    // Before the machines: they may pull, and a pull may remove images.
    this.#retainImages();
    await Promise.all([...this.#supervisors.values()].map((supervisor) => this.#takeOver(supervisor)));
    if (machines.length > 0) logger.info({ machines: machines.length }, "Found the machines of the former backend");
    void this.#volumes?.watch(this.#closed.signal);
    this.#prewarmed?.start();
    this.#prune();
  }

  /** Tries until it succeeds: a machine without a supervisor could not even be stopped. */
  async #takeOver(supervisor: Supervisor): Promise<void> {
    try {
      await supervisor.recover();
    } catch (thrown) {
      if (this.#closed.signal.aborted) return;
      this.#options.logger.error(
        { machine: supervisor.id, err: thrown },
        "Cannot take a machine over from the former backend yet",
      );
      supervisor.outOfSight();
      this.#later(() => void this.#takeOver(supervisor));
    }
  }

  #later(work: () => void): void {
    const cancel = this.#options.clock.after(RETRY_MS, () => {
      this.#retries.delete(cancel);
      work();
    });
    this.#retries.add(cancel);
  }

  /** Spares the images of all machines from the engine's garbage collection. */
  #retainImages(): void {
    const inUse = [...this.#supervisors.values()].flatMap(({ record }) => imageLocations(record));
    this.#engine.images?.retain?.(new Set([...inUse, ...(this.#prewarmed?.locations() ?? [])]));
  }

  #prune(): void {
    try {
      this.#store.pruneTombstones(TOMBSTONE_MS);
      this.#volumes?.prune(TOMBSTONE_MS);
      void this.#volumes?.finish(this.#closed.signal);
    } catch (thrown) {
      this.#options.logger.error({ err: thrown }, "Cannot remove old tombstones yet");
    }
    this.#cancelPrune = this.#options.clock.after(PRUNE_EVERY_MS, () => this.#prune());
  }

  /** Until its tombstone is written, the machine stays listed: an id that is unknown could be created again. */
  #bury(supervisor: Supervisor): void {
    const { id } = supervisor;
    if (this.#closed.signal.aborted || this.#supervisors.get(id) !== supervisor) return;
    try {
      const { machine } = supervisor.record;
      const notices = machine.notices?.slice(-TOMBSTONE_NOTICES);
      this.#store.bury(structuredClone({ ...machine, ...(notices && { notices }) }));
    } catch (thrown) {
      this.#options.logger.error({ machine: id, err: thrown }, "Cannot write a tombstone yet");
      this.#later(() => this.#bury(supervisor));
      return;
    }
    this.#supervisors.delete(id);
    this.#secrets.release(id);
    this.#remove(id);
    this.#retainImages();
    void supervisor.close();
  }

  /** Tries until it succeeds, or until the id has a machine again: one that was not created may be asked for again. */
  #remove(id: string): void {
    if (this.#closed.signal.aborted || this.#supervisors.has(id)) return;
    if (this.#engine.unswept?.has(id) === true) return this.#later(() => this.#remove(id));
    try {
      this.#store.remove(id);
    } catch (thrown) {
      this.#options.logger.error({ machine: id, err: thrown }, "Cannot remove a machine's folder yet");
      this.#later(() => this.#remove(id));
    }
  }

  getInfo(_options: CallOptions): Promise<ProviderInfo> {
    return Promise.resolve({
      name: `vmlet-backend/${this.#engine.name}`,
      version: this.#options.version,
      capabilities: this.#capabilities(),
      // Every engine runs what this host's processor runs; engine vm's guests are of its kind too.
      os: "linux",
      architecture: goArchitecture(process.arch),
      runningInUserNamespace: runsInUserNamespace(),
      ...(this.#engine.reserved !== undefined && { reserved: this.#engine.reserved }),
      ...(this.volumes !== undefined && this.#volumes?.classes && { volumeClasses: this.#volumes.classes }),
      ...(this.#engine.runtimeHandlers !== undefined && { runtimeHandlers: this.#engine.runtimeHandlers }),
      ...(this.#options.zone !== undefined && { zone: this.#options.zone }),
    });
  }

  createPod(id: string, spec: MachineSpec, options: CallOptions): Promise<Machine> {
    return this.#call(options, () => {
      assertId(id);
      if (this.#store.tombstone(id) !== undefined) throw new ProviderError("gone", `machine ${id} was deleted`);
      const existing = this.#supervisors.get(id);
      if (existing !== undefined) {
        if (existing.record.deleted) throw new ProviderError("gone", `machine ${id} is being deleted`);
        if (existing.record.specHash !== specIdentity(spec))
          throw new ProviderError("conflict", `machine ${id} exists with another spec`);
        return existing.snapshot();
      }
      this.#care.assertUp();
      if (this.#engine.unswept?.has(id) === true)
        throw new ProviderError("unavailable", `what is left of a former machine ${id} is still being removed`);
      assertTellable(specExcess(spec));
      validateSpec(spec);
      assertServable(spec, this.#engine, this.#capabilities());
      this.#volumes?.assertClaimable(spec);
      this.#secrets.reserve(id, tenantOf(spec.labels), secretBytes(spec));
      const supervisor = this.#create(id, spec);
      // Told as the end of the machine, as a kubelet fails the pod: its controller makes another one, elsewhere.
      const refusal = this.#care.refusal(spec);
      if (refusal !== undefined) supervisor.evict(refusal, 0);
      return supervisor.snapshot();
    });
  }

  #create(id: string, spec: MachineSpec): Supervisor {
    try {
      const supervisor = Supervisor.create(this.#context, id, spec, this.#options.host);
      this.#supervisors.set(id, supervisor);
      return supervisor;
    } catch (thrown) {
      this.#secrets.release(id);
      this.#remove(id);
      throw thrown;
    }
  }

  getPod(id: string, options: CallOptions): Promise<Machine> {
    return this.#call(options, () => {
      const machine = this.#supervisors.get(id)?.snapshot() ?? this.#store.tombstone(id);
      if (machine === undefined) throw noSuchMachine(id);
      return machine;
    });
  }

  getPods(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined },
  ): Promise<MachineList> {
    return this.#call(options, () => {
      const all = [...this.#supervisors.values()]
        .filter(({ spec }) => isSubset(options.labels, spec.labels))
        .map((supervisor) => supervisor.snapshot());
      if (options.includeDeleted)
        all.push(...this.#store.tombstones().filter(({ labels }) => isSubset(options.labels, labels)));
      return { items: all, revision: this.#store.revision };
    });
  }

  stopPod(id: string, options: CallOptions & { graceSeconds: number }): Promise<Machine> {
    return this.#call(options, () => {
      const supervisor = this.#supervisors.get(id);
      if (supervisor === undefined) {
        const tombstone = this.#store.tombstone(id);
        if (tombstone === undefined) throw noSuchMachine(id);
        return tombstone;
      }
      supervisor.stop(options.graceSeconds);
      return supervisor.snapshot();
    });
  }

  deletePod(id: string, options: DeleteOptions): Promise<void> {
    return this.#call(options, () => {
      assertId(id);
      const supervisor = this.#supervisors.get(id);
      if (supervisor !== undefined && options.ifAbsent === true) throw machineIsThere(id);
      if (supervisor !== undefined) supervisor.delete(options.force);
      else if (this.#store.tombstone(id) === undefined) this.#store.bury(unseenMachine(id, this.#options.clock.now()));
    });
  }

  getLogs(id: string, container: string, options: LogOptions): AsyncIterable<LogLine> {
    return this.#logs(id, container, options);
  }

  async *#logs(id: string, container: string, options: LogOptions): AsyncGenerator<LogLine> {
    using linked = linkAbort(options.signal, this.#closed.signal);
    const { signal } = linked;
    for await (const lines of this.#find(id).logs(container, { ...options, signal }))
      for (const line of lines) yield line;
  }

  async updatePod(id: string, patch: MachinePatch, options: CallOptions): Promise<Machine> {
    options.signal.throwIfAborted();
    this.#assertOpen();
    const supervisor = this.#find(id);
    assertCapable(patchCapabilities(patch), this.#capabilities());
    assertTellable(patchExcess(supervisor.spec, patch));
    for (const spec of patch.ephemeral_containers ?? []) {
      const others = (supervisor.spec.ephemeral_containers ?? []).filter((known) => !isDeepStrictEqual(known, spec));
      validateSpec({ ...supervisor.spec, ephemeral_containers: [...others, spec] });
      this.#engine.validate?.({ ...supervisor.spec, ephemeral_containers: [spec] });
    }
    const patched = patchedSpec(supervisor.spec, patch);
    if (patch.ephemeral_containers !== undefined) this.#volumes?.assertJoinable(patched);
    this.#secrets.reserve(id, tenantOf(supervisor.spec.labels), secretBytes(patched));
    try {
      await supervisor.patch(patch, options.signal);
    } finally {
      this.#secrets.count(id, tenantOf(supervisor.spec.labels), secretBytes(supervisor.spec));
    }
    return supervisor.snapshot();
  }

  async *watchPods(
    since: number,
    options: CallOptions & { labels: Record<string, string> },
  ): AsyncGenerator<MachineEvent> {
    using linked = linkAbort(options.signal, this.#closed.signal);
    const { signal } = linked;
    for await (const event of this.#store.watch(since, signal))
      if (isSubset(options.labels, event.machine.labels)) yield event;
  }

  async getCapacity(_options: CallOptions): Promise<ProviderCapacity> {
    const capacity = await this.#care.capacity();
    if (capacity !== undefined) return capacity;
    throw new ProviderError("unsupported", "this backend reports no capacity: give one in its config under capacity");
  }

  async getStats(options: CallOptions & { labels: Record<string, string> }): Promise<MachineStats[]> {
    const wanted = [...this.#supervisors.values()].filter(({ spec }) => isSubset(options.labels, spec.labels));
    // A machine whose sample cannot be had is left out, not shown as zero.
    const samples = await Promise.all(wanted.map((supervisor) => this.#sample(supervisor)));
    options.signal.throwIfAborted();
    return samples.filter((sample) => sample !== undefined);
  }

  /** One machine that does not answer (a guest that hangs) must not hide what all others use. */
  async #sample(supervisor: Supervisor): Promise<MachineStats | undefined> {
    const late = Promise.withResolvers<undefined>();
    const cancel = this.#options.clock.after(SAMPLE_MS, () => late.resolve(undefined));
    const own = supervisor.stats();
    const withVolumes = this.#volumes?.addTo(own, supervisor.record) ?? own;
    const sample = (this.#plugins?.csiStats.addTo(withVolumes, supervisor) ?? withVolumes).catch(() => undefined);
    return await Promise.race([sample, late.promise]).finally(cancel);
  }

  async exec(id: string, container: string, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    if (command.length === 0) throw new ProviderError("invalid", "exec needs a command", { field: "command" });
    return await this.#find(id).exec(container, command, options);
  }

  async attach(id: string, container: string, options: StreamOptions): Promise<ProcessStreams> {
    return await this.#find(id).attach(container, options);
  }

  async portForward(id: string, port: number, options: CallOptions) {
    return await this.#find(id).portForward(port, options.signal);
  }

  /** The host goes down: ends all machines in a kubelet's order, and makes none any more. Call `close` afterwards. */
  async shutDown(grace: ShutdownGrace): Promise<void> {
    await this.#care.shutDown(grace);
  }

  /** Stops supervising the machines; they run on, and the next `open` finds them. */
  async close(): Promise<void> {
    if (this.#closed.signal.aborted) return;
    this.#closed.abort(new Error("the backend is stopping"));
    this.#cancelPrune();
    for (const cancel of this.#retries) cancel();
    await Promise.all([...this.#supervisors.values()].map((supervisor) => supervisor.close()));
    await this.#prewarmed?.close();
    await this.#plugins?.close();
    await this.#engine.close();
    closeSync(this.#lock);
  }

  #find(id: string): Supervisor {
    const supervisor = this.#supervisors.get(id);
    if (supervisor === undefined) throw noSuchMachine(id);
    return supervisor;
  }

  async #call<T>(options: CallOptions, work: () => T): Promise<T> {
    options.signal.throwIfAborted();
    this.#assertOpen();
    try {
      return work();
    } catch (thrown) {
      // An error that is not a ProviderError comes from the disk: whether the call has had an effect is not known.
      if (thrown instanceof ProviderError) throw thrown;
      throw new ProviderError("unavailable", `the backend's state cannot be written: ${toError(thrown).message}`, {
        cause: thrown,
      });
    }
  }

  #assertOpen(): void {
    if (this.#closed.signal.aborted) throw new ProviderError("unavailable", "the backend is stopping");
  }
}

function storeOf({ stateDir, clock, logger, secrets }: LocalProviderOptions): MachineStore {
  return new MachineStore(stateDir, clock, new TornFiles(stateDir, logger), secrets?.dir);
}

/** Undefined where the engine has none. */
function volumesOf(
  options: LocalProviderOptions,
  supervisors: ReadonlyMap<string, Supervisor>,
): LocalVolumes | undefined {
  const { engine, stateDir, logger, volumes } = options;
  if (volumes === undefined && !engine.capabilities.includes("volumes.persistent")) return undefined;
  return new LocalVolumes({
    ...options,
    torn: new TornFiles(stateDir, logger),
    walks: new SharedPlaces(VOLUME_WALKS),
    machines: () => [...supervisors.values()].map(({ record }) => record),
    stop: (id) => supervisors.get(id)?.stop(0),
    contents: volumes ?? engine.volumes ?? ((place) => new FolderVolumes(place)),
  });
}

function processShims(options: LocalProviderOptions): Shims {
  const program = installShim(options.stateDir);
  const limits = {
    logMaxBytes: options.logMaxBytes ?? LOG_MAX_BYTES,
    logMaxFiles: options.logMaxFiles ?? LOG_MAX_FILES,
    ptyModule: PTY_MODULE,
  };
  return {
    start: async ({ dir, name }, launch, launchFile) => {
      if ("runtimeId" in launch) throw new Error(`container ${name}: a runtime's container needs no shim`);
      await startShim(program, dir, { ...launch, ...limits }, launchFile);
    },
    watch: ({ dir }, socket, events) => watchShim(dir, socket, options.clock, events),
    everStarted: ({ dir }) => shimEverStarted(dir),
    recorded: ({ dir }) => recordedExit(dir),
    attach: (_container, socket, streams) => attachShim(socket, streams),
  };
}

/**
 * One backend per state directory.
 * @returns the descriptor that holds the lock
 */
async function lockStateDir(stateDir: string): Promise<number> {
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  return await lockFile(
    join(stateDir, "lock"),
    `state directory ${stateDir} is in use by another backend: stop it, or choose another directory`,
  );
}
