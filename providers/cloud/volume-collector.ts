/**
 * Goes on with deletions of volumes that nobody came back to, forgets old tombstones, and takes away what was made in
 * the cloud for a volume that is another by now, or deleted. Only what is provably of this scope, only after two sights
 * with time between them, and only when the volume's own entry, read then, says that it is not this. Where there is no
 * entry nothing is removed: who has lost the entries is not to lose the data too.
 */
import type { CallOptions, Clock, Logger } from "../../src/provider/kit/index.ts";
import type { CloudCalls } from "./cloud-calls.ts";
import type { CloudVolume } from "./cloud.ts";
import { SCOPE_LABEL } from "./labels.ts";
import { LEAK_MS, quietly, Sights } from "./rounds.ts";
import type { VolumeEntries } from "./volume-entries.ts";
import { type CloudVolumeRecord, VOLUME_LABEL } from "./volume-record.ts";
import type { CloudVolumeBook } from "./volumes.ts";

interface VolumeCollectorOptions {
  readonly cloud: CloudCalls;
  readonly entries: VolumeEntries;
  readonly book: CloudVolumeBook;
  readonly scope: string;
  readonly tombstoneMs: number;
  readonly clock: Clock;
  readonly logger: Logger;
}

export class VolumeCollector {
  readonly #options: VolumeCollectorOptions;
  readonly #sights: Sights;

  constructor(options: VolumeCollectorOptions) {
    this.#options = options;
    this.#sights = new Sights(options.clock);
  }

  /** One round. What fails is tried again in the next. */
  async collect(options: CallOptions): Promise<void> {
    const { cloud, entries, scope } = this.#options;
    const records = await entries.all(options);
    const made = await cloud.onVolumes(options, (volumes, inner) => volumes.list([SCOPE_LABEL, scope], inner));
    this.#sights.begin();
    for (const record of records) await this.#quietly(() => this.#collectRecord(record, options), options);
    const named = new Set(records.flatMap(({ content }) => content?.name ?? []));
    for (const volume of made) {
      if (named.has(volume.name) || volume.labels[SCOPE_LABEL] !== scope) continue;
      if (!this.#sights.isOld(`made ${volume.name}`, LEAK_MS)) continue;
      await this.#quietly(() => this.#collectMade(volume, options), options);
    }
  }

  async #collectRecord(record: CloudVolumeRecord, options: CallOptions): Promise<void> {
    const { entries, book, tombstoneMs } = this.#options;
    const { volume, version } = record;
    if (volume.state === "deleting") await book.finish(record, options);
    if (volume.state === "deleted" && this.#sights.isOld(`deleted ${volume.id} ${version}`, tombstoneMs))
      await entries.remove(record, options);
  }

  async #collectMade(made: CloudVolume, options: CallOptions): Promise<void> {
    const { cloud, entries, logger } = this.#options;
    const id = made.labels[VOLUME_LABEL];
    if (id === undefined) return;
    const record = await entries.read(id, options);
    if (record === undefined || record.content?.name === made.name) return;
    logger.warn({ made: made.name, volume: id }, "What was made in the cloud for a volume, and is not it, is removed");
    await cloud.onVolumes(options, (volumes, inner) => volumes.delete(made, inner));
  }

  async #quietly(work: () => Promise<unknown>, { signal }: CallOptions): Promise<void> {
    await quietly(work, {
      signal,
      logger: this.#options.logger,
      fault: "Something of the cloud's volumes could not be collected",
    });
  }
}
