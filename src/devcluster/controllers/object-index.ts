/**
 * Where controllers find what concerns them without looking at everything: dependents by owner, pods by node and
 * namespace.
 */
import { kinds } from "../kinds/kinds.ts";
import { objectKey, storageName } from "../kinds/kind.ts";
import type { StoredObject } from "../objects/object.ts";
import type { Change, Storage } from "../objects/storage.ts";

export interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}

export const ownersOf = (object: StoredObject): OwnerReference[] => object.metadata.ownerReferences ?? [];

/** The one owner that manages the object. */
export const controllerOf = (object: StoredObject): OwnerReference | undefined =>
  ownersOf(object).find(({ controller }) => controller === true);

export const keyOf = ({ metadata }: StoredObject): string => objectKey(metadata.namespace, metadata.name);

/** A place in storage. */
interface Place {
  resource: string;
  key: string;
}

export class ObjectIndex {
  readonly #storage: Storage;
  /** By what they are indexed under, then by place. */
  readonly #buckets = new Map<string, Map<string, Place>>();
  readonly #stops: (() => void)[] = [];

  constructor(storage: Storage) {
    this.#storage = storage;
  }

  /** Reads what is there, and from now on everything that changes. */
  start(): void {
    for (const kind of kinds) {
      const resource = storageName(kind);
      for (const object of this.#storage.list(resource)) this.#put({ resource, key: keyOf(object) }, object);
      this.#stops.push(this.#storage.watch(resource, this.#storage.revision, (change) => this.#onChange(change)));
    }
  }

  stop(): void {
    for (const stop of this.#stops) stop();
  }

  /** Everything that names this UID among its owners. */
  dependents(uid: string): StoredObject[] {
    return this.#read(`owner ${uid}`);
  }

  /** Objects of one resource that this UID controls. @param resource such as `/pods` or `apps/replicasets` */
  controlled(resource: string, uid: string): StoredObject[] {
    return this.#read(`owner ${uid}`, resource).filter((object) => controllerOf(object)?.uid === uid);
  }

  /** Objects of one resource in a namespace that nobody controls. */
  orphans(resource: string, namespace: string): StoredObject[] {
    return this.#read(`orphans ${resource} ${namespace}`);
  }

  podsIn(namespace: string): StoredObject[] {
    return this.#read(`pods ${namespace}`);
  }

  podsOn(node: string): StoredObject[] {
    return this.#read(`node ${node}`);
  }

  /** Objects of one resource in a namespace, for the few kinds that select by label. */
  inNamespace(resource: string, namespace: string): StoredObject[] {
    return this.#read(`in ${resource} ${namespace}`);
  }

  #read(bucket: string, resource?: string): StoredObject[] {
    const found: StoredObject[] = [];
    for (const place of this.#buckets.get(bucket)?.values() ?? []) {
      if (resource !== undefined && place.resource !== resource) continue;
      const object = this.#storage.get(place.resource, place.key);
      if (object) found.push(object);
    }
    return found;
  }

  #onChange({ resource, key, object, previous, deleted }: Change): void {
    const place = { resource, key };
    // Most changes are of a status, and move nothing.
    const before = previous ? bucketsOf(resource, previous) : [];
    const after = deleted ? [] : bucketsOf(resource, object);
    for (const bucket of before) if (!after.includes(bucket)) this.#drop(bucket, place);
    if (!deleted) this.#put(place, object);
  }

  #put(place: Place, object: StoredObject): void {
    for (const name of bucketsOf(place.resource, object)) {
      const bucket = this.#buckets.get(name) ?? new Map<string, Place>();
      this.#buckets.set(name, bucket);
      bucket.set(`${place.resource} ${place.key}`, place);
    }
  }

  #drop(name: string, place: Place): void {
    const bucket = this.#buckets.get(name);
    bucket?.delete(`${place.resource} ${place.key}`);
    if (bucket?.size === 0) this.#buckets.delete(name);
  }
}

/** Kinds that others look for in a namespace. */
const ADOPTABLE = new Set(["/pods", "apps/replicasets", "apps/controllerrevisions", "batch/jobs"]);
const SELECTORS = new Set([
  "/services",
  "apps/replicasets",
  "apps/deployments",
  "apps/statefulsets",
  "apps/daemonsets",
  "batch/jobs",
  "policy/poddisruptionbudgets",
  "autoscaling/horizontalpodautoscalers",
  "discovery.k8s.io/endpointslices",
]);

function bucketsOf(resource: string, object: StoredObject): string[] {
  const { namespace } = object.metadata;
  const buckets = ownersOf(object).map(({ uid }) => `owner ${uid}`);
  if (ADOPTABLE.has(resource) && !controllerOf(object)) buckets.push(`orphans ${resource} ${namespace}`);
  if (SELECTORS.has(resource)) buckets.push(`in ${resource} ${namespace}`);
  if (resource === "/pods") {
    buckets.push(`pods ${namespace}`);
    const node = object.spec?.nodeName as string | undefined;
    if (node) buckets.push(`node ${node}`);
  }
  return buckets;
}
