/** Keys that wait: the groups take turns, with one key each, so that a group of many keys holds up no other. */
export class FairQueue {
  /** The groups in the order of their turns, each with its keys as they came. No group is empty. */
  readonly #groups = new Map<string, Set<string>>();

  add(key: string, group: string): void {
    const keys = this.#groups.get(group);
    if (keys === undefined) this.#groups.set(group, new Set([key]));
    else keys.add(key);
  }

  /** @param group the one that it was added with */
  delete(key: string, group: string): void {
    const keys = this.#groups.get(group);
    keys?.delete(key);
    if (keys?.size === 0) this.#groups.delete(group);
  }

  /** Takes the next key of a group that `mayGo`. Undefined when none waits. */
  next(mayGo: (group: string) => boolean): string | undefined {
    for (const [group, keys] of this.#groups) {
      if (!mayGo(group)) continue;
      const [key] = keys;
      keys.delete(key!);
      this.#groups.delete(group);
      if (keys.size > 0) this.#groups.set(group, keys);
      return key;
    }
    return undefined;
  }
}
