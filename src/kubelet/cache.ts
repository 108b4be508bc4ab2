/** The cache of authentication and authorization answers, so that not every request asks the API server. */
import type { Clock } from "../util/clock.ts";

/**
 * Answers that hold for a while, with one question under way per key at a time and a bound on how many are kept.
 * Failures are not kept.
 */
export class AnswerCache<T> {
  readonly #clock: Clock;
  readonly #maxEntries: number;
  readonly #entries = new Map<string, { value: T; expiresAt: number }>();
  readonly #pending = new Map<string, Promise<T>>();

  constructor(options: { clock: Clock; maxEntries: number }) {
    this.#clock = options.clock;
    this.#maxEntries = options.maxEntries;
  }

  peek(key: string): T | undefined {
    const entry = this.#entries.get(key);
    if (entry === undefined) return undefined;
    if (entry.expiresAt > this.#clock.monotonic()) return entry.value;
    this.#entries.delete(key);
    return undefined;
  }

  /** True when asking costs nothing: the answer is kept, or on its way. */
  knows(key: string): boolean {
    return this.#pending.has(key) || this.peek(key) !== undefined;
  }

  /** The kept answer, or that of `ask`, which is kept for `ttlMs(answer)` milliseconds. @throws what `ask` throws */
  async get(key: string, ask: () => Promise<T>, ttlMs: (answer: T) => number): Promise<T> {
    const kept = this.peek(key);
    if (kept !== undefined) return kept;
    let pending = this.#pending.get(key);
    if (pending === undefined) {
      pending = ask()
        .then((value) => {
          this.#keep(key, value, ttlMs(value));
          return value;
        })
        .finally(() => this.#pending.delete(key));
      this.#pending.set(key, pending);
    }
    return await pending;
  }

  #keep(key: string, value: T, ttlMs: number): void {
    // Oldest first: a flood of new keys cannot grow the map.
    while (this.#entries.size >= this.#maxEntries) this.#entries.delete(this.#entries.keys().next().value!);
    this.#entries.set(key, { value, expiresAt: this.#clock.monotonic() + ttlMs });
  }
}
