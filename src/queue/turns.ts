/** Keys that wait for their turn: one of each group, round and round, so that a group of many keys holds up no other. */
export class Turns {
  /** The groups in the order of their turns, each with its keys as they came. No group is empty. */
  readonly #groups = new Map<string, string[]>();

  add(key: string, group: string): void {
    const keys = this.#groups.get(group);
    if (keys === undefined) this.#groups.set(group, [key]);
    else keys.push(key);
  }

  /** Takes the next key. Undefined when none waits. */
  next(): string | undefined {
    for (const [group, keys] of this.#groups) {
      this.#groups.delete(group);
      const key = keys.shift();
      if (keys.length > 0) this.#groups.set(group, keys);
      return key;
    }
    return undefined;
  }
}
