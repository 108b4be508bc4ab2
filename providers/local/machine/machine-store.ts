/**
 * The machines of this host on disk: a folder each, with its spec and its record; and the events of their changes, by
 * which clients follow them.
 */
import { chmodSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { createHash } from "node:crypto";
import { dirname, join } from "node:path";
import {
  type Clock,
  type Machine,
  type MachineEvent,
  MachineEvents,
  type MachineSpec,
  tombstoneOf,
  unseenMachine,
} from "../../../src/provider/kit/index.ts";
import { flushFolder, writeJson } from "../host/files.ts";
import { HostError } from "../host/host-error.ts";
import type { TornFiles } from "../host/torn-files.ts";
import type { MachineRecord } from "./record.ts";

/** How many changes a watcher may be behind. */
const EVENTS_KEPT = 4096;
/** Revisions are reserved in blocks of this size, so that they grow over restarts without a write for each. */
const REVISION_BLOCK = 100_000;
/** A create that was under way when its machine was deleted has arrived by then. */
const TOMBSTONE_KNOWN_MS = 30 * 60_000;
/** Longest path of a unix socket that Linux takes (sun_path), without the closing zero. */
const MAX_SOCKET_PATH = 107;
const SOCKET_NAME_LENGTH = 16;
/** Enough to tell machines apart; the rest tells the few sockets of one machine apart. */
const MACHINE_PREFIX_LENGTH = 10;

const STATE = "state.json";
const NEXT_STATE = "state.next.json";

/** A machine as a former backend has left it. */
export interface KeptMachine {
  id: string;
  /** Undefined: lost. */
  spec: MachineSpec | undefined;
  /** Undefined: torn. */
  record: MachineRecord | undefined;
}

function digest(text: string, length: number): string {
  return createHash("sha256").update(text).digest("hex").slice(0, length);
}

function socketPrefix(id: string): string {
  return digest(id, MACHINE_PREFIX_LENGTH);
}

/**
 * The backend's state on disk and its stream of changes:
 *
 *     STATE/lock                     held by the backend that uses all this
 *     STATE/revision.json            revisions below this are used
 *     SECRETS/ID/spec.json           the spec without registry credentials, rewritten by patches
 *     SECRETS/ID/engine/             the engine's own with secrets in it
 *     STATE/machines/ID/state.json   MachineRecord as a loss of power cannot take it away
 *     STATE/machines/ID/state.next.json   the same with what has changed since, if that can be lost
 *     STATE/machines/ID/engine/      the engine's own
 *     STATE/machines/ID/containers/NAME/INSTANCE/   shim files and log segments
 *     STATE/tombstones/ID.json       the last status of a deleted machine
 *     STATE/volumes/ID/              what outlives machines (../volumes)
 *     STATE/run/                     unix sockets, under short names
 *
 *     STATE/torn/                    what was torn, for a person to look at (torn-files.ts)
 *
 * SECRETS is in memory, or STATE/machines where the owner of the host says so. Files are replaced by rename, so a
 * reader never meets half of one. Only the owner may read them.
 *
 * What clients rely on is flushed before they are told: that a machine was created, that an instance of a container was
 * begun or has ended, that the machine ends or is deleted. The rest (readiness, events) is not worth the wait.
 */
export class MachineStore {
  readonly stateDir: string;
  readonly #secretsDir: string;
  readonly #clock: Clock;
  readonly #torn: TornFiles;
  #revision: number;
  #reserved: number;
  readonly #events: MachineEvents;
  readonly #tombstones = new Map<string, Machine>();
  /** On the monotonic clock: since they were first looked at to be removed. */
  readonly #tombstonesKnownSince = new Map<string, number>();

  /** @param secretsDir holds what must not lie on the disk; by default it does, beside the rest */
  constructor(stateDir: string, clock: Clock, torn: TornFiles, secretsDir = join(stateDir, "machines")) {
    const longest = join(stateDir, "run").length + 1 + SOCKET_NAME_LENGTH;
    if (longest > MAX_SOCKET_PATH) {
      throw new HostError(
        `state directory ${stateDir} is too long: sockets in it need ${longest} of at most ${MAX_SOCKET_PATH} bytes. Choose a shorter path`,
      );
    }
    this.stateDir = stateDir;
    this.#secretsDir = secretsDir;
    this.#clock = clock;
    this.#torn = torn;
    for (const folder of ["", "machines", "tombstones", "run"])
      mkdirSync(join(stateDir, folder), { recursive: true, mode: 0o700 });
    chmodSync(stateDir, 0o700);
    this.#reserved = this.#nextRevision();
    this.#revision = this.#reserved;
    this.#events = new MachineEvents({ limit: EVENTS_KEPT, revision: this.#revision });
  }

  /** Of the last change that was written. */
  get revision(): number {
    return this.#events.revision;
  }

  machineDir(id: string): string {
    return join(this.stateDir, "machines", id);
  }

  /** For what was told in confidence. */
  secretDir(id: string): string {
    return join(this.#secretsDir, id);
  }

  /** A path for a unix socket that is short and the same each time. It is removed with the machine. */
  socketPath(id: string, name: string): string {
    return join(
      this.stateDir,
      "run",
      socketPrefix(id) + digest(`${id}\0${name}`, SOCKET_NAME_LENGTH - MACHINE_PREFIX_LENGTH),
    );
  }

  /** Of all that was ever written. A reserve that is torn was at most one block above what the records tell. */
  #nextRevision(): number {
    const reserved = this.#torn.tryJson(join(this.stateDir, "revision.json"), isReserve);
    if (reserved === undefined) return 1;
    if (reserved !== "torn") return reserved.next;
    const told = this.#machineIds().map((id) => this.#readState(id)?.machine.revision ?? 0);
    const buried = this.#readTombstones().map(({ machine }) => machine?.revision ?? 0);
    return [...told, ...buried].reduce((highest, each) => Math.max(highest, each), 0) + REVISION_BLOCK;
  }

  /**
   * Every machine that was created and not removed. `remnants` are the ids of the other folders: a create that never
   * was answered, a machine with a tombstone already. They may be removed once nothing of them runs or is mounted. A
   * machine without a spec has lost it: with the host's memory, or with its power while it was written; one without a
   * record was created, and nothing else is known of it.
   */
  load(): { machines: KeptMachine[]; remnants: string[] } {
    for (const { id, machine } of this.#readTombstones()) this.#tombstones.set(id, machine ?? this.#buryAgain(id));
    const known = this.#machineIds();
    const remnants = foldersIn(this.#secretsDir).filter((id) => !known.includes(id));
    const machines = known.flatMap((id): KeptMachine[] => {
      const isTorn = { state: false };
      const record = this.#readState(id, isTorn);
      // Only what was acknowledged has a record, be it a torn one.
      if (this.#tombstones.has(id) || (record === undefined && !isTorn.state)) {
        remnants.push(id);
        return [];
      }
      if (record !== undefined) this.#renew(record.machine);
      return [{ id, spec: this.#loadSpec(id), record }];
    });
    return { machines, remnants };
  }

  /**
   * A loss of power may have taken changes back that clients were told, and versions only grow: each backend begins
   * with numbers above all that a former one can have given out: no version is above its revision.
   */
  #renew(machine: Machine): void {
    try {
      this.#stamp(machine);
    } catch {
      // A full disk keeps no backend from starting.
      machine.revision = this.#revision;
    }
    machine.version = Math.max(machine.version, machine.revision);
    this.#publish(machine);
  }

  #machineIds(): string[] {
    return foldersIn(join(this.stateDir, "machines"));
  }

  /** `machine` undefined: torn. */
  #readTombstones(): { id: string; machine: Machine | undefined }[] {
    const dir = join(this.stateDir, "tombstones");
    const names = readdirSync(dir).filter((name) => name.endsWith(".json"));
    return names.flatMap((name) => {
      const found = this.#torn.tryJson(join(dir, name), isMachine);
      if (found === undefined) return [];
      return [{ id: name.slice(0, -".json".length), machine: found === "torn" ? undefined : found }];
    });
  }

  /** Of a machine with a torn tombstone the name alone is known: that it was deleted, which protects from doubles. */
  #buryAgain(id: string): Machine {
    const now = this.#clock.now();
    const tombstone = {
      ...tombstoneOf(unseenMachine(id, now), now),
      version: this.#revision,
      revision: this.#revision,
    };
    try {
      writeJson(this.#tombstonePath(id), tombstone, { flush: true });
    } catch {
      // The torn one stays in its place, and is read again by the next backend.
    }
    return tombstone;
  }

  /** The newest record that is whole. */
  #readState(id: string, isTorn = { state: false }): MachineRecord | undefined {
    const read = (name: string) => this.#torn.tryJson(join(this.machineDir(id), name), isRecordOfMachine);
    const found = [read(STATE), read(NEXT_STATE)];
    isTorn.state = found.includes("torn");
    const whole = found.filter((each) => each !== "torn" && each !== undefined);
    return whole.toSorted((a, b) => b.machine.version - a.machine.version)[0];
  }

  #loadSpec(id: string): MachineSpec | undefined {
    const own = join(this.secretDir(id), "spec.json");
    const onDisk = join(this.machineDir(id), "spec.json");
    const spec = this.#torn.readJson(own, isSpec);
    if (own === onDisk) return spec;
    // Of an earlier version, or from before the owner decided otherwise.
    const old = spec ?? this.#torn.readJson(onDisk, isSpec);
    if (spec === undefined && old !== undefined) this.saveSpec(id, old);
    rmSync(onDisk, { force: true });
    return old;
  }

  saveSpec(id: string, spec: MachineSpec): void {
    for (const folder of [join(this.machineDir(id), "engine"), this.secretDir(id)])
      if (mkdirSync(folder, { recursive: true, mode: 0o700 }) !== undefined) flushFolder(dirname(this.machineDir(id)));
    const { registry_auth: _secret, registry_auth_version: _version, ...rest } = spec;
    writeJson(join(this.secretDir(id), "spec.json"), rest, { flush: true });
  }

  /**
   * Writes the record under a new version and revision, and tells the watchers.
   * @param how with `flush`, a loss of power cannot take it back
   * @returns what was written; it must not be changed. @throws when it cannot be written: then the watchers are not
   *   told.
   */
  commit(record: MachineRecord, { flush }: { flush: boolean }): Machine {
    this.#stamp(record.machine);
    writeJson(join(this.machineDir(record.machine.id), flush ? STATE : NEXT_STATE), record, { flush });
    return this.#publish(record.machine);
  }

  /** Writes a machine's tombstone. Its folder stays, see `remove`. @throws when it cannot be written */
  bury(machine: Machine): void {
    const tombstone = tombstoneOf(machine, this.#clock.now());
    this.#stamp(tombstone);
    writeJson(this.#tombstonePath(machine.id), tombstone, { flush: true });
    this.#tombstones.set(machine.id, tombstone);
    this.#publish(tombstone);
  }

  /** Removes a machine's folder and sockets. Nothing of it may run or be mounted. */
  remove(id: string): void {
    for (const folder of [this.secretDir(id), this.machineDir(id)]) rmSync(folder, { recursive: true, force: true });
    for (const name of readdirSync(join(this.stateDir, "run"))) {
      if (name.startsWith(socketPrefix(id))) rmSync(join(this.stateDir, "run", name), { force: true });
    }
  }

  #tombstonePath(id: string): string {
    return join(this.stateDir, "tombstones", `${id}.json`);
  }

  tombstone(id: string): Machine | undefined {
    return this.#tombstones.get(id);
  }

  tombstones(): Machine[] {
    return [...this.#tombstones.values()];
  }

  /** Forgets tombstones older than `maxAgeMs`. */
  /** Not by this host's clock alone, which may be a day ahead: what is removed has been known here for a while, too. */
  pruneTombstones(maxAgeMs: number): void {
    const now = this.#clock.monotonic();
    for (const [id, machine] of this.#tombstones) {
      const knownSince = this.#tombstonesKnownSince.get(id) ?? now;
      this.#tombstonesKnownSince.set(id, knownSince);
      if (now - knownSince < Math.min(maxAgeMs, TOMBSTONE_KNOWN_MS)) continue;
      if (this.#clock.now() - Date.parse(machine.deleted_at!) < maxAgeMs) continue;
      rmSync(this.#tombstonePath(id), { force: true });
      this.#tombstones.delete(id);
      this.#tombstonesKnownSince.delete(id);
    }
  }

  /** @throws ProviderError gone */
  watch(since: number, signal: AbortSignal): AsyncIterable<MachineEvent> {
    return this.#events.watch(since, signal);
  }

  #stamp(machine: Machine): void {
    if (this.#revision + 1 >= this.#reserved) {
      // Only what is on the disk is reserved: else the next life would count from further back.
      const next = this.#revision + REVISION_BLOCK;
      writeJson(join(this.stateDir, "revision.json"), { next }, { flush: true });
      this.#reserved = next;
    }
    this.#revision++;
    machine.version++;
    machine.revision = this.#revision;
  }

  #publish(machine: Machine): Machine {
    const copy = structuredClone(machine);
    this.#events.publish(copy);
    return copy;
  }
}

/** What these cannot be without: a file that was torn may be JSON of another kind, or an empty object. */
function isMachine(value: unknown): value is Machine {
  return typeof (value as Machine | undefined)?.id === "string" && Array.isArray((value as Machine).containers);
}

function isRecordOfMachine(value: unknown): value is MachineRecord {
  return (
    isMachine((value as MachineRecord | undefined)?.machine) && typeof (value as MachineRecord).containers === "object"
  );
}

function isReserve(value: unknown): value is { next: number } {
  return Number.isSafeInteger((value as { next?: unknown } | undefined)?.next);
}

function isSpec(value: unknown): value is MachineSpec {
  return Array.isArray((value as MachineSpec | undefined)?.containers);
}

/** Their names. */
function foldersIn(dir: string): string[] {
  return readdirSync(dir, { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => name);
}
