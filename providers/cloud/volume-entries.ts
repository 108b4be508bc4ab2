/**
 * The entries of volumes: read, and changed by compare-and-swap. And who has a volume: claims that still count, as the
 * entries of their machines, and these machines themselves, tell.
 */
import {
  type CallOptions,
  isProviderError,
  ProviderError,
  type VolumeAttachment,
} from "../../src/provider/kit/index.ts";
import { type CloudCalls, sensible } from "./cloud-calls.ts";
import type { Entry } from "./cloud.ts";
import type { MachineRecord } from "./record.ts";
import {
  type Claim,
  type CloudVolumeRecord,
  isClaimOver,
  type NewVolumeRecord,
  volumeEntryOf,
  volumeRecordOf,
  VOLUMES,
  volumeWordsOf,
} from "./volume-record.ts";

interface VolumeEntriesOptions {
  readonly cloud: CloudCalls;
  readonly scope: string;
  /** Looks at a machine, and takes the steps that need nobody's order. */
  readonly look: (machine: string, options: CallOptions) => Promise<unknown>;
}

/** A claim that counts. */
export interface Holder {
  readonly claim: Claim;
  readonly state: VolumeAttachment["state"];
}

/** Somebody else changes the entry all the time. */
const MOST_TURNS = 20;

export class VolumeEntries {
  readonly #options: VolumeEntriesOptions;

  constructor(options: VolumeEntriesOptions) {
    this.#options = options;
  }

  /** Undefined when there certainly is none. */
  async read(id: string, options: CallOptions): Promise<CloudVolumeRecord | undefined> {
    const entry = await this.#options.cloud.entry(volumeEntryOf(id), options);
    return entry && believed(entry, id);
  }

  /** Those of this scope that make sense. May lag. */
  async all(options: CallOptions): Promise<CloudVolumeRecord[]> {
    const { cloud, scope } = this.#options;
    return sensible(await cloud.entries([VOLUMES, scope], options), volumeRecordOf);
  }

  /** Undefined when there is one by now. */
  async create(record: NewVolumeRecord, options: CallOptions): Promise<CloudVolumeRecord | undefined> {
    const { cloud, scope } = this.#options;
    const { id } = record.volume;
    const entry = await cloud.createEntry(volumeEntryOf(id), volumeWordsOf(record, scope), options);
    return entry && believed(entry, id);
  }

  /** With this of the volume changed as well; undefined when it is another by now. */
  async swap(
    record: CloudVolumeRecord,
    { volume, ...change }: Partial<Omit<NewVolumeRecord, "volume">> & { volume?: Partial<NewVolumeRecord["volume"]> },
    options: CallOptions,
  ): Promise<CloudVolumeRecord | undefined> {
    const { cloud, scope } = this.#options;
    const { id, version } = record.volume;
    const next = { ...record, ...change, volume: { ...record.volume, ...volume, version: version + 1 } };
    const entry = await cloud.swapEntry(volumeEntryOf(id), volumeWordsOf(next, scope), record.version, options);
    return entry && believed(entry, id);
  }

  /** Unless it is another by now. */
  async remove({ volume, version }: CloudVolumeRecord, options: CallOptions): Promise<void> {
    await this.#options.cloud.removeEntry(volumeEntryOf(volume.id), version, options);
  }

  /**
   * Does something with the volume as it is now, and again when it was another by the time that it was written.
   * @param work undefined: it has changed meanwhile
   */
  async untilDone<T>(
    id: string,
    options: CallOptions,
    work: (record: CloudVolumeRecord | undefined) => Promise<T | undefined>,
  ): Promise<T> {
    for (let turn = 0; turn < MOST_TURNS; turn++) {
      const done = await work(await this.read(id, options));
      if (done !== undefined) return done;
    }
    throw new ProviderError("unavailable", `the entry of volume ${id} changes all the time`);
  }

  // ------------------------------------------------------------------------------------------------------------ claims

  /** Of which nothing but the machines themselves can tell more. Machines of which nothing is known have the volume. */
  async holders({ claims }: Pick<CloudVolumeRecord, "claims">, options: CallOptions): Promise<Holder[]> {
    const held = await Promise.all(
      claims.map(async (claim) => {
        const state = await this.#stateOf(claim, options);
        return state === undefined ? [] : [{ claim, state }];
      }),
    );
    return held.flat();
  }

  /** As a list of machines has them, which may lag: who has none any more may be told of still. */
  async holdersBy(
    machines: ReadonlyMap<string, MachineRecord>,
    { claims }: CloudVolumeRecord,
    options: CallOptions,
  ): Promise<Holder[]> {
    const held = await Promise.all(
      claims.map(async (claim): Promise<Holder[]> => {
        const { machine } = claim;
        const record = machines.get(machine) ?? (await this.#options.cloud.record(machine, options));
        return isClaimOver(claim, record) ? [] : [{ claim, state: "attached" }];
      }),
    );
    return held.flat();
  }

  /** True while one of these copies is being made. */
  async isCopied({ copies }: Pick<CloudVolumeRecord, "copies">, options: CallOptions): Promise<boolean> {
    for (const { volume, content } of copies) {
      const copy = await this.read(volume, options);
      if (copy?.volume.state === "creating" && copy.content?.name === content) return true;
    }
    return false;
  }

  /** Undefined: it counts no more. */
  async #stateOf(claim: Claim, options: CallOptions): Promise<Holder["state"] | undefined> {
    const { cloud, look } = this.#options;
    const { machine } = claim;
    if (isClaimOver(claim, await cloud.record(machine, options))) return undefined;
    let state: Holder["state"] = "attached";
    try {
      await look(machine, options);
    } catch (thrown) {
      options.signal.throwIfAborted();
      if (isProviderError(thrown, "unavailable")) state = "unknown";
    }
    return isClaimOver(claim, await cloud.record(machine, options)) ? undefined : state;
  }
}

/** @throws ProviderError unavailable for what makes no sense */
function believed(entry: Entry, id: string): CloudVolumeRecord {
  try {
    const record = volumeRecordOf(entry);
    if (record.volume.id === id) return record;
  } catch (thrown) {
    throw new ProviderError("unavailable", `the entry ${entry.name} of volume ${id} makes no sense`, { cause: thrown });
  }
  throw new ProviderError("unavailable", `the entry ${entry.name} is that of another volume than ${id}`);
}

export const attachmentOf = ({ claim, state }: Holder): VolumeAttachment => ({
  machine: claim.machine,
  ...(claim.reservation !== undefined && { reservation: claim.reservation }),
  read_only: claim.read_only,
  state,
});
