import PQueue from "p-queue";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import { backoffMs } from "./backoff.ts";
import { DelayHeap } from "./delay-heap.ts";
import { Turns } from "./turns.ts";

export interface QueueMetrics {
  onAdd(): void;
  onDepth(depth: number): void;
  /** A key's handling begins, this long after it was added. */
  onStart(waitedSeconds: number): void;
  onDone(workSeconds: number): void;
  onRetry(): void;
}

export interface KeyedQueueOptions {
  /** Brings the key's object to where it should be. When it throws, the key is tried again as by `retry`. */
  handle: (key: string, signal: AbortSignal) => Promise<void>;
  clock: Clock;
  random: Random;
  /** Keys handled at once. */
  concurrency: number;
  /** Groups of keys take turns; within one, keys are handled as they came. Default: all keys are of one group. */
  groupOf?: (key: string) => string;
  /** Delay of `retry`: doubles from `initialMs` (default 250) to `maxMs` (default 60 000), plus up to as much again. */
  backoff?: { initialMs: number; maxMs: number };
  logger?: Logger;
  metrics?: QueueMetrics;
}

/**
 * A work queue of keys, with the semantics of client-go's: a key is handled by one worker at a time; adding a key that
 * waits changes nothing; adding a key that is being handled makes it be handled once more afterwards. So no change is
 * missed and a hundred changes cost one run.
 *
 * A key has at most one time at which it is due. `addAfter` and `retry` bring it forward but never push it back, and
 * `add` makes it due now.
 */
export class KeyedQueue {
  readonly #options: KeyedQueueOptions;
  readonly #workers: PQueue;
  /** Keys that wait for a worker, or for the end of their present run; with the time since when. */
  readonly #dirty = new Map<string, number>();
  /** Keys that are being handled, with the time since when. */
  readonly #processing = new Map<string, number>();
  /** Keys that wait for a worker. */
  readonly #turns = new Turns();
  readonly #delayed = new DelayHeap();
  readonly #failures = new Map<string, number>();
  #timer: { at: number; cancel: () => void } | undefined;
  #signal: AbortSignal | undefined;

  constructor(options: KeyedQueueOptions) {
    this.#options = options;
    this.#workers = new PQueue({ concurrency: options.concurrency, autoStart: false });
  }

  /** Has the key handled as soon as a worker is free. */
  add(key: string): void {
    this.#delayed.delete(key);
    if (this.#dirty.has(key)) return;
    this.#dirty.set(key, this.#options.clock.monotonic());
    this.#options.metrics?.onAdd();
    this.#options.metrics?.onDepth(this.#dirty.size);
    if (!this.#processing.has(key)) this.#schedule(key);
  }

  /** Has the key handled in `ms` milliseconds, or earlier if it is due earlier already. */
  addAfter(key: string, ms: number): void {
    if (ms <= 0) {
      this.add(key);
      return;
    }
    // It waits for a worker: that is earlier. A key that is being handled is not due yet and may get a time.
    if (this.#dirty.has(key)) return;
    this.#delayed.add(key, this.#options.clock.monotonic() + ms);
    this.#armTimer();
  }

  /** Has the key handled again after a delay that grows with every `retry` since the last `forget`. */
  retry(key: string): void {
    const failures = this.#failures.get(key) ?? 0;
    this.#failures.set(key, failures + 1);
    this.#options.metrics?.onRetry();
    const { initialMs, maxMs } = this.#options.backoff ?? { initialMs: 250, maxMs: 60_000 };
    this.addAfter(key, backoffMs({ initialMs, maxMs, jitter: "up", random: this.#options.random }, failures));
  }

  /** The key is well: its next `retry` starts with the shortest delay. Does not stop what is scheduled. */
  forget(key: string): void {
    this.#failures.delete(key);
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
    return [...this.#processing.values()].map((since) => (now - since) / 1000);
  }

  /** Works until `signal` aborts, then waits for the handlers under way (they get the signal). To be called once. */
  async run(signal: AbortSignal): Promise<void> {
    this.#signal = signal;
    if (!signal.aborted) {
      const aborted = new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
      this.#workers.start();
      this.#armTimer();
      await aborted;
    }
    this.#workers.pause();
    this.#timer?.cancel();
    this.#timer = undefined;
    await this.#workers.onPendingZero();
  }

  /** Resolves when no key is due or being handled. Keys that are due later do not count. */
  async idle(): Promise<void> {
    await this.#workers.onIdle();
  }

  #schedule(key: string): void {
    this.#turns.add(key, this.#options.groupOf?.(key) ?? "");
    // Whoever comes to work takes the key whose turn it is. #work never rejects; the catch is for p-queue itself.
    this.#workers.add(() => this.#work(this.#turns.next()!)).catch((error: unknown) => this.#report(key, error));
  }

  async #work(key: string): Promise<void> {
    const { clock, handle, metrics } = this.#options;
    const startedAt = clock.monotonic();
    const addedAt = this.#dirty.get(key) ?? startedAt;
    this.#dirty.delete(key);
    this.#processing.set(key, startedAt);
    metrics?.onDepth(this.#dirty.size);
    metrics?.onStart((startedAt - addedAt) / 1000);
    try {
      await handle(key, this.#signal!);
    } catch (error) {
      if (!this.#signal!.aborted) {
        this.#report(key, error);
        this.retry(key);
      }
    } finally {
      this.#processing.delete(key);
      metrics?.onDone((clock.monotonic() - startedAt) / 1000);
      if (this.#dirty.has(key)) this.#schedule(key);
    }
  }

  #report(key: string, error: unknown): void {
    this.#options.logger?.error({ err: toError(error), key }, "Handling a key failed");
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
        this.add(key);
        key = this.#delayed.popDue(clock.monotonic());
      }
      this.#armTimer();
    });
    this.#timer = { at: nextAt, cancel };
  }
}
