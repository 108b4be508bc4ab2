/**
 * When the range of a bridge's addresses becomes another: not while a machine has an address, nor while one is about to
 * get it; and none gets one while the range moves.
 */
export class RangeMoves {
  /** Machines of which it is not written down yet that they have an address. */
  #attaching = 0;
  #moving: Promise<void> | undefined;

  /** While it does, addresses that somebody else has given out are of the former range or of the next. */
  get isMoving(): boolean {
    return this.#moving !== undefined;
  }

  async untilStill(): Promise<void> {
    await this.#moving?.catch(() => undefined);
  }

  /** Gives a machine an address, by a range that does not move meanwhile. */
  async attach<T>(work: () => Promise<T>): Promise<T> {
    while (this.isMoving) await this.untilStill();
    this.#attaching++;
    try {
      return await work();
    } finally {
      this.#attaching--;
    }
  }

  /**
   * @param hasAddresses asked first, for the answer takes time
   * @param begin undefined where the range is what it is to be
   * @throws what the move has thrown
   */
  async settle(hasAddresses: () => Promise<boolean>, begin: () => (() => Promise<void>) | undefined): Promise<void> {
    const isInUse = await hasAddresses();
    if (this.isMoving) {
      await this.untilStill();
      return await this.settle(hasAddresses, begin);
    }
    const move = isInUse || this.#attaching > 0 ? undefined : begin();
    if (move === undefined) return;
    this.#moving = move().finally(() => (this.#moving = undefined));
    await this.#moving;
  }
}
