/** Keys by the time at which they are due. One time per key: a later one never replaces an earlier one. */
export class DelayHeap {
  /** A binary heap by `at`; each entry knows its place, so that it can be removed. */
  readonly #heap: { key: string; at: number; index: number }[] = [];
  readonly #entries = new Map<string, { key: string; at: number; index: number }>();

  get size(): number {
    return this.#heap.length;
  }

  /** When the first key is due. */
  get nextAt(): number | undefined {
    return this.#heap[0]?.at;
  }

  has(key: string): boolean {
    return this.#entries.has(key);
  }

  /** Adds the key or brings it forward. */
  add(key: string, at: number): void {
    let entry = this.#entries.get(key);
    if (!entry) {
      entry = { key, at, index: this.#heap.length };
      this.#entries.set(key, entry);
      this.#heap.push(entry);
    } else if (at < entry.at) {
      entry.at = at;
    } else {
      return;
    }
    this.#up(entry.index);
  }

  delete(key: string): boolean {
    const entry = this.#entries.get(key);
    if (!entry) return false;
    this.#entries.delete(key);
    const last = this.#heap.pop()!;
    if (last !== entry) {
      this.#place(last, entry.index);
      this.#up(last.index);
      this.#down(last.index);
    }
    return true;
  }

  /** Takes out the first key if it is due at `now`. */
  popDue(now: number): string | undefined {
    const first = this.#heap[0];
    if (!first || first.at > now) return undefined;
    this.delete(first.key);
    return first.key;
  }

  #place(entry: { key: string; at: number; index: number }, index: number): void {
    this.#heap[index] = entry;
    entry.index = index;
  }

  #swap(a: number, b: number): void {
    const [entryA, entryB] = [this.#heap[a]!, this.#heap[b]!];
    this.#place(entryA, b);
    this.#place(entryB, a);
  }

  #up(start: number): void {
    for (let i = start; i > 0;) {
      const parent = (i - 1) >> 1;
      if (this.#heap[parent]!.at <= this.#heap[i]!.at) return;
      this.#swap(i, parent);
      i = parent;
    }
  }

  #down(start: number): void {
    for (let i = start; ;) {
      let least = i;
      for (const child of [2 * i + 1, 2 * i + 2]) {
        if (child < this.#heap.length && this.#heap[child]!.at < this.#heap[least]!.at) least = child;
      }
      if (least === i) return;
      this.#swap(i, least);
      i = least;
    }
  }
}
