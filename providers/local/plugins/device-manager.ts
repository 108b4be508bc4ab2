/**
 * Which devices there are, by their plugins' word, and which of them a machine is given: as a kubelet's device manager
 * (pkg/kubelet/cm/devicemanager), whose words the refusals have.
 *
 *     STATE/plugins.json   the resources that plugins have ever had here: who asks for one waits for its plugin after a
 *                          restart, and never runs without
 *
 * Plugins are strangers to each other: one that is late or silent delays only those who ask for its resource.
 */
import { join } from "node:path";
import {
  type Clock,
  containersOf,
  isSidecar,
  type Logger,
  type MachineSpec,
  type NamedContainer,
  Pulse,
  toError,
} from "../../../src/provider/kit/index.ts";
import {
  type DeviceHealth,
  type DeviceHolding,
  DevicesRefused,
  type DeviceSource,
  type HeldDevices,
} from "../devices.ts";
import { writeJson } from "../host/files.ts";
import type { TornFiles } from "../host/torn-files.ts";
import { choose } from "./choose.ts";
import type { DevicePlugin } from "./device-plugin.ts";
import { isExtendedResource, judgeDevices, judgeGrant, type PluginDevice } from "./judge.ts";

/** Resources at a time, and remembered of those that were. */
const MAX_RESOURCES = 256;
/** Plugins look for a new socket every ten seconds, and are started again by their DaemonSet. */
const RETURN_MS = 60_000;
const LOST_RETRY_MS = 1_000;
const FAULTS_TOLD = 10;

interface Resource {
  devices: ReadonlyMap<string, PluginDevice>;
  plugin?: { api: DevicePlugin; options: { preStart: boolean; preferred: boolean }; seq: number } | undefined;
}

interface DeviceManagerOptions {
  stateDir: string;
  clock: Clock;
  logger: Logger;
  torn: TornFiles;
  /** What the machines that are not over hold; `lost`: of one of them nobody knows. */
  held: () => Iterable<HeldDevices | "lost">;
  connect: (socket: string) => DevicePlugin;
  /** Who gives them to containers. */
  engine: { readonly name: string; readonly hasCdi?: boolean | undefined };
}

/** How many devices there are of a resource, and how many are healthy. */
interface DeviceCount {
  name: string;
  total: number;
  healthy: number;
}

/** What one container asks for of one resource. */
interface Wish {
  name: string;
  count: number;
  /** Those that an init container of the machine has had. */
  again: ReadonlySet<string>;
  /** What is chosen for the machine so far, by resource. */
  chosen: Map<string, ReadonlySet<string>>;
}

export class DeviceManager implements DeviceSource {
  /** Fires when devices come, go, or change their health. */
  readonly changed = new Pulse();
  readonly #options: DeviceManagerOptions;
  readonly #file: string;
  readonly #resources = new Map<string, Resource>();
  /** Chosen for machines whose records do not say so yet. */
  readonly #chosen = new Set<ReadonlyMap<string, ReadonlySet<string>>>();
  readonly #since: number;
  #seq = 0;
  #isClosed = false;

  constructor(options: DeviceManagerOptions) {
    const { stateDir, torn, clock } = options;
    this.#options = options;
    this.#file = join(stateDir, "plugins.json");
    this.#since = clock.monotonic();
    const known = torn.readJson(this.#file, isKnown);
    for (const name of known?.resources ?? []) this.#resources.set(name, { devices: new Map() });
  }

  /** The machines of a former backend are known: of what they have there is a resource, also when the file is lost. */
  recall(): void {
    for (const held of this.#options.held())
      for (const name of namesIn(held))
        if (!this.#resources.has(name)) this.#resources.set(name, { devices: new Map() });
  }

  // --- plugins ---

  /**
   * Takes the plugin at a socket as the one of this resource, in place of any other.
   * @returns has it not asked any more; one that has taken its place stays
   * @throws Error that tells the plugin why it is not taken
   */
  async register(name: string, socket: string): Promise<() => void> {
    if (!isExtendedResource(name)) throw new Error(`the ResourceName ${JSON.stringify(name)} is invalid`);
    const seq = ++this.#seq;
    const api = this.#options.connect(socket);
    try {
      const options = await api.options().catch((thrown: unknown) => {
        throw new Error(`failed to get device plugin options: ${toError(thrown).message}`, { cause: thrown });
      });
      if (this.#isClosed) throw new Error("the backend is stopping");
      const before = this.#resources.get(name)?.plugin;
      if (before !== undefined && before.seq > seq) throw new Error(`another plugin of ${name} has registered since`);
      this.#remember(name);
      before?.api.close();
      const resource = this.#resources.get(name)!;
      const plugin = { api, options, seq };
      resource.plugin = plugin;
      this.#options.logger.info({ resource: name, socket }, "A device plugin has registered");
      void this.#follow(name, plugin);
      return () => this.#lose(name, plugin);
    } catch (thrown) {
      api.close();
      throw thrown;
    }
  }

  /** Takes what the plugin says of its devices, until it ends. */
  async #follow(name: string, plugin: NonNullable<Resource["plugin"]>): Promise<void> {
    const { logger } = this.#options;
    try {
      await plugin.api.watch((list) => {
        const resource = this.#resources.get(name);
        if (resource?.plugin !== plugin) return;
        const { devices, faults } = judgeDevices(list);
        if (faults.length > 0)
          logger.warn(
            { resource: name, faults: faults.slice(0, FAULTS_TOLD) },
            "A device plugin says what makes no sense",
          );
        resource.devices = devices;
        this.changed.fire();
      });
      logger.warn({ resource: name }, "A device plugin has ended: its devices are given to nobody");
    } catch (thrown) {
      if (!this.#isClosed && this.#resources.get(name)?.plugin === plugin)
        logger.warn({ resource: name, err: thrown }, "A device plugin has ended: its devices are given to nobody");
    }
    this.#lose(name, plugin);
  }

  #lose(name: string, plugin: Resource["plugin"]): void {
    const resource = this.#resources.get(name);
    if (plugin === undefined || resource?.plugin !== plugin) return;
    plugin.api.close();
    resource.plugin = undefined;
    if (!this.#isClosed) this.changed.fire();
  }

  /** Written before the resource is told of. @throws when that cannot be, or when there are too many */
  #remember(name: string): void {
    if (this.#resources.has(name)) return;
    if (this.#resources.size >= MAX_RESOURCES) this.#forgetOne();
    writeJson(this.#file, { resources: [...this.#resources.keys(), name] }, { flush: true });
    this.#resources.set(name, { devices: new Map() });
  }

  /** One that has no plugin, and of which no machine has any. */
  #forgetOne(): void {
    const held = new Set([...this.#options.held()].flatMap(namesIn));
    for (const [name, { plugin }] of this.#resources)
      if (plugin === undefined && !held.has(name)) return void this.#resources.delete(name);
    throw new Error(`there are ${MAX_RESOURCES} resources of plugins already`);
  }

  // --- what there is ---

  /** A resource whose plugin is away has as many devices as before, and none of them healthy. */
  counts(): DeviceCount[] {
    return [...this.#resources]
      .map(([name, { devices, plugin }]) => ({
        name,
        total: devices.size,
        healthy: plugin === undefined ? 0 : [...devices.values()].filter(({ healthy }) => healthy).length,
      }))
      .toSorted((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** The healthy devices of all resources. */
  allocatable(): { resource: string; id: string; numa: readonly number[] }[] {
    return [...this.#resources].flatMap(([resource, { devices, plugin }]) =>
      plugin === undefined
        ? []
        : [...devices].flatMap(([id, { healthy, numa }]) => (healthy ? [{ resource, id, numa }] : [])),
    );
  }

  readonly health = (name: string, id: string): DeviceHealth => {
    const resource = this.#resources.get(name);
    if (resource?.plugin === undefined) return "unknown";
    return resource.devices.get(id)?.healthy === true ? "healthy" : "unhealthy";
  };

  // --- who gets what ---

  async allocate(
    { id, spec }: { id: string; spec: MachineSpec },
    keep: (held: HeldDevices) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const needs = this.#needs(spec);
    if (needs.length === 0) return;
    await this.#whenKnown(
      needs.flatMap(({ wanted }) => wanted.map(({ name }) => name)),
      signal,
    );
    const chosen = new Map<string, ReadonlySet<string>>();
    this.#chosen.add(chosen);
    try {
      const held: Record<string, DeviceHolding[]> = {};
      /** What an init container has had: the others have it after that. */
      const reusable = new Map<string, Set<string>>();
      for (const { container, isPassing, wanted } of needs) {
        held[container] = [];
        for (const { name, count } of wanted) {
          const again = reusable.get(name) ?? new Set();
          const holding = await this.#allocateOne({ name, count, again, chosen }, signal);
          held[container].push(holding);
          for (const { id: device } of holding.devices) again[isPassing ? "add" : "delete"](device);
          reusable.set(name, again);
        }
      }
      signal.throwIfAborted();
      keep(held);
    } catch (thrown) {
      signal.throwIfAborted();
      this.#options.logger.info({ machine: id, err: thrown }, "A machine cannot have the devices that it asks for");
      throw new DevicesRefused(`Allocate failed due to ${toError(thrown).message}, which is unexpected`, {
        cause: thrown,
      });
    } finally {
      this.#chosen.delete(chosen);
    }
  }

  /** By container, in start order. What no plugin has ever had is somebody else's to count. */
  #needs(spec: MachineSpec) {
    return containersOf(spec)
      .filter(({ kind }) => kind !== "ephemeral")
      .map((each) => ({
        container: each.spec.name,
        isPassing: isPassing(each),
        wanted: (each.spec.resources?.limits?.extended ?? []).filter(
          ({ name, count }) => count > 0 && this.#resources.has(name),
        ),
      }))
      .filter(({ wanted }) => wanted.length > 0);
  }

  /**
   * Waits while it is not known who has which device; and, when this backend has just begun, for the plugins that have
   * not come back yet.
   */
  async #whenKnown(names: readonly string[], signal: AbortSignal): Promise<void> {
    const { clock, held } = this.#options;
    for (;;) {
      signal.throwIfAborted();
      const isLost = [...held()].includes("lost");
      const leftMs = this.#since + RETURN_MS - clock.monotonic();
      const isAway = names.some((name) => this.#resources.get(name)?.plugin === undefined || !this.#hasListed(name));
      if (!isLost && (!isAway || leftMs <= 0)) return;
      await this.changed.waitAtMost(clock, isLost ? LOST_RETRY_MS : leftMs, signal);
    }
  }

  #hasListed(name: string): boolean {
    return (this.#resources.get(name)?.devices.size ?? 0) > 0;
  }

  async #allocateOne(wish: Wish, signal: AbortSignal): Promise<DeviceHolding> {
    const { name } = wish;
    const ids = await this.#choose(wish, signal);
    const resource = this.#resources.get(name);
    if (resource?.plugin === undefined) throw new Error(`unknown Device Plugin ${name}`);
    const { api, options } = resource.plugin;
    const devices = ids.map((id) => ({ id, numa: [...(resource.devices.get(id)?.numa ?? [])] }));
    const response = await api.allocate(ids, signal);
    if (response === undefined) throw new Error(`no containers return in allocation response of ${name}`);
    const grant = judgeGrant(response);
    const { engine } = this.#options;
    if (grant.cdi.length > 0 && engine.hasCdi !== true)
      throw new Error(`the plugin of ${name} gives ${grant.cdi[0]}, and engine ${engine.name} knows no CDI devices`);
    return {
      resource: name,
      devices: devices.map(({ id, numa }) => (numa.length > 0 ? { id, numa } : { id })),
      preStart: options.preStart,
      grant,
    };
  }

  async #choose(wish: Wish, signal: AbortSignal): Promise<string[]> {
    const { name, count, again } = wish;
    const { plugin } = this.#resources.get(name)!;
    const choice = choose({ name, count, again, ...this.#free(name, again) });
    if (plugin?.options.preferred !== true || choice.isSettled) return taken(wish, choice.ids);
    const preferred = await plugin.api
      .preferred({ available: choice.available, mustInclude: choice.mustInclude, size: count }, signal)
      .catch((thrown: unknown) => {
        throw new Error(`device plugin GetPreferredAllocation rpc failed with err: ${toError(thrown).message}`, {
          cause: thrown,
        });
      });
    return taken(wish, choose({ name, count, again, preferred, ...this.#free(name, again) }).ids);
  }

  /** The healthy devices, and those of them that no machine has. */
  #free(name: string, again: ReadonlySet<string>): { healthy: string[]; free: string[] } {
    const { devices, plugin } = this.#resources.get(name)!;
    const healthy = plugin === undefined ? [] : [...devices].filter(([, { healthy: is }]) => is).map(([id]) => id);
    const given = [...this.#options.held()].flatMap((held) => idsIn(held, name));
    const taken = new Set([...given, ...[...this.#chosen].flatMap((chosen) => [...(chosen.get(name) ?? [])])]);
    return { healthy, free: healthy.filter((id) => !taken.has(id) && !again.has(id)) };
  }

  async prepare(holdings: readonly DeviceHolding[], signal: AbortSignal): Promise<void> {
    for (const { resource: name, devices, preStart } of holdings) {
      if (!preStart) continue;
      const plugin = this.#resources.get(name)?.plugin;
      try {
        if (plugin === undefined) throw new Error(`the plugin of ${name} is away`);
        await plugin.api.preStart(
          devices.map(({ id }) => id),
          signal,
        );
      } catch (thrown) {
        throw new Error(`device plugin PreStartContainer rpc failed with err: ${toError(thrown).message}`, {
          cause: thrown,
        });
      }
    }
  }

  close(): void {
    this.#isClosed = true;
    for (const { plugin } of this.#resources.values()) plugin?.api.close();
  }
}

/** In the same step as the choice, or somebody else would choose in between. */
function taken({ name, chosen }: Wish, ids: string[]): string[] {
  chosen.set(name, new Set([...(chosen.get(name) ?? []), ...ids]));
  return ids;
}

/** What an init container has is free for the next ones, unless it stays. */
function isPassing({ spec, kind }: NamedContainer): boolean {
  return kind === "init" && !isSidecar(spec, kind);
}

function namesIn(held: HeldDevices | "lost"): string[] {
  if (held === "lost") return [];
  return Object.values(held).flatMap((holdings) => holdings.map(({ resource }) => resource));
}

function idsIn(held: HeldDevices | "lost", resource: string): string[] {
  if (held === "lost") return [];
  const holdings = Object.values(held).flat();
  return holdings.flatMap(({ resource: name, devices }) => (name === resource ? devices.map(({ id }) => id) : []));
}

function isKnown(value: unknown): value is { resources: string[] } {
  const { resources } = (value ?? {}) as { resources?: unknown };
  return Array.isArray(resources) && resources.every((name) => typeof name === "string");
}
