/** The client-side rate limit. */
import type { Clock } from "../util/clock.ts";

/**
 * A token bucket: `burst` at once, then `perSecond`. A caller that has to wait has reserved its place, so callers are
 * served in the order in which they came.
 *
 * With `stepMs`, tokens come only each so many milliseconds, as many at once as there would be by then: work that can
 * wait is done in one go, instead of waking the process up for each piece.
 */
export class TokenBucket {
  readonly #clock: Clock;
  #perSecond: number;
  #burst: number;
  readonly #stepMs: number;
  /** Negative while callers wait. */
  #tokens: number;
  #filledAt: number;

  constructor(options: { perSecond: number; burst: number; stepMs?: number | undefined; clock: Clock }) {
    this.#clock = options.clock;
    this.#perSecond = options.perSecond;
    this.#burst = options.burst;
    this.#stepMs = options.stepMs ?? 0;
    this.#tokens = options.burst;
    this.#filledAt = options.clock.monotonic();
  }

  /** From now on; who waits already waits as long as it was to. */
  change({ perSecond, burst }: { perSecond: number; burst: number }): void {
    this.#refill();
    this.#perSecond = perSecond;
    this.#burst = burst;
    this.#tokens = Math.min(this.#tokens, burst);
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
    const dueAt = this.#filledAt + this.#inSteps((-this.#tokens / this.#perSecond) * 1000, Math.ceil);
    const waitMs = dueAt - this.#clock.monotonic();
    try {
      await this.#clock.sleep(waitMs, signal);
    } catch (thrown) {
      this.#tokens += 1;
      throw thrown;
    }
    return waitMs;
  }

  #refill(): void {
    const sinceMs = this.#inSteps(this.#clock.monotonic() - this.#filledAt, Math.floor);
    this.#tokens = Math.min(this.#burst, this.#tokens + (sinceMs / 1000) * this.#perSecond);
    this.#filledAt += sinceMs;
  }

  #inSteps(ms: number, round: (steps: number) => number): number {
    return this.#stepMs === 0 ? ms : round(ms / this.#stepMs) * this.#stepMs;
  }
}
