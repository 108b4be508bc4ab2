/**
 * The work queue of the pods: each key is handled by one worker at a time, failures are tried again after a back-off,
 * and no group of keys can take all workers. The rest of this folder are its parts, and the limits that others use on
 * their own.
 */
import PQueue from "p-queue";
import type { Logger } from "../telemetry/logger.ts";
import { untilAborted } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";
import { backoffMs } from "./backoff.ts";
import { DelayHeap } from "./delay-heap.ts";
import { FairQueue } from "./fair-queue.ts";

export interface QueueMetrics {
  onAdd(): void;
  /** A key's handling begins, this long after it was added. */
  onStart(waitedSeconds: number): void;
  onDone(workSeconds: number): void;
  onRetry(): void;
}

/** What waits for a worker goes in this order; within one urgency, groups take turns. */
export type Urgency = "high" | "normal" | "low";

export interface KeyedQueueOptions {
  /** Brings the key's object to where it should be. When it throws, the key is tried again as by `retry`. */
  handle: (key: string, signal: AbortSignal) => Promise<void>;
  clock: Clock;
  random: Random;
  /** Keys handled at once. */
  concurrency: number;
  /**
   * Groups of keys take turns; within one, keys are handled as they came. A group that has workers already gets another
   * only while it has fewer than are free: alone it gets half of them, the next one half of the rest. So many groups
   * whose work does not end have to come together before one more finds no worker. Default: no groups.
   */
  groupOf?: ((key: string) => string) | undefined;
  /** Delay of `retry`: doubles from `initialMs` (default 250) to `maxMs` (default 60 000), plus up to as much again. */
  backoff?: { initialMs: number; maxMs: number } | undefined;
  logger?: Logger | undefined;
  metrics?: QueueMetrics | undefined;
}

const URGENCIES: readonly Urgency[] = ["high", "normal", "low"];

interface Waiting {
  since: number;
  urgency: Urgency;
  /** Set while it waits for a worker; not while it waits for the end of its present run. */
  group: string | undefined;
}

/**
 * A work queue of keys, with the semantics of client-go's: a key is handled by one worker at a time; adding a key that
 * waits changes nothing; adding a key that is being handled makes it be handled once more afterwards, unless its
 * handler says that it has yet to look (`seen`). So no change is missed and a hundred changes cost one run.
 *
 * A key has at most one time at which it is due. `addAfter` and `retry` bring it forward but never push it back, and
 * `add` makes it due now. Of the urgencies with which a key was added since it was handled last, the highest holds. A
 * quarter of the workers is kept for what is of high urgency, and half from what is of low.
 */
export class KeyedQueue {
  readonly #options: KeyedQueueOptions;
  readonly #workers: PQueue;
  /** Keys that wait for a worker, or for the end of their present run. */
  readonly #dirty = new Map<string, Waiting>();
  /** Keys that are being handled. */
  readonly #processing = new Map<string, { since: number; group: string; urgency: Urgency }>();
  /** Workers that each group has. */
  readonly #busy = new Map<string, number>();
  /** Keys that wait for a worker. */
  readonly #waiting: Record<Urgency, FairQueue> = {
    high: new FairQueue(),
    normal: new FairQueue(),
    low: new FairQueue(),
  };
  /** Workers that an urgency leaves free. */
  readonly #reserve: Record<Urgency, number>;
  readonly #delayed = new DelayHeap();
  readonly #delayedUrgency = new Map<string, Urgency>();
  readonly #failures = new Map<string, number>();
  #timer: { at: number; cancel: () => void } | undefined;
  #signal: AbortSignal | undefined;
  readonly #idleWaiters: (() => void)[] = [];

  constructor(options: KeyedQueueOptions) {
    this.#options = options;
    const { concurrency } = options;
    this.#workers = new PQueue({ concurrency });
    this.#reserve = { high: 0, normal: Math.floor(concurrency / 4), low: Math.floor(concurrency / 2) };
  }

  /** Has the key handled as soon as a worker is free. */
  add(key: string, urgency: Urgency = "normal"): void {
    const wanted = moreUrgent(urgency, this.#delayedUrgency.get(key));
    this.#delayed.delete(key);
    this.#delayedUrgency.delete(key);
    const waiting = this.#dirty.get(key);
    if (waiting !== undefined) {
      this.#raise(key, waiting, wanted);
      return;
    }
    this.#dirty.set(key, { since: this.#options.clock.monotonic(), urgency: wanted, group: undefined });
    this.#options.metrics?.onAdd();
    if (!this.#processing.has(key)) this.#schedule(key);
  }

  /** Has the key handled in `ms` milliseconds, or earlier if it is due earlier already. */
  addAfter(key: string, ms: number, urgency: Urgency = "normal"): void {
    if (ms <= 0) {
      this.add(key, urgency);
      return;
    }
    // It waits for a worker: that is earlier. A key that is being handled is not due yet and may get a time.
    if (this.#dirty.has(key)) return;
    this.#delayedUrgency.set(key, moreUrgent(urgency, this.#delayedUrgency.get(key)));
    this.#delayed.add(key, this.#options.clock.monotonic() + ms);
    this.#armTimer();
  }

  /** Has the key handled again after a delay that grows with every `retry` since the last `forget`. */
  retry(key: string, urgency: Urgency = "normal"): void {
    const failures = this.#failures.get(key) ?? 0;
    this.#failures.set(key, failures + 1);
    this.#options.metrics?.onRetry();
    const { initialMs, maxMs } = this.#options.backoff ?? { initialMs: 250, maxMs: 60_000 };
    this.addAfter(key, backoffMs({ initialMs, maxMs, jitter: "up", random: this.#options.random }, failures), urgency);
  }

  /** The key is well: its next `retry` starts with the shortest delay. Does not stop what is scheduled. */
  forget(key: string): void {
    this.#failures.delete(key);
  }

  /**
   * Called by the handler of a key just before it looks: that the key was added until now makes it be handled no more,
   * for what it was added for is about to be seen. What is added afterwards does.
   */
  seen(key: string): void {
    if (this.#processing.has(key)) this.#dirty.delete(key);
  }

  /** Keys that are due and wait. */
  get depth(): number {
    return this.#dirty.size;
  }

  /** Keys that are being handled. */
  get working(): number {
    return this.#processing.size;
  }

  /** Keys that are due later. */
  get delayed(): number {
    return this.#delayed.size;
  }

  /** How often `retry` was called for the key since the last `forget`. */
  failures(key: string): number {
    return this.#failures.get(key) ?? 0;
  }

  /** Seconds for which each key that is being handled has been: their sum and greatest show a worker that hangs. */
  workingSeconds(): number[] {
    const now = this.#options.clock.monotonic();
    return [...this.#processing.values()].map(({ since }) => (now - since) / 1000);
  }

  /** Works until `signal` aborts, then waits for the handlers under way (they get the signal). To be called once. */
  async run(signal: AbortSignal): Promise<void> {
    this.#signal = signal;
    this.#startWaiting();
    this.#armTimer();
    await untilAborted(signal);
    this.#timer?.cancel();
    this.#timer = undefined;
    await this.#workers.onIdle();
  }

  /** Resolves when no key is due or being handled. Keys that are due later do not count. */
  async idle(): Promise<void> {
    if (this.#dirty.size === 0 && this.#processing.size === 0) return;
    await new Promise<void>((resolve) => this.#idleWaiters.push(resolve));
  }

  #schedule(key: string): void {
    const waiting = this.#dirty.get(key)!;
    waiting.group = this.#options.groupOf?.(key) ?? "";
    this.#waiting[waiting.urgency].add(key, waiting.group);
    this.#startWaiting();
  }

  #raise(key: string, waiting: Waiting, urgency: Urgency): void {
    const { urgency: before, group } = waiting;
    waiting.urgency = moreUrgent(urgency, before);
    if (waiting.urgency === before || group === undefined) return;
    this.#waiting[before].delete(key, group);
    this.#waiting[waiting.urgency].add(key, group);
    this.#startWaiting();
  }

  /** Gives work to the workers that are free, as far as it may have them. */
  #startWaiting(): void {
    if (this.#signal === undefined || this.#signal.aborted) return;
    for (let key = this.#next(); key !== undefined; key = this.#next()) {
      const begun = this.#begin(key);
      // #work never rejects; the catch is for p-queue itself.
      this.#workers.add(() => this.#work(begun)).catch((thrown: unknown) => this.#report(begun, thrown));
    }
  }

  #next(): string | undefined {
    const free = this.#options.concurrency - this.#processing.size;
    const mayGo = (group: string) => {
      const busy = this.#busy.get(group) ?? 0;
      return this.#options.groupOf === undefined || busy === 0 || busy < free;
    };
    for (const urgency of URGENCIES) {
      const key = free > this.#reserve[urgency] ? this.#waiting[urgency].next(mayGo) : undefined;
      if (key !== undefined) return key;
    }
    return undefined;
  }

  #begin(key: string): string {
    const { clock, metrics } = this.#options;
    const now = clock.monotonic();
    const { since, group = "", urgency } = this.#dirty.get(key)!;
    this.#dirty.delete(key);
    this.#processing.set(key, { since: now, group, urgency });
    this.#busy.set(group, (this.#busy.get(group) ?? 0) + 1);
    metrics?.onStart((now - since) / 1000);
    return key;
  }

  async #work(key: string): Promise<void> {
    const { clock, handle, metrics } = this.#options;
    const { since, group, urgency } = this.#processing.get(key)!;
    try {
      await handle(key, this.#signal!);
    } catch (thrown) {
      if (!this.#signal!.aborted) {
        this.#report(key, thrown);
        this.retry(key, urgency);
      }
    } finally {
      this.#processing.delete(key);
      const busy = this.#busy.get(group)! - 1;
      if (busy === 0) this.#busy.delete(group);
      else this.#busy.set(group, busy);
      metrics?.onDone((clock.monotonic() - since) / 1000);
      if (this.#dirty.has(key)) this.#schedule(key);
      else this.#startWaiting();
      if (this.#dirty.size === 0 && this.#processing.size === 0) for (const wake of this.#idleWaiters.splice(0)) wake();
    }
  }

  #report(key: string, error: unknown): void {
    this.#options.logger?.error({ err: error, key }, "Handling a key failed");
  }

  /** One timer for all delays: it stands at the earliest. */
  #armTimer(): void {
    const { clock } = this.#options;
    const { nextAt } = this.#delayed;
    if (nextAt === undefined || !this.#signal || this.#signal.aborted) return;
    if (this.#timer && this.#timer.at <= nextAt) return;
    this.#timer?.cancel();
    const cancel = clock.after(Math.max(0, nextAt - clock.monotonic()), () => {
      this.#timer = undefined;
      for (let key = this.#delayed.popDue(clock.monotonic()); key !== undefined;) {
        this.add(key, this.#delayedUrgency.get(key));
        key = this.#delayed.popDue(clock.monotonic());
      }
      this.#armTimer();
    });
    this.#timer = { at: nextAt, cancel };
  }
}

function moreUrgent(a: Urgency, b: Urgency | undefined): Urgency {
  return b !== undefined && URGENCIES.indexOf(b) < URGENCIES.indexOf(a) ? b : a;
}
