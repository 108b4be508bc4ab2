/**
 * Dependents of what is gone (`pkg/controller/garbagecollector`): deleted with their owners, before them, or left
 * without.
 */
import { kindOf } from "../kinds/kinds.ts";
import { kinds } from "../kinds/kinds.ts";
import { objectKey, storageName } from "../kinds/kind.ts";
import type { Propagation } from "../kinds/deletion.ts";
import type { StoredObject } from "../objects/object.ts";
import { KeyedController, type ControllerOptions } from "./controller.ts";
import { keyOf, ownersOf, type OwnerReference } from "./object-index.ts";

const hasFinalizer = (object: StoredObject, name: string): boolean =>
  Boolean(object.metadata.finalizers?.includes(name));
/** Its dependents go first, and it waits for them. */
const waitsForDependents = (object: StoredObject): boolean =>
  object.metadata.deletionTimestamp !== undefined && hasFinalizer(object, "foregroundDeletion");

/** Keys are `RESOURCE KEY`: everything may be owned. */
export class GarbageCollector extends KeyedController {
  constructor(options: ControllerOptions) {
    super(options, "generic-garbage-collector");
  }

  start(): void {
    for (const kind of kinds) {
      const resource = storageName(kind);
      this.watch(resource, ({ object, deleted }) => {
        if (deleted) this.#addDependents(object);
        // Only what is owned, or is on its way out, can be anything to collect.
        else if (object.metadata.ownerReferences?.length || object.metadata.deletionTimestamp)
          this.queue.add(`${resource} ${keyOf(object)}`);
        // An owner that waits may be free now.
        for (const owner of ownersOf(object)) {
          const found = this.#find(owner, object.metadata.namespace);
          if (found && waitsForDependents(found)) this.#add(found);
        }
      });
      for (const object of this.storage.list(resource))
        if (object.metadata.ownerReferences?.length) this.queue.add(`${resource} ${keyOf(object)}`);
    }
  }

  protected sync(key: string): void {
    const [resource, ...rest] = key.split(" ");
    const object = this.storage.get(resource!, rest.join(" "));
    if (!object) return;
    if (object.metadata.deletionTimestamp) {
      if (hasFinalizer(object, "orphan")) this.#orphan(object);
      else if (hasFinalizer(object, "foregroundDeletion")) this.#deleteDependents(object);
      else return;
    } else {
      this.#collect(object);
    }
  }

  /** Deletes what has lost its last owner, and forgets owners that are gone where another is left. */
  #collect(object: StoredObject): void {
    const owners = ownersOf(object).map((reference) => ({
      reference,
      // What this server has no kind of cannot be looked for, and counts as there.
      known: kindOf(reference) !== undefined,
      found: this.#find(reference, object.metadata.namespace),
    }));
    if (owners.length === 0) return;
    const solid = owners.filter(({ known, found }) => !known || (found && !waitsForDependents(found)));
    const waiting = owners.filter(({ known, found }) => known && found && waitsForDependents(found));
    if (solid.length > 0) {
      if (solid.length === owners.length) return;
      const uids = new Set(solid.map(({ reference }) => reference.uid));
      this.#withOwners(
        object,
        ownersOf(object).filter(({ uid }) => uids.has(uid)),
      );
    } else if (waiting.length > 0 && this.index.dependents(object.metadata.uid).length > 0) {
      this.#delete(object, "Foreground");
    } else {
      this.#delete(object, policyOf(object));
    }
  }

  #deleteDependents(owner: StoredObject): void {
    const dependents = this.index.dependents(owner.metadata.uid);
    for (const dependent of dependents)
      if (!dependent.metadata.deletionTimestamp) this.queue.add(`${resourceOf(dependent)} ${keyOf(dependent)}`);
    const blocking = dependents.filter((dependent) =>
      ownersOf(dependent).some(({ uid, blockOwnerDeletion }) => uid === owner.metadata.uid && blockOwnerDeletion),
    );
    if (blocking.length === 0) this.#withoutFinalizer(owner, "foregroundDeletion");
  }

  #orphan(owner: StoredObject): void {
    for (const dependent of this.index.dependents(owner.metadata.uid))
      this.#withOwners(
        dependent,
        ownersOf(dependent).filter(({ uid }) => uid !== owner.metadata.uid),
      );
    this.#withoutFinalizer(owner, "orphan");
  }

  #addDependents(owner: StoredObject): void {
    for (const dependent of this.index.dependents(owner.metadata.uid))
      this.queue.add(`${resourceOf(dependent)} ${keyOf(dependent)}`);
  }

  #add(object: StoredObject): void {
    this.queue.add(`${resourceOf(object)} ${keyOf(object)}`);
  }

  #delete(object: StoredObject, propagationPolicy: Propagation): void {
    if (!object.metadata.deletionTimestamp) this.actor.delete(object, { propagationPolicy });
  }

  #find(reference: OwnerReference, namespace: string | undefined): StoredObject | undefined {
    const kind = kindOf(reference);
    if (!kind) return undefined;
    const key = objectKey(kind.namespaced ? namespace : undefined, reference.name);
    const found = this.storage.get(storageName(kind), key);
    return found?.metadata.uid === reference.uid ? found : undefined;
  }

  #withOwners(object: StoredObject, owners: readonly OwnerReference[]): void {
    const { ownerReferences: _, ...meta } = object.metadata;
    this.actor.update({ ...object, metadata: { ...meta, ...(owners.length > 0 && { ownerReferences: [...owners] }) } });
  }

  #withoutFinalizer(object: StoredObject, name: string): void {
    const { finalizers = [], ...meta } = object.metadata;
    const rest = finalizers.filter((each) => each !== name);
    this.actor.update({ ...object, metadata: { ...meta, ...(rest.length > 0 && { finalizers: rest }) } });
  }
}

const resourceOf = (object: StoredObject): string => storageName(kindOf(object)!);

/** What the object's own finalizers say of its dependents. */
function policyOf(object: StoredObject): Propagation {
  if (hasFinalizer(object, "orphan")) return "Orphan";
  return hasFinalizer(object, "foregroundDeletion") ? "Foreground" : "Background";
}
