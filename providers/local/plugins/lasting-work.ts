/**
 * Work that may last longer than its caller waits, and is not done twice for that: who asks while it is under way waits
 * for it no longer than an answer may take, and hears how it has ended when it asks again.
 */
import { type Clock, linkAbort, ProviderError, unlessAborted } from "../../../src/provider/kit/index.ts";

interface Work {
  readonly done: Promise<void>;
  /** On the monotonic clock; undefined while it lasts. */
  endedAt?: number;
}

/** Less than clients of the Machine API wait for an answer. */
const FIRST_MS = 8_000;
/** Of work that lasts already: who asks for others must not wait behind it. */
const AGAIN_MS = 1_000;
const RETRY_MS = 5_000;
/** An end that nobody asks for is forgotten. */
const KEPT_MS = 600_000;

export class LastingWork {
  readonly #clock: Clock;
  readonly #works = new Map<string, Work>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * @param key of the same work, by all who ask for it
   * @param what it is, for the error
   * @throws ProviderError unavailable with `retryAfterMs` while it lasts; what the work has thrown
   */
  async do(key: string, what: string, start: () => Promise<void>, signal: AbortSignal): Promise<void> {
    this.#forgetOld();
    const known = this.#works.get(key);
    const work = known ?? this.#begin(key, start);
    const late = new AbortController();
    const cancel = this.#clock.after(known === undefined ? FIRST_MS : AGAIN_MS, () =>
      late.abort(new ProviderError("unavailable", `${what} is under way`, { retryAfterMs: RETRY_MS })),
    );
    using linked = linkAbort(signal, late.signal);
    try {
      await unlessAborted(work.done, linked.signal);
    } finally {
      cancel();
      // Told: who asks again has it done again.
      if (work.endedAt !== undefined && this.#works.get(key) === work) this.#works.delete(key);
    }
  }

  #begin(key: string, start: () => Promise<void>): Work {
    const work: Work = { done: start() };
    const end = () => {
      work.endedAt = this.#clock.monotonic();
    };
    work.done.then(end, end);
    this.#works.set(key, work);
    return work;
  }

  #forgetOld(): void {
    const before = this.#clock.monotonic() - KEPT_MS;
    for (const [key, { endedAt = Infinity }] of this.#works) if (endedAt < before) this.#works.delete(key);
  }
}
