/**
 * Volumes that outlive machines, as folders of this host: for engines whose containers are processes of this host and
 * its files theirs. What a volume may have is told, and not enforced.
 *
 *     STATE/volumes/ID/volume.json   its record, and later its tombstone; flushed before anything is told
 *     STATE/volumes/ID/data/         what is on it
 *
 * Which machines have it stands in the machines' own records: a backend that is killed at any instant finds each volume
 * where it was.
 */
import { chmodSync, existsSync, mkdirSync, readdirSync, rmdirSync, rmSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { join } from "node:path";
import {
  type Clock,
  isOver,
  type Logger,
  type MachineSpec,
  type MachineStats,
  pause,
  type SharedPlaces,
  type VolumeAttachment,
  VolumeBook,
  type VolumeProvider,
  type VolumeRecord,
} from "../../src/provider/kit/index.ts";
import { flushFolder, writeJson } from "./host/files.ts";
import { removeTree } from "./host/remove-tree.ts";
import type { TornFiles } from "./host/torn-files.ts";
import { TreeMeter } from "./host/tree-use.ts";
import type { MachineRecord } from "./machine/record.ts";

/** How often what the disk did not allow is tried again. */
const RETRY_MS = 5_000;

/** What of a machine's record says which volumes it has. */
type Holder = Pick<MachineRecord, "claims" | "sandbox"> & {
  readonly machine: Pick<MachineRecord["machine"], "id" | "state" | "reachability">;
};

export class LocalVolumes {
  readonly #dir: string;
  readonly #book: VolumeBook;
  readonly #meter: TreeMeter;
  readonly #clock: Clock;
  readonly #logger: Logger;

  /** @param options.machines the records of all machines of this host */
  constructor(options: {
    stateDir: string;
    clock: Clock;
    torn: TornFiles;
    logger: Logger;
    walks: SharedPlaces;
    machines: () => Iterable<Holder>;
  }) {
    const { stateDir, clock, torn, logger, walks, machines } = options;
    this.#dir = join(stateDir, "volumes");
    this.#clock = clock;
    this.#logger = logger;
    mkdirSync(this.#dir, { recursive: true, mode: 0o755 });
    this.#meter = new TreeMeter(clock, walks, "volumes");
    this.#book = new VolumeBook({
      clock,
      fsTypes: [],
      attachments: (id) => attachmentsOf(id, machines()),
      records: this.#load(torn, logger, clock),
      save: (record) => this.#save(record),
      forget: (id) => rmSync(join(this.#dir, id), { recursive: true, force: true }),
      contents: {
        make: ({ volume }) => {
          const data = this.path(volume.id);
          mkdirSync(data, { recursive: true });
          // As an emptyDir: containers of any user write to it.
          chmodSync(data, 0o777);
          flushFolder(join(this.#dir, volume.id));
          return Promise.resolve({ size_bytes: volume.size_bytes });
        },
        grow: (_record, sizeBytes) => Promise.resolve(sizeBytes),
        remove: ({ volume }) => removeTree(this.path(volume.id)),
        room: () => this.#room(),
      },
    });
  }

  get api(): VolumeProvider {
    return this.#book;
  }

  /** @throws ProviderError as VolumeBook.assertClaimable */
  assertClaimable(spec: MachineSpec): void {
    this.#book.assertClaimable(spec);
  }

  /** Deletions that a kill has broken off, until they succeed or `signal` aborts. */
  async finish(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        return await this.#book.finish();
      } catch (thrown) {
        this.#logger.error({ err: thrown }, "Cannot remove a volume that was deleted yet");
      }
      await pause(this.#clock, RETRY_MS, signal);
    }
  }

  prune(maxAgeMs: number): void {
    this.#book.prune(maxAgeMs);
  }

  path(id: string): string {
    return join(this.#dir, id, "data");
  }

  /** A machine's sample, with that of its volumes. */
  async addTo(
    own: Promise<MachineStats | undefined>,
    record: Pick<Holder, "claims">,
  ): Promise<MachineStats | undefined> {
    const sample = await own;
    if (sample === undefined || record.claims === undefined) return sample;
    return { ...sample, volumes: [...(sample.volumes ?? []), ...(await this.stats(record))] };
  }

  /** @internal */
  async stats({ claims = [] }: Pick<Holder, "claims">): Promise<NonNullable<MachineStats["volumes"]>> {
    return await Promise.all(
      claims.map(async ({ name, volume }) => {
        const path = this.path(volume);
        const used_bytes = await this.#meter.bytes(path);
        const capacity_bytes = this.#book.record(volume)?.volume.size_bytes ?? used_bytes;
        const { bavail, bsize, files, ffree } = await statfs(path);
        return {
          name,
          used_bytes,
          capacity_bytes,
          available_bytes: Math.max(0, Math.min(bavail * bsize, capacity_bytes - used_bytes)),
          inodes: files,
          inodes_used: await this.#meter.inodes(path),
          inodes_free: ffree,
        };
      }),
    );
  }

  #save(record: VolumeRecord): void {
    const dir = join(this.#dir, record.volume.id);
    if (mkdirSync(dir, { recursive: true, mode: 0o755 }) !== undefined) flushFolder(this.#dir);
    writeJson(join(dir, "volume.json"), record, { flush: true });
  }

  async #room(): Promise<number> {
    const { bavail, bsize } = await statfs(this.#dir);
    return bavail * bsize;
  }

  /**
   * What earlier backends have written. A record that is torn, or lost, leaves its volume, which is given to nobody:
   * what it is and whose is not known any more, and what is on it is not thrown away.
   */
  #load(torn: TornFiles, logger: Logger, clock: Clock): VolumeRecord[] {
    return readdirSync(this.#dir).flatMap((id) => {
      const found = torn.tryJson(join(this.#dir, id, "volume.json"), isVolumeRecord);
      if (found === undefined && !holdsFiles(this.path(id))) {
        // Nothing was told of it: its record comes before all else.
        try {
          removeRemnant(join(this.#dir, id));
        } catch (thrown) {
          logger.warn({ volume: id, err: thrown }, "Cannot remove what is left of a volume of which nothing was told");
        }
        return [];
      }
      if (found !== undefined && found !== "torn") return [found];
      logger.error({ volume: id }, "A volume's record is torn or lost: the volume is given to no machine");
      return [recordOfTorn(id, clock.now())];
    });
  }
}

const holdsFiles = (path: string): boolean => existsSync(path) && readdirSync(path).length > 0;

/** What is in it besides is not ours, and stays: a disk that is mounted here has its `lost+found`. */
function removeRemnant(dir: string): void {
  for (const name of readdirSync(dir))
    if (name === "data" || name.startsWith("volume.json")) rmSync(join(dir, name), { recursive: true, force: true });
  if (!holdsFiles(dir)) rmdirSync(dir);
}

/** The machines of which something may still write to the volume. */
function attachmentsOf(id: string, machines: Iterable<Holder>): VolumeAttachment[] {
  const attachments: VolumeAttachment[] = [];
  for (const { machine, sandbox, claims = [] } of machines) {
    if (isOver(machine) && sandbox === "none") continue;
    for (const { volume, reservation, read_only } of claims)
      if (volume === id)
        attachments.push({
          machine: machine.id,
          ...(reservation !== undefined && { reservation }),
          read_only,
          state: machine.reachability === "unknown" ? "unknown" : "attached",
        });
  }
  return attachments;
}

function recordOfTorn(id: string, now: number): VolumeRecord {
  return {
    fingerprint: "",
    volume: {
      id,
      version: 0,
      labels: {},
      state: "failed",
      reason: "VolumeLost",
      message: "its record was torn on its host's disk: the host has lost power, or the disk is broken",
      size_bytes: 0,
      mode: "filesystem",
      created_at: new Date(now).toISOString(),
      reservations: [],
    },
  };
}

/** What was torn may be JSON of another kind, or an empty object. */
function isVolumeRecord(value: unknown): value is VolumeRecord {
  const { volume, fingerprint } = (value ?? {}) as Partial<VolumeRecord>;
  return typeof fingerprint === "string" && typeof volume?.id === "string" && Array.isArray(volume.reservations);
}
