/** Wakes whoever waits for "something has changed". */
export class Pulse {
  readonly #waiters = new Set<() => void>();

  /** Resolves at the next `fire`, or when the signal aborts. */
  wait(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        this.#waiters.delete(wake);
        signal?.removeEventListener("abort", wake);
        resolve();
      };
      this.#waiters.add(wake);
      signal?.addEventListener("abort", wake);
    });
  }

  fire(): void {
    for (const wake of this.#waiters) wake();
  }
}
