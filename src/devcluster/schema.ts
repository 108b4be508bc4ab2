/**
 * What fields a kind has. The field lists come from client-node's generated models (Kubernetes 1.36), so unknown fields
 * are found, dropped and reported exactly as a typed server does; the merge keys are those of the `patchStrategy` tags in
 * `k8s.io/api`, which the models do not carry.
 */
import * as models from "@kubernetes/client-node";
import { rfc3339, rfc3339Micro } from "../util/clock.ts";
import { isRecord, type Json } from "./object.ts";
import { badRequest } from "./status.ts";

export type FieldType =
  | { is: "string" | "bytes" | "boolean" | "int" | "double" | "time" | "microTime" | "intOrString" | "any" }
  | { is: "array" | "map"; of: FieldType }
  | { is: "object"; model: string };

interface Attribute {
  baseName: string;
  type: string;
  format: string;
}

/** The arrays that a strategic merge patch merges instead of replacing: `Model.field` -> merge key, "" for primitives. */
const mergeKeys: Record<string, string> = {
  "V1ObjectMeta.ownerReferences": "uid",
  "V1ObjectMeta.finalizers": "",
  "V1PodSpec.volumes": "name",
  "V1PodSpec.initContainers": "name",
  "V1PodSpec.containers": "name",
  "V1PodSpec.ephemeralContainers": "name",
  "V1PodSpec.imagePullSecrets": "name",
  "V1PodSpec.hostAliases": "ip",
  "V1PodSpec.topologySpreadConstraints": "topologyKey",
  "V1PodSpec.schedulingGates": "name",
  "V1PodSpec.resourceClaims": "name",
  "V1Container.ports": "containerPort",
  "V1Container.env": "name",
  "V1Container.volumeMounts": "mountPath",
  "V1Container.volumeDevices": "devicePath",
  "V1EphemeralContainer.ports": "containerPort",
  "V1EphemeralContainer.env": "name",
  "V1EphemeralContainer.volumeMounts": "mountPath",
  "V1EphemeralContainer.volumeDevices": "devicePath",
  "V1ContainerStatus.volumeMounts": "mountPath",
  "V1ContainerStatus.allocatedResourcesStatus": "name",
  "V1PodStatus.conditions": "type",
  "V1PodStatus.hostIPs": "ip",
  "V1PodStatus.podIPs": "ip",
  "V1PodStatus.resourceClaimStatuses": "name",
  "V1PersistentVolumeClaimStatus.conditions": "type",
  "V1ServiceStatus.conditions": "type",
  "V1ServiceSpec.ports": "port",
  "V1ServiceAccount.secrets": "name",
  "V1NodeSpec.podCIDRs": "",
  "V1NodeStatus.conditions": "type",
  "V1NodeStatus.addresses": "type",
  "V1NamespaceStatus.conditions": "type",
  "V1CSINodeSpec.drivers": "name",
};

/**
 * The further lists that server-side apply merges by key (`+listType=map`) where a strategic merge patch replaces them.
 * A list in neither table is replaced whole.
 */
const applyOnlyKeys: Record<string, string> = {
  "V1ServiceAccount.imagePullSecrets": "name",
  "V1CertificateSigningRequestStatus.conditions": "type",
};

const parsed = new Map<string, Map<string, FieldType>>();
const classes = models as unknown as Record<string, { getAttributeTypeMap?: () => Attribute[] } | undefined>;

function parseType(type: string, format: string): FieldType {
  const array = /^Array<(.*)>$/.exec(type);
  if (array) return { is: "array", of: parseType(array[1]!, format) };
  const map = /^\{ \[key: string\]: (.*); \}$/.exec(type);
  if (map) return { is: "map", of: parseType(map[1]!, format) };
  switch (type) {
    case "string":
      return { is: format === "byte" ? "bytes" : "string" };
    case "boolean":
    case "any":
      return { is: type };
    case "number":
      return { is: format === "double" ? "double" : "int" };
    case "Date":
      return { is: "time" };
    case "V1MicroTime":
      return { is: "microTime" };
    case "IntOrString":
      return { is: "intOrString" };
    default:
      return { is: "object", model: type };
  }
}

/** The fields of a client-node model such as `V1Pod`, by their JSON names. */
export function fieldsOf(model: string): ReadonlyMap<string, FieldType> {
  let fields = parsed.get(model);
  if (!fields) {
    const attributes = classes[model]?.getAttributeTypeMap?.();
    if (!attributes) throw new Error(`devcluster: client-node has no model ${model}`);
    fields = new Map(attributes.map((a) => [a.baseName, parseType(a.type, a.format)]));
    parsed.set(model, fields);
  }
  return fields;
}

/** The merge key of a list field: "" when its items are primitives that merge as a set, undefined when it is replaced. */
export const mergeKeyOf = (model: string, field: string): string | undefined => mergeKeys[`${model}.${field}`];
export const applyKeyOf = (model: string, field: string): string | undefined =>
  mergeKeys[`${model}.${field}`] ?? applyOnlyKeys[`${model}.${field}`];

/** Lists that Go writes even when they are empty, because their struct tag has no `omitempty`. */
const keptWhenEmpty = new Set(["V1CSINodeSpec.drivers", "V1PodSpec.containers"]);

export interface Decoded<T> {
  value: T;
  /** Paths of the fields that the kind does not have; they are not in `value`. */
  unknownFields: string[];
}

/**
 * Reads JSON into the shape of `model`, as Go's decoder followed by its encoder would: unknown fields fall away, `null`
 * and empty lists and maps count as absent, times are normalised to UTC.
 * @throws ApiStatusError 400 when a value has the wrong type
 */
export function decode<T>(model: string, kind: string, version: string, json: Json): Decoded<T> {
  const unknownFields: string[] = [];
  const fail = (path: string, expected: string, got: Json): never => {
    const gotType = Array.isArray(got) ? "array" : typeof got === "boolean" ? "bool" : typeof got;
    throw badRequest(
      `${kind} in version "${version}" cannot be handled as a ${kind}: json: cannot unmarshal ${gotType} into Go struct field .${path} of type ${expected}`,
    );
  };
  const walk = (type: FieldType, value: Json, path: string): Json => {
    switch (type.is) {
      case "object":
        return isRecord(value)
          ? walkObject(type.model, value, path)
          : fail(path, type.model.replace(/^V1/, "v1."), value);
      case "array":
        return Array.isArray(value)
          ? value.map((item, i) => walk(type.of, item, `${path}[${i}]`))
          : fail(path, "slice", value);
      case "map":
        if (!isRecord(value)) return fail(path, "map", value);
        return Object.fromEntries(
          Object.entries(value).map(([k, v]) => [k, v === null ? "" : walk(type.of, v, `${path}.${k}`)]),
        );
      case "string":
      case "bytes":
        // Quantities are strings in the models, but the API takes bare numbers for them (`cpu: 1`).
        if (typeof value === "number" && isQuantityPath(path)) return String(value);
        return typeof value === "string" ? value : fail(path, type.is === "bytes" ? "[]uint8" : "string", value);
      case "boolean":
        return typeof value === "boolean" ? value : fail(path, "bool", value);
      case "int":
        return Number.isInteger(value) ? value : fail(path, "int32", value);
      case "double":
        return typeof value === "number" ? value : fail(path, "float64", value);
      case "intOrString":
        return typeof value === "string" || Number.isInteger(value) ? value : fail(path, "intstr.IntOrString", value);
      case "time":
      case "microTime": {
        const at = typeof value === "string" ? Date.parse(value) : NaN;
        if (Number.isNaN(at)) return fail(path, type.is === "time" ? "v1.Time" : "v1.MicroTime", value);
        if (type.is === "time") return rfc3339(at);
        // Date keeps milliseconds only; a MicroTime that is already in canonical form keeps its microseconds.
        return /\.\d{6}Z$/.test(value as string) ? value : rfc3339Micro(at);
      }
      case "any":
        return value;
    }
  };
  const walkObject = (name: string, value: Record<string, Json>, path: string): Json => {
    const fields = fieldsOf(name);
    const out: Record<string, Json> = {};
    for (const [key, item] of Object.entries(value)) {
      const at = path === "" ? key : `${path}.${key}`;
      const type = fields.get(key);
      if (!type) {
        unknownFields.push(at);
        continue;
      }
      if (item === null || item === undefined) continue;
      const read = walk(type, item, at);
      const isEmpty =
        (type.is === "array" && read.length === 0) || (type.is === "map" && Object.keys(read).length === 0);
      if (!isEmpty || keptWhenEmpty.has(`${name}.${key}`)) out[key] = read;
    }
    return out;
  };
  if (!isRecord(json))
    throw badRequest(`the object provided is unrecognized (must be of type ${kind}): it is not a JSON object`);
  return { value: walkObject(model, json, "") as T, unknownFields };
}

const isQuantityPath = (path: string): boolean =>
  /\.(limits|requests|capacity|allocatable|hard|used|overhead|podFixed|allocatedResources|sizeLimit|divisor)(\.[^.]+(\.[^.]+)*)?$/.test(
    path,
  );
