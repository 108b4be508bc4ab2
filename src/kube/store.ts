/** The in-memory copy of a collection of the API server, which a reflector keeps current. */
import type { Logger } from "../telemetry/logger.ts";
import type { KubeObject } from "./wire.ts";
import { Pulse } from "../util/pulse.ts";

export interface StoreChange<T> {
  type: "upsert" | "delete";
  /** For a delete: the last state that the server told, or the last one known when the deletion itself was missed. */
  object: T;
  previous?: T;
}

/** Values under which an object is found with `byIndex`; none for an object that the index does not concern. */
type Indexer<T> = (object: T) => readonly string[];

interface Index<T> {
  valuesOf: Indexer<T>;
  uids: Map<string, Set<string>>;
}

/**
 * The last known state of a collection, by UID. A name may be used again, a UID never: when an object with a known name
 * and a new UID comes, the old one was deleted, and listeners hear of that first.
 *
 * Listeners are called in turn after the store has changed, also for objects that did not change (a full list repeats
 * everything): compare `resourceVersion` where that matters. A listener that throws is logged; the other listeners are
 * still called.
 */
export class Store<T extends KubeObject> {
  readonly #logger: Logger;
  readonly #objects = new Map<string, T>();
  readonly #uidByName = new Map<string, string>();
  readonly #indexes = new Map<string, Index<T>>();
  readonly #listeners = new Set<(change: StoreChange<T>) => void>();
  #synced = false;
  readonly #listed = new Pulse();

  constructor(options: { logger: Logger; indexers?: Record<string, Indexer<T>> | undefined }) {
    this.#logger = options.logger;
    for (const [name, valuesOf] of Object.entries(options.indexers ?? {})) {
      this.#indexes.set(name, { valuesOf, uids: new Map() });
    }
  }

  get(uid: string): T | undefined {
    return this.#objects.get(uid);
  }

  /** `namespace` is "" for objects of the cluster. */
  getByName(namespace: string, name: string): T | undefined {
    const uid = this.#uidByName.get(nameKey(namespace, name));
    return uid === undefined ? undefined : this.#objects.get(uid);
  }

  list(): T[] {
    return [...this.#objects.values()];
  }

  /** @throws Error when the store has no such index */
  byIndex(index: string, value: string): T[] {
    const found = this.#indexes.get(index);
    if (!found) throw new Error(`The store has no index "${index}"`);
    return [...(found.uids.get(value) ?? [])].map((uid) => this.#objects.get(uid)!);
  }

  get size(): number {
    return this.#objects.size;
  }

  /** True once a full list was taken in: only then does absence mean anything. */
  get synced(): boolean {
    return this.#synced;
  }

  /** Resolves when `synced` is true. @throws the signal's reason on abort */
  async hasSynced(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.#synced) return;
    await this.#listed.wait(signal);
    signal.throwIfAborted();
  }

  /** Returns a function that removes the listener. */
  onChange(listener: (change: StoreChange<T>) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /**
   * Takes in a full list: what it lacks was deleted. Listeners hear of the deletions first and see the new state only.
   *
   * @throws Error when an item has no UID
   */
  replace(items: readonly T[]): void {
    const listed = new Set(items.map(uidOf));
    const changes: StoreChange<T>[] = [];
    for (const [uid, object] of this.#objects) {
      if (listed.has(uid)) continue;
      this.#unlink(uid, object);
      changes.push({ type: "delete", object, previous: object });
    }
    for (const item of items) changes.push(...this.#put(item));
    this.#synced = true;
    for (const change of changes) this.#notify(change);
    this.#listed.fire();
  }

  /** @throws Error when the object has no UID */
  upsert(object: T): void {
    for (const change of this.#put(object)) this.#notify(change);
  }

  /**
   * Removes the object with this UID; one with the same name and another UID stays.
   *
   * @returns false when it was not there (listeners are not called)
   * @throws Error when the object has no UID
   */
  remove(object: T): boolean {
    const uid = uidOf(object);
    const previous = this.#objects.get(uid);
    if (!previous) return false;
    this.#unlink(uid, previous);
    this.#notify({ type: "delete", object, previous });
    return true;
  }

  #put(object: T): StoreChange<T>[] {
    const uid = uidOf(object);
    const key = nameKey(object.metadata?.namespace ?? "", object.metadata?.name ?? "");
    const changes: StoreChange<T>[] = [];
    const holder = this.#uidByName.get(key);
    if (holder !== undefined && holder !== uid) {
      const replaced = this.#objects.get(holder)!;
      this.#unlink(holder, replaced);
      changes.push({ type: "delete", object: replaced, previous: replaced });
    }
    const previous = this.#objects.get(uid);
    if (previous) this.#unlink(uid, previous);
    this.#objects.set(uid, object);
    this.#uidByName.set(key, uid);
    for (const { valuesOf, uids } of this.#indexes.values()) {
      for (const value of valuesOf(object)) {
        const set = uids.get(value);
        if (set) set.add(uid);
        else uids.set(value, new Set([uid]));
      }
    }
    changes.push({ type: "upsert", object, ...(previous && { previous }) });
    return changes;
  }

  #unlink(uid: string, object: T): void {
    this.#objects.delete(uid);
    const key = nameKey(object.metadata?.namespace ?? "", object.metadata?.name ?? "");
    if (this.#uidByName.get(key) === uid) this.#uidByName.delete(key);
    for (const { valuesOf, uids } of this.#indexes.values()) {
      for (const value of valuesOf(object)) {
        const set = uids.get(value);
        set?.delete(uid);
        if (set?.size === 0) uids.delete(value);
      }
    }
  }

  #notify(change: StoreChange<T>): void {
    for (const listener of this.#listeners) {
      try {
        listener(change);
      } catch (thrown) {
        const { namespace, name, uid } = change.object.metadata ?? {};
        this.#logger.error({ err: thrown, change: change.type, namespace, name, uid }, "A store listener failed");
      }
    }
  }
}

function nameKey(namespace: string, name: string): string {
  return `${namespace}/${name}`;
}

function uidOf(object: KubeObject): string {
  const uid = object.metadata?.uid;
  if (!uid) {
    const { namespace, name } = object.metadata ?? {};
    throw new Error(`${object.kind ?? "Object"} ${namespace ?? ""}/${name ?? ""} has no metadata.uid`);
  }
  return uid;
}
