/** The client-side rate limit. */
import type { Clock } from "../util/clock.ts";

/**
 * A token bucket: `burst` at once, then `perSecond`. A caller that has to wait has reserved its place, so callers are
 * served in the order in which they came.
 */
export class TokenBucket {
  readonly #clock: Clock;
  readonly #perSecond: number;
  readonly #burst: number;
  /** Negative while callers wait. */
  #tokens: number;
  #filledAt: number;

  constructor(options: { perSecond: number; burst: number; clock: Clock }) {
    this.#clock = options.clock;
    this.#perSecond = options.perSecond;
    this.#burst = options.burst;
    this.#tokens = options.burst;
    this.#filledAt = options.clock.monotonic();
  }

  /** Takes a token if one is there. */
  tryTake(): boolean {
    this.#refill();
    // Rounding errors of many refills may add up to slightly less than a whole token.
    if (this.#tokens < 1 - 1e-9) return false;
    this.#tokens -= 1;
    return true;
  }

  /** Takes a token, waiting for it if need be. Returns the milliseconds waited. @throws the signal's reason on abort */
  async take(signal: AbortSignal): Promise<number> {
    signal.throwIfAborted();
    this.#refill();
    this.#tokens -= 1;
    if (this.#tokens >= -1e-9) return 0;
    const waitMs = (-this.#tokens / this.#perSecond) * 1000;
    try {
      await this.#clock.sleep(waitMs, signal);
    } catch (thrown) {
      this.#tokens += 1;
      throw thrown;
    }
    return waitMs;
  }

  #refill(): void {
    const now = this.#clock.monotonic();
    this.#tokens = Math.min(this.#burst, this.#tokens + ((now - this.#filledAt) / 1000) * this.#perSecond);
    this.#filledAt = now;
  }
}
