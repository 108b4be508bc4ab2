/** What is done in rounds: looked at again and again, where one thing that fails keeps none of the others. */
import type { CallOptions, Clock, Logger } from "../../src/provider/kit/index.ts";

/** Between the first sight of what nobody names and its end. */
export const LEAK_MS = 60_000;

/** For how long something was seen in each round. */
export class Sights {
  readonly #clock: Clock;
  /** Monotonic time of the first sight, by what was seen. */
  #before = new Map<string, number>();
  #now = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A new round: what was not seen in the one before is forgotten. */
  begin(): void {
    this.#before = this.#now;
    this.#now = new Map();
  }

  isOld(what: string, ageMs: number): boolean {
    const now = this.#clock.monotonic();
    const since = this.#before.get(what) ?? now;
    this.#now.set(what, since);
    return now - since >= ageMs;
  }
}

/** What fails is tried again in the next round. @throws what `work` does, once the signal has aborted */
export async function quietly(
  work: () => Promise<unknown>,
  { signal, logger, fault }: CallOptions & { logger: Logger; fault: string },
): Promise<void> {
  try {
    await work();
  } catch (thrown) {
    if (signal.aborted) throw thrown;
    logger.debug({ err: thrown }, fault);
  }
}
