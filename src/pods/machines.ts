/**
 * What the backend was last seen to run: all machines of this node, kept by one watch and a periodic list, so that no
 * pod costs a call of its own. It never concludes more than it saw: before the first complete list, and when the backend
 * has not been heard of for a while, a machine that is not known is `unknown`, not `absent`.
 */
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { linkAbort } from "../util/abort.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import { isProviderError } from "../provider/errors.ts";
import type { Machine } from "../provider/machine.ts";
import type { Provider, ProviderInfo } from "../provider/provider.ts";
import type { Observed } from "./planner.ts";

export interface MachineCacheOptions {
  clock: Clock;
  /** Called with the id of every machine that changed, and with every known id after the cache became complete. */
  onChange: (id: string) => void;
  /** After this long without an answer of the backend, absence is no longer believed. Default 150 s. */
  staleMs?: number;
}

export class MachineCache {
  readonly #clock: Clock;
  readonly #onChange: (id: string) => void;
  readonly #staleMs: number;
  readonly #machines = new Map<string, Machine>();
  #revision = 0;
  /** Monotonic time of the last complete list or live event; undefined before the first list. */
  #heardAt: number | undefined;

  constructor(options: MachineCacheOptions) {
    this.#clock = options.clock;
    this.#onChange = options.onChange;
    this.#staleMs = options.staleMs ?? 150_000;
  }

  get synced(): boolean {
    return this.#heardAt !== undefined;
  }

  get revision(): number {
    return this.#revision;
  }

  ids(): IterableIterator<string> {
    return this.#machines.keys();
  }

  values(): IterableIterator<Machine> {
    return this.#machines.values();
  }

  observe(id: string): Observed {
    const machine = this.#machines.get(id);
    if (machine !== undefined) return { kind: "found", machine };
    if (this.#heardAt === undefined || this.#clock.monotonic() - this.#heardAt > this.#staleMs)
      return { kind: "unknown" };
    return { kind: "absent" };
  }

  /** Takes a machine from a reply or an event, unless a newer state of it is known. */
  put(machine: Machine): void {
    const known = this.#machines.get(machine.id);
    if (known !== undefined && known.version >= machine.version && known.created_at === machine.created_at) return;
    this.#machines.set(machine.id, machine);
    this.#revision = Math.max(this.#revision, machine.revision);
    this.#onChange(machine.id);
  }

  /** The backend itself said, in answer to a direct question, that this machine does not exist. */
  drop(id: string): void {
    if (this.#machines.delete(id)) this.#onChange(id);
  }

  /**
   * Takes a complete list. A machine that it lacks is dropped, unless it changed after the list's revision: then the
   * list is the older knowledge. A revision that went backwards means that the backend lost its state and counts anew:
   * `knownBefore` is the cache's revision when the list was asked for. What was learnt while the list was on its way, such
   * as the reply to a create, may well be newer than it.
   */
  replace(items: readonly Machine[], revision: number, knownBefore: number = this.#revision): void {
    const restarted = revision < knownBefore && items.every((m) => m.revision <= revision);
    const first = !this.synced;
    this.#heardAt = this.#clock.monotonic();
    const listed = new Set(items.map((m) => m.id));
    if (restarted) {
      for (const id of this.#machines.keys()) if (!listed.has(id)) this.drop(id);
      this.#revision = revision;
      for (const machine of items) {
        this.#machines.set(machine.id, machine);
        this.#onChange(machine.id);
      }
      return;
    }
    for (const machine of items) this.put(machine);
    for (const [id, machine] of this.#machines) {
      if (!listed.has(id) && machine.revision <= revision) this.drop(id);
    }
    this.#revision = Math.max(this.#revision, revision);
    if (first) for (const id of this.#machines.keys()) this.#onChange(id);
  }

  /** The watch is alive and has nothing new. */
  heard(): void {
    if (this.#heardAt !== undefined) this.#heardAt = this.#clock.monotonic();
  }

  forget(id: string): void {
    this.#machines.delete(id);
  }
}

export interface BackendHealth {
  /** It has answered at least once. */
  readonly seen: boolean;
  /** Monotonic time since which the backend has been failing; undefined while it answers. */
  readonly failingSince: number | undefined;
  readonly lastError: string | undefined;
}

export interface MachineObserverOptions {
  provider: Provider;
  cache: MachineCache;
  /** Labels that every machine of this node carries. */
  labels: Record<string, string>;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Time between complete lists. Default 60 s with a watch, 5 s without. */
  listEveryMs?: number;
  onInfo?: (info: ProviderInfo) => void;
  onSynced?: () => void;
  /** After each complete list: how long it took, and the time since the one before, in seconds. */
  onListed?: (seconds: number, interval: number | undefined) => void;
}

/** After a failure; doubles up to the longest. */
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
/** Whatever went well for so long begins anew with the first pause. */
const HELD_MS = 4_000;

/** Keeps the cache: lists, watches from the list's revision where the backend can, lists again on a timer and on any doubt. */
export class MachineObserver implements BackendHealth {
  readonly #o: MachineObserverOptions;
  failingSince: number | undefined;
  lastError: string | undefined;
  #listedAt: number | undefined;

  constructor(options: MachineObserverOptions) {
    this.#o = options;
  }

  get seen(): boolean {
    return this.#o.cache.synced;
  }

  async run(signal: AbortSignal): Promise<void> {
    let backoffMs = FIRST_PAUSE_MS;
    while (!signal.aborted) {
      const begun = this.#o.clock.monotonic();
      let failed = false;
      try {
        const info = await this.#o.provider.getInfo({ signal });
        this.#o.onInfo?.(info);
        const watching = info.capabilities.includes("events") && this.#o.provider.watchPods !== undefined;
        const revision = await this.#list(signal);
        const everyMs = this.#o.listEveryMs ?? (watching ? 60_000 : 5_000);
        if (watching) await this.#watchFor(revision, everyMs, signal);
        else await this.#o.clock.sleep(everyMs, signal);
      } catch (thrown) {
        if (signal.aborted) return;
        this.#failed(thrown);
        failed = true;
      }
      // A stream of events that never holds would otherwise have the whole list read again and again.
      const held = this.#o.clock.monotonic() - begun >= HELD_MS;
      if (held) backoffMs = FIRST_PAUSE_MS;
      if (held && !failed) continue;
      await this.#o.clock.sleep(backoffMs * (0.5 + this.#o.random()), signal).catch(() => undefined);
      backoffMs = Math.min(backoffMs * 2, LONGEST_PAUSE_MS);
    }
  }

  /** @returns the list's revision, from where a watch misses nothing. A reply to a create may have made the cache's higher. */
  async #list(signal: AbortSignal): Promise<number> {
    const knownBefore = this.#o.cache.revision;
    const begun = this.#o.clock.monotonic();
    const list = await this.#o.provider.getPods({ signal, labels: this.#o.labels });
    this.#o.onListed?.(
      (this.#o.clock.monotonic() - begun) / 1000,
      this.#listedAt === undefined ? undefined : (begun - this.#listedAt) / 1000,
    );
    this.#listedAt = begun;
    const first = !this.#o.cache.synced;
    const mine = list.items.filter((m) => Object.entries(this.#o.labels).every(([k, v]) => m.labels[k] === v));
    this.#o.cache.replace(mine, list.revision, knownBefore);
    this.#answered();
    if (first) this.#o.onSynced?.();
    return list.revision;
  }

  /** Follows events for `ms`, then returns so that a complete list heals whatever the watch missed. */
  async #watchFor(revision: number, ms: number, signal: AbortSignal): Promise<void> {
    const stop = new AbortController();
    const cancel = this.#o.clock.after(ms, () => stop.abort());
    const { signal: linked, release } = linkAbort(signal, stop.signal);
    try {
      const events = this.#o.provider.watchPods!(revision, { signal: linked, labels: this.#o.labels });
      for await (const event of events) {
        this.#answered();
        if (Object.entries(this.#o.labels).every(([k, v]) => event.machine.labels[k] === v))
          this.#o.cache.put(event.machine);
        this.#o.cache.heard();
      }
    } catch (thrown) {
      if (!linked.aborted && !isProviderError(thrown, "gone")) throw thrown;
    } finally {
      cancel();
      release();
    }
  }

  #answered(): void {
    if (this.failingSince !== undefined) this.#o.logger.info({}, "Backend answers again");
    this.failingSince = undefined;
    this.lastError = undefined;
  }

  #failed(thrown: unknown): void {
    const error = toError(thrown);
    if (this.failingSince === undefined) {
      this.failingSince = this.#o.clock.monotonic();
      this.#o.logger.warn({ err: error.message }, "Backend does not answer");
    }
    this.lastError = error.message;
  }
}
