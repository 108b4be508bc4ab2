import { ProviderError } from "../../../src/provider/kit/index.ts";

/**
 * Far more than people open: it stops programs that open sessions without end.
 * @internal
 */
export const MAX_SESSIONS = 128;

/**
 * Commands, attached clients and forwarded ports of one machine: each is a process or a connection of this host, for as
 * long as a client likes.
 */
export class Sessions {
  #open = 0;

  /**
   * @param ended settles when the session is over
   * @throws ProviderError unavailable when there are too many
   */
  async begin<T>(machine: string, start: () => Promise<T>, ended: (session: T) => Promise<unknown>): Promise<T> {
    if (this.#open >= MAX_SESSIONS)
      throw new ProviderError(
        "unavailable",
        `machine ${machine} has ${MAX_SESSIONS} commands, attached clients and forwarded ports open: try again when one has ended`,
      );
    this.#open++;
    const release = () => void this.#open--;
    try {
      const session = await start();
      ended(session).then(release, release);
      return session;
    } catch (thrown) {
      release();
      throw thrown;
    }
  }
}
