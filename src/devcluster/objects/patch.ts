/**
 * The four patch kinds of the API: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch, and apply.
 * All are pure: they return a new document and leave their arguments alone.
 */
import { fieldsOf, type Field } from "./schema.ts";
import { isRecord, jsonEqual, type Json } from "./object.ts";
import { badRequest, ApiStatusError } from "./errors.ts";

/** @throws ApiStatusError 422 when an operation cannot be done, 400 when it is not an operation at all */
export function jsonPatch(document: Json, operations: Json): Json {
  if (!Array.isArray(operations))
    throw badRequest("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch");
  const root = { document: structuredClone(document) };
  for (const op of operations) {
    if (!isRecord(op) || typeof op["path"] !== "string")
      throw badRequest("error decoding patch: an operation needs `op` and `path`");
    switch (op["op"]) {
      case "add":
        add(root, op["path"], structuredClone(op["value"]));
        break;
      case "remove":
        remove(root, op["path"]);
        break;
      case "replace":
        read(root, op["path"]);
        if (op["path"] !== "") remove(root, op["path"]);
        add(root, op["path"], structuredClone(op["value"]));
        break;
      case "move": {
        const moved = read(root, op["from"]);
        remove(root, op["from"]);
        add(root, op["path"], moved);
        break;
      }
      case "copy":
        add(root, op["path"], structuredClone(read(root, op["from"])));
        break;
      case "test":
        if (!jsonEqual(read(root, op["path"]), op["value"])) throw unprocessable();
        break;
      default:
        throw unprocessable();
    }
  }
  return root.document;
}

/** kube-apiserver does not say which operation failed, nor why. */
const unprocessable = () =>
  new ApiStatusError(422, "Invalid", "the server rejected our request due to an error in our request", {});

const pointer = (path: string): string[] =>
  path === ""
    ? []
    : path
        .slice(1)
        .split("/")
        .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));

/** Never what an object inherits: a patch of that would change every object of the process. */
function memberOf(at: Json, part: string): Json {
  if (Array.isArray(at)) return at[Number(part)];
  return isRecord(at) && Object.hasOwn(at, part) ? at[part] : undefined;
}

function parentOf(root: { document: Json }, path: string): [Json, string] {
  const parts = ["document", ...pointer(path)];
  const last = parts.pop()!;
  let at: Json = root;
  for (const part of parts) {
    at = memberOf(at, part);
    if (at === undefined || at === null) throw unprocessable();
  }
  return [at, last];
}

function read(root: { document: Json }, path: string): Json {
  const [parent, last] = parentOf(root, path);
  const value = memberOf(parent, last);
  if (value === undefined) throw unprocessable();
  return value;
}

function add(root: { document: Json }, path: string, value: Json): void {
  const [parent, last] = parentOf(root, path);
  if (!Array.isArray(parent)) {
    parent[last] = value;
    return;
  }
  const index = last === "-" ? parent.length : Number(last);
  if (!Number.isInteger(index) || index < 0 || index > parent.length) throw unprocessable();
  parent.splice(index, 0, value);
}

function remove(root: { document: Json }, path: string): void {
  read(root, path);
  const [parent, last] = parentOf(root, path);
  if (Array.isArray(parent)) parent.splice(Number(last), 1);
  else delete parent[last];
}

/** RFC 7386: `null` removes, objects merge, everything else replaces. */
export function mergePatch(document: Json, patch: Json): Json {
  if (!isRecord(patch)) return patch;
  const out: Record<string, Json> = isRecord(document) ? { ...document } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete out[key];
    else out[key] = mergePatch(out[key], value);
  }
  return out;
}

const ORDER = "$setElementOrder/";
const DELETE_PRIMITIVE = "$deleteFromPrimitiveList/";

/**
 * Strategic merge patch (`apimachinery/pkg/util/strategicpatch`): lists with a merge key are merged item by item, in
 * the order of `$setElementOrder` when it is given.
 * @param model client-node's name of the document's type, such as `V1Pod`
 */
export function strategicMergePatch(model: string, document: Json, patch: Json): Json {
  return mergeObject(model, isRecord(document) ? document : {}, patch);
}

function mergeObject(
  model: string | undefined,
  document: Record<string, Json>,
  patch: Record<string, Json>,
): Record<string, Json> {
  if (patch["$patch"] === "replace") return withoutDirectives(patch);
  if (patch["$patch"] === "delete") return {};
  if (patch["$patch"] !== undefined && patch["$patch"] !== "merge")
    throw badRequest(`Unknown patch type ${String(patch["$patch"])}`);
  const fields = model === undefined ? undefined : fieldsOf(model);
  const out = withRemovals(document, patch);
  for (const [key, value] of Object.entries(patch)) {
    if (key.startsWith("$")) continue;
    if (value === null) delete out[key];
    else out[key] = mergeValue(fields?.get(key), out[key], value);
  }
  for (const [key, order] of Object.entries(patch)) {
    if (!key.startsWith(ORDER)) continue;
    const field = key.slice(ORDER.length);
    const mergeKey = fields?.get(field)?.mergeKey;
    if (mergeKey !== undefined && Array.isArray(out[field]))
      out[field] = ordered(mergeKey, out[field], order as Json[], (document[field] ?? []) as Json[]);
  }
  return out;
}

/** `$retainKeys` and `$deleteFromPrimitiveList`, which come before what is merged. */
function withRemovals(document: Record<string, Json>, patch: Record<string, Json>): Record<string, Json> {
  let out: Record<string, Json> = { ...document };
  if (Array.isArray(patch["$retainKeys"])) {
    const retained = new Set<string>(patch["$retainKeys"] as string[]);
    out = Object.fromEntries(Object.entries(out).filter(([key]) => retained.has(key)));
  }
  for (const [key, value] of Object.entries(patch)) {
    if (!key.startsWith(DELETE_PRIMITIVE)) continue;
    const field = key.slice(DELETE_PRIMITIVE.length);
    if (Array.isArray(out[field])) out[field] = out[field].filter((item: Json) => !(value as Json[]).includes(item));
  }
  return out;
}

function mergeValue(field: Field | undefined, before: Json, value: Json): Json {
  if (Array.isArray(value))
    return field?.mergeKey === undefined ? value : mergeList(field, field.mergeKey, (before ?? []) as Json[], value);
  if (!isRecord(value)) return value;
  const model = field?.type.is === "object" ? field.type.model : undefined;
  return mergeObject(model, isRecord(before) ? before : {}, value);
}

function mergeList(field: Field, mergeKey: string, list: Json[], patch: Json[]): Json[] {
  if (mergeKey === "") return ordered("", [...list, ...patch.filter((item) => !list.includes(item))], patch, list);
  if (patch.some((item) => isRecord(item) && item["$patch"] === "replace")) {
    return patch
      .filter((item) => !(isRecord(item) && item["$patch"] !== undefined))
      .map((item) => withoutDirectives(item));
  }
  const model = field.type.is === "array" && field.type.of.is === "object" ? field.type.of.model : undefined;
  const out = [...list];
  for (const item of patch as Record<string, Json>[]) {
    const id = item[mergeKey];
    if (id === undefined) throw badRequest(`map: ${goMap(item)} does not contain declared merge key: ${mergeKey}`);
    const index = out.findIndex((existing) => isRecord(existing) && existing[mergeKey] === id);
    if (item["$patch"] === "delete") {
      if (index >= 0) out.splice(index, 1);
    } else if (index >= 0) {
      out[index] = mergeObject(model, out[index] as Record<string, Json>, item);
    } else {
      out.push(withoutDirectives(mergeObject(model, {}, item)));
    }
  }
  return ordered(mergeKey, out, patch, list);
}

const goMap = (item: Record<string, Json>) =>
  `map[${Object.entries(item)
    .map(([k, v]) => `${k}:${String(v)}`)
    .join(" ")}]`;

/** Items named in `order` come in that order; the others keep their place relative to the item that was before them. */
function ordered(mergeKey: string, list: Json[], order: Json[], before: Json[]): Json[] {
  const idOf = (item: Json): Json => (mergeKey === "" ? item : isRecord(item) ? item[mergeKey] : undefined);
  const wanted = order.map(idOf);
  const named = wanted.map((id) => list.find((item) => idOf(item) === id)).filter((item) => item !== undefined);
  const others = list.filter((item) => !wanted.includes(idOf(item)));
  const position = (item: Json) => before.findIndex((b) => idOf(b) === idOf(item));
  const out: Json[] = [];
  let next = 0;
  for (const item of named) {
    // An item that only the server knows stays in front of the named item that it stood before.
    while (
      next < others.length &&
      position(item) >= 0 &&
      position(others[next]) >= 0 &&
      position(others[next]) < position(item)
    )
      out.push(others[next++]);
    out.push(item);
  }
  return [...out, ...others.slice(next)];
}

function withoutDirectives(value: Json): Json {
  if (Array.isArray(value))
    return value.filter((item) => !(isRecord(item) && item["$patch"] === "delete")).map(withoutDirectives);
  if (!isRecord(value)) return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([key, item]) => !key.startsWith("$") && item !== null)
      .map(([key, item]) => [key, withoutDirectives(item)]),
  );
}

/**
 * Server-side apply without ownership: what the configuration names is set, lists with a key are merged by it, and
 * nothing is removed because nothing records who set it. Honest for single appliers; conflicts are not detected.
 */
export function applyPatch(model: string, document: Json, configuration: Json): Json {
  const fields = fieldsOf(model);
  const out: Record<string, Json> = isRecord(document) ? { ...document } : {};
  for (const [key, value] of Object.entries(configuration as Record<string, Json>)) {
    const field = fields.get(key);
    const type = field?.type;
    if (value === null) delete out[key];
    else if (type?.is === "object" && isRecord(value)) out[key] = applyPatch(type.model, out[key], value);
    else if (type?.is === "map" && isRecord(value)) out[key] = { ...(isRecord(out[key]) ? out[key] : {}), ...value };
    else if (type?.is === "array" && Array.isArray(value))
      out[key] = applyList(field!, (out[key] ?? []) as Json[], value);
    else out[key] = value;
  }
  return out;
}

function applyList(field: Field, list: Json[], configuration: Json[]): Json[] {
  const { applyKey: mergeKey, type } = field;
  if (mergeKey === undefined) return configuration;
  if (mergeKey === "") return [...list, ...configuration.filter((item) => !list.includes(item))];
  const out = [...list];
  for (const item of configuration as Record<string, Json>[]) {
    const index = out.findIndex((existing) => isRecord(existing) && existing[mergeKey] === item[mergeKey]);
    const merged =
      type.is === "array" && type.of.is === "object"
        ? applyPatch(type.of.model, index >= 0 ? out[index] : {}, item)
        : item;
    if (index >= 0) out[index] = merged;
    else out.push(merged);
  }
  return out;
}
