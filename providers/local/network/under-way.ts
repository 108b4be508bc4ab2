/** Work that what takes away what it makes has to wait for. */
export class UnderWay {
  readonly #works = new Map<string, Promise<unknown>>();

  async run<T>(key: string, work: Promise<T>): Promise<T> {
    this.#works.set(key, work);
    try {
      return await work;
    } finally {
      if (this.#works.get(key) === work) this.#works.delete(key);
    }
  }

  /** However it ends. */
  async ended(key: string): Promise<void> {
    await this.#works.get(key)?.catch(() => undefined);
  }
}
