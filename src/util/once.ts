/**
 * Work that is done once for all who ask. Who asks while it is under way waits for it; a success is kept; a failure is
 * told to those who wait, and who asks after it has the work done again.
 */
export class Once<T> {
  readonly #work: () => Promise<T>;
  #result: Promise<T> | undefined;

  constructor(work: () => Promise<T>) {
    this.#work = work;
  }

  /** @throws what the work has thrown */
  get(): Promise<T> {
    this.#result ??= this.#work().catch((thrown: unknown) => {
      this.#result = undefined;
      throw thrown;
    });
    return this.#result;
  }

  /** What is there or under way; undefined when nobody has asked, or the last attempt has failed. */
  peek(): Promise<T> | undefined {
    return this.#result;
  }

  /** The next who asks has the work done again. */
  forget(): void {
    this.#result = undefined;
  }
}
