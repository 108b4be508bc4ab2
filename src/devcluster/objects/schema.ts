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
  if (!isRecord(json))
    throw badRequest(`the object provided is unrecognized (must be of type ${kind}): it is not a JSON object`);
  const decoder = new Decoder(kind, version);
  return { value: decoder.object(model, json, "") as T, unknownFields: decoder.unknownFields };
}

/** What is taken as it is, and what Go calls its type. */
const SCALARS = {
  string: { accepts: (value: Json) => typeof value === "string", name: "string" },
  boolean: { accepts: (value: Json) => typeof value === "boolean", name: "bool" },
  int: { accepts: (value: Json) => Number.isInteger(value), name: "int32" },
  double: { accepts: (value: Json) => typeof value === "number", name: "float64" },
  intOrString: {
    accepts: (value: Json) => typeof value === "string" || Number.isInteger(value),
    name: "intstr.IntOrString",
  },
};

class Decoder {
  readonly unknownFields: string[] = [];
  readonly #kind: string;
  readonly #version: string;

  constructor(kind: string, version: string) {
    this.#kind = kind;
    this.#version = version;
  }

  object(name: string, value: Record<string, Json>, path: string): Json {
    const fields = fieldsOf(name);
    const out: Record<string, Json> = {};
    for (const [key, item] of Object.entries(value)) {
      const at = path === "" ? key : `${path}.${key}`;
      const field = fields.get(key);
      if (!field) {
        this.unknownFields.push(at);
        continue;
      }
      if (item === null || item === undefined) continue;
      const read = field.isQuantity ? this.#quantities(field.type, item, at) : this.#value(field.type, item, at);
      if (!isLeftOut(field, read)) out[key] = read;
    }
    for (const [key, field] of fields)
      if (field.always && out[key] === undefined) out[key] = field.isQuantity ? "0" : this.#zero(field.type);
    return out;
  }

  #value(type: FieldType, value: Json, path: string): Json {
    switch (type.is) {
      case "object":
        return isRecord(value)
          ? this.object(type.model, value, path)
          : this.#fail(path, type.model.replace(/^V1/, "v1."), value);
      case "array":
        return this.#array(value, path, (item, at) => this.#value(type.of, item, at));
      case "map":
        return this.#map(value, path, (item, at) => this.#value(type.of, item, at));
      case "bytes":
        if (typeof value !== "string") return this.#fail(path, "[]uint8", value);
        return BASE64.test(value.replaceAll(/\s/g, "")) ? value : this.#refuse(`illegal base64 data at ${path}`);
      case "string":
      case "boolean":
      case "int":
      case "double":
      case "intOrString": {
        const { accepts, name } = SCALARS[type.is];
        return accepts(value) ? value : this.#fail(path, name, value);
      }
      case "time":
        return rfc3339(this.#instant(value, path, "v1.Time"));
      case "microTime":
        return this.#microTime(value, path);
      case "any":
        return value;
    }
  }

  /** Where strings are quantities: alone, in a list or in a map. */
  #quantities(type: FieldType, value: Json, path: string): Json {
    if (type.is === "array") return this.#array(value, path, (item, at) => this.#quantities(type.of, item, at));
    if (type.is === "map") return this.#map(value, path, (item, at) => this.#quantities(type.of, item, at));
    return type.is === "string" || type.is === "bytes" ? this.#quantity(value) : this.#value(type, value, path);
  }

  #array(value: Json, path: string, read: (item: Json, path: string) => Json): Json {
    return Array.isArray(value)
      ? value.map((item, i) => read(item, `${path}[${i}]`))
      : this.#fail(path, "slice", value);
  }

  #map(value: Json, path: string, read: (item: Json, path: string) => Json): Json {
    if (!isRecord(value)) return this.#fail(path, "map", value);
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, v === null ? "" : read(v, `${path}.${k}`)]));
  }

  #microTime(value: Json, path: string): string {
    const at = this.#instant(value, path, "v1.MicroTime");
    const micros = MICRO_TIME.exec(value as string)?.[0];
    if (micros === undefined)
      return this.#refuse(
        `parsing time ${JSON.stringify(value)} as "2006-01-02T15:04:05.000000Z07:00": it must have exactly six decimals`,
      );
    // Date keeps milliseconds only, so the microseconds are carried over as text.
    return rfc3339Micro(at).replace(/\.\d{6}/, micros);
  }

  /** Epoch milliseconds. */
  #instant(value: Json, path: string, expected: string): number {
    const at = typeof value === "string" ? Date.parse(value) : NaN;
    return Number.isNaN(at) ? this.#fail(path, expected, value) : at;
  }

  /** In its canonical form: `0.5` is `500m`, `1024Mi` is `1Gi`. Bare numbers are quantities too. */
  #quantity(value: Json): string {
    const quantity = typeof value === "string" || typeof value === "number" ? Quantity.tryParse(value) : undefined;
    return (
      quantity?.toString() ??
      this.#refuse("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    );
  }

  #zero(type: FieldType): Json {
    switch (type.is) {
      case "object":
        return this.object(type.model, {}, "");
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
  }

  #fail(path: string, expected: string, got: Json): never {
    const gotType = Array.isArray(got) ? "array" : typeof got === "boolean" ? "bool" : typeof got;
    return this.#refuse(`json: cannot unmarshal ${gotType} into Go struct field .${path} of type ${expected}`);
  }

  #refuse(why: string): never {
    throw badRequest(`${this.#kind} in version "${this.#version}" cannot be handled as a ${this.#kind}: ${why}`);
  }
}

/** Go's `omitempty`. */
function isLeftOut(field: Field, read: Json): boolean {
  const isEmpty =
    (field.type.is === "array" && read.length === 0) || (field.type.is === "map" && Object.keys(read).length === 0);
  const isZero = field.omitZero && (read === "" || read === 0 || read === false);
  return (isEmpty && !field.keepEmpty) || isZero;
}
