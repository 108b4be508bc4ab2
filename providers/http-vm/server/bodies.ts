/** How much of request bodies is held in memory at a time, by client: none can take all of it. */
import type { IncomingMessage } from "node:http";
import { ProviderError } from "../../../src/provider/kit/index.ts";

const RETRY_MS = 1_000;
/** A body like that of a stop, which never waits for larger ones. */
const SMALL_BYTES = 4 * 1024;

export class Bodies {
  readonly #limits: { bodyBytes: number; bodiesBytes: number };
  readonly #held = new Map<string, number>();

  constructor(limits: { bodyBytes: number; bodiesBytes: number }) {
    this.#limits = limits;
  }

  /**
   * Takes room for a request's body until it is disposed of: as much as it says that it has, or the most that it may
   * have when it does not say.
   *
   * @throws ProviderError rate_limited when the client's other bodies leave none
   */
  take(client: string, { headers }: IncomingMessage): Disposable {
    const { bodyBytes, bodiesBytes } = this.#limits;
    const said = headers["transfer-encoding"] === undefined ? Number(headers["content-length"] ?? 0) : bodyBytes;
    const bytes = said <= SMALL_BYTES ? 0 : Math.min(said, bodyBytes);
    const held = this.#held.get(client) ?? 0;
    // One that is alone always has room.
    if (held > 0 && held + bytes > bodiesBytes && bytes > 0)
      throw new ProviderError(
        "rate_limited",
        `requests of client ${client} that are under way have ${held} bytes of bodies, this one has ${bytes}: together they may have ${bodiesBytes}`,
        { retryAfterMs: RETRY_MS },
      );
    this.#held.set(client, held + bytes);
    return { [Symbol.dispose]: () => this.#release(client, bytes) };
  }

  #release(client: string, bytes: number): void {
    const left = (this.#held.get(client) ?? 0) - bytes;
    if (left > 0) this.#held.set(client, left);
    else this.#held.delete(client);
  }
}
