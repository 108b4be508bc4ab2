/** The HTTP face: reads requests, asks the registry, writes answers and watch streams. Knows nothing of particular kinds. */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { gunzipSync, gzipSync } from "node:zlib";
import { minutesToMilliseconds } from "date-fns/minutesToMilliseconds";
import { parse as parseYaml } from "yaml";
import type { Logger } from "../telemetry/logger.ts";
import { toError } from "../util/errors.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";
import { ISSUER, type Attributes, type Auth } from "./auth.ts";
import { discoveryDocument, openApiV2, openApiV3, versionInfo } from "./discovery.ts";
import type { KubeletProxy } from "./kubelet-proxy.ts";
import { apiVersionOf, findKind, storageName, type Kind } from "./kinds.ts";
import { isRecord, type Json, type StoredObject } from "./object.ts";
import type { DeleteOptions, ListOptions, PatchType, Registry, User, WriteContext } from "./rest.ts";
import { readProtobuf } from "./protobuf.ts";
import { answerReview, requestModel, requestToken, reviewKinds, type ReviewKind } from "./reviews.ts";
import {
  ApiStatusError,
  badRequest,
  entityTooLarge,
  invalid,
  required,
  internalError,
  methodNotAllowed,
  notAcceptable,
  resourceNotFound,
  unsupportedMediaType,
  type StatusBody,
} from "./status.ts";
import { partialMetadata, renderTable, type IncludeObject } from "./table.ts";
import { Usage, USAGE_GROUP, USAGE_VERSION, usageKinds } from "./usage.ts";
import { startWatch, type EventType } from "./watch.ts";

/** kube-apiserver's limit for a request body. */
const BODY_LIMIT = 3 * 1024 * 1024;
/** Below this a compressed answer is not worth it; the same threshold as kube-apiserver's. */
const GZIP_FROM = 128 * 1024;
/** A watcher that lets this much pile up is cut off; it resumes from its last revision. */
const WATCH_BACKLOG = 32 * 1024 * 1024;
const DEFAULT_WATCH_MS = minutesToMilliseconds(30);
const PROTOBUF = "application/vnd.kubernetes.protobuf";

export interface ApiServerOptions {
  registry: Registry;
  auth: Auth;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Takes requests for logs, exec, attach, port-forward and node proxies. */
  kubelets: KubeletProxy;
  /** How often an idle watch that allows bookmarks gets one. */
  bookmarkIntervalMs: number;
}

interface Route {
  group: string;
  version: string;
  resource: string;
  namespace: string | undefined;
  name: string | undefined;
  /** The rest of the path after the name. */
  tail: string[];
}

type Rendering = { as: "object" } | { as: "table"; include: IncludeObject } | { as: "metadata" };

export class ApiServer {
  readonly #options: ApiServerOptions;
  readonly #usage: Usage;
  readonly #watches = new Set<() => void>();
  /** Every watcher of an object gets the same bytes, so they are made once. */
  readonly #serialized = new WeakMap<StoredObject, string>();

  constructor(options: ApiServerOptions) {
    this.#options = options;
    this.#usage = new Usage(options);
  }

  /** Answers one request; every failure becomes a Status. */
  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      await this.#dispatch(request, response);
    } catch (error) {
      const status = error instanceof ApiStatusError ? error : internalError(toError(error).message);
      if (!(error instanceof ApiStatusError))
        this.#options.logger.error({ err: toError(error), url: request.url }, "devcluster request failed");
      if (response.headersSent) response.destroy();
      else sendStatus(request, response, status.body);
    }
  }

  /** Answers an Upgrade request: only kubelets speak upgraded protocols. */
  async handleUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    // Node watches an upgraded connection no more: unheard, its reset would end the process.
    socket.on("error", () => socket.destroy());
    try {
      const url = new URL(request.url ?? "/", "http://devcluster");
      const route = parseRoute(url.pathname);
      if (!route) throw resourceNotFound();
      this.#authorize(request, { ...attributesOf(route, "get"), path: url.pathname });
      if (!(await this.#options.kubelets.handleUpgrade(request, socket, head)))
        throw badRequest("this resource cannot be upgraded");
    } catch (error) {
      const { body } = error instanceof ApiStatusError ? error : internalError(toError(error).message);
      const text = JSON.stringify(body);
      socket.end(
        `HTTP/1.1 ${body.code} ${body.reason ?? "Error"}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\nConnection: close\r\n\r\n${text}`,
      );
    }
  }

  /** Ends every open watch, as a server that shuts down does. */
  closeWatches(): void {
    for (const end of this.#watches) end();
  }

  async #dispatch(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", "http://devcluster");
    const path = url.pathname.length > 1 && url.pathname.endsWith("/") ? url.pathname.slice(0, -1) : url.pathname;
    const route = parseRoute(path);
    const method = request.method ?? "GET";
    const verb = route ? verbOf(method, route, url.searchParams) : method.toLowerCase();
    const user = this.#authorize(request, { ...(route && attributesOf(route, verb)), verb, path });

    if (!route) {
      this.#serveDocument(path, request, response);
      return;
    }
    const review = reviewKinds.find(
      (r) => r.group === route.group && r.version === route.version && r.resource === route.resource,
    );
    if (review) {
      await this.#serveReview(review, route, user, request, response);
      return;
    }
    if (route.group === "" && route.resource === "bindings" && route.namespace && method === "POST") {
      const binding = await readBody(request);
      this.#options.registry.bind(
        route.namespace,
        binding?.metadata?.name ?? "",
        binding,
        writeContext(user, url.searchParams),
      );
      sendStatus(request, response, success(201));
      return;
    }
    if (route.group === USAGE_GROUP) {
      await this.#serveUsage(route, verb, url.searchParams, request, response);
      return;
    }
    const kind = findKind(route.group, route.version, route.resource);
    if (
      !kind ||
      (kind.namespaced ? route.namespace === undefined && route.name !== undefined : route.namespace !== undefined)
    )
      throw resourceNotFound();
    await this.#serveKind(kind, route, verb, user, url.searchParams, request, response);
  }

  #authorize(request: IncomingMessage, attributes: Attributes): User {
    const { auth } = this.#options;
    const user = auth.authenticate(request.headers);
    if (auth.authorize(user, attributes)) return user;
    const { verb, resource, group, namespace, name, subresource } = attributes;
    if (resource === undefined) {
      throw new ApiStatusError(
        403,
        "Forbidden",
        `forbidden: User "${user.username}" cannot ${verb} path "${attributes.path}"`,
        {},
      );
    }
    const full = subresource ? `${resource}/${subresource}` : resource;
    const where = namespace === undefined ? "at the cluster scope" : `in the namespace "${namespace}"`;
    const subject = group ? `${resource}.${group}` : resource;
    throw new ApiStatusError(
      403,
      "Forbidden",
      `${subject}${name ? ` "${name}"` : ""} is forbidden: User "${user.username}" cannot ${verb} resource "${full}" in API group "${group ?? ""}" ${where}`,
      { ...(name && { name }), ...(group && { group }), kind: resource },
    );
  }

  #serveDocument(path: string, request: IncomingMessage, response: ServerResponse): void {
    const { auth } = this.#options;
    const accept = request.headers.accept ?? "";
    if (request.method !== "GET" && request.method !== "HEAD") throw methodNotAllowed();
    if (/^\/(healthz|livez|readyz)(\/|$)/.test(path)) {
      response.writeHead(200, { "content-type": "text/plain; charset=utf-8" }).end("ok");
      return;
    }
    if (path === "/openapi/v2" && accept !== "" && !/application\/json|\*\/\*/.test(accept))
      throw notAcceptable(["application/json"]);
    const aggregated =
      accept.includes("as=APIGroupDiscoveryList") && /g=apidiscovery\.k8s\.io;\s*v=v2(?!beta)/.test(accept);
    const document =
      path === "/version"
        ? versionInfo
        : path === "/openapi/v2"
          ? openApiV2()
          : path.startsWith("/openapi/v3")
            ? openApiV3(path)
            : path === "/openid/v1/jwks"
              ? auth.jwks()
              : path === "/.well-known/openid-configuration"
                ? {
                    issuer: ISSUER,
                    jwks_uri: `${ISSUER}/openid/v1/jwks`,
                    response_types_supported: ["id_token"],
                    subject_types_supported: ["public"],
                    id_token_signing_alg_values_supported: ["ES256"],
                  }
                : discoveryDocument(path, aggregated);
    if (document === undefined) {
      if (/^\/apis?\//.test(path))
        response.writeHead(404, { "content-type": "text/plain; charset=utf-8" }).end("404 page not found\n");
      else throw resourceNotFound();
      return;
    }
    const isAggregated = aggregated && document.kind === "APIGroupDiscoveryList";
    send(
      request,
      response,
      200,
      document,
      isAggregated ? "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" : "application/json",
    );
  }

  async #serveReview(
    review: ReviewKind,
    route: Route,
    user: User,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    if (route.name !== undefined) throw resourceNotFound();
    if (request.method !== "POST") throw methodNotAllowed();
    send(request, response, 201, answerReview(review, await readBody(request), user, this.#options.auth));
  }

  async #serveUsage(
    { version, resource, namespace, name, tail }: Route,
    verb: string,
    query: URLSearchParams,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const kind = usageKinds.find((each) => each.resource === resource);
    if (!kind || version !== USAGE_VERSION || tail.length > 0) throw resourceNotFound();
    if (kind.namespaced ? name !== undefined && namespace === undefined : namespace !== undefined)
      throw resourceNotFound();
    if (verb !== "get" && verb !== "list") throw methodNotAllowed();
    const labelSelector = query.get("labelSelector") ?? undefined;
    send(request, response, 200, await this.#usage.answer({ resource, namespace, name, labelSelector }));
  }

  async #serveKind(
    kind: Kind,
    route: Route,
    verb: string,
    user: User,
    query: URLSearchParams,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const { registry } = this.#options;
    const { namespace, name } = route;
    const subresource = route.tail[0];
    const context = writeContext(user, query);
    if (subresource !== undefined && kind.subresources[subresource] === undefined) {
      await this.#serveAction(kind, route, context, query, request, response);
      return;
    }
    if (route.tail.length > 1) throw resourceNotFound();
    if (subresource === undefined && !kind.verbs.includes(verb)) throw methodNotAllowed();
    if (subresource !== undefined && !["get", "update", "patch"].includes(verb)) throw methodNotAllowed();
    const answer = (status: number, object: Json) =>
      this.#sendObject(kind, request, response, status, object, query, context);
    switch (verb) {
      case "list":
        this.#sendList(kind, request, response, query, registry.list(kind, namespace, listOptions(query)));
        return;
      case "watch":
        this.#serveWatch(kind, route, query, request, response);
        return;
      case "get":
        answer(200, registry.get(kind, namespace, name!));
        return;
      case "create":
        if (kind.namespaced && namespace === undefined) throw methodNotAllowed();
        if (subresource !== undefined) throw methodNotAllowed();
        answer(201, registry.create(kind, namespace, await readBody(request), context));
        return;
      case "update": {
        if (name === undefined) throw methodNotAllowed();
        const { object, created } = registry.replace(
          kind,
          namespace,
          name,
          subresource,
          await readBody(request),
          context,
        );
        answer(created ? 201 : 200, object);
        return;
      }
      case "patch": {
        if (name === undefined) throw methodNotAllowed();
        const type = patchTypeOf(request);
        if (type === "apply" && !query.get("fieldManager")) {
          throw invalid({ group: "meta.k8s.io", kind: "PatchOptions" }, "", [
            required("fieldManager", "is required for apply patch"),
          ]);
        }
        const patch = await readBody(request, true);
        const { object, created } = registry.patch(kind, namespace, name, subresource, type, patch, context);
        answer(created ? 201 : 200, object);
        return;
      }
      case "delete": {
        const options = await deleteOptions(request, query);
        const { object, gone } = registry.delete(kind, namespace, name!, options, {
          ...context,
          dryRun: context.dryRun || (options.dryRun?.length ?? 0) > 0,
        });
        if (kind.returnsDeleted || !gone) answer(200, object);
        else
          sendStatus(request, response, {
            ...success(),
            details: {
              name: object.metadata.name,
              ...(kind.group && { group: kind.group }),
              kind: kind.resource,
              uid: object.metadata.uid,
            },
          });
        return;
      }
      case "deletecollection": {
        const options = await deleteOptions(request, query);
        this.#sendList(
          kind,
          request,
          response,
          query,
          registry.deleteCollection(kind, namespace, listOptions(query), options, context),
        );
        return;
      }
      default:
        throw methodNotAllowed();
    }
  }

  /** Subresources that do something instead of writing the object. */
  async #serveAction(
    kind: Kind,
    route: Route,
    context: WriteContext,
    query: URLSearchParams,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const { registry, auth } = this.#options;
    const action = `${kind.resource}/${route.tail[0]}`;
    if (await this.#options.kubelets.handleRequest(request, response)) return;
    if (!["pods/binding", "pods/eviction", "serviceaccounts/token"].includes(action) || route.tail.length > 1)
      throw resourceNotFound();
    if (request.method !== "POST") throw methodNotAllowed();
    const body = await readBody(request);
    if (action === "pods/binding") {
      registry.bind(route.namespace!, route.name!, body, context);
      sendStatus(request, response, success(201));
    } else if (action === "pods/eviction") {
      registry.evict(route.namespace!, route.name!, body, context);
      sendStatus(request, response, success(201));
    } else {
      const account = registry.get(kind, route.namespace, route.name!);
      send(
        request,
        response,
        201,
        requestToken(account, body, auth, (resource, key) => registry.storage.get(resource, key)),
      );
    }
  }

  #sendObject(
    kind: Kind,
    request: IncomingMessage,
    response: ServerResponse,
    status: number,
    object: Json,
    query: URLSearchParams,
    context: WriteContext,
  ): void {
    if (context.warnings.length > 0)
      response.setHeader(
        "warning",
        context.warnings.map((warning) => `299 - ${JSON.stringify(warning)}`),
      );
    const rendering = renderingOf(request, query);
    send(request, response, status, this.#render(kind, object as StoredObject, rendering, true));
  }

  #render(kind: Kind, object: StoredObject, rendering: Rendering, withColumns: boolean): Json {
    if (rendering.as === "table") {
      return renderTable(kind.kind, [object], {
        now: this.#options.clock.now(),
        include: rendering.include,
        withColumns,
      });
    }
    return rendering.as === "metadata" ? partialMetadata(object) : object;
  }

  #sendList(
    kind: Kind,
    request: IncomingMessage,
    response: ServerResponse,
    query: URLSearchParams,
    list: ReturnType<Registry["list"]>,
  ): void {
    const rendering = renderingOf(request, query);
    const { items, ...metadata } = list;
    if (rendering.as === "table") {
      send(
        request,
        response,
        200,
        renderTable(kind.kind, items, {
          now: this.#options.clock.now(),
          include: rendering.include,
          withColumns: true,
          listMeta: metadata,
        }),
      );
    } else if (rendering.as === "metadata") {
      send(request, response, 200, {
        kind: "PartialObjectMetadataList",
        apiVersion: "meta.k8s.io/v1",
        metadata,
        items: items.map(partialMetadata),
      });
    } else {
      // Items of a typed list carry neither kind nor apiVersion.
      const bare = items.map(({ kind: _kind, apiVersion: _apiVersion, ...rest }) => rest);
      send(request, response, 200, { kind: `${kind.kind}List`, apiVersion: apiVersionOf(kind), metadata, items: bare });
    }
  }

  #serveWatch(
    kind: Kind,
    route: Route,
    query: URLSearchParams,
    request: IncomingMessage,
    response: ServerResponse,
  ): void {
    const { registry, clock, random } = this.#options;
    const options = listOptions(query);
    // `watch` on a single object is a watch of the collection with its name as the selector.
    const named =
      route.name === undefined
        ? {}
        : { fieldSelector: [options.fieldSelector, `metadata.name=${route.name}`].filter(Boolean).join(",") };
    const filter = registry.filter(kind, route.namespace, { ...options, ...named });
    const rendering = renderingOf(request, query);
    const bookmarks = query.get("allowWatchBookmarks") === "true" || query.get("allowWatchBookmarks") === "1";
    const sendInitial = query.get("sendInitialEvents");
    const asked = options.resourceVersion ?? "";
    if (sendInitial !== null && options.resourceVersionMatch !== "NotOlderThan") {
      throw new ApiStatusError(
        422,
        "Invalid",
        `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan`,
        {
          group: "meta.k8s.io",
          kind: "ListOptions",
          causes: [
            {
              reason: "FieldValueForbidden",
              message: "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
              field: "resourceVersionMatch",
            },
          ],
        },
      );
    }
    if (asked !== "" && !/^\d+$/.test(asked)) throw badRequest(`invalid resource version ${JSON.stringify(asked)}`);
    const initial = sendInitial === null ? asked === "" || asked === "0" : sendInitial === "true";
    const after = asked === "" || asked === "0" ? undefined : Number(asked);

    response.writeHead(200, { "content-type": "application/json", "cache-control": "no-cache, private" });
    response.flushHeaders();
    let withColumns = true;
    const write = (type: string, json: string) => {
      response.write(`{"type":"${type}","object":${json}}\n`);
      if (response.writableLength > WATCH_BACKLOG) end(true);
    };
    const deliver = (type: EventType, object: StoredObject) => {
      if (rendering.as === "object") {
        write(type, this.#serialize(object));
        return;
      }
      write(type, JSON.stringify(this.#render(kind, object, rendering, withColumns)));
      withColumns = false;
    };
    const bookmark = (annotations?: Record<string, string>) => {
      const object = {
        kind: kind.kind,
        apiVersion: apiVersionOf(kind),
        metadata: {
          resourceVersion: String(registry.storage.revision),
          creationTimestamp: null,
          ...(annotations && { annotations }),
        },
      };
      const shown =
        rendering.as === "table"
          ? {
              kind: "Table",
              apiVersion: "meta.k8s.io/v1",
              metadata: { resourceVersion: object.metadata.resourceVersion },
              columnDefinitions: null,
              rows: [
                {
                  cells: [],
                  object: { kind: "PartialObjectMetadata", apiVersion: "meta.k8s.io/v1", metadata: object.metadata },
                },
              ],
            }
          : object;
      write("BOOKMARK", JSON.stringify(shown));
    };

    const cleanups: (() => void)[] = [];
    let ended = false;
    const end = (abruptly = false) => {
      if (ended) return;
      ended = true;
      for (const cleanup of cleanups) cleanup();
      this.#watches.delete(endGracefully);
      if (abruptly) response.destroy();
      else response.end();
    };
    const endGracefully = () => end();
    this.#watches.add(endGracefully);
    response.on("close", endGracefully);

    try {
      cleanups.push(startWatch(registry.storage, storageName(kind), filter, { initial, after }, deliver));
    } catch (error) {
      // The stream is open already, so the failure travels in it, as an ERROR event.
      if (!(error instanceof ApiStatusError)) throw error;
      write("ERROR", JSON.stringify(error.body));
      end();
      return;
    }
    if (sendInitial === "true" && bookmarks) bookmark({ "k8s.io/initial-events-end": "true" });

    const limit = Number(query.get("timeoutSeconds") ?? 0) * 1000 || DEFAULT_WATCH_MS * (1 + random());
    cleanups.push(clock.after(limit, endGracefully));
    if (bookmarks) {
      const tick = () => {
        bookmark();
        cleanups.push(clock.after(this.#options.bookmarkIntervalMs, tick));
      };
      cleanups.push(clock.after(this.#options.bookmarkIntervalMs, tick));
    }
  }

  #serialize(object: StoredObject): string {
    let json = this.#serialized.get(object);
    if (json === undefined) {
      json = JSON.stringify(object);
      this.#serialized.set(object, json);
    }
    return json;
  }
}

/** Splits an API path; undefined for everything that names no resource, such as discovery. */
function parseRoute(path: string): Route | undefined {
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

function verbOf(method: string, route: Route, query: URLSearchParams): string {
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

const attributesOf = (route: Route, verb: string): Attributes => ({
  verb,
  path: "",
  group: route.group,
  version: route.version,
  resource: route.resource,
  ...(route.tail[0] !== undefined && { subresource: route.tail[0] }),
  ...(route.namespace !== undefined && { namespace: route.namespace }),
  ...(route.name !== undefined && { name: route.name }),
});

function writeContext(user: User, query: URLSearchParams): WriteContext {
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

function listOptions(query: URLSearchParams): ListOptions {
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

async function deleteOptions(request: IncomingMessage, query: URLSearchParams): Promise<DeleteOptions> {
  const body = await readBody(request, false, true);
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

function patchTypeOf(request: IncomingMessage): PatchType {
  const type = patchTypes[mediaType(request)];
  if (!type) throw new ApiStatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {});
  return type;
}

/** The parsed body; undefined when it is empty and may be. */
async function readBody(request: IncomingMessage, isPatch = false, optional = false): Promise<Json> {
  const type = mediaType(request);
  const isYaml = type === "application/yaml" || type === "application/apply-patch+yaml";
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > BODY_LIMIT) throw entityTooLarge(BODY_LIMIT);
    chunks.push(chunk);
  }
  const raw = Buffer.concat(chunks);
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
  } catch (error) {
    throw badRequest(`couldn't get version/kind; json parse error: ${toError(error).message}`);
  }
}

/** Which form the client wants: the first in its Accept header that this server has. */
function renderingOf(request: IncomingMessage, query: URLSearchParams): Rendering {
  const accept = request.headers.accept ?? "*/*";
  for (const clause of accept.split(",")) {
    const [type = "", ...params] = clause.split(";").map((part) => part.trim());
    if (type !== "application/json" && type !== "*/*" && type !== "application/*" && type !== "application/yaml")
      continue;
    const as = params.find((p) => p.startsWith("as="))?.slice(3);
    if (as === undefined) return { as: "object" };
    if (!params.includes("g=meta.k8s.io") || !params.includes("v=v1")) continue;
    if (as === "Table") {
      const include = query.get("includeObject") || "Metadata";
      if (include !== "None" && include !== "Metadata" && include !== "Object")
        throw badRequest(`unrecognized includeObject value: ${include}`);
      return { as: "table", include };
    }
    if (as === "PartialObjectMetadata" || as === "PartialObjectMetadataList") return { as: "metadata" };
  }
  throw notAcceptable(["application/json", "application/yaml"]);
}

const success = (code?: number): StatusBody => ({
  kind: "Status",
  apiVersion: "v1",
  metadata: {},
  status: "Success",
  ...(code !== undefined && { code }),
});

function sendStatus(request: IncomingMessage, response: ServerResponse, body: StatusBody): void {
  const seconds = body.details?.retryAfterSeconds;
  if (seconds !== undefined) response.setHeader("retry-after", String(seconds));
  // The rest of a body that was too large is not worth reading.
  if (body.code === 413) response.setHeader("connection", "close");
  send(request, response, body.code ?? 200, body);
}

function send(
  request: IncomingMessage,
  response: ServerResponse,
  status: number,
  body: Json,
  contentType = "application/json",
): void {
  const text = `${JSON.stringify(body)}\n`;
  const headers: Record<string, string | number> = {
    "content-type": contentType,
    "cache-control": "no-cache, private",
    vary: "Accept, Accept-Encoding",
  };
  const compress = text.length > GZIP_FROM && /\bgzip\b/.test(request.headers["accept-encoding"] ?? "");
  const bytes = compress ? gzipSync(text, { level: 1 }) : Buffer.from(text);
  if (compress) headers["content-encoding"] = "gzip";
  response.writeHead(status, { ...headers, "content-length": bytes.length });
  response.end(request.method === "HEAD" ? undefined : bytes);
}
