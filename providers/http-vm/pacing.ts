/**
 * How fast a client may talk to its backend: so many calls at once and per second in all. When the backend says that it
 * is overloaded, or when to come back, this holds for calls of that kind alone: figures that it has no time for must
 * not keep a machine from being stopped. Calls that end machines go before those that make them, and both before those
 * that only read.
 */
import PQueue from "p-queue";
import { type Clock, ProviderError, TokenBucket } from "../../src/provider/kit/index.ts";

export interface PacingOptions {
  /** Calls in flight, at most. */
  concurrency: number;
  perSecond: number;
  burst: number;
}

/** Kinds of calls, and whose turn comes first when there is not room for all: the higher number's. */
const PRIORITY = { stop: 4, create: 3, change: 2, read: 2, list: 2, info: 1, capacity: 1, stats: 0 } as const;
export type CallKind = keyof typeof PRIORITY;

/** A backend that names a longer pause is asked again after this one. */
const LONGEST_PAUSE_MS = 60_000;

export class Pacing {
  /** All calls but those that have room of their own. */
  readonly #room: PQueue;
  /** Calls that end machines never wait for slow calls that make some. */
  readonly #roomForStops: PQueue;
  readonly #bucket: TokenBucket;
  readonly #clock: Clock;
  readonly #lanes = new Map<CallKind, Lane>();

  constructor(options: PacingOptions, clock: Clock) {
    this.#clock = clock;
    const reserved = Math.floor(options.concurrency / 4);
    this.#room = new PQueue({ concurrency: options.concurrency - reserved });
    this.#roomForStops = reserved > 0 ? new PQueue({ concurrency: reserved }) : this.#room;
    this.#bucket = new TokenBucket({ perSecond: options.perSecond, burst: options.burst, clock });
    for (const kind of Object.keys(PRIORITY) as CallKind[]) this.#lanes.set(kind, new Lane(options.concurrency, clock));
  }

  /** Calls of one kind that may be in flight now: of the kind that may have the fewest. */
  get limit(): number {
    return Math.min(...[...this.#lanes.values()].map(({ limit }) => limit));
  }

  /**
   * Runs `call` when its turn comes. The call's own signal is inside it: p-queue frees a slot when a signal that was
   * given to the queue aborts although the call still runs, so it gets none.
   */
  run<T>(kind: CallKind, call: () => Promise<T>, signal: AbortSignal): Promise<T> {
    const lane = this.#lanes.get(kind)!;
    const room = kind === "stop" ? this.#roomForStops : this.#room;
    return lane.run(signal, () =>
      room.add(
        async () => {
          signal.throwIfAborted();
          await this.#bucket.take(signal);
          const startedAt = this.#clock.monotonic();
          try {
            const result = await call();
            lane.grow();
            return result;
          } catch (thrown) {
            if (thrown instanceof ProviderError) lane.heed(thrown, startedAt);
            throw thrown;
          }
        },
        { priority: PRIORITY[kind] },
      ),
    );
  }
}

/** Calls of one kind. */
class Lane {
  readonly #queue: PQueue;
  readonly #clock: Clock;
  readonly #most: number;
  /** Additive increase, multiplicative decrease, like TCP's window. */
  #window: number;
  #notBefore = -Infinity;
  /** One halving per burst of refusals: those that were in flight together say one thing. */
  #reducedAt = -Infinity;

  constructor(concurrency: number, clock: Clock) {
    this.#clock = clock;
    this.#most = concurrency;
    this.#window = concurrency;
    this.#queue = new PQueue({ concurrency });
  }

  get limit(): number {
    return this.#queue.concurrency;
  }

  /** A pause is waited for here, where it takes no room from calls of other kinds. */
  run<T>(signal: AbortSignal, call: () => Promise<T>): Promise<T> {
    return this.#queue.add(async () => {
      for (;;) {
        signal.throwIfAborted();
        const pauseMs = this.#notBefore - this.#clock.monotonic();
        if (pauseMs <= 0) return await call();
        await this.#clock.sleep(pauseMs, signal);
      }
    });
  }

  grow(): void {
    if (this.#window >= this.#most) return;
    this.#window = Math.min(this.#most, this.#window + 1 / this.#window);
    this.#queue.concurrency = Math.max(1, Math.floor(this.#window));
  }

  heed(error: ProviderError, startedAt: number): void {
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
