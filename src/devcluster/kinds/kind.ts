/** What a kind is to this server, and what all kinds have unless they say otherwise. */
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import type { FieldCause, Subject } from "../objects/errors.ts";
import type { NameRule } from "../objects/validation.ts";

/** What admission may look up while an object is created. */
export interface AdmissionContext {
  namespace: string;
  find(resource: string, namespace: string | undefined, name: string): StoredObject | undefined;
  list(resource: string): StoredObject[];
  randomSuffix(): string;
  /** The first two bytes of Services' addresses. */
  serviceNetwork: string;
  /** Who asks. */
  user: { username: string; groups: string[]; uid?: string };
}

/** How an update through one endpoint treats the object: `prepare` changes `next`, which it owns. */
export interface UpdateRule {
  prepare(next: StoredObject, old: StoredObject): void;
  validate?(next: StoredObject, old: StoredObject): FieldCause[];
}

export interface Kind extends Subject {
  version: string;
  singular: string;
  /** client-node's class with the fields of this kind. */
  model: string;
  namespaced: boolean;
  shortNames: readonly string[];
  categories: readonly string[];
  verbs: readonly string[];
  nameRule: NameRule;
  /** PUT to a name that does not exist creates it. */
  createOnUpdate: boolean;
  /** PUT without resourceVersion overwrites. */
  unconditionalUpdate: boolean;
  /** DELETE without a propagation policy leaves the dependents, and says so in a warning. */
  orphansByDefault: boolean;
  /** Has the subresource `scale`; `selector` is the selector of its pods, as `status.selector` says it. */
  scale?: { selector(object: StoredObject): Json };
  /** DELETE answers with the object instead of a Status. */
  returnsDeleted: boolean;
  /** Fields that a field selector may name, beside metadata.name and metadata.namespace. */
  fields: Readonly<Record<string, (object: StoredObject) => string>>;
  /** Objects that DELETE ends gracefully: the grace in seconds that applies, given what the client asked for. */
  gracePeriod?: (object: StoredObject, requested: number | undefined) => number;
  setDefaults(object: Json): void;
  /** @returns why the object is forbidden, or undefined. Runs before validation and may change the object */
  admit?(object: Json, context: AdmissionContext): string | undefined;
  prepareCreate(object: StoredObject, context: AdmissionContext): void;
  validate(object: StoredObject): FieldCause[];
  update: UpdateRule;
  /** Subresources that read and write the object itself, such as `status`. */
  subresources: Readonly<Record<string, UpdateRule>>;
}

/** `group/resource`: the name of a kind in storage. */
export const storageName = (kind: Pick<Kind, "group" | "resource">): string => `${kind.group}/${kind.resource}`;
export const apiVersionOf = (kind: Pick<Kind, "group" | "version">): string =>
  kind.group === "" ? kind.version : `${kind.group}/${kind.version}`;
export const objectKey = (namespace: string | undefined, name: string): string =>
  namespace === undefined ? name : `${namespace}/${name}`;

export const allVerbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"] as const;

export const keepStatus = (next: StoredObject, old: StoredObject): void => {
  if (old.status === undefined) delete next.status;
  else next.status = old.status;
};

/** `/status`: the spec stays as it is. */
export const statusOnly: UpdateRule = {
  prepare(next, old) {
    if (old.spec === undefined) delete next.spec;
    else next.spec = old.spec;
  },
};

type Particulars = Pick<Kind, "kind" | "resource"> & Partial<Kind>;

export function defineKind(p: Particulars): Kind {
  const hasStatus = p.subresources?.["status"] !== undefined;
  return {
    group: "",
    version: "v1",
    singular: p.kind.toLowerCase(),
    model: `V1${p.kind}`,
    namespaced: true,
    shortNames: [],
    categories: [],
    verbs: allVerbs,
    nameRule: "subdomain",
    createOnUpdate: false,
    unconditionalUpdate: true,
    orphansByDefault: false,
    returnsDeleted: false,
    fields: {},
    setDefaults: () => {},
    prepareCreate(object) {
      if (hasStatus) delete object.status;
    },
    validate: () => [],
    update: { prepare: (next, old) => hasStatus && keepStatus(next, old) },
    subresources: {},
    ...p,
  };
}

export const text = (value: Json): string => String(value ?? "");

export const bumpGeneration = (next: StoredObject, old: StoredObject): void => {
  if (!jsonEqual(next.spec, old.spec)) next.metadata.generation = (old.metadata.generation ?? 0) + 1;
};
