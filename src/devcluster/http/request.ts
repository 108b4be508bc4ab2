/** What a request asks for: its path, verb, options and body, read as kube-apiserver reads them. */
import type { IncomingMessage, ServerResponse } from "node:http";
import { gunzipSync } from "node:zlib";
import { parse as parseYaml } from "yaml";
import { readBody as readBytes } from "../../http/body.ts";
import { HttpError } from "../../http/http-error.ts";
import { toError } from "../../util/errors.ts";
import type { Attributes } from "../auth/auth.ts";
import { requestModel } from "../auth/reviews.ts";
import type { Kind } from "../kinds/kind.ts";
import type { ListOptions } from "../kinds/listing.ts";
import type { DeleteOptions, PatchType, User, WriteContext } from "../kinds/object-api.ts";
import { readProtobuf } from "../kubectl/protobuf.ts";
import { ApiStatusError, badRequest, entityTooLarge, unsupportedMediaType } from "../objects/errors.ts";
import { isRecord, type Json } from "../objects/object.ts";

/** kube-apiserver's limit for a request body. */
const BODY_LIMIT = 3 * 1024 * 1024;
const PROTOBUF = "application/vnd.kubernetes.protobuf";

/** The resource that a path names. */
interface Route {
  group: string;
  version: string;
  resource: string;
  namespace: string | undefined;
  name: string | undefined;
  /** The rest of the path after the name. */
  tail: string[];
}

/** One request for a resource, on its way through the server. */
export interface ApiRequest {
  message: IncomingMessage;
  response: ServerResponse;
  query: URLSearchParams;
  route: Route;
  /** As in a SubjectAccessReview: get, list, watch, create, update, patch, delete, deletecollection. */
  verb: string;
  user: User;
}

/** A request for objects of a kind that there is. */
export interface KindRequest extends ApiRequest {
  kind: Kind;
}

/** Splits an API path; undefined for everything that names no resource, such as discovery. */
export function parseRoute(path: string): Route | undefined {
  let parts: string[];
  try {
    parts = path.slice(1).split("/").map(decodeURIComponent);
  } catch {
    // Half an escape sequence: no resource has such a path.
    return undefined;
  }
  let group: string;
  let version: string;
  if (parts[0] === "api") {
    [, version = ""] = parts;
    group = "";
    parts = parts.slice(2);
  } else if (parts[0] === "apis") {
    [, group = "", version = ""] = parts;
    parts = parts.slice(3);
  } else {
    return undefined;
  }
  if (parts.length === 0) return undefined;
  // `namespaces/NS/status` is a subresource of the namespace itself, `namespaces/NS/pods` is a collection in it.
  const ownTail =
    group === "" && parts[0] === "namespaces" && (parts.length < 3 || parts[2] === "status" || parts[2] === "finalize");
  if (parts[0] === "namespaces" && !ownTail) {
    const [, namespace, resource, name, ...tail] = parts;
    return { group, version, namespace, resource: resource!, name, tail };
  }
  const [resource, name, ...tail] = parts;
  return { group, version, namespace: undefined, resource: resource!, name, tail };
}

export function verbOf(method: string, route: Route, query: URLSearchParams): string {
  const isWatch = query.get("watch") === "true" || query.get("watch") === "1";
  switch (method) {
    case "GET":
    case "HEAD":
      return route.name === undefined
        ? isWatch
          ? "watch"
          : "list"
        : isWatch && route.tail.length === 0
          ? "watch"
          : "get";
    case "POST":
      return "create";
    case "PUT":
      return "update";
    case "PATCH":
      return "patch";
    case "DELETE":
      return route.name === undefined ? "deletecollection" : "delete";
    default:
      return method.toLowerCase();
  }
}

/** The question whether the request is allowed. */
export const attributesOf = (route: Route, verb: string): Attributes => ({
  verb,
  path: "",
  group: route.group,
  version: route.version,
  resource: route.resource,
  ...(route.tail[0] !== undefined && { subresource: route.tail[0] }),
  ...(route.namespace !== undefined && { namespace: route.namespace }),
  ...(route.name !== undefined && { name: route.name }),
});

export function writeContext({ user, query }: Pick<ApiRequest, "user" | "query">): WriteContext {
  const dryRun = query.getAll("dryRun");
  const wrong = dryRun.find((value) => value !== "All" && value !== "");
  if (wrong !== undefined)
    throw badRequest(
      `PatchOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ${JSON.stringify(wrong)}: supported values: "All"`,
    );
  const fieldValidation = query.get("fieldValidation") || "Warn";
  if (fieldValidation !== "Ignore" && fieldValidation !== "Warn" && fieldValidation !== "Strict") {
    throw badRequest(
      `fieldValidation: Unsupported value: ${JSON.stringify(fieldValidation)}: supported values: "Ignore", "Strict", "Warn"`,
    );
  }
  return { user, dryRun: dryRun.includes("All"), fieldValidation, warnings: [] };
}

export function listOptions(query: URLSearchParams): ListOptions {
  const limit = Number(query.get("limit") ?? 0);
  if (!Number.isInteger(limit)) throw badRequest(`limit: Invalid value: ${query.get("limit")}: must be a whole number`);
  const options: ListOptions = { limit };
  for (const name of [
    "labelSelector",
    "fieldSelector",
    "continue",
    "resourceVersion",
    "resourceVersionMatch",
  ] as const) {
    const value = query.get(name);
    if (value) options[name] = value;
  }
  return options;
}

export async function deleteOptions({ message, query }: ApiRequest): Promise<DeleteOptions> {
  const body = await readBody(message, { optional: true });
  const options: DeleteOptions = isRecord(body) ? { ...body } : {};
  const seconds = query.get("gracePeriodSeconds");
  if (options.gracePeriodSeconds === undefined && seconds) options.gracePeriodSeconds = Number(seconds);
  return options;
}

const patchTypes: Record<string, PatchType> = {
  "application/json-patch+json": "json",
  "application/merge-patch+json": "merge",
  "application/strategic-merge-patch+json": "strategic",
  "application/apply-patch+yaml": "apply",
};

const mediaType = (request: IncomingMessage): string =>
  (request.headers["content-type"] ?? "").split(";")[0]!.trim().toLowerCase();

export function patchTypeOf(request: IncomingMessage): PatchType {
  const type = patchTypes[mediaType(request)];
  if (!type) throw new ApiStatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {});
  return type;
}

/** The parsed body; undefined when it is empty and may be. */
export async function readBody(
  request: IncomingMessage,
  { isPatch = false, optional = false }: { isPatch?: boolean; optional?: boolean } = {},
): Promise<Json> {
  const type = mediaType(request);
  const isYaml = type === "application/yaml" || type === "application/apply-patch+yaml";
  const raw = await readBytes(request, BODY_LIMIT).catch((thrown: unknown) => {
    throw thrown instanceof HttpError && thrown.status === 413 ? entityTooLarge(BODY_LIMIT) : thrown;
  });
  if (raw.length === 0) {
    if (optional) return undefined;
    throw badRequest("the body of the request is empty");
  }
  if (!isPatch && type !== "" && type !== "application/json" && type !== PROTOBUF && !isYaml) {
    throw unsupportedMediaType(["application/json", "application/yaml", PROTOBUF]);
  }
  const bytes = request.headers["content-encoding"] === "gzip" ? gunzipSync(raw, { maxOutputLength: BODY_LIMIT }) : raw;
  if (type === PROTOBUF) return readProtobuf(bytes, requestModel);
  try {
    return isYaml ? parseYaml(bytes.toString()) : JSON.parse(bytes.toString());
  } catch (thrown) {
    throw badRequest(`couldn't get version/kind; json parse error: ${toError(thrown).message}`);
  }
}
