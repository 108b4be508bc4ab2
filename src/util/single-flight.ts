/**
 * One question under way per key: callers that ask meanwhile get the same answer, or the same error. Nothing is kept
 * afterwards.
 */
export class SingleFlight<K, V> {
  readonly #pending = new Map<K, Promise<V>>();

  /** Keys that are being asked about. */
  get size(): number {
    return this.#pending.size;
  }

  /** @param ask is called only when no question about `key` is under way; it must not throw synchronously */
  do(key: K, ask: () => Promise<V>): Promise<V> {
    const pending = this.#pending.get(key);
    if (pending !== undefined) return pending;
    const answer = ask().finally(() => this.#pending.delete(key));
    this.#pending.set(key, answer);
    return answer;
  }
}
