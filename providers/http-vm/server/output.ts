/** Replies that go on for a while: when their heads are sent, and how their bytes are. */
import { once } from "node:events";
import type { ServerResponse } from "node:http";
import type { Clock } from "../../../src/provider/kit/index.ts";

/** How long headers are held back in the hope that an error can still be told by status. */
const FIRST_RESULT_MS = 250;

/** Resolves when `promise` settles, or after a moment. @throws what the promise rejects with, within that moment */
export async function settledSoon(promise: Promise<unknown>, clock: Clock): Promise<void> {
  let cancel = () => {};
  const moment = new Promise<void>((resolve) => {
    cancel = clock.after(FIRST_RESULT_MS, resolve);
  });
  // The race may leave the promise behind; the next `await` of it sees its rejection.
  promise.catch(() => {});
  try {
    await Promise.race([promise, moment]);
  } finally {
    cancel();
  }
}

const BATCH_BYTES = 64 * 1024;

/** Small writes of one turn leave as one; a full socket holds the writer back. */
export class BatchedOutput {
  readonly #response: ServerResponse;
  readonly #signal: AbortSignal;
  #batch: Buffer[] = [];
  #bytes = 0;

  constructor(response: ServerResponse, signal: AbortSignal) {
    this.#response = response;
    this.#signal = signal;
  }

  /** @returns something to wait for when nothing more should be written for now */
  write(data: Buffer): Promise<unknown> | undefined {
    if (this.#bytes === 0) setImmediate(() => this.flush());
    this.#batch.push(data);
    this.#bytes += data.length;
    if (this.#bytes >= BATCH_BYTES) this.flush();
    return this.#response.writableNeedDrain ? once(this.#response, "drain", { signal: this.#signal }) : undefined;
  }

  /** Must come before end(). */
  flush(): void {
    if (this.#bytes === 0 || this.#response.destroyed) return;
    this.#response.write(Buffer.concat(this.#batch, this.#bytes));
    this.#batch = [];
    this.#bytes = 0;
  }
}
