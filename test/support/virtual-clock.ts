import type { Clock } from "../../src/util/clock.ts";

/** Lets everything run that is ready to run, promises and I/O callbacks alike. */
export async function settle(rounds = 5): Promise<void> {
  for (let i = 0; i < rounds; i++) await new Promise((resolve) => setImmediate(resolve));
}

/** Time that stands still until a test moves it. */
export class VirtualClock implements Clock {
  #nowMs: number;
  readonly #startMs: number;
  #stepMs = 0;
  #timers: { at: number; order: number; run: () => void }[] = [];
  #order = 0;

  constructor(startMs = Date.parse("2026-01-01T00:00:00Z")) {
    this.#nowMs = startMs;
    this.#startMs = startMs;
  }

  now(): number {
    return this.#nowMs + this.#stepMs;
  }

  /** Somebody sets the wall clock; no time passes. */
  step(ms: number): void {
    this.#stepMs += ms;
  }

  monotonic(): number {
    return this.#nowMs - this.#startMs;
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
    const timer = { at: this.#nowMs + Math.max(0, ms), order: this.#order++, run: callback };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((t) => t !== timer);
    };
  }

  /** Timers that wait. */
  get pending(): number {
    return this.#timers.length;
  }

  /** Moves time on, running each timer at its moment and everything that it sets off before the next one. */
  async advance(ms: number): Promise<void> {
    const target = this.#nowMs + ms;
    await settle();
    for (;;) {
      const due = this.#timers.filter((t) => t.at <= target).sort((a, b) => a.at - b.at || a.order - b.order)[0];
      if (!due) break;
      this.#timers = this.#timers.filter((t) => t !== due);
      this.#nowMs = Math.max(this.#nowMs, due.at);
      due.run();
      await settle();
    }
    this.#nowMs = target;
  }
}
