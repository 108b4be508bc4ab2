/**
 * The machines of this host on disk: a folder each, with its spec and its record; and the events of their changes, by
 * which clients follow them.
 */
import { chmodSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createHash } from "node:crypto";
import { join } from "node:path";
import {
  type Clock,
  type Machine,
  type MachineEvent,
  MachineEvents,
  type MachineSpec,
  tombstoneOf,
} from "../../../src/provider/kit/index.ts";
import { writeJson } from "../host/files.ts";
import type { MachineRecord } from "./record.ts";
import { HostError } from "../host/host-error.ts";

/** How many changes a watcher may be behind. */
const EVENTS_KEPT = 4096;
/** Revisions are reserved in blocks of this size, so that they grow over restarts without a write for each. */
const REVISION_BLOCK = 100_000;
/** Longest path of a unix socket that Linux takes (sun_path), without the closing zero. */
const MAX_SOCKET_PATH = 107;
const SOCKET_NAME_LENGTH = 16;
/** Enough to tell machines apart; the rest tells the few sockets of one machine apart. */
const MACHINE_PREFIX_LENGTH = 10;

function digest(text: string, length: number): string {
  return createHash("sha256").update(text).digest("hex").slice(0, length);
}

function socketPrefix(id: string): string {
  return digest(id, MACHINE_PREFIX_LENGTH);
}

function readJson(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new Error(`cannot read ${path}: ${String(thrown)}`, { cause: thrown });
  }
}

/** As `readJson`, but a file that a loss of power has left empty or torn counts as none: then nothing runs either. */
function readOwn(path: string): unknown {
  try {
    return readJson(path);
  } catch (thrown) {
    if ((thrown as Error).cause instanceof SyntaxError) return undefined;
    throw thrown;
  }
}

/**
 * The backend's state on disk and its stream of changes:
 *
 *     STATE/lock                     held by the backend that uses all this
 *     STATE/revision.json            revisions below this are used
 *     SECRETS/ID/spec.json           the spec without registry credentials, rewritten by patches
 *     SECRETS/ID/engine/             the engine's own with secrets in it
 *     STATE/machines/ID/state.json   MachineRecord
 *     STATE/machines/ID/engine/      the engine's own
 *     STATE/machines/ID/containers/NAME/INSTANCE/   shim files and log segments
 *     STATE/tombstones/ID.json       the last status of a deleted machine
 *     STATE/run/                     unix sockets, under short names
 *
 * SECRETS is in memory, or STATE/machines where the owner of the host says so. Files are replaced by rename, so a
 * reader never meets half of one. Only the owner may read them.
 */
export class MachineStore {
  readonly stateDir: string;
  readonly #secretsDir: string;
  readonly #clock: Clock;
  #revision: number;
  #reserved: number;
  readonly #events: MachineEvents;
  readonly #tombstones = new Map<string, Machine>();

  /** @param secretsDir holds what must not lie on the disk; by default it does, beside the rest */
  constructor(stateDir: string, clock: Clock, secretsDir = join(stateDir, "machines")) {
    const longest = join(stateDir, "run").length + 1 + SOCKET_NAME_LENGTH;
    if (longest > MAX_SOCKET_PATH) {
      throw new HostError(
        `state directory ${stateDir} is too long: sockets in it need ${longest} of at most ${MAX_SOCKET_PATH} bytes. Choose a shorter path`,
      );
    }
    this.stateDir = stateDir;
    this.#secretsDir = secretsDir;
    this.#clock = clock;
    for (const folder of ["", "machines", "tombstones", "run"])
      mkdirSync(join(stateDir, folder), { recursive: true, mode: 0o700 });
    chmodSync(stateDir, 0o700);
    this.#reserved = (readJson(join(stateDir, "revision.json")) as { next: number } | undefined)?.next ?? 1;
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

  /**
   * Every machine that was created and not removed. `remnants` are the ids of the other folders: a create that never
   * was answered, a machine with a tombstone already. They may be removed once nothing of them runs or is mounted. A
   * machine without a spec has lost it: with the host's memory, or with its power while it was written.
   */
  load(): { machines: { spec: MachineSpec | undefined; record: MachineRecord }[]; remnants: string[] } {
    for (const name of readdirSync(join(this.stateDir, "tombstones"))) {
      if (!name.endsWith(".json")) continue;
      const machine = readOwn(join(this.stateDir, "tombstones", name)) as Machine | undefined;
      if (machine !== undefined) this.#tombstones.set(machine.id, machine);
    }
    const known = readdirSync(join(this.stateDir, "machines"));
    const remnants = foldersIn(this.#secretsDir).filter((id) => !known.includes(id));
    const machines = known.flatMap((id) => {
      const record = readOwn(join(this.machineDir(id), "state.json")) as MachineRecord | undefined;
      if (record !== undefined && !this.#tombstones.has(id)) return [{ spec: this.#loadSpec(id), record }];
      remnants.push(id);
      return [];
    });
    return { machines, remnants };
  }

  #loadSpec(id: string): MachineSpec | undefined {
    const own = join(this.secretDir(id), "spec.json");
    const onDisk = join(this.machineDir(id), "spec.json");
    const spec = readOwn(own) as MachineSpec | undefined;
    if (own === onDisk) return spec;
    // Of an earlier version, or from before the owner decided otherwise.
    const old = spec ?? (readOwn(onDisk) as MachineSpec | undefined);
    if (spec === undefined && old !== undefined) this.saveSpec(id, old);
    rmSync(onDisk, { force: true });
    return old;
  }

  saveSpec(id: string, spec: MachineSpec): void {
    for (const folder of [join(this.machineDir(id), "engine"), this.secretDir(id)])
      mkdirSync(folder, { recursive: true, mode: 0o700 });
    const { registry_auth: _secret, registry_auth_version: _version, ...rest } = spec;
    writeJson(join(this.secretDir(id), "spec.json"), rest);
  }

  /**
   * Writes the record under a new version and revision, and tells the watchers.
   * @returns what was written; it must not be changed. @throws when it cannot be written: then the watchers are not
   *   told.
   */
  commit(record: MachineRecord): Machine {
    this.#stamp(record.machine);
    writeJson(join(this.machineDir(record.machine.id), "state.json"), record);
    return this.#publish(record.machine);
  }

  /** Writes a machine's tombstone. Its folder stays, see `remove`. @throws when it cannot be written */
  bury(machine: Machine): void {
    const tombstone = tombstoneOf(machine, this.#clock.now());
    this.#stamp(tombstone);
    writeJson(this.#tombstonePath(machine.id), tombstone);
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
  pruneTombstones(maxAgeMs: number): void {
    for (const [id, machine] of this.#tombstones) {
      if (this.#clock.now() - Date.parse(machine.deleted_at!) < maxAgeMs) continue;
      rmSync(this.#tombstonePath(id), { force: true });
      this.#tombstones.delete(id);
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

/** Their names. */
function foldersIn(dir: string): string[] {
  return readdirSync(dir, { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => name);
}
