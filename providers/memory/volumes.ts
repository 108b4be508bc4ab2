/** Volumes that outlive machines, as long as this process lives: texts of files. */
import {
  type CallOptions,
  type Clock,
  isOver,
  type Machine,
  type MachineSpec,
  type MachineStats,
  ProviderError,
  type VolumeAttachment,
  VolumeBook,
  volumeClaims,
  type VolumeClass,
  type VolumeProvider,
} from "../../src/provider/kit/index.ts";
import type { Operation } from "./faults.ts";
import type { Texts } from "./files.ts";

/** What all volumes may have together. */
const ROOM_BYTES = 2 ** 50;

/** The first is that of volumes which name none. */
const VOLUME_CLASSES: readonly VolumeClass[] = [
  { name: "local", sharing: "one" },
  { name: "shared", sharing: "writers" },
];

/** Of volumes that are there before they are told of: a cloud's VM is made with them. */
const GIVEN_CLASS: VolumeClass = { name: "given", sharing: "one" };

/** What is on volumes that others keep; undefined for one that is not there. */
export type GivenVolumes = (name: string) => Map<string, string> | undefined;

export const classesOf = (given: GivenVolumes | undefined): readonly VolumeClass[] =>
  given === undefined ? VOLUME_CLASSES : [...VOLUME_CLASSES, GIVEN_CLASS];

/** Runs a call of the provider as its faults want it. */
type Calls = <T>(operation: Operation, id: string, signal: AbortSignal, effect: () => Promise<T>) => Promise<T>;

interface Holder {
  snapshot: Machine;
  spec: MachineSpec;
}

export class MemoryVolumes {
  readonly #book: VolumeBook;
  readonly #texts = new Map<string, Texts>();
  /** The volumes, as clients have them. */
  readonly api: VolumeProvider;

  constructor(options: {
    clock: Clock;
    zone: string | undefined;
    machines: () => Iterable<Holder>;
    stop: (machine: string) => void;
    given: GivenVolumes | undefined;
    call: Calls;
  }) {
    const { clock, zone, machines, stop, given, call } = options;
    let promised = 0;
    this.#book = new VolumeBook({
      clock,
      zone,
      classes: classesOf(given),
      fsTypes: ["ext4"],
      attachments: (id) => attachmentsOf(id, machines()),
      stop,
      contents: {
        make: ({ volume: { id, size_bytes, class: named } }, source) => {
          const texts = named === GIVEN_CLASS.name ? given?.(id) : new Map(source && this.#texts.get(source.volume.id));
          if (texts === undefined) throw new ProviderError("unavailable", `volume ${id} was not given`);
          this.#texts.set(id, texts);
          promised += size_bytes;
          return Promise.resolve({ size_bytes, fs_type: "ext4" });
        },
        grow: ({ volume }, sizeBytes) => {
          promised += sizeBytes - volume.size_bytes;
          return Promise.resolve(sizeBytes);
        },
        remove: ({ volume: { id, size_bytes } }) => {
          if (this.#texts.delete(id)) promised -= size_bytes;
          return Promise.resolve();
        },
        room: () => Promise.resolve(ROOM_BYTES - promised),
      },
    });
    const book = this.#book;
    const on = <T>(operation: Operation, id: string, options: CallOptions, effect: () => Promise<T>) =>
      call(operation, id, options.signal, effect);
    this.api = {
      create: (id, spec, options) => on("createVolume", id, options, () => book.create(id, spec, options)),
      get: (id, options) => on("getVolume", id, options, () => book.get(id, options)),
      list: (options) => on("listVolumes", "", options, () => book.list(options)),
      resize: (id, bytes, options) => on("resizeVolume", id, options, () => book.resize(id, bytes, options)),
      delete: (id, options) => on("deleteVolume", id, options, () => book.delete(id, options)),
      reserve: (id, name, options) => on("reserveVolume", id, options, () => book.reserve(id, name, options)),
      release: (id, name, options) => on("releaseVolume", id, options, () => book.release(id, name, options)),
      getCapacity: (options) => on("getVolumeCapacity", "", options, () => book.getCapacity(options)),
    };
  }

  /** @throws ProviderError as VolumeBook.assertClaimable */
  assertClaimable(spec: MachineSpec): void {
    this.#book.assertClaimable(spec);
  }

  /** @throws ProviderError as VolumeBook.assertJoinable */
  assertJoinable(spec: MachineSpec): void {
    this.#book.assertJoinable(spec);
  }

  textsOf(id: string): Texts {
    const texts = this.#texts.get(id) ?? new Map<string, string>();
    this.#texts.set(id, texts);
    return texts;
  }

  /** What a machine's sample says of its volumes; undefined where it has none. */
  statsOf(spec: MachineSpec): MachineStats["volumes"] {
    const claims = volumeClaims(spec);
    if (claims.length === 0) return undefined;
    return claims.map(({ claim: { name, volume } }) => {
      const texts = this.textsOf(volume);
      const used_bytes = [...texts.values()].reduce((sum, text) => sum + Buffer.byteLength(text), 0);
      const capacity_bytes = this.#book.record(volume)?.volume.size_bytes ?? used_bytes;
      return {
        name,
        used_bytes,
        capacity_bytes,
        available_bytes: Math.max(0, capacity_bytes - used_bytes),
        inodes_used: texts.size,
      };
    });
  }
}

/** The machines that have the volume: of one that is over, nothing runs any more. */
function attachmentsOf(id: string, machines: Iterable<Holder>): VolumeAttachment[] {
  const attachments: VolumeAttachment[] = [];
  for (const { snapshot, spec } of machines) {
    if (isOver(snapshot)) continue;
    for (const { claim } of volumeClaims(spec))
      if (claim.volume === id)
        attachments.push({
          machine: snapshot.id,
          ...(claim.reservation !== undefined && { reservation: claim.reservation }),
          read_only: claim.read_only === true,
          state: snapshot.reachability === "unknown" ? "unknown" : "attached",
        });
  }
  return attachments;
}
