/**
 * Machines as VMs of a cloud (`cloud.ts`). Each has a VM of its own, whose guest serves the Machine API for this one
 * machine; what stands between the two is written in the machine's entry (`record.ts`), so this process keeps nothing
 * that another could not find again. Until its guest was told of it, a machine is there only for who has its
 * specification; for all others it is absent, and made by the next `createPod`.
 */
import type { Duplex } from "node:stream";
import {
  assertCapable,
  type CallOptions,
  type DeleteOptions,
  type Capability,
  type Clock,
  CONTAINER_CAPABILITIES,
  isOver,
  isSubset,
  isProviderError,
  LABEL_CLUSTER,
  LABEL_NODE,
  linkAbort,
  type LogLine,
  type Logger,
  type LogOptions,
  type Machine,
  type MachineEvent,
  MachineEvents,
  type MachineList,
  type MachinePatch,
  type MachineSpec,
  type MachineStats,
  noSuchMachine,
  pause,
  type ProcessStreams,
  type Provider,
  ProviderError,
  type ProviderInfo,
  type Random,
  requiredCapabilities,
  silentLogger,
  type StreamOptions,
  SUPERVISION_CAPABILITIES,
  systemClock,
  systemRandom,
  type TraceContext,
  traced,
  type Tracing,
  unlessAborted,
  type UnknownMachine,
  type VolumeProvider,
} from "../../src/provider/kit/index.ts";
import { CloudCalls } from "./cloud-calls.ts";
import type { InstanceType, VmCloud } from "./cloud.ts";
import { Collector } from "./collector.ts";
import { GuestEars } from "./guest-ears.ts";
import { type GuestKeys, withGuestKeys, withoutGuestKeys } from "./guest-keys.ts";
import { GuestServices } from "./guest-services.ts";
import { dialledGuest, Guests, type OpenGuest } from "./guests.ts";
import { Quarantine, soldTypes } from "./instance-types.ts";
import { isLive, MachineWork, type Sight } from "./machine-work.ts";
import { Pool } from "./pool.ts";
import type { MachineRecord } from "./record.ts";
import { Views } from "./views.ts";
import { VmOrders } from "./vm-orders.ts";
import { MachineVolumes } from "./machine-volumes.ts";
import { VolumeCollector } from "./volume-collector.ts";
import { VolumeEntries } from "./volume-entries.ts";
import { CloudVolumeBook, NO_VOLUMES, offerOf } from "./volumes.ts";

export interface CloudProviderOptions {
  readonly cloud: VmCloud;
  /** Default: by the Machine API, over `dial` of the cloud. */
  readonly openGuest?: OpenGuest | undefined;
  /** Absent: the cloud's own way to a guest is all that protects it. */
  readonly guestKeys?: GuestKeys | undefined;
  /** Agents that share the cloud and this name share its machines, and clean up behind each other. */
  readonly scope: string;
  /** Where the cloud tells no sizes by itself. */
  readonly types?: readonly InstanceType[] | undefined;
  readonly name?: string | undefined;
  readonly version?: string | undefined;
  /** What guests can do. Default: what every engine can. */
  readonly capabilities?: readonly Capability[] | undefined;
  /** Between two looks at machines that are being made, at all machines, and for what nobody needs. */
  readonly makeEveryMs?: number | undefined;
  readonly lookEveryMs?: number | undefined;
  readonly collectEveryMs?: number | undefined;
  /** For VMs that wait for machines; and how old one of them gets. */
  readonly poolEveryMs?: number | undefined;
  readonly poolMaxAgeMs?: number | undefined;
  readonly bootMs?: number | undefined;
  readonly tombstoneMs?: number | undefined;
  /** How long pods wait for a host that is out of sight until they are evicted. */
  readonly hostGraceMs?: number | undefined;
  readonly clock?: Clock | undefined;
  readonly random?: Random | undefined;
  readonly logger?: Logger | undefined;
  /** Absent: nothing is traced. */
  readonly tracing?: Tracing | undefined;
}

/** What this process knows of a machine. */
interface Known {
  /** What it was asked to make; gone as soon as its guest has it. */
  spec?: MachineSpec | undefined;
  /** What that was part of. */
  trace?: TraceContext | undefined;
  /** What it last told. */
  told?: Machine | undefined;
  /** The version of what it was told from. */
  version?: number | undefined;
}

/** What a guest has that is gone with its VM. */
const GUESTS_OWN = [
  ...(["volumes.persistent", "volumes.block", "volumes.clone", "volumes.exclusive", "volumes.force_release"] as const),
  "images.prewarm",
] as const;
/** Of a cloud that has volumes. */
const VOLUME_CAPABILITIES = ["volumes.persistent", "volumes.clone", "volumes.force_release"] as const;
const EVENTS_KEPT = 10_000;
/** Machines that are looked at at the same time. */
const ABREAST = 16;
const MINUTE_MS = 60_000;
const POOL_MS = 5_000;
/** After this, a list says of machines that were not seen by then that they are unknown. */
const LIST_MS = 20_000;

export class CloudProvider implements Provider {
  readonly name: string;
  readonly #options: CloudProviderOptions;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #cloud: CloudCalls;
  readonly #guests: Guests;
  readonly #work: MachineWork;
  readonly #views: Views;
  readonly #collector: Collector;
  /** Absent: the cloud has no volumes that outlive VMs. */
  readonly volumes?: VolumeProvider;
  /** Absent: machines reach Services as the cloud's network does. */
  readonly services?: GuestServices;
  readonly #volumeCollector: VolumeCollector | undefined;
  readonly #pool: Pool;
  readonly #ears: GuestEars;
  readonly #known = new Map<string, Known>();
  readonly #events: MachineEvents;
  readonly #stop = new AbortController();
  /** The cluster and node whose machines it is asked for. */
  #owner = "";
  #revision: number;
  #watchers = 0;
  #isRunning = false;

  constructor(options: CloudProviderOptions) {
    const { scope, clock = systemClock, random = systemRandom, logger = silentLogger } = options;
    const { bootMs = 10 * MINUTE_MS, tombstoneMs = 60 * MINUTE_MS, hostGraceMs = 5 * MINUTE_MS } = options;
    const { guestKeys: keys } = options;
    const cloud = keys === undefined ? withoutGuestKeys(options.cloud) : withGuestKeys(options.cloud, keys);
    this.name = options.name ?? cloud.name;
    this.#options = options;
    this.#clock = clock;
    this.#logger = logger;
    // Above those of an earlier process, so that none of these is taken for one of those.
    this.#revision = clock.now() * 1000;
    this.#events = new MachineEvents({ limit: EVENTS_KEPT, revision: this.#revision });
    this.#cloud = new CloudCalls({ cloud, scope, clock });
    this.#guests = new Guests(options.openGuest ?? dialledGuest(cloud, clock, options.tracing));
    const types = async (call: CallOptions) => soldTypes((await cloud.types?.(call)) ?? options.types ?? []);
    this.#views = new Views({ clock, hostGraceMs });
    const quarantine = new Quarantine(clock);
    const common = { cloud: this.#cloud, guests: this.#guests, views: this.#views, bootMs, clock, logger };
    const ordering = { ...common, types, quarantine, scope, random };
    const version = async (call: CallOptions) => (await cloud.version?.(call)) ?? "";
    const maxAgeMs = options.poolMaxAgeMs ?? 360 * MINUTE_MS;
    if (this.#capabilities.includes("services"))
      this.services = new GuestServices({ ...common, signal: this.#stop.signal });
    this.#pool = new Pool({ ...ordering, services: this.services, version, owner: () => this.#owner, maxAgeMs });
    const offer = cloud.volumes === undefined ? NO_VOLUMES : offerOf(cloud.volumes);
    const entries = new VolumeEntries({
      cloud: this.#cloud,
      scope,
      look: (id, call) => this.#work.look(id, undefined, call),
    });
    const volumes = new MachineVolumes({ ...ordering, offer, entries });
    const orders = new VmOrders({ ...ordering, pool: this.#pool, volumes, volumeZone: offer.zone });
    this.#work = new MachineWork({ ...common, orders, pool: this.#pool, volumes, services: this.services });
    this.#ears = new GuestEars({ onChange: (id) => this.#lookQuietly(id), clock, signal: this.#stop.signal });
    this.#collector = new Collector({
      cloud: this.#cloud,
      work: this.#work,
      scope,
      isWanted: (id) => this.#known.get(id)?.spec !== undefined,
      idleMs: 2 * bootMs,
      tombstoneMs,
      clock,
      logger,
    });
    if (cloud.volumes === undefined) return;
    const book = new CloudVolumeBook({ ...ordering, offer, entries, work: this.#work });
    this.volumes = book;
    this.#volumeCollector = new VolumeCollector({ ...ordering, entries, book, tombstoneMs });
  }

  getInfo(): Promise<ProviderInfo> {
    const { version = "0", cloud } = this.#options;
    const { zone, classes } = cloud.volumes ?? {};
    return Promise.resolve({
      name: this.name,
      version,
      capabilities: this.#capabilities,
      ...(classes !== undefined && { volumeClasses: classes }),
      ...(zone !== undefined && { zone }),
    });
  }

  get #capabilities(): readonly Capability[] {
    return offered(this.#options.capabilities, this.volumes !== undefined);
  }

  // --------------------------------------------------------------------------------------------------------- machines

  async createPod(id: string, spec: MachineSpec, options: CallOptions): Promise<Machine> {
    this.#run(spec.labels);
    assertCapable(requiredCapabilities(spec), this.#capabilities);
    const known = this.#knownOf(id);
    const before = known.spec;
    known.spec ??= spec;
    known.trace = this.#options.tracing?.active() ?? known.trace;
    try {
      return this.#present(id, await this.#work.create(id, spec, options));
    } catch (thrown) {
      // What has gone wrong in a way that may pass is gone on with.
      if (before === undefined && !isProviderError(thrown, "unavailable")) known.spec = undefined;
      throw thrown;
    }
  }

  async getPod(id: string, options: CallOptions): Promise<Machine> {
    this.#run();
    return this.#present(id, await this.#look(id, options));
  }

  async stopPod(
    id: string,
    { signal, graceSeconds }: CallOptions & { graceSeconds: number },
  ): Promise<Machine | undefined> {
    return this.#present(id, await this.#work.stop(id, graceSeconds, { signal }));
  }

  async deletePod(id: string, { signal, force, ifAbsent }: DeleteOptions): Promise<void> {
    this.#run();
    await this.#work.delete(id, { force, ifAbsent, signal });
    const known = this.#known.get(id);
    if (known !== undefined) known.spec = undefined;
    // It is on its way, whatever this look has to say.
    await this.#lookQuietly(id, signal);
  }

  async getPods({
    labels,
    includeDeleted = false,
    signal,
  }: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined }): Promise<MachineList> {
    this.#run(labels);
    const records = await this.#cloud.records({ signal });
    const unknown = new Map<string, UnknownMachine>();
    const ids = this.#idsOf(records, labels);
    // However many guests are silent, the others are told of in time.
    const late = new AbortController();
    const cancel = this.#clock.after(LIST_MS, () =>
      late.abort(new ProviderError("unavailable", `its guest did not answer within ${LIST_MS} ms`)),
    );
    using linked = linkAbort(signal, late.signal);
    await this.#abreast(ids, async (id) => {
      try {
        this.#take(id, await unlessAborted(this.#look(id, { signal: linked.signal }), linked.signal));
      } catch (thrown) {
        signal.throwIfAborted();
        const reason = thrown instanceof Error ? thrown.message : String(thrown);
        unknown.set(id, { id, reason, disruption: this.#views.disruptionOf(id) });
      }
    });
    cancel();
    // As they are known now, so that what changes from here on is an event after this revision.
    const items = ids.flatMap((id) => {
      const machine = unknown.has(id) ? undefined : this.#known.get(id)?.told;
      return machine !== undefined && isSubset(labels, machine.labels) ? [machine] : [];
    });
    this.#prune(records);
    return {
      items: items.filter(({ state }) => includeDeleted || state !== "deleted"),
      revision: this.#events.revision,
      ...(unknown.size > 0 && { unknown: [...unknown.values()] }),
    };
  }

  /** Those that a list, which may lag, and this process know of. */
  #idsOf(records: readonly MachineRecord[], labels: Readonly<Record<string, string>>): string[] {
    const ids = new Set(records.filter((record) => isSubset(labels, record.labels)).map(({ id }) => id));
    for (const [id, { told }] of this.#known) if (told !== undefined && isSubset(labels, told.labels)) ids.add(id);
    return [...ids];
  }

  /** What is gone from the cloud, and nobody makes, is forgotten. */
  #prune(records: readonly MachineRecord[]): void {
    const listed = new Set(records.map(({ id }) => id));
    for (const [id, { spec, told }] of this.#known) {
      if (listed.has(id) || spec !== undefined || (told !== undefined && told.state !== "deleted")) continue;
      this.#known.delete(id);
      this.#views.forget(id);
    }
  }

  async *watchPods(
    since: number,
    { signal, labels }: CallOptions & { labels: Record<string, string> },
  ): AsyncGenerator<MachineEvent> {
    this.#run(labels);
    this.#watchers++;
    try {
      for await (const event of this.#events.watch(since, signal))
        if (isSubset(labels, event.machine.labels)) yield event;
    } finally {
      this.#watchers--;
    }
  }

  async updatePod(id: string, patch: MachinePatch, options: CallOptions): Promise<Machine> {
    const guest = await this.#guestOf(id, options);
    if (guest.updatePod === undefined) throw lacks("updatePod");
    await guest.updatePod(id, patch, options);
    return this.#present(id, await this.#look(id, options));
  }

  // ---------------------------------------------------------------------------------------------------------- streams

  async *getLogs(id: string, container: string, options: LogOptions): AsyncGenerator<LogLine> {
    const guest = await this.#guestOf(id, options);
    yield* guest.getLogs(id, container, options);
  }

  async exec(id: string, container: string, command: string[], options: StreamOptions): Promise<ProcessStreams> {
    const guest = await this.#guestOf(id, options);
    if (guest.exec === undefined) throw lacks("exec");
    return await guest.exec(id, container, command, options);
  }

  async attach(id: string, container: string, options: StreamOptions): Promise<ProcessStreams> {
    const guest = await this.#guestOf(id, options);
    if (guest.attach === undefined) throw lacks("attach");
    return await guest.attach(id, container, options);
  }

  async portForward(id: string, port: number, options: CallOptions): Promise<Duplex> {
    const guest = await this.#guestOf(id, options);
    if (guest.portForward === undefined) throw lacks("portForward");
    return await guest.portForward(id, port, options);
  }

  /** Of those whose guests answer. */
  async getStats({ signal, labels }: CallOptions & { labels: Record<string, string> }): Promise<MachineStats[]> {
    const samples: MachineStats[] = [];
    const running = [...this.#known.values()].flatMap(({ told }) =>
      told?.state === "running" && isSubset(labels, told.labels) ? [told.id] : [],
    );
    await this.#abreast(running, async (id) => {
      try {
        const guest = await this.#guestOf(id, { signal });
        const all = (await guest.getStats?.({ signal, labels: {} })) ?? [];
        samples.push(...all.filter((sample) => sample.id === id));
      } catch {
        signal.throwIfAborted();
      }
    });
    return samples;
  }

  async close(): Promise<void> {
    this.#stop.abort();
    await this.#guests.close();
    await this.#options.cloud.close();
  }

  /** @throws ProviderError not_found, conflict, unavailable */
  async #guestOf(id: string, { signal }: CallOptions): Promise<Provider> {
    const record = await this.#cloud.record(id, { signal });
    if (record === undefined || record.phase === "buried") throw noSuchMachine(id);
    const vm = isLive(record) && record.phase !== "made" ? await this.#cloud.vm(record.vm!, { signal }) : undefined;
    if (vm === undefined)
      throw new ProviderError(
        "conflict",
        record.phase === "made" ? `machine ${id} is still being made` : `the VM of machine ${id} is gone`,
      );
    if (!vm.isSeen) throw new ProviderError("unavailable", `the host of machine ${id} is not seen just now`);
    const guest = this.#guests.of(vm);
    if (record.phase === "told") await assertMade(guest, id, { signal });
    return guest;
  }

  // ------------------------------------------------------------------------------------------------------------- eyes

  async #look(id: string, options: CallOptions): Promise<Sight> {
    const { spec, trace: parent } = this.#known.get(id) ?? {};
    const look = () => this.#work.look(id, spec, options);
    // What goes on with a machine that was asked for is part of that; a mere look is not.
    const { tracing } = this.#options;
    if (tracing === undefined || spec === undefined || parent === undefined) return await look();
    return await traced(tracing, "machine.make", { parent, attributes: { "vmlet.machine.id": id } }, look);
  }

  /** @throws ProviderError not_found */
  #present(id: string, sight: Sight): Machine {
    const machine = this.#take(id, sight);
    if (machine === undefined) throw noSuchMachine(id);
    return machine;
  }

  /** Keeps what was seen, and tells it to those who watch. @returns the newest that is known */
  #take(id: string, sight: Sight): Machine | undefined {
    if (sight === "absent") {
      this.#unhear(id);
      const known = this.#known.get(id);
      if (known !== undefined) known.told = undefined;
      return undefined;
    }
    const { machine, record, guest } = sight;
    const known = this.#knownOf(id);
    if (guest === undefined || isOver(machine)) this.#unhear(id);
    else {
      this.services?.keep(id, guest, machine.labels);
      if (this.#watchers > 0) this.#ears.listen(id, guest);
    }
    if (record.phase !== "made") known.spec = undefined;
    const { told, version = 0 } = known;
    const isSame = told?.created_at === machine.created_at;
    if (told !== undefined && isSame) {
      if (machine.version < version) return told;
      const isUnchanged =
        machine.reachability === told.reachability && machine.host === told.host && isSameDisruption(machine, told);
      if (machine.version === version && isUnchanged) return told;
    }
    // Grows with what the guest knows nothing of, too.
    const grown = isSame ? Math.max(machine.version, told.version + 1) : machine.version;
    const seen = { ...machine, version: grown, revision: ++this.#revision };
    known.told = seen;
    known.version = machine.version;
    this.#events.publish(seen);
    return seen;
  }

  /** Its guest is no machine's that runs. */
  #unhear(id: string): void {
    this.#ears.forget(id);
    this.services?.forget(id);
  }

  #knownOf(id: string): Known {
    let known = this.#known.get(id);
    if (known === undefined) this.#known.set(id, (known = {}));
    return known;
  }

  // ------------------------------------------------------------------------------------------------------------ loops

  /** @param labels of machines, which tell whose agent asks */
  #run({ [LABEL_CLUSTER]: cluster, [LABEL_NODE]: node }: Readonly<Record<string, string>> = {}): void {
    if (this.#owner === "" && cluster !== undefined && node !== undefined) this.#owner = `${cluster}.${node}`;
    if (this.#isRunning) return;
    this.#isRunning = true;
    const { makeEveryMs = 1000, lookEveryMs = 5000, collectEveryMs = MINUTE_MS } = this.#options;
    const { poolEveryMs = POOL_MS } = this.#options;
    void this.#every(makeEveryMs, () => this.#makeAll());
    void this.#every(lookEveryMs, () => this.#lookAtAll());
    void this.#every(poolEveryMs, () => this.#pool.round({ signal: this.#stop.signal }));
    const { signal } = this.#stop;
    void this.#every(collectEveryMs, () => this.#collector.collect({ signal }));
    const collector = this.#volumeCollector;
    if (collector !== undefined) void this.#every(collectEveryMs, () => collector.collect({ signal }));
  }

  async #every(ms: number, work: () => Promise<void>): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      await pause(this.#clock, ms, signal);
      if (signal.aborted) return;
      try {
        await work();
      } catch (thrown) {
        if (!signal.aborted) this.#logger.debug({ err: thrown }, "The cloud could not be looked at");
      }
    }
  }

  /** Goes on with the machines whose guests are not told yet. */
  async #makeAll(): Promise<void> {
    await this.#abreast(
      [...this.#known].flatMap(([id, { spec, told }]) =>
        spec !== undefined && told?.state === "creating" ? [id] : [],
      ),
      (id) => this.#lookQuietly(id),
    );
  }

  /** For those who watch. */
  async #lookAtAll(): Promise<void> {
    if (this.#watchers === 0) return;
    const isLive = ({ told }: Known) => told !== undefined && told.state !== "deleted";
    const live = [...this.#known].flatMap(([id, known]) => (isLive(known) ? [id] : []));
    await this.#abreast(live, (id) => this.#lookQuietly(id));
  }

  async #lookQuietly(id: string, signal = this.#stop.signal): Promise<void> {
    try {
      this.#take(id, await this.#look(id, { signal }));
    } catch (thrown) {
      if (!signal.aborted) this.#logger.debug({ machine: id, err: thrown }, "A machine could not be looked at");
    }
  }

  async #abreast(ids: readonly string[], work: (id: string) => Promise<void>): Promise<void> {
    const left = ids[Symbol.iterator]();
    const worker = async () => {
      for (const id of left) await work(id);
    };
    await Promise.all(Array.from({ length: ABREAST }, worker));
  }
}

/** @param ofGuests default: what every engine can */
function offered(
  ofGuests: readonly Capability[] = [...SUPERVISION_CAPABILITIES, ...CONTAINER_CAPABILITIES],
  hasVolumes: boolean,
): readonly Capability[] {
  const all = new Set<Capability>([...ofGuests, "events", "delete_if_absent", "instance_types"]);
  // A guest's is that of one VM.
  all.delete("capacity");
  for (const each of GUESTS_OWN) all.delete(each);
  if (hasVolumes) for (const each of VOLUME_CAPABILITIES) all.add(each);
  return [...all];
}

const isSameDisruption = ({ disruption: a }: Machine, { disruption: b }: Machine) =>
  a?.reason === b?.reason && a?.message === b?.message && a?.at === b?.at;
const lacks = (what: string) => new ProviderError("unsupported", `the guest has no ${what}`);

/**
 * Of a guest that was only told of its machine nobody knows that it has heard: what it does not know is no machine that
 * is gone.
 * @throws ProviderError conflict
 */
async function assertMade(guest: Provider, id: string, options: CallOptions): Promise<void> {
  try {
    await guest.getPod(id, options);
  } catch (thrown) {
    if (!isProviderError(thrown, "not_found")) throw thrown;
    throw new ProviderError("conflict", `machine ${id} is still being made`, { cause: thrown });
  }
}
