/** What is under way for one machine, and how that ends with the backend. */
import type { Logger } from "../../../src/provider/kit/index.ts";

export class MachineWork {
  readonly #logger: Logger;
  readonly #closing = new AbortController();
  /** Calls of the engine that a next backend must not meet. */
  readonly #calls = new Set<Promise<void>>();

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /** Aborts what must not outlive the backend's own end. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  get isClosing(): boolean {
    return this.#closing.signal.aborted;
  }

  /** Work that no caller waits for. It handles what can go wrong; a fault of its own must not end the whole backend. */
  background(work: Promise<void>): void {
    work.catch((thrown: unknown) => this.#logger.error({ err: thrown }, "A step of the machine failed"));
  }

  /** A call of the engine that `settled` waits for. */
  async inEngine<T>(call: Promise<T>): Promise<T> {
    const settled = call.then(
      () => {},
      () => {},
    );
    this.#calls.add(settled);
    try {
      return await call;
    } finally {
      this.#calls.delete(settled);
    }
  }

  close(): void {
    this.#closing.abort(new Error("the backend is stopping"));
  }

  async settled(): Promise<void> {
    await Promise.all(this.#calls);
  }
}
