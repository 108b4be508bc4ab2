/**
 * Volumes that outlive machines, of this host: who may have which, by VolumeBook, and the bytes of each, by what the
 * engine has them in (../volume-contents.ts).
 *
 *     STATE/volumes/ID/volume.json   its record, and later its tombstone; flushed before anything is told
 *     STATE/volumes/ID/...           what is on it
 *
 * Which machines have it stands in the machines' own records: a backend that is killed at any instant finds each volume
 * where it was. It is attached before a machine's sandbox is made, and detached when that is gone and before it is
 * written down that it is.
 */
import { existsSync, mkdirSync, readdirSync, realpathSync, rmdirSync, rmSync } from "node:fs";
import { join, relative } from "node:path";
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
  type VolumeClass,
  type VolumeMode,
  type VolumeProvider,
  type VolumeRecord,
} from "../../../src/provider/kit/index.ts";
import { flushFolder, writeJson } from "../host/files.ts";
import { HostError } from "../host/host-error.ts";
import type { TornFiles } from "../host/torn-files.ts";
import type {
  DamagedVolume,
  HostVolumes,
  MachineVolumes,
  VolumeHolder,
  VolumePlace,
  VolumeUser,
} from "../volume-contents.ts";
import { imageOf } from "./image-files.ts";
import { assertMountOptions, optionsOf } from "./mount-options.ts";

/** How often what the disk did not allow is tried again. */
const RETRY_MS = 5_000;
const WATCH_MS = 30_000;

interface OtherClaim {
  readonly machine: string;
  readonly sandbox: VolumeHolder["sandbox"];
  readonly read_only: boolean;
}

export class LocalVolumes implements MachineVolumes {
  readonly #dir: string;
  readonly #book: VolumeBook;
  readonly #contents: HostVolumes;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #machines: () => Iterable<VolumeHolder>;
  /** Machines that have volumes attached, by their ids. */
  readonly #users = new Map<string, VolumeUser>();
  /** The volumes that each of them has been given: its containers may run as soon as it has all. */
  readonly #given = new Map<string, Set<string>>();
  #isFinishing = false;

  /**
   * @param options.machines the records of all machines of this host
   * @param options.stop stops one of them at once
   * @param options.contents where the bytes are
   */
  constructor(options: {
    stateDir: string;
    clock: Clock;
    zone?: string | undefined;
    torn: TornFiles;
    logger: Logger;
    walks: SharedPlaces;
    machines: () => Iterable<VolumeHolder>;
    stop: (machine: string) => void;
    contents: (place: VolumePlace) => HostVolumes;
  }) {
    const { stateDir, clock, zone, torn, logger, walks, machines, stop } = options;
    this.#dir = join(stateDir, "volumes");
    this.#clock = clock;
    this.#logger = logger;
    this.#machines = machines;
    mkdirSync(this.#dir, { recursive: true, mode: 0o755 });
    const contents = options.contents({ dir: this.#dir, clock, logger, walks });
    this.#contents = contents;
    this.#book = new VolumeBook({
      clock,
      zone,
      ...(contents.classes !== undefined && { classes: contents.classes }),
      fsTypes: contents.fsTypes,
      attachments: (id) => attachmentsOf(id, machines()),
      stop,
      records: this.#load(torn, logger, clock),
      save: (record) => this.#save(record),
      forget: (id) => rmSync(join(this.#dir, id), { recursive: true, force: true }),
      contents,
    });
  }

  get classes(): readonly VolumeClass[] | undefined {
    return this.#contents.classes;
  }

  get api(): VolumeProvider {
    return this.#book;
  }

  /** @throws ProviderError as VolumeBook.assertClaimable, and invalid for a mount option that is not allowed */
  assertClaimable(spec: MachineSpec): void {
    assertMountOptions(spec);
    this.#book.assertClaimable(spec);
  }

  /** @throws ProviderError as VolumeBook.assertJoinable */
  assertJoinable(spec: MachineSpec): void {
    this.#book.assertJoinable(spec);
  }

  async attach(
    user: VolumeUser,
    { signal, isRunning = false }: { signal: AbortSignal; isRunning?: boolean },
  ): Promise<void> {
    const { spec, record } = user;
    const { machine, claims = [] } = record;
    if (claims.length > 0) this.#users.set(machine.id, user);
    const { fs_group: group, fs_group_change_policy: policy } = spec.security ?? {};
    for (const { volume: id, read_only } of claims)
      await this.#book.inTurn(id, async () => {
        signal.throwIfAborted();
        const volume = this.#book.record(id);
        if (volume === undefined) throw new HostError(`there is no volume ${id}`);
        const others = this.#others(id, machine.id);
        await this.#contents.attach(volume, {
          readOnly: read_only && others.every((other) => other.read_only),
          mountOptions: optionsOf(spec, id),
          // Who writes meanwhile could put a link to a file of this host in a file's place.
          group: isRunning || others.some((other) => this.#mayWrite(id, other)) ? undefined : group,
          groupOnMismatchOnly: policy === "on_root_mismatch",
        });
        this.#given.set(machine.id, (this.#given.get(machine.id) ?? new Set()).add(id));
      });
  }

  async detach({ record: { machine, claims = [] } }: Parameters<MachineVolumes["detach"]>[0]): Promise<void> {
    for (const { volume: id } of claims)
      await this.#book.inTurn(id, async () => {
        if (this.#others(id, machine.id).length === 0) await this.#contents.detach(id);
      });
    this.#users.delete(machine.id);
    this.#given.delete(machine.id);
  }

  /** Claims of other machines that may use the volume now. */
  #others(id: string, own?: string): OtherClaim[] {
    return [...this.#machines()]
      .filter(({ sandbox, machine }) => sandbox !== "none" && machine.id !== own)
      .flatMap(({ machine, sandbox, claims = [] }) =>
        claims.flatMap(({ volume, read_only }) => (volume === id ? [{ machine: machine.id, sandbox, read_only }] : [])),
      );
  }

  /** Not one that is still being opened and waits for its turn: it finds what this one makes of the volume. */
  #mayWrite(id: string, { machine, sandbox, read_only }: OtherClaim): boolean {
    return !read_only && (sandbox === "open" || this.#given.get(machine)?.has(id) === true);
  }

  /**
   * What a kill, or a failure that nobody came back to, has broken off: deletions, and detaching. Until it succeeds, or
   * `signal` aborts.
   */
  async finish(signal: AbortSignal): Promise<void> {
    if (this.#isFinishing) return;
    this.#isFinishing = true;
    await this.#finish(signal).finally(() => (this.#isFinishing = false));
  }

  async #finish(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.#detachUnused();
        return await this.#book.finish();
      } catch (thrown) {
        this.#logger.error({ err: thrown }, "Cannot detach a volume that no machine has, or remove one, yet");
      }
      await pause(this.#clock, RETRY_MS, signal);
    }
  }

  async #detachUnused(): Promise<void> {
    for (const id of await this.#contents.attached())
      await this.#book.inTurn(id, async () => {
        if (this.#others(id).length === 0) await this.#contents.detach(id);
      });
  }

  /** Tells its machines once of each volume that its kernel has made read-only, until `signal` aborts. */
  async watch(signal: AbortSignal): Promise<void> {
    const { damaged } = this.#contents;
    if (damaged === undefined) return;
    let told = new Set<string>();
    while (!signal.aborted) {
      await pause(this.#clock, WATCH_MS, signal);
      const found = await damaged.call(this.#contents).catch(() => []);
      for (const each of found) {
        if (told.has(each.id)) continue;
        this.#logger.error({ volume: each.id, why: each.message }, "A volume is damaged");
        this.#tell(each);
      }
      told = new Set(found.map(({ id }) => id));
    }
  }

  #tell({ id, message }: DamagedVolume): void {
    for (const user of this.#users.values())
      if (user.record.claims?.some(({ volume }) => volume === id) === true)
        user.notice("Warning", "VolumeConditionAbnormal", `volume ${id}: ${message}`);
  }

  prune(maxAgeMs: number): void {
    this.#book.prune(maxAgeMs);
  }

  areBelow(path: string): boolean {
    const [here, all] = [realpathSync(path), realpathSync(this.#dir)];
    return isWithin(here, all) || isWithin(all, here);
  }

  path(id: string): string {
    this.#assertMode(id, "filesystem");
    return this.#contents.path(id);
  }

  async device(id: string): Promise<string> {
    this.#assertMode(id, "block");
    return await this.#contents.device(id);
  }

  /** Whatever was let through before: who writes to the device of a mounted file system is in its kernel. */
  #assertMode(id: string, wanted: VolumeMode): void {
    const mode = this.#book.record(id)?.volume.mode;
    if (mode !== wanted) throw new HostError(`volume ${id} is of mode ${mode ?? "(unknown)"}, not ${wanted}`);
  }

  /** A machine's sample, with that of its volumes. */
  async addTo(
    own: Promise<MachineStats | undefined>,
    record: Pick<VolumeHolder, "claims">,
  ): Promise<MachineStats | undefined> {
    const sample = await own;
    if (sample === undefined || record.claims === undefined) return sample;
    return { ...sample, volumes: [...(sample.volumes ?? []), ...(await this.stats(record))] };
  }

  /**
   * One that cannot be measured now is left out.
   * @internal
   */
  async stats({ claims = [] }: Pick<VolumeHolder, "claims">): Promise<NonNullable<MachineStats["volumes"]>> {
    const samples = claims.map(async ({ name, volume }) => {
      const record = this.#book.record(volume);
      const sample = record && (await this.#contents.sample(record).catch(() => undefined));
      return sample === undefined ? [] : [{ name, ...sample }];
    });
    return (await Promise.all(samples)).flat();
  }

  #save(record: VolumeRecord): void {
    const dir = join(this.#dir, record.volume.id);
    if (mkdirSync(dir, { recursive: true, mode: 0o755 }) !== undefined) flushFolder(this.#dir);
    writeJson(join(dir, "volume.json"), record, { flush: true });
  }

  /**
   * What earlier backends have written. A record that is torn, or lost, leaves its volume, which is given to nobody:
   * what it is and whose is not known any more, and what is on it is not thrown away.
   */
  #load(torn: TornFiles, logger: Logger, clock: Clock): VolumeRecord[] {
    return readdirSync(this.#dir).flatMap((id) => {
      const found = torn.tryJson(join(this.#dir, id, "volume.json"), isVolumeRecord);
      if (found === undefined && !holdsContents(join(this.#dir, id))) {
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

const isWithin = (path: string, folder: string): boolean => !/^\.\.(?:\/|$)/.test(relative(folder, path));

const holdsFiles = (path: string): boolean => existsSync(path) && readdirSync(path).length > 0;

const holdsContents = (dir: string): boolean => existsSync(imageOf(dir)) || holdsFiles(join(dir, "data"));

/** What is in it besides is not ours, and stays: a disk that is mounted here has its `lost+found`. */
function removeRemnant(dir: string): void {
  for (const name of readdirSync(dir))
    if (name === "data" || name === "data.new" || name.startsWith("disk.img.new") || name.startsWith("volume.json"))
      rmSync(join(dir, name), { recursive: true, force: true });
  if (!holdsFiles(dir)) rmdirSync(dir);
}

/** The machines of which something may still write to the volume. */
function attachmentsOf(id: string, machines: Iterable<VolumeHolder>): VolumeAttachment[] {
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
