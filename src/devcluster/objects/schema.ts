/**
 * What fields a kind has. The field lists come from client-node's generated models (Kubernetes 1.36), so unknown fields
 * are found, dropped and reported exactly as a typed server does; what only Go's struct tags say is in fields.gen.ts.
 */
import * as models from "@kubernetes/client-node";
import { rfc3339, rfc3339Micro } from "../../util/clock.ts";
import { Quantity } from "../../resources/quantity.ts";
import { goFields } from "./fields.gen.ts";
import { isRecord, type Json } from "./object.ts";
import { badRequest } from "./errors.ts";

export type FieldType =
  | { is: "string" | "bytes" | "boolean" | "int" | "double" | "time" | "microTime" | "intOrString" | "any" }
  | { is: "array" | "map"; of: FieldType }
  | { is: "object"; model: string };

interface Attribute {
  baseName: string;
  type: string;
  format: string;
}

/** One field of a kind. */
export interface Field {
  type: FieldType;
  /** Where protobuf has it: numbers from the outside in, several when JSON inlines a message. */
  numbers: readonly number[];
  /** Go leaves it out when it is zero: "", 0 or false. */
  omitZero: boolean;
  /** Go writes it even when it is absent: "", 0, false, {} or, for times, null. */
  always: boolean;
  /** Go writes an empty list or map. */
  keepEmpty: boolean;
  isQuantity: boolean;
  /** The key by which a strategic merge patch merges the list, "" for primitives; undefined: it replaces. */
  mergeKey: string | undefined;
  /** The same for server-side apply, which merges some lists that a patch replaces. */
  applyKey: string | undefined;
}

const parsed = new Map<string, Map<string, Field>>();
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
export function fieldsOf(model: string): ReadonlyMap<string, Field> {
  let fields = parsed.get(model);
  if (!fields) {
    const attributes = classes[model]?.getAttributeTypeMap?.();
    if (!attributes) throw new Error(`devcluster: client-node has no model ${model}`);
    const described = new Map((goFields[model] ?? "").split(" ").map((text) => text.split("=") as [string, string]));
    fields = new Map(attributes.map((a) => [a.baseName, readField(a, described.get(a.baseName) ?? "")]));
    parsed.set(model, fields);
  }
  return fields;
}

/** Reads one entry of fields.gen.ts, which says how it is written. */
function readField(attribute: Attribute, described: string): Field {
  const [head = "", ...keys] = described.split(",");
  const [, path = "", flags = ""] = /^([\d.]*)([a-z]*)$/.exec(head) ?? [];
  const key = (letter: string) => keys.find((k) => k.startsWith(`${letter}:`))?.slice(2);
  return {
    type: parseType(attribute.type, attribute.format),
    numbers: path === "" ? [] : path.split(".").map(Number),
    omitZero: flags.includes("o"),
    always: flags.includes("z"),
    keepEmpty: flags.includes("e"),
    isQuantity: flags.includes("q"),
    mergeKey: key("k"),
    applyKey: key("l") ?? key("k"),
  };
}

/** The decimals of a MicroTime: neither more nor fewer are accepted. */
const MICRO_TIME = /\.\d{6}(?=Z|[+-])/;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

interface Decoded<T> {
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
  const walk = (type: FieldType, value: Json, path: string, isQuantity: boolean): Json => {
    switch (type.is) {
      case "object":
        return isRecord(value)
          ? walkObject(type.model, value, path)
          : fail(path, type.model.replace(/^V1/, "v1."), value);
      case "array":
        return Array.isArray(value)
          ? value.map((item, i) => walk(type.of, item, `${path}[${i}]`, isQuantity))
          : fail(path, "slice", value);
      case "map":
        if (!isRecord(value)) return fail(path, "map", value);
        return Object.fromEntries(
          Object.entries(value).map(([k, v]) => [k, v === null ? "" : walk(type.of, v, `${path}.${k}`, isQuantity)]),
        );
      case "string":
      case "bytes":
        if (isQuantity) return readQuantity(kind, version, value);
        if (type.is === "bytes" && typeof value === "string" && !BASE64.test(value.replaceAll(/\s/g, ""))) {
          throw badRequest(
            `${kind} in version "${version}" cannot be handled as a ${kind}: illegal base64 data at ${path}`,
          );
        }
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
        if (type.is === "microTime" && !Number.isNaN(at) && !MICRO_TIME.test(value as string)) {
          throw badRequest(
            `${kind} in version "${version}" cannot be handled as a ${kind}: parsing time ${JSON.stringify(value)} as "2006-01-02T15:04:05.000000Z07:00": it must have exactly six decimals`,
          );
        }
        if (Number.isNaN(at)) return fail(path, type.is === "time" ? "v1.Time" : "v1.MicroTime", value);
        if (type.is === "time") return rfc3339(at);
        // Date keeps milliseconds only, so the microseconds are carried over as text.
        return rfc3339Micro(at).replace(/\.\d{6}/, MICRO_TIME.exec(value as string)![0]);
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
      const field = fields.get(key);
      if (!field) {
        unknownFields.push(at);
        continue;
      }
      if (item === null || item === undefined) continue;
      const read = walk(field.type, item, at, field.isQuantity);
      const isEmpty =
        (field.type.is === "array" && read.length === 0) || (field.type.is === "map" && Object.keys(read).length === 0);
      const isZero = field.omitZero && (read === "" || read === 0 || read === false);
      if (!(isEmpty && !field.keepEmpty) && !isZero) out[key] = read;
    }
    for (const [key, field] of fields)
      if (field.always && out[key] === undefined) out[key] = field.isQuantity ? "0" : zeroOf(field.type);
    return out;
  };
  const zeroOf = (type: FieldType): Json => {
    switch (type.is) {
      case "object":
        return walkObject(type.model, {}, "");
      case "boolean":
        return false;
      case "int":
      case "double":
      case "intOrString":
        return 0;
      case "string":
      case "bytes":
        return "";
      case "array":
      case "map":
      case "time":
      case "microTime":
      case "any":
        return null;
    }
  };
  if (!isRecord(json))
    throw badRequest(`the object provided is unrecognized (must be of type ${kind}): it is not a JSON object`);
  return { value: walkObject(model, json, "") as T, unknownFields };
}

/** A quantity in its canonical form: `0.5` is `500m`, `1024Mi` is `1Gi`. Bare numbers are quantities too. */
function readQuantity(kind: string, version: string, value: Json): string {
  const quantity = typeof value === "string" || typeof value === "number" ? Quantity.tryParse(value) : undefined;
  if (!quantity) {
    throw badRequest(
      `${kind} in version "${version}" cannot be handled as a ${kind}: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'`,
    );
  }
  return quantity.toString();
}
