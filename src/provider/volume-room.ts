/**
 * Room for volumes, promised to one at a time: those that are made at once must not all be given the same room. What
 * has been promised counts until its volume is made, though a part of it may be used by then already.
 */
import { ProviderError } from "./errors.ts";

export class VolumeRoom {
  readonly #measure: () => Promise<number>;
  #promised = 0;
  /** The last of those that ask for room, one after the other: none is promised what another is being promised. */
  #last: Promise<unknown> = Promise.resolve();

  /** @param measure the bytes that nothing uses now */
  constructor(measure: () => Promise<number>) {
    this.#measure = measure;
  }

  /** Bytes that are neither used nor promised. */
  async free(): Promise<number> {
    // As it was before: what is given back meanwhile is used, and the measure may not know that.
    const promised = this.#promised;
    return Math.max(0, Math.floor((await this.#measure()) - promised));
  }

  /**
   * Room that is nobody else's until the promise is given back: by then it is used, or not needed.
   * @throws ProviderError quota
   */
  promise(bytes: number): Promise<Disposable> {
    const ask = () => this.#ask(bytes);
    const answer = this.#last.then(ask, ask);
    this.#last = answer;
    return answer;
  }

  async #ask(bytes: number): Promise<Disposable> {
    const free = await this.free();
    if (bytes > free)
      throw new ProviderError("quota", `there is room for ${free} bytes of volumes, not for ${bytes}`, {
        field: "size_bytes",
        retryAfterMs: 30_000,
      });
    this.#promised += bytes;
    let held = bytes;
    const giveBack = () => {
      this.#promised -= held;
      held = 0;
    };
    return { [Symbol.dispose]: giveBack };
  }
}
