/**
 * Volumes that outlive machines, of a cloud's own: the rules are those of every backend (`volume-rules.ts` of the kit),
 * what is known stands in entries (`volume-record.ts`), and the bytes are in the cloud's volumes. Every call may be
 * made by several processes at once, agents and CSI drivers, and be broken off anywhere: it reads what stands there,
 * does the next step, and goes on from what it finds then.
 */
import { isDeepStrictEqual } from "node:util";
import {
  assertCopy,
  assertPossible,
  assertSize,
  type CallOptions,
  type Clock,
  heldBy,
  isGoneVolume,
  isProviderError,
  isSubset,
  noSuchVolume,
  type PersistentVolume,
  type PersistentVolumeList,
  type PersistentVolumeSpec,
  ProviderError,
  type Random,
  type ReservationOptions,
  reservationsWith,
  specFingerprint,
  type VolumeCapacity,
  volumeClassOf,
  type VolumeOffer,
  type VolumeProvider,
} from "../../src/provider/kit/index.ts";
import type { CloudCalls } from "./cloud-calls.ts";
import type { CloudVolumes, VolumeRef } from "./cloud.ts";
import { newVmName, SCOPE_LABEL } from "./labels.ts";
import type { MachineWork } from "./machine-work.ts";
import { attachmentOf, type Holder, type VolumeEntries } from "./volume-entries.ts";
import { type CloudVolumeRecord, newVolumeRecord, unseenVolumeRecord, VOLUME_LABEL } from "./volume-record.ts";

interface CloudVolumeBookOptions {
  readonly cloud: CloudCalls;
  readonly offer: VolumeOffer;
  readonly entries: VolumeEntries;
  readonly scope: string;
  readonly work: Pick<MachineWork, "stop" | "look">;
  readonly clock: Clock;
  readonly random: Random;
}

type CopySource = CloudVolumeRecord & { readonly content: VolumeRef };

/** Of a create: the volume cannot be, and nothing of it is left. */
const LEAVES_NOTHING = ["quota", "invalid", "in_use", "not_found"] as const;

/** Of a cloud that has none. */
export const NO_VOLUMES: VolumeOffer = { fsTypes: [] };
/** What the cloud's volumes are. */
export const offerOf = ({ zone, classes }: CloudVolumes): VolumeOffer => ({ zone, classes, fsTypes: [] });

export class CloudVolumeBook implements VolumeProvider {
  readonly #options: CloudVolumeBookOptions;
  readonly #entries: VolumeEntries;
  /** By volume: creates of this process follow each other, so that none takes another's volume for a broken one. */
  readonly #creating = new Map<string, Promise<unknown>>();

  constructor(options: CloudVolumeBookOptions) {
    this.#options = options;
    this.#entries = options.entries;
  }

  // ------------------------------------------------------------------------------------------------------------ create

  create(id: string, spec: PersistentVolumeSpec, options: CallOptions): Promise<PersistentVolume> {
    const begin = () => this.#entries.untilDone(id, options, (record) => this.#create(id, spec, record, options));
    const turn = Promise.resolve(this.#creating.get(id)).then(begin, begin);
    this.#creating.set(id, turn);
    const end = () => {
      if (this.#creating.get(id) === turn) this.#creating.delete(id);
    };
    void turn.then(end, end);
    return turn;
  }

  async #create(
    id: string,
    spec: PersistentVolumeSpec,
    record: CloudVolumeRecord | undefined,
    options: CallOptions,
  ): Promise<PersistentVolume | undefined> {
    if (record === undefined) {
      const written = await this.#write(id, spec, options);
      return written && (await this.#make(written, options));
    }
    if (record.isUnmade === true) {
      await this.#remove(record, options);
      return undefined;
    }
    if (isGoneVolume(record.volume)) throw new ProviderError("gone", `volume ${id} was deleted`);
    if (record.fingerprint !== specFingerprint(spec))
      throw new ProviderError("conflict", `volume ${id} exists with another specification`);
    return record.volume.state === "creating"
      ? await this.#make(record, options)
      : this.#view(record, await this.#entries.holders(record, options));
  }

  async #write(id: string, spec: PersistentVolumeSpec, options: CallOptions): Promise<CloudVolumeRecord | undefined> {
    const { offer } = this.#options;
    assertPossible(spec, offer);
    const named = volumeClassOf(spec.class, offer).name;
    if (spec.source !== undefined) {
      const { source } = await this.#copyable(spec.source.volume, options);
      assertCopy(spec, source.volume);
      if (source.content.class !== named)
        throw new ProviderError(
          "invalid",
          `volume ${spec.source.volume}, which is to be copied, is of class ${source.content.class}, not ${named}`,
          { field: "class" },
        );
    }
    await this.#assertRoom(spec.size_bytes, named, options);
    const content = { name: this.#newName(), class: named };
    const about = { fingerprint: specFingerprint(spec), content, zone: offer.zone, at: this.#at() };
    return await this.#entries.create(newVolumeRecord(id, spec, about), options);
  }

  /** @returns undefined when the record is another by now */
  async #make(record: CloudVolumeRecord, options: CallOptions): Promise<PersistentVolume | undefined> {
    const { cloud } = this.#options;
    const { id, size_bytes } = record.volume;
    const content = record.content!;
    try {
      const source = record.source === undefined ? undefined : await this.#hold(record.source, record, options);
      const labels = { [SCOPE_LABEL]: this.#options.scope, [VOLUME_LABEL]: id };
      const request = { ...content, sizeBytes: size_bytes, labels, source };
      await cloud.onVolumes(options, (volumes, inner) => volumes.create(request, inner));
    } catch (thrown) {
      // Taken: by another process that makes it, or by an order of ours whose answer was lost.
      if (!isProviderError(thrown, "conflict")) {
        if (LEAVES_NOTHING.some((code) => isProviderError(thrown, code))) await this.#unmake(record, options);
        throw thrown;
      }
    }
    const made = await cloud.volume(content, options);
    if (made === undefined || made.state === "making")
      throw new ProviderError("unavailable", `volume ${id} is being made`, { retryAfterMs: 1000 });
    if (made.state === "broken") {
      // Another name for another try: of this one nobody knows whether it is whole.
      await this.#entries.swap(record, { content: { ...content, name: this.#newName() } }, options);
      return undefined;
    }
    const volume = { state: "available", size_bytes: Math.max(size_bytes, made.sizeBytes) } as const;
    const available = await this.#entries.swap(record, { volume }, options);
    return available && this.#view(available, []);
  }

  /** Nothing is left of what could not be made, so that it can be asked for again when there is room. */
  async #unmake(record: CloudVolumeRecord, options: CallOptions): Promise<void> {
    const change = { isUnmade: true, volume: { state: "deleting" } } as const;
    const unmade = await this.#entries.swap(record, change, options);
    if (unmade !== undefined) await this.#remove(unmade, options);
  }

  /**
   * Keeps what is copied from its deletion, and from writers where the copy would show them, until that is made or
   * given up.
   * @throws ProviderError not_found, in_use
   */
  async #hold(id: string, copy: CloudVolumeRecord, options: CallOptions): Promise<VolumeRef> {
    return await this.#entries.untilDone(id, options, async () => {
      const { source, isAtOnce } = await this.#copyable(id, options);
      const hold = { volume: copy.volume.id, content: copy.content!.name, ...(isAtOnce && { in_use: true }) };
      const isHeld = source.copies.some((each) => isDeepStrictEqual(each, hold));
      const copies = [...source.copies.filter(({ volume }) => volume !== hold.volume), hold];
      if (isHeld || (await this.#entries.swap(source, { copies }, options)) !== undefined) return source.content;
      return undefined;
    });
  }

  /** @throws ProviderError not_found, in_use */
  async #copyable(id: string, options: CallOptions): Promise<{ source: CopySource; isAtOnce: boolean }> {
    const field = "source.volume";
    const record = await this.#entries.read(id, options);
    if (record?.content === undefined || record.volume.state !== "available")
      throw new ProviderError("not_found", `there is no volume ${id} that could be copied`, { field });
    const source = { ...record, content: record.content };
    const { class: named } = source.content;
    const asked = (volumes: CloudVolumes, inner: CallOptions) => Promise.resolve(volumes.copiesInUse?.(named, inner));
    if ((await this.#options.cloud.onVolumes(options, asked)) === true) return { source, isAtOnce: true };
    const writers = { claims: record.claims.filter(({ read_only }) => !read_only) };
    const [writer] = await this.#entries.holders(writers, options);
    if (writer !== undefined) throw heldBy(id, attachmentOf(writer), field);
    return { source, isAtOnce: false };
  }

  // ------------------------------------------------------------------------------------------------------------- reads

  async get(id: string, options: CallOptions): Promise<PersistentVolume> {
    const record = await this.#entries.read(id, options);
    if (record === undefined || record.isUnmade === true) throw noSuchVolume(id);
    return this.#view(record, await this.#entries.holders(record, options));
  }

  async list({
    labels,
    includeDeleted = false,
    signal,
  }: CallOptions & {
    labels: Record<string, string>;
    includeDeleted?: boolean | undefined;
  }): Promise<PersistentVolumeList> {
    const all = await this.#entries.all({ signal });
    const wanted = all.filter(
      ({ volume, isUnmade }) =>
        isUnmade !== true && (includeDeleted || volume.state !== "deleted") && isSubset(labels, volume.labels),
    );
    if (wanted.every(({ claims }) => claims.length === 0)) return { items: wanted.map((each) => this.#view(each, [])) };
    const machines = new Map((await this.#options.cloud.records({ signal })).map((record) => [record.id, record]));
    const items: PersistentVolume[] = [];
    for (const record of wanted)
      items.push(this.#view(record, await this.#entries.holdersBy(machines, record, { signal })));
    return { items };
  }

  async getCapacity({
    class: named,
    zone,
    signal,
  }: CallOptions & { class?: string | undefined; zone?: string | undefined }): Promise<VolumeCapacity> {
    const { cloud, offer } = this.#options;
    const { name } = volumeClassOf(named, offer);
    if (zone !== undefined && zone !== offer.zone) return { available_bytes: 0 };
    const room = await cloud.onVolumes({ signal }, (volumes, inner) => volumes.room(name, inner));
    return { available_bytes: Math.max(0, Math.floor(room ?? Number.MAX_SAFE_INTEGER)) };
  }

  // ----------------------------------------------------------------------------------------------------------- changes

  async resize(id: string, sizeBytes: number, options: CallOptions): Promise<PersistentVolume> {
    const { cloud, offer } = this.#options;
    return await this.#entries.untilDone(id, options, async (found) => {
      const record = live(id, found);
      const { size_bytes: before, state } = record.volume;
      const content = record.content!;
      if (sizeBytes > before) {
        if (state !== "available") throw new ProviderError("unavailable", `volume ${id} is ${state}`);
        assertSize(sizeBytes, offer);
        await this.#assertRoom(sizeBytes - before, content.class, options);
        await cloud.onVolumes(options, (volumes, inner) => volumes.grow(content, sizeBytes, inner));
      }
      const grown =
        sizeBytes > before ? await this.#entries.swap(record, { volume: { size_bytes: sizeBytes } }, options) : record;
      if (grown === undefined) return undefined;
      const holders = await this.#entries.holders(grown, options);
      if (grown !== record) await this.#tellGrown(holders, content, sizeBytes, options);
      return this.#view(grown, holders);
    });
  }

  /** Guests say by it how full a volume is: one that does not listen says it by the size that it knows. */
  async #tellGrown(
    holders: readonly Holder[],
    { name }: VolumeRef,
    sizeBytes: number,
    options: CallOptions,
  ): Promise<void> {
    const tell = async ({ claim }: Holder) => {
      const sight = await this.#options.work.look(claim.machine, undefined, options);
      if (sight !== "absent") await sight.guest?.volumes?.resize(name, sizeBytes, options);
    };
    await Promise.allSettled(holders.map(tell));
    options.signal.throwIfAborted();
  }

  async delete(id: string, options: CallOptions): Promise<void> {
    await this.#entries.untilDone(id, options, (record) => this.#delete(id, record, options));
  }

  async #delete(id: string, record: CloudVolumeRecord | undefined, options: CallOptions): Promise<true | undefined> {
    if (record === undefined) {
      const tombstone = await this.#entries.create(unseenVolumeRecord(id, this.#at()), options);
      return tombstone && true;
    }
    const { state, reservations } = record.volume;
    if (state === "deleted") return true;
    if (record.isUnmade === true) {
      await this.#remove(record, options);
      return undefined;
    }
    if (state === "deleting") return (await this.finish(record, options)) ? true : undefined;
    const [holder] = await this.#entries.holders(record, options);
    if (holder !== undefined) throw heldBy(id, attachmentOf(holder));
    const [reserved] = reservations;
    if (reserved !== undefined)
      throw new ProviderError("in_use", `volume ${id} is reserved for ${reserved.name}: release it first`);
    if (await this.#entries.isCopied(record, options))
      throw new ProviderError("in_use", `volume ${id} is being copied`);
    // From here on no machine gets it.
    await this.#entries.swap(record, { volume: { state: "deleting" }, claims: [], copies: [] }, options);
    return undefined;
  }

  /** Goes on with a deletion. @returns false when the record is another by now @throws ProviderError unavailable */
  async finish(record: CloudVolumeRecord, options: CallOptions): Promise<boolean> {
    if (record.isUnmade === true) {
      await this.#remove(record, options);
      return true;
    }
    await this.#empty(record, options);
    const volume = { state: "deleted", deleted_at: this.#at() } as const;
    return (await this.#entries.swap(record, { volume, content: undefined }, options)) !== undefined;
  }

  /** Of what was never there for anybody: no tombstone, for its id may be asked for again. */
  async #remove(record: CloudVolumeRecord, options: CallOptions): Promise<void> {
    await this.#empty(record, options);
    await this.#entries.remove(record, options);
  }

  /** @throws ProviderError unavailable until all that was on it is gone */
  async #empty({ volume: { id }, content }: CloudVolumeRecord, options: CallOptions): Promise<void> {
    const { cloud } = this.#options;
    if (content === undefined || (await cloud.volume(content, options)) === undefined) return;
    try {
      await cloud.onVolumes(options, (volumes, inner) => volumes.delete(content, inner));
    } catch (thrown) {
      // A VM has it in which nothing runs: it is removed before long.
      if (!isProviderError(thrown, "in_use")) throw thrown;
      throw new ProviderError("unavailable", `volume ${id} is removed later: ${thrown.message}`, { cause: thrown });
    }
    if ((await cloud.volume(content, options)) !== undefined)
      throw new ProviderError("unavailable", `volume ${id} is being removed`, { retryAfterMs: 1000 });
  }

  async reserve(
    id: string,
    name: string,
    { readOnly = false, exclusive = false, signal }: CallOptions & ReservationOptions,
  ): Promise<PersistentVolume> {
    const { offer } = this.#options;
    return await this.#entries.untilDone(id, { signal }, async (found) => {
      const record = live(id, found);
      const holders = await this.#entries.holders(record, { signal });
      const wanted = { name, read_only: readOnly, ...(exclusive && { exclusive }) };
      const attachments = holders.map(attachmentOf);
      const reservations = reservationsWith(wanted, { volume: record.volume, attachments, offer });
      if (reservations === undefined) return this.#view(record, holders);
      const reserved = await this.#entries.swap(record, { volume: { reservations } }, { signal });
      return reserved && this.#view(reserved, holders);
    });
  }

  async release(
    id: string,
    name: string,
    { force = false, signal }: CallOptions & { force?: boolean | undefined },
  ): Promise<void> {
    await this.#entries.untilDone(id, { signal }, async (record) => {
      const { reservations = [] } = record?.volume ?? {};
      if (record === undefined || !reservations.some((each) => each.name === name)) return true;
      const its = { claims: record.claims.filter(({ reservation }) => reservation === name) };
      if (force) await this.#stopAll(await this.#entries.holders(its, { signal }), { signal });
      // Whatever was said of them: who is told that it is released gives the volume to another machine.
      const [holder] = await this.#entries.holders(its, { signal });
      if (holder !== undefined) throw heldBy(id, attachmentOf(holder));
      const left = reservations.filter((each) => each.name !== name);
      return (await this.#entries.swap(record, { volume: { reservations: left } }, { signal })) && true;
    });
  }

  /** Those that cannot be reached have the volume still, and that is what is said then. */
  async #stopAll(holders: readonly Holder[], options: CallOptions): Promise<void> {
    const stops = holders.map(({ claim }) => this.#options.work.stop(claim.machine, 0, options));
    await Promise.allSettled(stops);
    options.signal.throwIfAborted();
  }

  // ------------------------------------------------------------------------------------------------------------ others

  /** @throws ProviderError quota */
  async #assertRoom(bytes: number, named: string, options: CallOptions): Promise<void> {
    const room = await this.#options.cloud.onVolumes(options, (volumes, inner) => volumes.room(named, inner));
    if (room === undefined || bytes <= room) return;
    throw new ProviderError("quota", `there is room for ${Math.floor(room)} bytes of volumes, not for ${bytes}`, {
      field: "size_bytes",
      retryAfterMs: 30_000,
    });
  }

  #view({ volume }: CloudVolumeRecord, holders: readonly Holder[]): PersistentVolume {
    return structuredClone({ ...volume, attachments: holders.map(attachmentOf) });
  }

  #newName(): string {
    return newVmName(this.#options.random);
  }

  #at(): string {
    return new Date(this.#options.clock.now()).toISOString();
  }
}

/** @throws ProviderError not_found, gone */
function live(id: string, record: CloudVolumeRecord | undefined): CloudVolumeRecord {
  if (record === undefined || record.isUnmade === true) throw noSuchVolume(id);
  if (isGoneVolume(record.volume)) throw new ProviderError("gone", `volume ${id} was deleted`);
  return record;
}
