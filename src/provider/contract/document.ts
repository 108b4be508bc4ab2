/**
 * The Machine API's document, openapi.yaml: its types, and the validators made from it. It is read once, when it is
 * first needed. Nothing else says what a machine is and what is valid; server and client both ask here.
 *
 * `request` validators refuse fields that the document does not name (but `x-…`), `reply` validators remove them: see
 * "Unknown fields" in the document.
 */
import { existsSync, readFileSync } from "node:fs";
import { isIP } from "node:net";
import { Ajv2020, type ErrorObject, type ValidateFunction } from "ajv/dist/2020.js";
import { parse } from "yaml";
import type { components } from "./types.gen.ts";

export type Schemas = components["schemas"];
export type SchemaName = keyof Schemas;
type Direction = "request" | "reply";

/** A JSON Schema or a part of one. */
type SchemaNode = { [key: string]: unknown };

interface OpenApiDocument {
  openapi: string;
  paths: Record<string, Record<string, unknown>>;
  components: { schemas: Record<string, SchemaNode> };
}

let loaded: OpenApiDocument | undefined;

/** @internal */
export function openApiDocument(): OpenApiDocument {
  loaded ??= parse(readFileSync(documentPath(), "utf8")) as OpenApiDocument;
  return loaded;
}

/**
 * Beside this module in the sources; the build leaves it where the sources are, four folders up from
 * dist/src/provider/contract.
 */
function documentPath(): URL {
  const here = new URL("./openapi.yaml", import.meta.url);
  return existsSync(here) ? here : new URL("../../../../src/provider/contract/openapi.yaml", import.meta.url);
}

const UTC_TIME = /^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d{1,9})?Z$/;
const BASE64_CHARACTERS = /^[A-Za-z0-9+/]*={0,2}$/;

/** What a text of each format is, for those who have sent another. */
const FORMATS: Readonly<Record<string, string>> = {
  "utc-time": "must be a time in UTC such as 2026-10-06T00:17:09.669Z",
  base64: "must be base64",
  "unicast-ip": "must be an IP address that one host can have",
};

/** One expression for all of it would overflow the stack on files of some megabytes. */
const isBase64 = (text: string): boolean => text.length % 4 === 0 && BASE64_CHARACTERS.test(text);

/**
 * True for an address that one host can have: neither unspecified, nor multicast, broadcast or link-local.
 * @internal
 */
export function isUnicastIp(ip: string): boolean {
  const family = isIP(ip);
  if (family === 4) {
    const first = Number(ip.slice(0, ip.indexOf(".")));
    return first > 0 && first < 224 && !ip.startsWith("169.254.");
  }
  if (family !== 6 || ip.includes("%")) return false;
  const lower = ip.toLowerCase();
  if (lower.startsWith("::ffff:")) return false;
  return !/^(ff|fe[89ab])/.test(lower) && !/^[0:]+$/.test(lower);
}

const instances = new Map<Direction, Ajv2020>();
const compiled = new Map<string, ValidateFunction>();

function ajv(direction: Direction): Ajv2020 {
  let instance = instances.get(direction);
  if (instance === undefined) {
    instance = new Ajv2020({
      strict: true,
      strictRequired: false,
      discriminator: true,
      removeAdditional: direction === "reply",
      formats: { "utc-time": UTC_TIME, base64: isBase64, password: true, "unicast-ip": isUnicastIp },
    });
    instance.addSchema({ $id: "machine-api", $defs: closedSchemas(direction) });
    instances.set(direction, instance);
  }
  return instance;
}

/** The document's schemas with `additionalProperties: false` wherever fields are listed and nothing else is said. */
function closedSchemas(direction: Direction): Record<string, SchemaNode> {
  const text = JSON.stringify(openApiDocument().components.schemas).replaceAll("#/components/schemas/", "#/$defs/");
  return JSON.parse(text, (_key, node: unknown) => {
    if (typeof node !== "object" || node === null || Array.isArray(node)) return node;
    const schema = node as SchemaNode;
    if (schema["type"] !== "object" || schema["properties"] === undefined || "additionalProperties" in schema)
      return schema;
    if ("oneOf" in schema) return schema;
    return {
      ...schema,
      additionalProperties: false,
      ...(direction === "request" ? { patternProperties: { "^x-": {} } } : {}),
    };
  }) as Record<string, SchemaNode>;
}

/** What is wrong and where, as a dotted path that is empty for the whole value. */
export interface Violation {
  field: string;
  message: string;
}

/** @returns undefined when `value` is valid. A reply loses the fields that the document does not name. */
export function violation(direction: Direction, name: SchemaName, value: unknown): Violation | undefined {
  return partViolation(direction, name, undefined, value);
}

/** As `violation`, for a part of a schema: `path` leads there, in the words of JSON Schema. */
export function partViolation(
  direction: Direction,
  name: SchemaName,
  path: string | undefined,
  value: unknown,
): Violation | undefined {
  const schema = path === undefined ? name : `${name}/${path}`;
  const key = `${direction} ${schema}`;
  let validate = compiled.get(key);
  if (validate === undefined) {
    validate = ajv(direction).compile({ $ref: `machine-api#/$defs/${schema}` });
    compiled.set(key, validate);
  }
  if (validate(value)) return undefined;
  return describe(validate.errors?.[0]);
}

function describe(error: ErrorObject | undefined): Violation {
  if (error === undefined) return { field: "", message: "is not valid" };
  const path = error.instancePath.split("/").slice(1).map(decodePointer);
  if (error.keyword === "additionalProperties") {
    return { field: [...path, String(error.params["additionalProperty"])].join("."), message: "is not a known field" };
  }
  if (error.keyword === "required") {
    return { field: [...path, String(error.params["missingProperty"])].join("."), message: "is required" };
  }
  if (error.keyword === "enum") {
    return {
      field: path.join("."),
      message: `must be one of ${(error.params["allowedValues"] as unknown[]).join(", ")}`,
    };
  }
  if (error.keyword === "const")
    return { field: path.join("."), message: `must be ${JSON.stringify(error.params["allowedValue"])}` };
  const said = error.keyword === "format" ? FORMATS[String(error.params["format"])] : error.message;
  return { field: path.join("."), message: said ?? error.message ?? "is not valid" };
}

function decodePointer(segment: string): string {
  return segment.replaceAll("~1", "/").replaceAll("~0", "~");
}
