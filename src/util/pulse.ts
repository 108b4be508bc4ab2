import { onAbort } from "./abort.ts";
import type { Clock } from "./clock.ts";

/** Wakes all who wait for "something has changed". It does not say what changed, and it remembers nothing. */
export class Pulse {
  readonly #waiters = new Set<() => void>();

  /** Resolves at the next `fire`, or when the signal aborts. */
  async wait(signal?: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiters.add(resolve);
    using _ = onAbort(signal, resolve);
    await promise;
    this.#waiters.delete(resolve);
  }

  /** Resolves at the next `fire`, after `ms` milliseconds, or when the signal aborts. */
  async waitAtMost(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiters.add(resolve);
    const cancel = clock.after(ms, resolve);
    using _ = onAbort(signal, resolve);
    await promise;
    cancel();
    this.#waiters.delete(resolve);
  }

  fire(): void {
    for (const wake of this.#waiters) wake();
  }
}
