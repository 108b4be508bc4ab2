/** One watch of an agent: what the schedule pushes comes out in order, until either side ends it. */
export class Stream<T> implements AsyncIterable<T> {
  readonly #items: T[] = [];
  #error: Error | undefined;
  #isEnded = false;
  #wake: (() => void) | undefined;
  /** How much of the server's log it has taken. */
  position: number;

  constructor(position: number, signal: AbortSignal) {
    this.position = position;
    signal.addEventListener("abort", () => this.fail(signal.reason as Error), { once: true });
  }

  get isOpen(): boolean {
    return !this.#isEnded;
  }

  push(item: T): void {
    this.#items.push(item);
    this.#wake?.();
  }

  /** The connection breaks; without an error, the server ends it in its time. */
  fail(error: Error | undefined): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#error = error;
    this.#wake?.();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    try {
      for (;;) {
        while (this.#items.length > 0) yield this.#items.shift()!;
        if (this.#isEnded) {
          if (this.#error !== undefined) throw this.#error;
          return;
        }
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
    } finally {
      this.#isEnded = true;
    }
  }
}
