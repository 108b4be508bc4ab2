/** A limit on what is under way for each of many groups. */
import { onAbort } from "../util/abort.ts";

/**
 * Lets only so many of each group through at once; the others of that group wait in the order in which they came. So a
 * group whose work is slow holds up itself and leaves what all groups share to the others.
 */
export class GroupLimit {
  readonly #limit: number;
  readonly #groups = new Map<string, { inside: number; waiting: (() => void)[] }>();

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Waits for a place. Returns the function that gives it back. @throws the signal's reason on abort */
  async enter(group: string, signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted();
    let entry = this.#groups.get(group);
    if (entry === undefined) this.#groups.set(group, (entry = { inside: 0, waiting: [] }));
    if (entry.inside < this.#limit) entry.inside++;
    else await this.#place(entry.waiting, signal);
    return () => this.#leave(group);
  }

  async #place(waiting: (() => void)[], signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    waiting.push(enter);
    const aborted = onAbort(signal, () => {
      waiting.splice(waiting.indexOf(enter), 1);
      reject(signal.reason as Error);
    });
    // At once: an abort after it takes nothing back.
    function enter(): void {
      aborted[Symbol.dispose]();
      resolve();
    }
    await promise;
  }

  /** Hands the place to the next of the group. */
  #leave(group: string): void {
    const entry = this.#groups.get(group)!;
    const next = entry.waiting.shift();
    if (next !== undefined) next();
    else if (--entry.inside === 0) this.#groups.delete(group);
  }
}
