/**
 * Looks after the host of the machines as a kubelet does: what of it they may have, and which of them go when it runs
 * out of something. pressure/ decides, the machines' supervisors act.
 */
import {
  type Clock,
  containersOf,
  graceMs,
  type Logger,
  type MachineSpec,
  type ProviderCapacity,
  ProviderError,
  type ResourceAmounts,
} from "../../src/provider/kit/index.ts";
import type { Engine } from "./engine.ts";
import type { Supervisor } from "./machine/supervisor.ts";
import { refusal } from "./pressure/eviction.ts";
import { type Evictable, HostGuard } from "./pressure/host-guard.ts";
import { hostSignals } from "./pressure/host-signals.ts";
import { endAll } from "./pressure/shutdown.ts";
import { hardAmount, type Observations, pressureConditions, type Threshold } from "./pressure/thresholds.ts";

export interface EvictionOptions {
  thresholds: readonly Threshold[];
  /** Longest grace of a machine that a soft threshold takes. */
  maxPodGraceMs: number;
  /** How long a pressure is shown after it was last seen. */
  transitionMs: number;
}

export interface ShutdownGrace {
  graceMs: number;
  criticalGraceMs: number;
}

interface HostCareOptions {
  engine: Engine;
  stateDir: string;
  clock: Clock;
  logger: Logger;
  supervisors: ReadonlyMap<string, Supervisor>;
  /** What the owner of the host says machines may use; else the engine says. */
  capacity?: ProviderCapacity | undefined;
  /** The devices that plugins have, and the drivers among them. Absent: there are none. */
  plugins?:
    | {
        devices: { counts(): { name: string; total: number; healthy: number }[] };
        csi: { drivers(): NonNullable<ProviderCapacity["csi_drivers"]> };
        claims: { toldDrivers(): string[] };
      }
    | undefined;
  /** Absent: nothing is evicted. */
  eviction?: EvictionOptions | undefined;
  /** For tests. Default: this host's. */
  observe?: (() => Promise<Observations>) | undefined;
}

/** A machine that cannot be measured within this counts as unknown. */
const SAMPLE_MS = 10_000;
/** Steps in which the machines' overhead is told: a Node does not change with each of them. */
const OVERHEAD_STEP_BYTES = 64 * 1024 ** 2;

export class HostCare {
  readonly #options: HostCareOptions;
  readonly #guard: HostGuard | undefined;
  #isShuttingDown = false;

  constructor(options: HostCareOptions) {
    this.#options = options;
    const { eviction, clock, logger, engine, stateDir } = options;
    const imageDir = engine.images?.place?.bind(engine.images);
    const machinesMemory = engine.memory?.bind(engine);
    this.#guard =
      eviction &&
      new HostGuard({
        ...eviction,
        clock,
        logger,
        observe: options.observe ?? (() => hostSignals({ stateDir, imageDir, machinesMemory })),
        candidates: () => this.#candidates(),
        removeUnusedImages: async () => await engine.images?.removeUnused?.(),
      });
  }

  /** Resolves when the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    await this.#guard?.run(signal);
  }

  /** Ends all machines, because the host goes down. Resolves when nothing runs, or the grace is over. */
  async shutDown({ graceMs: wholeMs, criticalGraceMs }: ShutdownGrace): Promise<void> {
    const { supervisors, clock, logger } = this.#options;
    this.#isShuttingDown = true;
    const machines = [...supervisors.values()].filter((supervisor) => !supervisor.isOver);
    logger.info({ machines: machines.length }, "The host is shutting down: ending its machines");
    const endable = machines.map((supervisor) => ({
      id: supervisor.id,
      priority: supervisor.spec.priority ?? 0,
      graceMs: graceMs(supervisor.spec),
      terminate: (why: { reason: string; message: string }, ms: number) => supervisor.terminate(why, ms),
      isOver: () => supervisor.isOver,
    }));
    await endAll(endable, { clock, logger, graceMs: wholeMs, criticalGraceMs });
  }

  /** @throws ProviderError unavailable when the host goes down: the machine may be made when it is up again */
  assertUp(): void {
    if (this.#isShuttingDown) throw new ProviderError("unavailable", "this host is shutting down");
  }

  /** Why a machine is not taken just now; undefined when it is. */
  refusal(spec: MachineSpec): string | undefined {
    return this.#guard && refusal(this.#guard.pressures, spec);
  }

  /** Whether there is anything to tell. */
  get tellsCapacity(): boolean {
    return this.#options.capacity !== undefined || this.#options.engine.capacity !== undefined;
  }

  /**
   * What machines may use: what the engine has, less what is never theirs because they are evicted before, and less
   * what they take beyond what is counted as theirs. What the owner has said holds as it is.
   */
  async capacity(): Promise<ProviderCapacity | undefined> {
    const own = await this.#ownCapacity();
    const { plugins } = this.#options;
    const devices = plugins?.devices.counts() ?? [];
    const drivers = plugins?.csi.drivers() ?? [];
    const capacity = own && {
      ...own,
      ...(drivers.length > 0 && { csi_drivers: drivers }),
      ...(plugins && { resource_drivers: plugins.claims.toldDrivers() }),
    };
    if (capacity === undefined || devices.length === 0) return capacity;
    const { allocatable, total } = capacity;
    const others = ({ extended = [] }: ResourceAmounts = {}) =>
      extended.filter(({ name }) => !devices.some((device) => device.name === name));
    return {
      ...capacity,
      allocatable: {
        ...allocatable,
        extended: [...others(allocatable), ...devices.map(({ name, healthy }) => ({ name, count: healthy }))],
      },
      total: {
        ...total,
        extended: [...others(total), ...devices.map(({ name, total: count }) => ({ name, count }))],
      },
    };
  }

  async #ownCapacity(): Promise<ProviderCapacity | undefined> {
    const { capacity, engine, eviction } = this.#options;
    const told = [
      ...(this.#guard === undefined ? [] : pressureConditions(this.#guard.pressures)),
      ...((await engine.conditions?.()) ?? []),
    ];
    const conditions = told.length > 0 && { conditions: told };
    if (capacity !== undefined) return { ...capacity, ...conditions };
    const engines = await engine.capacity?.();
    if (engines === undefined || eviction === undefined) return engines && { ...engines, ...conditions };
    const { allocatable, total = {} } = engines;
    const { memory_bytes = 0, ephemeral_bytes = 0 } = allocatable;
    const least = (signal: "memory.available" | "nodefs.available", capacity = 0) =>
      hardAmount(eviction.thresholds, signal, capacity);
    return {
      ...engines,
      allocatable: {
        ...allocatable,
        memory_bytes: Math.max(0, memory_bytes - least("memory.available", total.memory_bytes) - this.#overheadBytes()),
        ephemeral_bytes: Math.max(0, ephemeral_bytes - least("nodefs.available", total.ephemeral_bytes)),
      },
      ...conditions,
    };
  }

  #overheadBytes(): number {
    const { overhead } = this.#options.engine;
    if (overhead === undefined) return 0;
    const bytes = this.#running().reduce(
      (sum, { spec }) => sum + overhead.machineBytes + containersOf(spec).length * overhead.containerBytes,
      0,
    );
    return Math.ceil(bytes / OVERHEAD_STEP_BYTES) * OVERHEAD_STEP_BYTES;
  }

  #running(): Supervisor[] {
    return [...this.#options.supervisors.values()].filter(({ isActive }) => isActive);
  }

  async #candidates(): Promise<Evictable[]> {
    return await Promise.all(
      this.#running().map(async (supervisor) => ({
        id: supervisor.id,
        spec: supervisor.spec,
        use: await this.#use(supervisor),
        graceMs: graceMs(supervisor.spec),
        evict: (message: string, ms: number) => supervisor.evict(message, ms),
        isOver: () => supervisor.isOver,
      })),
    );
  }

  /** A machine that does not answer is unknown, and keeps nobody waiting. */
  async #use(supervisor: Supervisor) {
    const late = Promise.withResolvers<undefined>();
    const cancel = this.#options.clock.after(SAMPLE_MS, () => late.resolve(undefined));
    const use = supervisor.use().catch(() => undefined);
    return await Promise.race([use, late.promise]).finally(cancel);
  }
}
