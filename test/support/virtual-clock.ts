import type { Clock } from "../../src/util/clock.ts";

/** Lets everything run that is ready to run, promises and I/O callbacks alike. */
export async function settle(rounds = 5): Promise<void> {
  for (let i = 0; i < rounds; i++) await new Promise((resolve) => setImmediate(resolve));
}

/** Node's timers know whole milliseconds only: they may fire a fraction of one before their time, but never after no time at all. */
const EARLY_MS = 0.4;
const LEAST_MS = 0.001;

/**
 * Time that stands still until a test moves it. As unkind as the real one: a timer fires up to 0.4 ms before its time, and the
 * wall clock can be set, forwards and backwards, while the monotonic one goes on.
 */
export class VirtualClock implements Clock {
  readonly #startMs: number;
  #elapsedMs = 0;
  #stepMs = 0;
  #timers: { at: number; order: number; run: () => void }[] = [];
  #order = 0;
  #fired = 0;

  constructor(startMs = Date.parse("2026-01-01T00:00:00Z")) {
    this.#startMs = startMs;
  }

  now(): number {
    return Math.floor(this.#startMs + this.#elapsedMs) + this.#stepMs;
  }

  /** Somebody sets the wall clock by so many milliseconds, backwards when negative; no time passes. */
  step(ms: number): void {
    this.#stepMs += ms;
  }

  monotonic(): number {
    return this.#elapsedMs;
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason as Error);
        return;
      }
      const onAbort = () => {
        cancel();
        reject(signal!.reason as Error);
      };
      const cancel = this.after(ms, () => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      });
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  }

  after(ms: number, callback: () => void): () => void {
    const delayMs = ms <= 0 ? 0 : Math.max(ms - EARLY_MS, Math.min(ms, 1 - EARLY_MS), LEAST_MS);
    const timer = { at: this.#elapsedMs + delayMs, order: this.#order++, run: callback };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((t) => t !== timer);
    };
  }

  /** Timers that have fired. */
  get fired(): number {
    return this.#fired;
  }

  /** Timers that wait. */
  get pending(): number {
    return this.#timers.length;
  }

  /** Moves time on, running each timer at its moment and everything that it sets off before the next one. */
  async advance(ms: number): Promise<void> {
    const target = this.#elapsedMs + ms;
    await settle();
    for (;;) {
      const due = this.#timers.filter((t) => t.at <= target).sort((a, b) => a.at - b.at || a.order - b.order)[0];
      if (!due) break;
      this.#timers = this.#timers.filter((t) => t !== due);
      this.#elapsedMs = Math.max(this.#elapsedMs, due.at);
      this.#fired++;
      due.run();
      await settle();
    }
    this.#elapsedMs = target;
  }
}
