/**
 * How fast a client may talk to its backend: so many calls at once and per second, fewer when the backend says that it has too
 * much to do, none before the time that it named.
 */
import PQueue from "p-queue";
import { type Clock, ProviderError, TokenBucket } from "../../src/provider/kit/index.ts";

export interface PacingOptions {
  /** Calls in flight, at most. */
  concurrency: number;
  perSecond: number;
  burst: number;
}

/** A backend that names a longer pause is asked again after this one. */
const LONGEST_PAUSE_MS = 60_000;

export class Pacing {
  readonly #queue: PQueue;
  readonly #bucket: TokenBucket;
  readonly #clock: Clock;
  readonly #most: number;
  /** Additive increase, multiplicative decrease, like TCP's window. */
  #window: number;
  #notBefore = -Infinity;
  /** One halving per burst of refusals: those that were in flight together say one thing. */
  #reducedAt = -Infinity;

  constructor(options: PacingOptions, clock: Clock) {
    this.#clock = clock;
    this.#most = options.concurrency;
    this.#window = options.concurrency;
    this.#queue = new PQueue({ concurrency: options.concurrency });
    this.#bucket = new TokenBucket({ perSecond: options.perSecond, burst: options.burst, clock });
  }

  /** Calls that may be in flight now. */
  get limit(): number {
    return this.#queue.concurrency;
  }

  /**
   * Runs `call` when its turn comes. The call's own signal is inside it: p-queue frees a slot when a signal that was given to the
   * queue aborts although the call still runs, so it gets none.
   */
  run<T>(call: () => Promise<T>, signal: AbortSignal): Promise<T> {
    return this.#queue.add(async () => {
      signal.throwIfAborted();
      const pauseMs = this.#notBefore - this.#clock.monotonic();
      if (pauseMs > 0) await this.#clock.sleep(pauseMs, signal);
      await this.#bucket.take(signal);
      const startedAt = this.#clock.monotonic();
      try {
        const result = await call();
        this.#grow();
        return result;
      } catch (thrown) {
        if (thrown instanceof ProviderError) this.#heed(thrown, startedAt);
        throw thrown;
      }
    });
  }

  #grow(): void {
    if (this.#window >= this.#most) return;
    this.#window = Math.min(this.#most, this.#window + 1 / this.#window);
    this.#queue.concurrency = Math.max(1, Math.floor(this.#window));
  }

  #heed(error: ProviderError, startedAt: number): void {
    const isTooMuch =
      error.code === "rate_limited" || (error.code === "unavailable" && error.retryAfterMs !== undefined);
    if (!isTooMuch) return;
    const now = this.#clock.monotonic();
    if (error.retryAfterMs !== undefined) {
      this.#notBefore = Math.max(this.#notBefore, now + Math.min(error.retryAfterMs, LONGEST_PAUSE_MS));
    }
    if (startedAt <= this.#reducedAt) return;
    this.#reducedAt = now;
    this.#window = Math.max(1, this.#window / 2);
    this.#queue.concurrency = Math.max(1, Math.floor(this.#window));
  }
}
