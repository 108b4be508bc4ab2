/**
 * What every kind does alike: create, read, update, patch, delete, with the checks and their order taken from
 * `apiserver/pkg/registry/{rest,generic/registry}`. Knows nothing of HTTP.
 */
import { randomUUID } from "node:crypto";
import type { Random } from "../../util/random.ts";
import { rfc3339, type Clock } from "../../util/clock.ts";
import { apiVersionOf, objectKey, storageName, type AdmissionContext, type Kind, type UpdateRule } from "./kind.ts";
import { findKind } from "./kinds.ts";
import {
  isRecord,
  jsonEqual,
  withMeta,
  type Filter,
  type Json,
  type StoredMeta,
  type StoredObject,
} from "../objects/object.ts";
import { applyPatch, jsonPatch, mergePatch, strategicMergePatch } from "../objects/patch.ts";
import { spendBudget } from "./budgets.ts";
import { withPodCondition } from "./pod-rules.ts";
import { decode } from "../objects/schema.ts";
import {
  alreadyExists,
  ApiStatusError,
  invalidValue,
  badRequest,
  conflict,
  forbidden,
  internalError,
  invalid,
  modifiedConflict,
  notFound,
  type FieldCause,
} from "../objects/errors.ts";
import type { Storage } from "../objects/storage.ts";
import { markForFinalizers, markGraceful, propagationOf, withPropagation } from "./deletion.ts";
import { filterOf, listObjects, type ListOptions, type ListResult } from "./listing.ts";
import { validateLabelsAndAnnotations, validateMeta } from "../objects/validation.ts";

export interface User {
  username: string;
  groups: string[];
  uid?: string;
  extra?: Record<string, string[]>;
}

/** One write: who does it, how strictly its fields are read, and the warnings that go back with the answer. */
export interface WriteContext {
  user: User;
  dryRun: boolean;
  fieldValidation: "Ignore" | "Warn" | "Strict";
  warnings: string[];
}

export interface DeleteOptions {
  gracePeriodSeconds?: number | undefined;
  preconditions?: { uid?: string; resourceVersion?: string } | undefined;
  dryRun?: string[] | undefined;
  propagationPolicy?: string | undefined;
  orphanDependents?: boolean | undefined;
}

/** One object, or a part of it, that a write is for. */
interface Target {
  kind: Kind;
  namespace: string | undefined;
  name: string;
  /** Such as `status`; undefined for the object itself. */
  subresource: string | undefined;
}

export type PatchType = "json" | "merge" | "strategic" | "apply";

/** kube-apiserver's alphabet for generated names: no vowels, so no words; nothing that is easily confused. */
const SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789";

export class ObjectApi {
  readonly storage: Storage;
  readonly serviceNetwork: string;
  readonly #clock: Clock;
  readonly #random: Random;

  /**
   * @param options.serviceNetwork the first two bytes of the addresses that Services are given. Default: those of
   *   kubeadm's default range
   */
  constructor(options: { storage: Storage; clock: Clock; random: Random; serviceNetwork?: string | undefined }) {
    this.storage = options.storage;
    this.serviceNetwork = options.serviceNetwork ?? "10.96";
    this.#clock = options.clock;
    this.#random = options.random;
  }

  now(): string {
    return rfc3339(this.#clock.now());
  }

  randomSuffix(): string {
    return Array.from({ length: 5 }, () => SUFFIX_ALPHABET[Math.floor(this.#random() * SUFFIX_ALPHABET.length)]).join(
      "",
    );
  }

  get(kind: Kind, namespace: string | undefined, name: string): StoredObject {
    const object = this.storage.get(storageName(kind), objectKey(namespace, name));
    if (!object) throw notFound(kind, name);
    return object;
  }

  /**
   * Which objects a list or a watch selects.
   * @throws ApiStatusError 400 for a selector that cannot be read or served
   */
  filter(
    kind: Kind,
    namespace: string | undefined,
    options: Pick<ListOptions, "labelSelector" | "fieldSelector">,
  ): Filter {
    return filterOf(kind, namespace, options);
  }

  list(kind: Kind, namespace: string | undefined, options: ListOptions): ListResult {
    return listObjects(this.storage, kind, namespace, options);
  }

  create(kind: Kind, namespace: string | undefined, body: Json, context: WriteContext): StoredObject {
    const object = this.#decode(kind, body, context);
    const meta = object.metadata;
    if (kind.namespaced) {
      if (meta.namespace && meta.namespace !== namespace)
        throw badRequest("the namespace of the provided object does not match the namespace sent on the request");
      meta.namespace = namespace!;
    } else {
      delete meta.namespace;
    }
    if (meta.resourceVersion)
      throw new ApiStatusError(500, undefined, "resourceVersion should not be set on objects to be created");
    this.#generateName(kind, namespace, meta);
    meta.uid = randomUUID();
    meta.creationTimestamp = this.now();
    delete meta.deletionTimestamp;
    delete meta.deletionGracePeriodSeconds;
    delete meta.selfLink;
    delete meta.managedFields;
    delete meta.generation;

    if (kind.namespaced) this.#assertNamespaceAccepts(kind, namespace!, meta.name ?? "");
    kind.setDefaults(object);
    const admission = this.#admission(namespace ?? "", context.user);
    const refusal = kind.admit?.(object, admission);
    if (refusal !== undefined) throw forbidden(kind, meta.name ?? "", refusal);
    kind.prepareCreate(object, admission);
    this.#assertValid(kind, meta.name ?? "", [...validateMeta(meta, kind.nameRule), ...kind.validate(object)]);
    if (this.storage.get(storageName(kind), objectKey(namespace, meta.name))) throw alreadyExists(kind, meta.name);
    return context.dryRun ? object : this.storage.put(storageName(kind), objectKey(namespace, meta.name), object);
  }

  /** PUT. @returns the object and whether it was created by this call */
  replace(target: Target, body: Json, context: WriteContext): { object: StoredObject; created: boolean } {
    const { kind, namespace, name, subresource } = target;
    const old = this.storage.get(storageName(kind), objectKey(namespace, name));
    if (!old) {
      if (!kind.createOnUpdate || subresource !== undefined) throw notFound(kind, name);
      const given = body?.metadata?.name as string | undefined;
      if (given !== undefined && given !== name) throw wrongName(given, name);
      return { object: this.create(kind, namespace, body, context), created: true };
    }
    const next = this.#decode(kind, body, context);
    if (!next.metadata.resourceVersion && !kind.unconditionalUpdate) {
      throw invalid(kind, name, [
        {
          reason: "FieldValueInvalid",
          field: "metadata.resourceVersion",
          message: "Invalid value: 0: must be specified for an update",
        },
      ]);
    }
    return { object: this.#update(target, old, next, context, false), created: false };
  }

  /** PATCH. Applying creates what does not exist. */
  patch(
    target: Target,
    type: PatchType,
    patch: Json,
    context: WriteContext,
  ): { object: StoredObject; created: boolean } {
    const { kind, namespace, name, subresource } = target;
    const old = this.storage.get(storageName(kind), objectKey(namespace, name));
    if (!old) {
      if (type !== "apply" || subresource !== undefined) throw notFound(kind, name);
      return { object: this.create(kind, namespace, patch, context), created: true };
    }
    if (type !== "json" && !isRecord(patch))
      throw badRequest("error decoding patch: json: cannot unmarshal into a JSON object");
    const patched = this.#applyPatch(kind, type, old, patch);
    return {
      object: this.#update(target, old, this.#decode(kind, patched, context), context, true),
      created: false,
    };
  }

  #applyPatch(kind: Kind, type: PatchType, old: StoredObject, patch: Json): Json {
    switch (type) {
      case "json":
        return jsonPatch(old, patch);
      case "merge":
        return mergePatch(old, patch);
      case "strategic":
        return strategicMergePatch(kind.model, old, patch);
      case "apply":
        return applyPatch(kind.model, old, patch);
    }
  }

  #update(
    { kind, subresource }: Target,
    old: StoredObject,
    next: StoredObject,
    context: WriteContext,
    isPatch: boolean,
  ): StoredObject {
    const { metadata: before } = old;
    const meta = next.metadata;
    const name = before.name;
    assertSameObject(kind, before, meta);
    const unchangeable: FieldCause[] = [];
    if (meta.uid && meta.uid !== before.uid) {
      // A PUT states the UID as a precondition; a patch that names another one tries to change it.
      if (!isPatch) throw preconditionConflict(kind, before, meta.uid);
      unchangeable.push(invalidValue("metadata.uid", meta.uid, "field is immutable"));
    }
    if (meta.deletionTimestamp && meta.deletionTimestamp !== before.deletionTimestamp && subresource !== "status") {
      unchangeable.push(invalidValue("metadata.deletionTimestamp", meta.deletionTimestamp, "field is immutable"));
    }
    keepServerFields(before, meta);

    const rule: UpdateRule | undefined = subresource === undefined ? kind.update : kind.subresources[subresource];
    if (!rule) throw internalError(`${kind.resource} has no subresource ${subresource}`);
    kind.setDefaults(next);
    rule.prepare(next, old);
    const causes = [
      ...unchangeable,
      ...validateLabelsAndAnnotations(meta),
      ...addedFinalizers(before, meta),
      ...(rule.validate?.(next, old) ?? []),
    ];
    this.#assertValid(kind, name, causes);

    if (jsonEqual(next, old)) return old;
    if (context.dryRun) return next;
    const key = objectKey(before.namespace, name);
    // The last finalizer of an object whose grace is over takes the object with it.
    if (meta.deletionTimestamp && !meta.finalizers?.length && !before.deletionGracePeriodSeconds) {
      return this.storage.delete(storageName(kind), key);
    }
    return this.storage.put(storageName(kind), key, next);
  }

  /** @returns the object, and whether it is gone from storage */
  delete(
    kind: Kind,
    namespace: string | undefined,
    name: string,
    options: DeleteOptions,
    context: WriteContext,
  ): { object: StoredObject; gone: boolean } {
    const old = this.get(kind, namespace, name);
    assertPreconditions(kind, old.metadata, options);
    const asked =
      options.gracePeriodSeconds !== undefined && options.gracePeriodSeconds < 0 ? 1 : options.gracePeriodSeconds;
    if (kind.resource === "namespaces" && kind.group === "") return this.#deleteNamespace(kind, old, context);
    const target = withPropagation(old, propagationOf(kind, old, options, context));
    let marked = kind.gracePeriod
      ? markGraceful(kind, target, asked, this.#clock.now())
      : markForFinalizers(target, this.#clock.now());
    if (marked === "pending" && target !== old) marked = target;
    if (marked === "pending" || context.dryRun)
      return { object: marked === "pending" || marked === "now" ? old : marked, gone: false };
    const key = objectKey(namespace, name);
    if (marked === "now") return { object: this.storage.delete(storageName(kind), key), gone: true };
    const stored = this.storage.put(storageName(kind), key, marked);
    if (stored.metadata.deletionGracePeriodSeconds || stored.metadata.finalizers?.length)
      return { object: stored, gone: false };
    // Deleting without grace still writes the deletion timestamp first, so watchers see it.
    return { object: this.storage.delete(storageName(kind), key), gone: true };
  }

  /** A namespace goes to Terminating; `namespaces.ts` empties it and takes it away. */
  #deleteNamespace(kind: Kind, old: StoredObject, context: WriteContext): { object: StoredObject; gone: boolean } {
    if (["default", "kube-system", "kube-public"].includes(old.metadata.name))
      throw forbidden(kind, old.metadata.name, "this namespace may not be deleted");
    if (old.metadata.deletionTimestamp || context.dryRun) return { object: old, gone: false };
    const marked = withMeta(
      { ...old, status: { ...old.status, phase: "Terminating" } },
      { deletionTimestamp: this.now() },
    );
    return { object: this.storage.put(storageName(kind), old.metadata.name, marked), gone: false };
  }

  /** Deletes everything that the options select, each as `delete` would. @returns what was selected */
  deleteCollection(
    kind: Kind,
    namespace: string | undefined,
    list: ListOptions,
    options: DeleteOptions,
    context: WriteContext,
  ): ListResult {
    const selected = this.list(kind, namespace, list);
    for (const object of selected.items)
      this.delete(kind, object.metadata.namespace, object.metadata.name, options, context);
    return selected;
  }

  /** Binds a pod to a node, once. @throws ApiStatusError 409 when it is bound or being deleted */
  bind(namespace: string, name: string, binding: Json, context: WriteContext): StoredObject {
    const pods = findKind("", "v1", "pods")!;
    const pod = this.get(pods, namespace, name);
    const { uid, resourceVersion, annotations, labels } = (binding.metadata ?? {}) as Partial<StoredMeta>;
    if (uid && uid !== pod.metadata.uid) throw preconditionConflict(pods, pod.metadata, uid);
    if (resourceVersion && resourceVersion !== pod.metadata.resourceVersion) throw modifiedConflict(pods, name);
    if (binding.metadata?.name !== name) throw badRequest("name in URL does not match name in Binding object");
    const target = binding.target?.name as string | undefined;
    if (!target) throw badRequest("target.name: Required value");
    const refuse = (why: string) => conflict({ group: "", resource: "pods/binding" }, name, why);
    if (pod.metadata.deletionTimestamp) throw refuse(`pod ${name} is being deleted, cannot be assigned to a host`);
    if (pod.spec.nodeName) throw refuse(`pod ${name} is already assigned to node "${pod.spec.nodeName}"`);
    if (pod.spec.schedulingGates?.length) throw refuse(`pod ${name} has non-empty .spec.schedulingGates`);
    const bound = withMeta(
      {
        ...pod,
        spec: { ...pod.spec, nodeName: target },
        status: withPodCondition(pod.status, { type: "PodScheduled", status: "True" }, this.now()),
      },
      {
        ...(annotations && { annotations: { ...pod.metadata.annotations, ...annotations } }),
        ...(labels && { labels: { ...pod.metadata.labels, ...labels } }),
      },
    );
    return context.dryRun ? bound : this.storage.put(storageName(pods), objectKey(namespace, name), bound);
  }

  /**
   * The eviction API: asks the pod's budget, marks the pod as disrupted and deletes it.
   * @throws ApiStatusError 429 when its budget refuses
   */
  evict(namespace: string, name: string, eviction: Json, context: WriteContext): void {
    const pods = findKind("", "v1", "pods")!;
    const given = eviction?.metadata?.name as string | undefined;
    if (given !== undefined && given !== name) throw badRequest("name in URL does not match name in Eviction object");
    const pod = this.get(pods, namespace, name);
    const options = (eviction?.deleteOptions ?? {}) as DeleteOptions;
    spendBudget(this.storage, pod, this.now(), context.dryRun);
    if (!context.dryRun && (options.preconditions?.uid ?? pod.metadata.uid) === pod.metadata.uid) {
      const status = withPodCondition(
        pod.status,
        {
          type: "DisruptionTarget",
          status: "True",
          reason: "EvictionByEvictionAPI",
          message: "Eviction API: evicting",
        },
        this.now(),
      );
      this.storage.put(storageName(pods), objectKey(namespace, name), { ...pod, status });
    }
    this.delete(pods, namespace, name, options, context);
  }

  #decode(kind: Kind, body: Json, context: WriteContext): StoredObject {
    const apiVersion = apiVersionOf(kind);
    if (isRecord(body)) {
      const given = { apiVersion: body["apiVersion"] ?? apiVersion, kind: body["kind"] ?? kind.kind };
      if (given.apiVersion !== apiVersion || given.kind !== kind.kind) {
        throw badRequest(
          `${given.kind} in version "${given.apiVersion}" cannot be handled as a ${kind.kind}: no kind "${given.kind}" is registered for the expected version "${apiVersion}"`,
        );
      }
    }
    const { value, unknownFields } = decode<StoredObject>(kind.model, kind.kind, kind.version, body);
    if (unknownFields.length > 0 && context.fieldValidation !== "Ignore") {
      const complaints = unknownFields.map((field) => `unknown field "${field}"`);
      if (context.fieldValidation === "Strict") {
        throw badRequest(
          `${kind.kind} in version "${kind.version}" cannot be handled as a ${kind.kind}: strict decoding error: ${complaints.join(", ")}`,
        );
      }
      context.warnings.push(...complaints);
    }
    return { ...value, apiVersion, kind: kind.kind, metadata: { ...value.metadata } };
  }

  #generateName(kind: Kind, namespace: string | undefined, meta: StoredMeta): void {
    if (meta.name || !meta.generateName) return;
    do meta.name = meta.generateName.slice(0, 58) + this.randomSuffix();
    while (this.storage.get(storageName(kind), objectKey(namespace, meta.name)));
  }

  #assertNamespaceAccepts(kind: Kind, namespace: string, name: string): void {
    const namespaces = findKind("", "v1", "namespaces")!;
    const found = this.storage.get(storageName(namespaces), namespace);
    if (!found) throw notFound(namespaces, namespace);
    if (found.metadata.deletionTimestamp) {
      throw forbidden(
        kind,
        name,
        `unable to create new content in namespace ${namespace} because it is being terminated`,
        [
          {
            reason: "NamespaceTerminating",
            message: `namespace ${namespace} is being terminated`,
            field: "metadata.namespace",
          },
        ],
      );
    }
  }

  #assertValid(kind: Kind, name: string, causes: readonly FieldCause[]): void {
    if (causes.length > 0) throw invalid(kind, name, causes);
  }

  #admission(namespace: string, user: User): AdmissionContext {
    return {
      namespace,
      user,
      find: (resource, inNamespace, name) => this.storage.get(resource, objectKey(inNamespace, name)),
      list: (resource) => this.storage.list(resource),
      randomSuffix: () => this.randomSuffix(),
      serviceNetwork: this.serviceNetwork,
    };
  }
}

const preconditionConflict = (kind: Kind, meta: StoredMeta, uid: string) =>
  conflict(
    kind,
    meta.name,
    `StorageError: invalid object, Code: 4, Key: /registry/${kind.resource === "nodes" ? "minions" : kind.resource}/${objectKey(meta.namespace, meta.name)}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: ${uid}, UID in object meta: ${meta.uid}`,
  );

const wrongName = (given: string | undefined, name: string) =>
  badRequest(`the name of the object (${given ?? ""}) does not match the name on the URL (${name})`);

function addedFinalizers(before: StoredMeta, meta: StoredMeta): FieldCause[] {
  if (!before.deletionTimestamp) return [];
  const added = (meta.finalizers ?? []).filter((f) => !before.finalizers?.includes(f));
  if (added.length === 0) return [];
  return [
    {
      reason: "FieldValueForbidden",
      field: "metadata.finalizers",
      message: `Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{${added.map((f) => JSON.stringify(f)).join(", ")}}`,
    },
  ];
}

/** An update is of the object that its URL names, and of its newest version if it names one. */
function assertSameObject(kind: Kind, before: StoredObject["metadata"], meta: StoredObject["metadata"]): void {
  if (meta.name !== before.name) throw wrongName(meta.name, before.name);
  if (meta.namespace && meta.namespace !== before.namespace)
    throw badRequest("the namespace of the provided object does not match the namespace sent on the request");
  if (meta.resourceVersion && meta.resourceVersion !== before.resourceVersion)
    throw modifiedConflict(kind, before.name);
}

/** What clients may not change through an update is what it was. */
function keepServerFields(before: StoredObject["metadata"], meta: StoredObject["metadata"]): void {
  Object.assign(meta, {
    uid: before.uid,
    creationTimestamp: before.creationTimestamp,
    resourceVersion: before.resourceVersion,
  });
  for (const field of [
    "namespace",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
    "selfLink",
  ] as const) {
    if (before[field] === undefined) delete meta[field];
    else Object.assign(meta, { [field]: before[field] });
  }
  delete meta.managedFields;
}

/** Here kube-apiserver names the kind, not the resource: `Pod "x"`. */
function assertPreconditions(kind: Kind, meta: StoredObject["metadata"], { preconditions }: DeleteOptions): void {
  const { uid, resourceVersion } = preconditions ?? {};
  const named = { group: kind.group, resource: kind.kind };
  if (uid !== undefined && uid !== meta.uid) {
    throw conflict(
      named,
      meta.name,
      `the UID in the precondition (${uid}) does not match the UID in record (${meta.uid}). The object might have been deleted and then recreated`,
    );
  }
  if (resourceVersion !== undefined && resourceVersion !== meta.resourceVersion) {
    throw conflict(
      named,
      meta.name,
      `the ResourceVersion in the precondition (${resourceVersion}) does not match the ResourceVersion in record (${meta.resourceVersion}). The object might have been modified`,
    );
  }
}
