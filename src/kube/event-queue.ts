/**
 * Events that wait to be sent. Namespaces take turns, and in each of them warnings go first. When there is no room, the
 * oldest normal event of the namespace with the most normal events is dropped; a warning only when all events are
 * warnings.
 */
interface Queued {
  readonly type: "Normal" | "Warning";
  readonly namespace: string;
}

interface Waiting<E> {
  warnings: E[];
  normals: E[];
}

export class EventQueue<E extends Queued> {
  readonly #limit: number;
  /** In the order of their turns. No namespace is empty. */
  readonly #namespaces = new Map<string, Waiting<E>>();
  #size = 0;
  #warnings = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get size(): number {
    return this.#size;
  }

  /** How many of them are warnings. */
  get warnings(): number {
    return this.#warnings;
  }

  /** Returns false when an event had to make way, this one perhaps. */
  add(event: E): boolean {
    const { namespace, type } = event;
    let waiting = this.#namespaces.get(namespace);
    if (waiting === undefined) this.#namespaces.set(namespace, (waiting = { warnings: [], normals: [] }));
    (type === "Warning" ? waiting.warnings : waiting.normals).push(event);
    this.#size++;
    if (type === "Warning") this.#warnings++;
    if (this.#size <= this.#limit) return true;
    this.#dropOne();
    return false;
  }

  /** The next event of a namespace that `isFree`; undefined when none waits. */
  next(isFree: (namespace: string) => boolean): E | undefined {
    for (const [namespace, waiting] of this.#namespaces) {
      if (!isFree(namespace)) continue;
      const event = waiting.warnings.shift() ?? waiting.normals.shift();
      this.#size--;
      if (event?.type === "Warning") this.#warnings--;
      this.#namespaces.delete(namespace);
      if (count(waiting) > 0) this.#namespaces.set(namespace, waiting);
      return event;
    }
    return undefined;
  }

  #dropOne(): void {
    const all = [...this.#namespaces.values()];
    const withNormals = all.filter(({ normals }) => normals.length > 0);
    const most = (of: (waiting: Waiting<E>) => number, among: Waiting<E>[]) =>
      among.reduce((a, b) => (of(b) > of(a) ? b : a));
    if (withNormals.length > 0) most(({ normals }) => normals.length, withNormals).normals.shift();
    else {
      most(({ warnings }) => warnings.length, all).warnings.shift();
      this.#warnings--;
    }
    this.#size--;
    for (const [namespace, waiting] of this.#namespaces) if (count(waiting) === 0) this.#namespaces.delete(namespace);
  }
}

function count({ warnings, normals }: Waiting<unknown>): number {
  return warnings.length + normals.length;
}
