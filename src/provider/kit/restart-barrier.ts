/** One restart of the backend for all checks that need one: it comes when each of them has made what it looks at. */
export class RestartBarrier {
  readonly #restart: () => Promise<void>;
  readonly #over = Promise.withResolvers<void>();
  #missing: number;

  constructor(parties: number, restart: () => Promise<void>) {
    this.#missing = parties;
    this.#restart = restart;
    // Its rejection reaches those who wait; there may be none.
    this.#over.promise.catch(() => {});
  }

  /** Resolves when the backend was restarted and answers again. */
  arrive(): Promise<void> {
    this.leave();
    return this.#over.promise;
  }

  /** A check has failed before the restart: it is not waited for. */
  leave(): void {
    if (--this.#missing === 0) this.#restart().then(this.#over.resolve, this.#over.reject);
  }
}
