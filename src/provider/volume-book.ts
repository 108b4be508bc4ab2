/**
 * Volumes for a provider that keeps them by itself: who may have which, and what becomes of each call when it is
 * repeated, late, or broken off. Where the bytes are is its `contents`; what must outlive a kill goes through `save`
 * before anything is told.
 *
 * Which machines have a volume is not written down a second time: the provider says it, from the machines that it has.
 * So the claim is made when the machine is written, and ends when it is known that nothing of it runs.
 */
import type { Clock } from "../util/clock.ts";
import { isSubset } from "../resources/labels.ts";
import { ProviderError } from "./errors.ts";
import { specFingerprint } from "./fingerprint.ts";
import type { MachineSpec } from "./machine.ts";
import type { CallOptions } from "./provider.ts";
import {
  noSuchVolume,
  type PersistentVolume,
  type PersistentVolumeList,
  type PersistentVolumeSpec,
  type ReservationOptions,
  type VolumeAttachment,
  type VolumeCapacity,
  type VolumeClaim,
  volumeClaims,
  type VolumeProvider,
} from "./volume.ts";
import { VolumeRoom } from "./volume-room.ts";
import {
  assertCopy,
  assertFree,
  assertMode,
  assertPossible,
  assertSize,
  heldBy,
  isGoneVolume,
  reservationsWith,
  volumeClassOf,
  type VolumeOffer,
} from "./volume-rules.ts";

/** What is kept of a volume. */
export interface VolumeRecord {
  volume: Omit<PersistentVolume, "attachments">;
  /** Of the specification as it was created: tells a repeated create from another one. */
  fingerprint: string;
  /** The volume that it begins as a copy of. */
  source?: string | undefined;
}

/** Where volumes' bytes are. What is called again finds what an earlier call has done, be it in part. */
export interface VolumeContents {
  /**
   * Takes what is on the source at this instant, for the `make` that follows: the source may be written to from then
   * on.
   * @returns false where that cannot be, and nothing is taken. Absent: it never can
   */
  take?(record: VolumeRecord, source: VolumeRecord): Promise<boolean>;
  /**
   * Makes the volume: empty, a copy of what was taken of the source, or one of a source to which nothing writes
   * meanwhile.
   * @returns what it has become @throws ProviderError quota when there is no room
   */
  make(
    record: VolumeRecord,
    source: VolumeRecord | undefined,
  ): Promise<{ size_bytes: number; fs_type?: string | undefined }>;
  /** @returns the size that it has then @throws ProviderError quota, in_use */
  grow(record: VolumeRecord, sizeBytes: number): Promise<number>;
  /** All of it is gone when this resolves. */
  remove(record: VolumeRecord): Promise<void>;
  /** Bytes that new volumes may have. */
  room(): Promise<number>;
  /** What a volume takes of these that asks for so many. Absent: as many. */
  taken?(sizeBytes: number, fsType: string | undefined): number;
}

export interface VolumeBookOptions extends VolumeOffer {
  clock: Clock;
  contents: VolumeContents;
  /** The machines that have this volume, or of which that is not known. */
  attachments: (id: string) => readonly VolumeAttachment[];
  /**
   * Stops a machine at once, for its volume is taken. Absent: none is ever stopped for that. It need not be over
   * when this returns: `attachments` tells.
   */
  stop?: ((machine: string) => void) | undefined;
  /** When it returns, a loss of power cannot take it back. @throws when it cannot be written: then it is not so */
  save?: ((record: VolumeRecord) => void) | undefined;
  /** Nothing was ever told of this volume, or its tombstone is old. */
  forget?: ((id: string) => void) | undefined;
  /** What an earlier life has saved. */
  records?: Iterable<VolumeRecord> | undefined;
}

/** A create that was under way when its volume was deleted has arrived by then. */
const TOMBSTONE_KNOWN_MS = 30 * 60_000;
const SOURCE_FIELD = "source.volume";
/** Of a create: the volume cannot be, and nothing of it is left. */
const LEAVES_NOTHING: readonly string[] = ["quota", "in_use", "not_found"];

export class VolumeBook implements VolumeProvider {
  readonly #options: VolumeBookOptions;
  readonly #records = new Map<string, VolumeRecord>();
  /** Of which what is written may be another than what is known here. */
  readonly #unsettled = new Set<string>();
  /** Tombstones, on the monotonic clock: since they were first looked at to be forgotten. */
  readonly #deadSince = new Map<string, number>();
  /** By volume: what is being done to it. Calls for one volume follow each other. */
  readonly #turns = new Map<string, Promise<unknown>>();
  readonly #room: VolumeRoom;

  constructor(options: VolumeBookOptions) {
    this.#options = options;
    this.#room = new VolumeRoom(() => options.contents.room());
    for (const record of options.records ?? []) this.#records.set(record.volume.id, record);
  }

  create(id: string, spec: PersistentVolumeSpec, _options: CallOptions): Promise<PersistentVolume> {
    return this.inTurn(id, async () => {
      const existing = this.#records.get(id);
      const fingerprint = specFingerprint(spec);
      if (existing !== undefined) {
        if (isGone(existing)) throw new ProviderError("gone", `volume ${id} was deleted`);
        if (existing.fingerprint !== fingerprint)
          throw new ProviderError("conflict", `volume ${id} exists with another specification`);
        if (existing.volume.state !== "creating") return this.#view(existing);
        return await this.#make(existing);
      }
      assertPossible(spec, this.#options);
      const source = spec.source === undefined ? undefined : this.#sourceOf(spec.source.volume);
      if (this.#options.contents.take === undefined && source !== undefined) this.#assertUnwritten(source);
      if (source !== undefined) assertCopy(spec, source.volume);
      const { labels, size_bytes, mode, class: named, zone = this.#options.zone } = spec;
      const { fs_type = source?.volume.fs_type } = spec;
      using promise = await this.#promise(size_bytes, fs_type);
      const record: VolumeRecord = {
        fingerprint,
        ...(source !== undefined && { source: source.volume.id }),
        volume: {
          id,
          version: 0,
          labels: { ...labels },
          state: "creating",
          size_bytes,
          mode,
          ...(fs_type !== undefined && { fs_type }),
          ...(named !== undefined && { class: named }),
          ...(zone !== undefined && { zone }),
          created_at: new Date(this.#options.clock.now()).toISOString(),
          reservations: [],
        },
      };
      return await this.#make(this.#keep(record, {}), promise);
    });
  }

  /** @param promise of the room for it; absent: an earlier call had one, and what came of that nobody knows */
  async #make(record: VolumeRecord, promise?: Disposable): Promise<PersistentVolume> {
    const { contents, forget } = this.#options;
    const { id, size_bytes: asked, fs_type: wanted } = record.volume;
    try {
      using _ = promise ?? (await this.#promise(asked, wanted));
      const { source } = record;
      const { size_bytes, fs_type } =
        source === undefined ? await contents.make(record, undefined) : await this.#copy(record, source);
      return this.#view(
        this.#keep(record, { state: "available", size_bytes, ...(fs_type !== undefined && { fs_type }) }),
      );
    } catch (thrown) {
      if (!(thrown instanceof ProviderError) || !LEAVES_NOTHING.includes(thrown.code)) throw thrown;
      // The caller may never come back, and half a volume takes room.
      await contents.remove(record);
      forget?.(id);
      this.#records.delete(id);
      throw thrown;
    }
  }

  get(id: string, _options: CallOptions): Promise<PersistentVolume> {
    return settled(() => this.#view(this.#find(id)));
  }

  list({
    labels,
    includeDeleted = false,
  }: {
    labels: Record<string, string>;
    includeDeleted?: boolean | undefined;
  }): Promise<PersistentVolumeList> {
    return settled(() => {
      const wanted = [...this.#records.values()].filter(
        ({ volume }) => (includeDeleted || volume.state !== "deleted") && isSubset(labels, volume.labels),
      );
      return { items: wanted.map((record) => this.#view(record)) };
    });
  }

  resize(id: string, sizeBytes: number, _options: CallOptions): Promise<PersistentVolume> {
    return this.inTurn(id, async () => {
      const record = this.#live(id);
      const { size_bytes: before, state, fs_type } = record.volume;
      if (sizeBytes <= before) return this.#view(record);
      if (state !== "available") throw new ProviderError("unavailable", `volume ${id} is ${state}`);
      assertSize(sizeBytes, this.#options);
      using _ = await this.#promise(sizeBytes, fs_type, before);
      const size_bytes = await this.#options.contents.grow(record, sizeBytes);
      return this.#view(this.#keep(record, { size_bytes }));
    });
  }

  delete(id: string, _options: CallOptions): Promise<void> {
    return this.inTurn(id, async () => {
      const record = this.#records.get(id) ?? unseenVolume(id, this.#options.clock.now());
      const { state } = record.volume;
      if (state === "deleted") return;
      const [attached] = this.#options.attachments(id);
      if (attached !== undefined) throw heldBy(id, attached);
      const [reserved] = record.volume.reservations;
      if (reserved !== undefined)
        throw new ProviderError("in_use", `volume ${id} is reserved for ${reserved.name}: release it first`);
      // From here on no machine gets it, also after a kill.
      if (state !== "deleting") this.#keep(record, { state: "deleting" });
      await this.#options.contents.remove(record);
      this.#keep(record, { state: "deleted", deleted_at: new Date(this.#options.clock.now()).toISOString() });
    });
  }

  reserve(
    id: string,
    name: string,
    { readOnly = false, exclusive = false }: CallOptions & ReservationOptions,
  ): Promise<PersistentVolume> {
    return this.inTurn(id, () => {
      const record = this.#live(id);
      const wanted = { name, read_only: readOnly, ...(exclusive && { exclusive }) };
      const attachments = this.#options.attachments(id);
      const reservations = reservationsWith(wanted, { volume: record.volume, attachments, offer: this.#options });
      return this.#view(reservations === undefined ? record : this.#keep(record, { reservations }));
    });
  }

  release(id: string, name: string, { force = false }: CallOptions & { force?: boolean | undefined }): Promise<void> {
    return this.inTurn(id, () => {
      const record = this.#records.get(id);
      const { reservations = [] } = record?.volume ?? {};
      if (record === undefined || !reservations.some((each) => each.name === name)) return;
      const holders = () => this.#options.attachments(id).filter((each) => each.reservation === name);
      if (force) stopAll(holders(), this.#options.stop);
      // Whatever was said of them: who is told that it is released gives the volume to another machine.
      const [holder] = holders();
      if (holder !== undefined) throw heldBy(id, holder);
      this.#keep(record, { reservations: reservations.filter((each) => each.name !== name) });
    });
  }

  async getCapacity({
    class: named,
    zone,
  }: {
    class?: string | undefined;
    zone?: string | undefined;
  }): Promise<VolumeCapacity> {
    volumeClassOf(named, this.#options);
    const { minimumBytes, maximumBytes } = this.#options;
    const isElsewhere = zone !== undefined && zone !== this.#options.zone;
    return {
      available_bytes: isElsewhere ? 0 : await this.#room.free(),
      ...(minimumBytes !== undefined && { minimum_bytes: minimumBytes }),
      ...(maximumBytes !== undefined && { maximum_bytes: maximumBytes }),
    };
  }

  /**
   * Whether a machine may have all volumes that it names. To be asked in the same turn of the event loop in which the
   * machine is written, from when on `attachments` tells of it.
   *
   * @throws ProviderError invalid, not_found (of the volume, as `field` says), in_use, out_of_zone, unavailable
   */
  assertClaimable(spec: MachineSpec): void {
    const seen = new Set<string>();
    for (const { claim, field } of volumeClaims(spec)) {
      const { volume: id } = claim;
      if (seen.has(id)) throw new ProviderError("invalid", `volume ${id} is named twice`, { field });
      seen.add(id);
      const record = this.#records.get(id);
      if (record === undefined || isGone(record))
        throw new ProviderError("not_found", `there is no volume ${id}`, { field });
      assertMode(spec, claim, record.volume, field);
      this.#assertFree(claim, record, field);
    }
  }

  /**
   * Whether a machine that has its volumes may get more containers: they have each volume as what it is.
   *
   * @param spec with the containers that are added
   * @throws ProviderError invalid
   */
  assertJoinable(spec: MachineSpec): void {
    for (const { claim } of volumeClaims(spec)) {
      const record = this.#records.get(claim.volume);
      if (record !== undefined) assertMode(spec, claim, record.volume, "ephemeral_containers");
    }
  }

  /** The records of which something is still to be done: volumes whose removal a kill has broken off. */
  async finish(): Promise<void> {
    for (const { volume } of this.#records.values())
      if (volume.state === "deleting") await this.delete(volume.id, { signal: new AbortController().signal });
  }

  /**
   * Forgets tombstones that are older. Not by the wall clock alone, which may be a day ahead: what is forgotten has
   * been known here for a while, too.
   */
  prune(maxAgeMs: number): void {
    const { clock, forget } = this.#options;
    const now = clock.monotonic();
    for (const [id, { volume }] of this.#records) {
      if (volume.deleted_at === undefined) continue;
      const knownSince = this.#deadSince.get(id) ?? now;
      this.#deadSince.set(id, knownSince);
      if (now - knownSince < Math.min(maxAgeMs, TOMBSTONE_KNOWN_MS)) continue;
      if (clock.now() - Date.parse(volume.deleted_at) < maxAgeMs) continue;
      forget?.(id);
      this.#records.delete(id);
      this.#deadSince.delete(id);
    }
  }

  record(id: string): VolumeRecord | undefined {
    return this.#records.get(id);
  }

  #assertFree(claim: VolumeClaim, record: VolumeRecord, field: string): void {
    this.#settle(record);
    const attachments = this.#options.attachments(record.volume.id);
    assertFree(claim, { volume: record.volume, attachments, offer: this.#options, field });
  }

  /** Who uses the source waits for no more than has to be. @throws ProviderError not_found, in_use */
  async #copy(record: VolumeRecord, id: string): ReturnType<VolumeContents["make"]> {
    const { contents } = this.#options;
    const { made, taken } = await this.inTurn(id, async () => {
      const source = this.#sourceOf(id);
      if ((await contents.take?.(record, source)) === true) return { taken: source };
      this.#assertUnwritten(source);
      return { made: await contents.make(record, source) };
    });
    return made ?? (await contents.make(record, taken));
  }

  /** @throws ProviderError not_found */
  #sourceOf(id: string): VolumeRecord {
    const record = this.#records.get(id);
    if (record?.volume.state === "available") return record;
    throw new ProviderError("not_found", `there is no volume ${id} that could be copied`, { field: SOURCE_FIELD });
  }

  /** @throws ProviderError in_use */
  #assertUnwritten({ volume: { id } }: VolumeRecord): void {
    const writer = this.#options.attachments(id).find(({ read_only }) => !read_only);
    if (writer !== undefined) throw heldBy(id, writer, SOURCE_FIELD);
  }

  /** @param before what it has already @throws ProviderError quota */
  #promise(sizeBytes: number, fsType: string | undefined, before = 0): Promise<Disposable> {
    const { contents } = this.#options;
    return this.#room.promise((contents.taken?.(sizeBytes, fsType) ?? sizeBytes) - before);
  }

  /** The record with this changed, as saved. @throws what `save` does: then it is as it was */
  #keep(record: VolumeRecord, change: Partial<VolumeRecord["volume"]>): VolumeRecord {
    this.#settle(record);
    const before = record.volume;
    const { id } = before;
    record.volume = { ...before, ...change, version: before.version + 1 };
    try {
      this.#options.save?.(record);
    } catch (thrown) {
      record.volume = before;
      // Of a volume that is not known yet, a later life may tell, and who asked for it asks again.
      if (this.#records.has(id)) this.#takeBack(record);
      throw thrown;
    }
    this.#records.set(id, record);
    return record;
  }

  /** What could not be saved may have been written all the same: a later life would tell it. */
  #takeBack(record: VolumeRecord): void {
    this.#unsettled.add(record.volume.id);
    try {
      this.#settle(record);
    } catch {
      // Before it is used, then: until it is known what is written of it, nobody gets it.
    }
  }

  /** Writes it down as it is known here. @throws what `save` does */
  #settle(record: VolumeRecord): void {
    const { id } = record.volume;
    if (!this.#unsettled.has(id)) return;
    const before = record.volume;
    // Above what may be written, which has another content.
    record.volume = { ...before, version: before.version + 2 };
    try {
      this.#options.save?.(record);
      this.#unsettled.delete(id);
    } catch (thrown) {
      record.volume = before;
      throw thrown;
    }
  }

  #find(id: string): VolumeRecord {
    const record = this.#records.get(id);
    if (record === undefined) throw noSuchVolume(id);
    return record;
  }

  #live(id: string): VolumeRecord {
    const record = this.#find(id);
    if (isGone(record)) throw new ProviderError("gone", `volume ${id} was deleted`);
    return record;
  }

  #view({ volume }: VolumeRecord): PersistentVolume {
    return structuredClone({ ...volume, attachments: [...this.#options.attachments(volume.id)] });
  }

  /** After all that is being done to the volume, and before all that is asked for later. */
  async inTurn<T>(id: string, work: () => T | Promise<T>): Promise<T> {
    const before = this.#turns.get(id);
    const turn = Promise.resolve(before).then(work, work);
    this.#turns.set(id, turn);
    try {
      return await turn;
    } finally {
      if (this.#turns.get(id) === turn) this.#turns.delete(id);
    }
  }
}

/** Of an id that never was: its tombstone keeps a create away that is late. */
function unseenVolume(id: string, now: number): VolumeRecord {
  return {
    fingerprint: "",
    volume: {
      id,
      version: 0,
      labels: {},
      state: "creating",
      size_bytes: 0,
      mode: "filesystem",
      created_at: new Date(now).toISOString(),
      reservations: [],
    },
  };
}

const isGone = ({ volume }: VolumeRecord): boolean => isGoneVolume(volume);

/** What is thrown rejects. */
const settled = <T>(work: () => T): Promise<T> => new Promise((resolve) => resolve(work()));

/** @throws what the first threw that cannot be stopped, when all have been asked to */
function stopAll(holders: readonly VolumeAttachment[], stop: VolumeBookOptions["stop"]): void {
  const failures: unknown[] = [];
  for (const { machine } of holders)
    try {
      stop?.(machine);
    } catch (thrown) {
      failures.push(thrown);
    }
  if (failures.length > 0) throw failures[0];
}
