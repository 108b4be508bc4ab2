import type { Clock } from "../../../src/util/clock.ts";
import type { World } from "../world/world.ts";

/** Node's timers may fire a millisecond before their time; here each fourth does. */
const EARLY_EVERY = 4;

/** True time, in milliseconds since the epoch, and chance. */
type Surroundings = Pick<World, "now" | "random">;

/** One process's clocks: its monotonic one starts at a zero of its own, its wall clock may be wrong and may jump. */
export class AgentClock implements Clock {
  readonly #world: Surroundings;
  readonly #zero: number;
  wallOffsetMs = 0;
  #timers: { at: number; order: number; run: () => void }[] = [];
  #order = 0;

  constructor(world: Surroundings) {
    this.#world = world;
    this.#zero = world.now - Math.floor(world.random() * 1e6);
  }

  now(): number {
    return this.#world.now + this.wallOffsetMs;
  }

  monotonic(): number {
    return this.#world.now - this.#zero;
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
    const order = this.#order++;
    const wholeMs = Math.ceil(ms) - (order % EARLY_EVERY === 0 ? 1 : 0);
    const timer = { at: this.#world.now + Math.max(1, wholeMs), order, run: callback };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((t) => t !== timer);
    };
  }

  /** True time at which the next timer fires; Infinity when there is none. */
  get nextAt(): number {
    let next = Infinity;
    for (const { at } of this.#timers) next = Math.min(next, at);
    return next;
  }

  /** Runs the timers that are due, in their order. Those that they start wait for the next call. */
  fire(): void {
    const due = this.#timers.filter(({ at }) => at <= this.#world.now);
    if (due.length === 0) return;
    this.#timers = this.#timers.filter((t) => !due.includes(t));
    due.sort((a, b) => a.at - b.at || a.order - b.order);
    for (const { run } of due) run();
  }

  /** The process is gone. */
  stop(): void {
    this.#timers = [];
  }
}
