/**
 * The store behind the API: objects by resource and key, one revision counter for everything (as etcd has), and a
 * bounded log of changes from which watches resume and older revisions are read back.
 *
 * Objects are never changed in place. Everything is synchronous, so a read followed by a write is atomic.
 */
import { bisect } from "../../util/bisect.ts";
import type { StoredObject } from "./object.ts";
import { expired, tooLargeResourceVersion } from "./errors.ts";

export interface Change {
  revision: number;
  /** `group/resource`, as in `coordination.k8s.io/leases`; the core group is "". */
  resource: string;
  key: string;
  /** The object after the change; for a deletion its last state, carrying the revision of the deletion. */
  object: StoredObject;
  /** Undefined when the change created the object. */
  previous: StoredObject | undefined;
  deleted: boolean;
}

interface StorageOptions {
  /** How many changes stay readable; a watch from before them gets 410. */
  logSize?: number | undefined;
}

export class Storage {
  #revision: number;
  readonly #objects = new Map<string, Map<string, StoredObject>>();
  #log: Change[] = [];
  #compactedAt: number;
  readonly #logSize: number;
  readonly #undelivered: Change[] = [];
  readonly #listeners = new Map<string, Set<(change: Change) => unknown>>();

  constructor(options: StorageOptions = {}) {
    this.#logSize = options.logSize ?? 20_000;
    this.#revision = 1;
    this.#compactedAt = 1;
  }

  get revision(): number {
    return this.#revision;
  }

  get(resource: string, key: string): StoredObject | undefined {
    return this.#objects.get(resource)?.get(key);
  }

  /** Objects in the order of their keys (`namespace/name`), as etcd returns them. */
  list(resource: string): StoredObject[] {
    return sorted(this.#objects.get(resource) ?? new Map<string, StoredObject>());
  }

  /** The list as it was at `revision`, read back from the log. @throws ApiStatusError 410 when that is compacted */
  listAt(resource: string, revision: number): StoredObject[] {
    this.assertReadable(revision);
    const objects = new Map(this.#objects.get(resource));
    for (let i = this.#log.length - 1; i >= 0 && this.#log[i]!.revision > revision; i--) {
      const change = this.#log[i]!;
      if (change.resource !== resource) continue;
      if (change.previous) objects.set(change.key, change.previous);
      else objects.delete(change.key);
    }
    return sorted(objects);
  }

  /** @throws ApiStatusError 410 when compacted, 504 when this revision has not been reached */
  assertReadable(revision: number): void {
    if (revision < this.#compactedAt)
      throw expired("The provided continue parameter is too old to display a consistent list result.");
    if (revision > this.#revision) throw tooLargeResourceVersion(revision, this.#revision);
  }

  /** Stores the object under a new revision and returns it with that `resourceVersion`. */
  put(resource: string, key: string, object: StoredObject): StoredObject {
    const objects = this.#objects.get(resource) ?? new Map<string, StoredObject>();
    this.#objects.set(resource, objects);
    const stored = this.#stamp(object);
    const previous = objects.get(key);
    objects.set(key, stored);
    this.#record({ revision: this.#revision, resource, key, object: stored, previous, deleted: false });
    return stored;
  }

  /** Removes the object and returns its last state with the revision of the deletion. */
  delete(resource: string, key: string, last?: StoredObject): StoredObject {
    const objects = this.#objects.get(resource);
    const previous = objects?.get(key);
    if (!objects || !previous) throw new Error(`devcluster: nothing stored at ${resource}/${key}`);
    const object = this.#stamp(last ?? previous);
    objects.delete(key);
    this.#record({ revision: this.#revision, resource, key, object, previous, deleted: true });
    return object;
  }

  /**
   * Calls `listener` for every change of `resource` after `revision`: those in the log at once, later ones as they
   * happen.
   * @returns a function that stops it
   * A revision in the future is waited for in silence, as kube-apiserver does.
   * @throws ApiStatusError 410 when the log no longer reaches back to `revision`
   */
  watch(resource: string, revision: number, listener: (change: Change) => void): () => void {
    if (revision < this.#compactedAt) throw expired(`too old resource version: ${revision} (${this.#compactedAt})`);
    for (const change of this.#log.slice(this.#firstAfter(revision)))
      if (change.resource === resource) listener(change);
    const listeners = this.#listeners.get(resource) ?? new Set();
    this.#listeners.set(resource, listeners);
    const onChange =
      revision > this.#revision ? (change: Change) => change.revision > revision && listener(change) : listener;
    listeners.add(onChange);
    return () => listeners.delete(onChange);
  }

  /** Forgets all changes so far, as etcd's compaction does: older watches and continue tokens get 410. */
  compact(): void {
    this.#log = [];
    this.#compactedAt = this.#revision;
  }

  #stamp(object: StoredObject): StoredObject {
    this.#revision++;
    return { ...object, metadata: { ...object.metadata, resourceVersion: String(this.#revision) } };
  }

  #record(change: Change): void {
    this.#log.push(change);
    // Trimmed in batches, so that appending stays cheap.
    if (this.#log.length > this.#logSize * 1.25) {
      const dropped = this.#log.length - this.#logSize;
      this.#compactedAt = this.#log[dropped - 1]!.revision;
      this.#log = this.#log.slice(dropped);
    }
    this.#undelivered.push(change);
    // A listener may write in its turn; its change waits here, so that all listeners see changes in their order.
    if (this.#undelivered.length > 1) return;
    while (this.#undelivered.length > 0) {
      const next = this.#undelivered[0]!;
      // Those who begin to listen on the way know this change already.
      const listeners = [...(this.#listeners.get(next.resource) ?? [])];
      for (const listener of listeners) listener(next);
      this.#undelivered.shift();
    }
  }

  /** Index of the first logged change after `revision`, by bisection: the log is in the order of revisions. */
  #firstAfter(revision: number): number {
    return bisect(this.#log.length, (index) => this.#log[index]!.revision > revision);
  }
}

const byKey = ([a]: [string, unknown], [b]: [string, unknown]): number => (a < b ? -1 : a > b ? 1 : 0);
const sorted = (objects: ReadonlyMap<string, StoredObject>): StoredObject[] =>
  [...objects].sort(byKey).map(([, object]) => object);
