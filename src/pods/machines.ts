/**
 * What the backend was last seen to run: all machines of this node, kept by one watch and a periodic list, so that no
 * pod costs a call of its own. It never concludes more than it saw: before the first complete list, and when the
 * backend has not been heard of for a while, a machine that is not known is `unknown`, not `absent`. So is one that the
 * backend has described in a way that makes no sense; the others are not affected.
 */
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { linkAbort } from "../util/abort.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import { isProviderError } from "../provider/errors.ts";
import { isKnownOver, type Machine, type UnknownMachine } from "../provider/machine.ts";
import type { Provider, ProviderInfo } from "../provider/provider.ts";
import type { Observed } from "./decision.ts";
import { doubledMs } from "../util/doubled.ts";
import { Pulse } from "../util/pulse.ts";

interface MachineCacheOptions {
  clock: Clock;
  /**
   * Called with the id of every machine that changed or became unknown, and with every known id after the cache became
   * complete.
   */
  onChange: (id: string) => void;
  /** Whether a machine can have this address. Others are left out of what is known of it. Default: any. */
  acceptsAddress?: ((ip: string) => boolean) | undefined;
  /** After this long without an answer of the backend, absence is no longer believed. Default 150 s. */
  staleMs?: number | undefined;
}

/** How long a direct answer "not found" stands. */
const DENIAL_MS = 5_000;

export class MachineCache {
  readonly #clock: Clock;
  readonly #onChange: (id: string) => void;
  readonly #staleMs: number;
  readonly #acceptsAddress: (ip: string) => boolean;
  readonly #machines = new Map<string, Machine>();
  /** Whatever was known of these before does not hold any more. */
  readonly #unknown = new Map<string, UnknownMachine>();
  /** By machine, what is not accepted of the addresses that the backend names. */
  readonly #strayAddresses = new Map<string, readonly string[]>();
  /**
   * Monotonic times of the backend's word, in answer to a direct question, that there is no such machine: while no list
   * says so.
   */
  readonly #absentAt = new Map<string, number>();
  /** Machines of which something is waited for. */
  readonly #awaited = new Map<string, Pulse>();
  /** The backend's events are being read. */
  isFollowed = false;
  #revision = 0;
  /** Monotonic time of the last complete list or live event; undefined before the first list. */
  #heardAt: number | undefined;

  constructor(options: MachineCacheOptions) {
    this.#clock = options.clock;
    this.#onChange = options.onChange;
    this.#staleMs = options.staleMs ?? 150_000;
    this.#acceptsAddress = options.acceptsAddress ?? (() => true);
  }

  get synced(): boolean {
    return this.#heardAt !== undefined;
  }

  get revision(): number {
    return this.#revision;
  }

  /** Of all machines that the backend has, as far as it is known. */
  ids(): IterableIterator<string> {
    return new Set([...this.#machines.keys(), ...this.#unknown.keys()]).values();
  }

  /** True when the backend has it, whatever is known of it. */
  has(id: string): boolean {
    return this.#machines.has(id) || this.#unknown.has(id);
  }

  /** Machines of which something is known. */
  *values(): Generator<Machine> {
    for (const machine of this.#machines.values()) if (!this.#unknown.has(machine.id)) yield machine;
  }

  /** How many that are not over can be seen, and how many cannot. */
  get sights(): { seen: number; unseen: number } {
    let seen = 0;
    for (const machine of this.values()) if (!isKnownOver(machine)) seen++;
    let unseen = 0;
    for (const machine of this.#unknown.values()) if (!isKnownOver(machine)) unseen++;
    return { seen, unseen };
  }

  /** Machines that the backend has and whose descriptions make no sense. */
  unknown(): IterableIterator<UnknownMachine> {
    return this.#unknown.values();
  }

  observe(id: string): Observed {
    const unknown = this.#unknown.get(id);
    if (unknown !== undefined) return { kind: "unknown", machine: unknown };
    const machine = this.#machines.get(id);
    if (machine !== undefined) return { kind: "found", machine };
    return this.#isBelieved || this.#wasDenied(id) ? { kind: "absent" } : { kind: "unknown" };
  }

  /** What a list lacks is not there. */
  get #isBelieved(): boolean {
    return this.#heardAt !== undefined && this.#clock.monotonic() - this.#heardAt <= this.#staleMs;
  }

  #wasDenied(id: string): boolean {
    const at = this.#absentAt.get(id);
    return at !== undefined && this.#clock.monotonic() - at <= DENIAL_MS;
  }

  /**
   * Takes a machine from a reply or an event, unless a newer state of it is known. Of an answer, `knownBefore` is the
   * cache's revision when the question was asked: another machine of the same id that was known by then is older than
   * the answer.
   */
  put(machine: Machine, knownBefore = -1): void {
    const { id, version } = machine;
    const doubt = this.#unknown.get(id);
    if (doubt?.version !== undefined && doubt.version > version) return;
    const wasUnknown = this.#unknown.delete(id);
    const known = this.#machines.get(id);
    const isNews = known === undefined || isNewer(machine, known, knownBefore);
    this.#absentAt.delete(id);
    if (isNews) this.#set(machine);
    this.#revision = Math.max(this.#revision, machine.revision);
    if (isNews || wasUnknown) this.#tell(id);
  }

  /**
   * The backend has this machine and said nothing of it that can be believed: it is unknown until the backend makes
   * sense again, or a list that is newer does not name it.
   *
   * @returns false when that was known, or something newer is
   */
  putUnknown(unknown: UnknownMachine): boolean {
    const { id, reason, state, version, revision, disruption } = unknown;
    const known = this.#machines.get(id);
    if (known !== undefined && version !== undefined && version < known.version) return false;
    const before = this.#unknown.get(id);
    this.#unknown.set(id, unknown);
    if (revision !== undefined) this.#revision = Math.max(this.#revision, revision);
    const isSame = before?.reason === reason && before.state === state;
    if (isSame && before.disruption?.reason === disruption?.reason) return false;
    this.#tell(id);
    return true;
  }

  /**
   * The backend itself said, in answer to a direct question, that this machine does not exist. That is worth as much as
   * a list for as long as it takes to act on it: a step that asks because no list can be had would otherwise ask again
   * and again.
   *
   * @param knownBefore the cache's revision when the question was asked
   * @returns false when the machine was heard of since, which is newer than the answer
   */
  drop(id: string, knownBefore: number): boolean {
    const known = this.#machines.get(id);
    if (known !== undefined && known.revision > knownBefore) return false;
    if (!this.#isBelieved) this.#absentAt.set(id, this.#clock.monotonic());
    this.#remove(id);
    return true;
  }

  #remove(id: string): void {
    const wasUnknown = this.#unknown.delete(id);
    this.#strayAddresses.delete(id);
    if (this.#machines.delete(id) || wasUnknown) this.#tell(id);
  }

  /**
   * Takes a complete list. A machine that it lacks is dropped, unless it changed after the list's revision: then the
   * list is the older knowledge. A revision that went backwards means that the backend lost its state and counts from
   * the beginning: `knownBefore` is the cache's revision when the list was asked for. What was learnt while the list
   * was on its way, such as the reply to a create, may well be newer than it. `unknown` are those of which the list
   * made no sense.
   *
   * @returns those of `unknown` that were not known to be so
   */
  replace(
    items: readonly Machine[],
    revision: number,
    knownBefore: number = this.#revision,
    unknown: readonly UnknownMachine[] = [],
  ): UnknownMachine[] {
    const restarted = revision < knownBefore && items.every((m) => m.revision <= revision);
    const first = !this.synced;
    this.#heardAt = this.#clock.monotonic();
    this.#absentAt.clear();
    const doubtful = new Set(unknown.map((m) => m.id));
    const settled = [...this.#unknown.values()].filter(
      ({ id, revision: doubtedAt = 0 }) => !doubtful.has(id) && (restarted || doubtedAt <= revision),
    );
    for (const { id } of settled) this.#unknown.delete(id);
    const listed = new Set(items.map((m) => m.id));
    if (restarted) {
      for (const id of this.#machines.keys()) if (!listed.has(id) && !doubtful.has(id)) this.#remove(id);
      this.#machines.clear();
      this.#strayAddresses.clear();
      this.#revision = revision;
      for (const machine of items) {
        this.#set(machine);
        this.#tell(machine.id);
      }
    } else {
      for (const machine of items) this.#takeListed(machine, revision);
      for (const [id, machine] of this.#machines) {
        if (!listed.has(id) && !doubtful.has(id) && machine.revision <= revision) this.#remove(id);
      }
      this.#revision = Math.max(this.#revision, revision);
    }
    const news = unknown.filter((each) => this.putUnknown({ ...each, revision }));
    for (const { id } of settled) this.#tell(id);
    if (first) for (const id of this.#machines.keys()) this.#tell(id);
    return news;
  }

  /** Addresses that the backend says the machine has, and that are not believed. */
  strayAddresses(id: string): readonly string[] {
    return this.#strayAddresses.get(id) ?? [];
  }

  #set(machine: Machine): void {
    const { id, addresses } = machine;
    const stray = addresses.flatMap(({ ip }) => (this.#acceptsAddress(ip) ? [] : [ip]));
    if (stray.length > 0) this.#strayAddresses.set(id, stray);
    else this.#strayAddresses.delete(id);
    this.#machines.set(
      id,
      stray.length === 0 ? machine : { ...machine, addresses: addresses.filter(({ ip }) => !stray.includes(ip)) },
    );
  }

  /**
   * What is known of a machine from a time up to the list's can be no newer than the list: a backend that was put back
   * to an older state has gone on counting from there, and gives out the same numbers for other states.
   */
  #takeListed(machine: Machine, revision: number): void {
    const known = this.#machines.get(machine.id);
    const goesBack = known !== undefined && known.revision <= revision && !isNewer(machine, known);
    if (goesBack) this.#set(machine);
    this.put(machine);
    // One that only looks the same is seen at the next look at its pod, which is within the minute.
    if (goesBack && known.version !== machine.version) this.#tell(machine.id);
  }

  #tell(id: string): void {
    this.#onChange(id);
    this.#awaited.get(id)?.fire();
  }

  /**
   * Resolves when something becomes known of this machine, after `ms` milliseconds, or when the signal aborts; at once
   * while no events come.
   */
  async news(id: string, ms: number, signal: AbortSignal): Promise<void> {
    if (!this.isFollowed) return;
    const pulse = new Pulse();
    this.#awaited.set(id, pulse);
    await pulse.waitAtMost(this.#clock, ms, signal);
    if (this.#awaited.get(id) === pulse) this.#awaited.delete(id);
  }

  /** The watch is alive and has nothing new. */
  heard(): void {
    if (this.#heardAt !== undefined) this.#heardAt = this.#clock.monotonic();
  }

  forget(id: string): void {
    this.#machines.delete(id);
    this.#unknown.delete(id);
    this.#strayAddresses.delete(id);
    this.#absentAt.delete(id);
  }
}

/**
 * An id that was vacated may be taken again, by a tombstone as well: then only the backend's own order tells what came
 * later, or that a question was asked after the other machine was known.
 */
function isNewer(machine: Machine, known: Machine, knownBefore = -1): boolean {
  if (machine.created_at === known.created_at) return machine.version > known.version;
  return machine.revision >= known.revision || known.revision <= knownBefore;
}

interface BackendHealth {
  /** It has answered at least once. */
  readonly seen: boolean;
  /** Monotonic time since which the backend has been failing; undefined while it answers. */
  readonly failingSince: number | undefined;
  readonly lastError: string | undefined;
}

interface MachineObserverOptions {
  provider: Provider;
  cache: MachineCache;
  /** Labels that every machine of this node carries. */
  labels: Record<string, string>;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Time between complete lists. Default 60 s with a watch, 5 s without. */
  listEveryMs?: number | undefined;
  onInfo?: ((info: ProviderInfo) => void) | undefined;
  onSynced?: (() => void) | undefined;
  /** After each complete list: how long it took, and the time since the one before, in seconds. */
  onListed?: ((seconds: number, interval: number | undefined) => void) | undefined;
}

/** After a failure; doubles up to the longest. */
const PAUSE_MS = { first: 500, max: 15_000 };
/** Between two log lines about machines that make no sense. */
const WARN_PAUSE_MS = 10_000;
/** After going well for this long, the next failure begins with the first pause again. */
const HELD_MS = 4_000;

/**
 * Keeps the cache: lists, watches from the list's revision where the backend can, lists again on a timer and on any
 * doubt.
 */
export class MachineObserver implements BackendHealth {
  readonly #options: MachineObserverOptions;
  failingSince: number | undefined;
  lastError: string | undefined;
  #listedAt: number | undefined;
  #warnNotBefore = -Infinity;

  constructor(options: MachineObserverOptions) {
    this.#options = options;
  }

  get seen(): boolean {
    return this.#options.cache.synced;
  }

  async run(signal: AbortSignal): Promise<void> {
    let pauses = 0;
    while (!signal.aborted) {
      const begun = this.#options.clock.monotonic();
      let failed = false;
      try {
        const info = await this.#options.provider.getInfo({ signal });
        this.#options.onInfo?.(info);
        const watching = info.capabilities.includes("events") && this.#options.provider.watchPods !== undefined;
        const revision = await this.#list(signal);
        const everyMs = this.#options.listEveryMs ?? (watching ? 60_000 : 5_000);
        if (watching) await this.#watchFor(revision, everyMs, signal);
        else await this.#options.clock.sleep(everyMs, signal);
      } catch (thrown) {
        if (signal.aborted) return;
        this.#failed(thrown);
        failed = true;
      }
      // A stream of events that never holds would otherwise have the whole list read again and again.
      const held = this.#options.clock.monotonic() - begun >= HELD_MS;
      if (held) pauses = 0;
      if (held && !failed) continue;
      const pauseMs = doubledMs(PAUSE_MS, pauses++) * (0.5 + this.#options.random());
      await this.#options.clock.sleep(pauseMs, signal).catch(() => undefined);
    }
  }

  /**
   * @returns the list's revision, from where a watch misses nothing. A reply to a create may have made the cache's
   *   higher.
   */
  async #list(signal: AbortSignal): Promise<number> {
    const knownBefore = this.#options.cache.revision;
    const begun = this.#options.clock.monotonic();
    const list = await this.#options.provider.getPods({ signal, labels: this.#options.labels });
    this.#options.onListed?.(
      (this.#options.clock.monotonic() - begun) / 1000,
      this.#listedAt === undefined ? undefined : (begun - this.#listedAt) / 1000,
    );
    this.#listedAt = begun;
    const first = !this.#options.cache.synced;
    const mine = list.items.filter((m) => Object.entries(this.#options.labels).every(([k, v]) => m.labels[k] === v));
    const unknown = this.#options.cache.replace(mine, list.revision, knownBefore, list.unknown);
    if (unknown.length > 0) this.#warnOf(unknown);
    this.#answered();
    if (first) this.#options.onSynced?.();
    return list.revision;
  }

  /** Follows events for `ms`, then returns so that a complete list heals whatever the watch missed. */
  async #watchFor(revision: number, ms: number, signal: AbortSignal): Promise<void> {
    const stop = new AbortController();
    const cancel = this.#options.clock.after(ms, () => stop.abort());
    using watched = linkAbort(signal, stop.signal);
    const { cache } = this.#options;
    try {
      cache.isFollowed = true;
      const events = this.#options.provider.watchPods!(revision, {
        signal: watched.signal,
        labels: this.#options.labels,
      });
      for await (const event of events) {
        const { machine, revision } = event;
        this.#answered();
        if (machine === undefined) {
          const unknown = { ...event.unknown, revision };
          if (cache.putUnknown(unknown)) this.#warnOf([unknown]);
        } else if (Object.entries(this.#options.labels).every(([k, v]) => machine.labels[k] === v)) cache.put(machine);
        cache.heard();
      }
    } catch (thrown) {
      if (!watched.signal.aborted && !isProviderError(thrown, "gone")) throw thrown;
    } finally {
      cache.isFollowed = false;
      cancel();
    }
  }

  /** One line for all that became unknown together, and not many in a row: each pod is told by an event of its own. */
  #warnOf(unknown: readonly UnknownMachine[]): void {
    const now = this.#options.clock.monotonic();
    const [first] = unknown;
    if (first === undefined || now < this.#warnNotBefore) return;
    this.#warnNotBefore = now + WARN_PAUSE_MS;
    this.#options.logger.warn(
      { machines: unknown.length, machine: first.id, reason: first.reason },
      "Backend says of machines what makes no sense; they are unknown until it does",
    );
  }

  #answered(): void {
    if (this.failingSince !== undefined) this.#options.logger.info({}, "Backend answers again");
    this.failingSince = undefined;
    this.lastError = undefined;
  }

  #failed(thrown: unknown): void {
    const error = toError(thrown);
    if (this.failingSince === undefined) {
      this.failingSince = this.#options.clock.monotonic();
      this.#options.logger.warn({ err: error }, "Backend does not answer");
    }
    this.lastError = error.message;
  }
}
