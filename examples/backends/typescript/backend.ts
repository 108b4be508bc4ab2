/**
 * A backend of the Machine API with nothing but Node's standard library (22.18 or newer, Linux).
 *
 *     node main.ts --state ./state --port 8480
 *
 * A machine is one process of this host with whatever it starts: no image, no isolation, one container. It has the core of
 * the API and no capability, and keeps every rule of it, those of restarts included: kill it with -9 whenever you like.
 *
 * How it is built, and what to keep when your platform takes the processes' place:
 *
 * - What was asked for is on disk before anything is done about it (`save`): a create that was answered is never forgotten,
 *   and a deleted id stays deleted.
 * - Beside each process is a small one (shim.ts) that writes down its output and how it ended. It needs no backend.
 * - One loop (`tend`) looks at what is and does the next step towards what is wanted. It has no memory of its own, so that a
 *   backend which starts again simply goes on.
 *
 * What it leaves out: logs are not rotated, and a process that makes itself a session of its own outlives its machine.
 *
 * machine.ts is one machine, spec.ts what a request may hold, http.ts the routes, logs.ts the logs.
 */
import { createHash } from "node:crypto";
import { EventEmitter } from "node:events";
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import { now, readFile, writeFile } from "./files.ts";
import { Machine, type Container, type Record, type Shown, type Terminated } from "./machine.ts";
import type { End } from "./shim.ts";
import { ApiError, signalNumber, type Spec } from "./spec.ts";

export const TOMBSTONE_SECONDS = 3600;

export class Backend {
  readonly machines = new Map<string, Machine>();
  /** Emits `change` with every change. */
  readonly changes = new EventEmitter().setMaxListeners(0);
  revision: number;
  readonly #state: string;

  constructor(state: string) {
    this.#state = state;
    mkdirSync(join(state, "machines"), { recursive: true, mode: 0o700 });
    for (const id of readdirSync(join(state, "machines"))) {
      const folder = join(state, "machines", id);
      const record = readFile(join(folder, "record.json")) as Record | undefined;
      // Without one, the create was never answered.
      if (record !== undefined) this.machines.set(id, new Machine(folder, record));
    }
    // The counter of all changes outlives a restart, and the last tombstone.
    const seen = [...this.machines.values()].map(({ shown }) => shown.revision);
    this.revision = Math.max((readFile(join(state, "revision")) as number | undefined) ?? 0, ...seen);
  }

  find(id: string): Machine {
    const machine = this.machines.get(id);
    // The only proof of absence: this folder is all there is. A platform that does not answer is `unavailable` instead.
    if (machine === undefined) throw new ApiError("not_found", `there is no machine ${id}`);
    return machine;
  }

  create(id: string, spec: Spec): Machine {
    const fingerprint = createHash("sha256").update(canonical(spec)).digest("hex");
    const existing = this.machines.get(id);
    // A create that comes late must not revive what was deleted, a repeated one must not make a second machine.
    if (existing?.record.wanted === "deleted") throw new ApiError("gone", `machine ${id} was deleted`);
    if (existing && existing.record.fingerprint !== fingerprint)
      throw new ApiError("conflict", `machine ${id} exists with another specification`);
    if (existing) return existing;
    const { name, image } = spec.containers[0]!;
    const waiting = { kind: "main", state: "waiting", reason: "ContainerCreating", ready: false } as const;
    const container: Container = { name, ...waiting, started: false, restart_count: 0, image, image_id: image };
    const machine = this.#new(id, { labels: spec.labels, containers: [container] });
    Object.assign(machine.record, { spec, fingerprint });
    return this.#add(machine);
  }

  stop(machine: Machine, graceSeconds: number): void {
    if (machine.isOver) return;
    const { record } = machine;
    if (record.wanted === "running") record.wanted = "stopped";
    // Of several stops the one that ends first counts.
    record.killAt = Math.min(record.killAt ?? Infinity, Date.now() + graceSeconds * 1000);
    this.#save(machine, { state: "stopping" });
    this.#tend(machine);
  }

  delete(id: string, force: boolean): void {
    // Also an id that was never seen: its create may still be on the way, and finds the tombstone.
    const machine = this.machines.get(id) ?? this.#add(this.#new(id, { labels: {}, containers: [] }, "deleted"));
    if (machine.shown.state === "deleted") return;
    const { spec } = machine.record;
    machine.record.wanted = "deleted";
    if (spec !== undefined && !machine.isOver) {
      this.stop(machine, force ? 0 : (spec.termination_grace_s ?? 30));
      return;
    }
    this.#save(machine, { state: "deleting" });
    this.#tend(machine);
  }

  tendAll(): void {
    for (const machine of this.machines.values()) {
      try {
        this.#tend(machine);
      } catch (thrown) {
        console.error(thrown); // a full disk, no process left: tried again, and the other machines go on
      }
    }
  }

  #new(id: string, { labels, containers }: Pick<Shown, "labels" | "containers">, wanted: Record["wanted"] = "running") {
    const made = { state: "creating", reachability: "ok", sandbox_ready: true, created_at: now() } as const;
    const shown: Shown = { id, version: 0, revision: 0, labels, ...made, addresses: [], containers };
    return new Machine(join(this.#state, "machines", id), { shown, wanted, instance: 0, due: 0, crashes: 0 });
  }

  #add(machine: Machine): Machine {
    this.#save(machine);
    this.machines.set(machine.shown.id, machine);
    return machine;
  }

  /** Every change goes through here: what is shown, its version, the revision, the disk, those who wait. */
  #save({ folder, record }: Machine, fields: Partial<Shown> = {}, container: Partial<Container> = {}): void {
    Object.assign(record.shown, fields, { version: record.shown.version + 1, revision: ++this.revision });
    if (record.shown.containers[0] !== undefined) Object.assign(record.shown.containers[0], container);
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    writeFile(join(folder, "record.json"), record);
    this.changes.emit("change");
  }

  /** Looks at what is, and does the next step towards what is wanted. */
  #tend(machine: Machine): void {
    const { record, shown } = machine;
    if (shown.state === "deleted") {
      this.#forget(machine);
      return;
    }
    const isLeft = (): boolean => record.spec === undefined || machine.isOver || shown.state === "deleting";
    if (!isLeft()) this.#tendContainer(machine, record.spec!);
    if (record.wanted !== "deleted" || !isLeft()) return;
    record.spec = undefined;
    this.#save(machine, { state: "deleted", deleted_at: now(), sandbox_ready: false });
    for (const folder of [machine.instance(), machine.instance(1)])
      if (folder !== undefined) rmSync(folder, { recursive: true, force: true });
  }

  #tendContainer(machine: Machine, spec: Spec): void {
    const { record, main } = machine;
    if (record.due !== undefined) {
      if (record.wanted !== "running") this.#over(machine);
      else if (Date.now() >= record.due) {
        delete record.due;
        record.instance++;
        this.#save(machine);
        machine.spawn();
      }
      return;
    }
    const lives = machine.tellShim(); // before what it has written last
    const folder = machine.instance()!;
    let end = readFile(join(folder, "exit")) as End | undefined;
    const started_at = readFile(join(folder, "started")) as string | undefined;
    if (started_at === undefined) {
      // This backend was killed before it began.
      if (!lives && record.wanted === "running") machine.spawn();
      else if (!lives) this.#over(machine);
      return;
    }
    if (main.state !== "running") {
      const id = `${machine.shown.id}-${record.instance}`;
      const is = { state: "running", reason: undefined, ready: true, started: true } as const;
      const fields = record.wanted === "running" ? ({ state: "running", started_at } as const) : {};
      this.#save(machine, fields, { ...is, started_at, id, restart_count: record.instance - 1 });
    }
    if (end === undefined && !lives) {
      // The host went down, or somebody has killed the shim and with it what it ran.
      end = { exit_code: 137, reason: "ContainerStatusUnknown", message: "its shim was killed", at: now() };
      writeFile(join(folder, "exit"), end);
    }
    if (end !== undefined) {
      this.#ended(machine, spec, end);
    } else if (record.wanted !== "running") {
      if (record.asked !== true) machine.tellShim(`${signalNumber(spec.containers[0]!.stop?.signal ?? "TERM")}`);
      record.asked = true;
      if (Date.now() >= record.killAt!) machine.tellShim(`${constants.signals.SIGKILL}`);
    }
  }

  #ended(machine: Machine, spec: Spec, { at, ...how }: End): void {
    const { record, main } = machine;
    const terminated: Terminated = { ...how, started_at: main.started_at, finished_at: at, id: main.id };
    const { restart_policy: policy, backoff = { initial_ms: 10_000, max_ms: 300_000 } } = spec;
    const isDone = policy === "never" || (policy === "on_failure" && how.exit_code === 0);
    if (record.wanted !== "running" || isDone) {
      Object.assign(main, { state: "terminated", ready: false, terminated });
      this.#over(machine);
      return;
    }
    const ranMs = Date.parse(at) - Date.parse(main.started_at!);
    if (ranMs > 2 * backoff.max_ms) record.crashes = 0;
    // The first restart is immediate.
    const waitMs = record.crashes === 0 ? 0 : Math.min(backoff.max_ms, backoff.initial_ms * 2 ** (record.crashes - 1));
    Object.assign(record, { crashes: Math.min(record.crashes + 1, 50), due: Date.now() + waitMs });
    this.#save(machine, {}, { state: "waiting", reason: "CrashLoopBackOff", ready: false, last: terminated });
  }

  #over(machine: Machine): void {
    const { main } = machine;
    // Stopped before it ran, or between two instances.
    const terminated = main.last ?? { exit_code: 137, reason: "Error", finished_at: now() };
    const waited = { state: "terminated", reason: undefined, terminated, last: undefined } as const;
    const fields = { state: "stopped", stopped_at: now(), sandbox_ready: false } as const;
    this.#save(machine, fields, main.state === "waiting" ? waited : {});
  }

  #forget({ shown, folder }: Machine): void {
    if (Date.now() - Date.parse(shown.deleted_at!) < TOMBSTONE_SECONDS * 1000) return;
    writeFile(join(this.#state, "revision"), this.revision);
    rmSync(folder, { recursive: true, force: true });
    this.machines.delete(shown.id);
  }
}

/** The same text for the same specification, whatever the order of its keys. */
function canonical(value: unknown): string {
  return JSON.stringify(value, (_key, part: unknown) =>
    typeof part === "object" && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).toSorted(([a], [b]) => (a < b ? -1 : 1)))
      : part,
  );
}
