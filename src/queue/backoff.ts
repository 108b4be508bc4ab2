/** Exponential back-off with jitter, for one thing that is tried again. */
import type { Clock } from "../util/clock.ts";
import { doubledMs } from "../util/doubled.ts";
import type { Random } from "../util/random.ts";

interface BackoffOptions {
  initialMs: number;
  maxMs: number;
  /**
   * How the doubled delay d is spread:
   * `full` uniform in [0, d): for many clients that failed together;
   * `up` uniform in [d, 2d), at most `maxMs`: client-go's, when a least delay matters;
   * `none` exactly d. Default `full`.
   */
  jitter?: "full" | "up" | "none" | undefined;
  /** The sequence starts again when nothing has failed for this long. Default: only `reset` does that. */
  resetAfterMs?: number | undefined;
  clock: Clock;
  random: Random;
}

/** Delays of one thing that is tried again and again. Not for many keys: see `KeyedQueue`. */
export class Backoff {
  readonly #options: BackoffOptions;
  #failures = 0;
  #lastFailureAt = -Infinity;

  constructor(options: BackoffOptions) {
    this.#options = options;
  }

  /** The delay before the next attempt, in milliseconds. Counts one failure. */
  next(): number {
    const { clock, resetAfterMs } = this.#options;
    const now = clock.monotonic();
    if (resetAfterMs !== undefined && now - this.#lastFailureAt > resetAfterMs) this.#failures = 0;
    this.#lastFailureAt = now;
    return backoffMs(this.#options, this.#failures++);
  }

  reset(): void {
    this.#failures = 0;
  }
}

/** Delay after `failures` earlier failures (0 for the first), in milliseconds. */
export function backoffMs(
  options: Pick<BackoffOptions, "initialMs" | "maxMs" | "jitter" | "random">,
  failures: number,
): number {
  const { initialMs, maxMs, jitter = "full", random } = options;
  const exact = doubledMs({ first: initialMs, max: maxMs }, failures);
  switch (jitter) {
    case "full":
      return exact * random();
    case "up":
      return Math.min(maxMs, exact * (1 + random()));
    case "none":
      return exact;
  }
}
