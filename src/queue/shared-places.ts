/** Fair shares of a fixed number of places, for work that cannot be interrupted. */
import { FairQueue } from "./fair-queue.ts";
import { onAbort } from "../util/abort.ts";

/**
 * Places for work of unknown length, shared by groups whose work must not hold up each other's. What
 * waits for a place gets it by turns of the groups, each in the order in which it came.
 *
 * Work under way cannot be made to leave, so some places must be free when another group comes: there are twice as many
 * as one group gets that is alone. A group gets another place only while it has fewer than are free: after one that has
 * taken all of its half, the next gets half of the rest. So several groups whose work does not end have to come
 * together before one more waits.
 */
export class SharedPlaces {
  readonly #places: number;
  readonly #inside = new Map<string, number>();
  readonly #order = new FairQueue();
  /** What waits, by the key of its turn. */
  readonly #waiting = new Map<string, { group: string; start: () => void }>();
  #taken = 0;
  #lastKey = 0;

  /** @param perGroup places of one group that is alone; all groups together have at most twice as many */
  constructor(perGroup: number) {
    this.#places = perGroup * 2;
  }

  /**
   * Does `work` in a place of the group.
   * @throws what `work` throws; the signal's reason when it aborts before there is a place
   */
  async run<T>(group: string, work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const leave = await this.enter(group, signal);
    try {
      return await work();
    } finally {
      leave();
    }
  }

  /**
   * Waits for a place. Returns the function that gives it back, to be called once.
   * @throws the signal's reason on abort
   */
  async enter(group: string, signal?: AbortSignal): Promise<() => void> {
    signal?.throwIfAborted();
    const key = String(++this.#lastKey);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const aborted = onAbort(signal, () => {
      this.#order.delete(key, group);
      this.#waiting.delete(key);
      reject(signal!.reason as Error);
    });
    const start = () => {
      aborted[Symbol.dispose]();
      resolve();
    };
    this.#waiting.set(key, { group, start });
    this.#order.add(key, group);
    this.#letIn();
    await promise;
    return () => this.#leave(group);
  }

  #letIn(): void {
    const mayGo = (group: string) => {
      const inside = this.#inside.get(group) ?? 0;
      const free = this.#places - this.#taken;
      return free > 0 && (inside === 0 || inside < free);
    };
    for (let key = this.#order.next(mayGo); key !== undefined; key = this.#order.next(mayGo)) {
      const { group, start } = this.#waiting.get(key)!;
      this.#waiting.delete(key);
      this.#taken++;
      this.#inside.set(group, (this.#inside.get(group) ?? 0) + 1);
      start();
    }
  }

  #leave(group: string): void {
    this.#taken--;
    const left = this.#inside.get(group)! - 1;
    if (left === 0) this.#inside.delete(group);
    else this.#inside.set(group, left);
    this.#letIn();
  }
}
