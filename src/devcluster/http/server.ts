/**
 * The HTTP face: finds out what a request asks for, asks the object API, answers. Knows nothing of particular kinds.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { sendLastWords } from "../../http/last-words.ts";
import type { Logger } from "../../telemetry/logger.ts";
import { toError } from "../../util/errors.ts";
import type { Clock } from "../../util/clock.ts";
import type { Random } from "../../util/random.ts";
import type { Attributes, Auth } from "../auth/auth.ts";
import { answerReview, requestToken, reviewKinds } from "../auth/reviews.ts";
import { findKind } from "../kinds/kinds.ts";
import type { ListResult } from "../kinds/listing.ts";
import type { ObjectApi, User, WriteContext } from "../kinds/object-api.ts";
import { scaleOf, writeScale } from "../kinds/scale.ts";
import { USAGE_GROUP, USAGE_VERSION, usageKinds, type Usage } from "../kubectl/usage.ts";
import {
  ApiStatusError,
  badRequest,
  internalError,
  invalid,
  methodNotAllowed,
  required,
  notServed,
  resourceNotFound,
} from "../objects/errors.ts";
import type { StoredObject } from "../objects/object.ts";
import { serveDocument } from "./documents.ts";
import type { KubeletProxy } from "./kubelet-proxy.ts";
import { renderingOf, renderList, renderObject, send, sendStatus, success } from "./reply.ts";
import {
  attributesOf,
  deleteOptions,
  listOptions,
  parseRoute,
  patchTypeOf,
  readBody,
  verbOf,
  writeContext,
  type ApiRequest,
  type KindRequest,
} from "./request.ts";
import { Watches } from "./watches.ts";

interface ApiServerOptions {
  objects: ObjectApi;
  auth: Auth;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** Takes requests for logs, exec, attach, port-forward and node proxies. */
  kubelets: KubeletProxy;
  /** Answers for `metrics.k8s.io`. */
  usage: Usage;
  /** How often an idle watch that allows bookmarks gets one. */
  bookmarkIntervalMs: number;
}

/** What manifests and kubectl's own commands ask every cluster for. */
const NOT_SERVED: ReadonlySet<string> = new Set([
  ...["clusterrolebindings", "clusterroles", "customresourcedefinitions", "ingressclasses", "ingresses", "limitranges"],
  ...["networkpolicies", "persistentvolumeclaims", "persistentvolumes", "replicationcontrollers", "resourcequotas"],
  ...["mutatingwebhookconfigurations", "rolebindings", "roles", "storageclasses", "validatingwebhookconfigurations"],
]);

export class ApiServer {
  readonly #options: ApiServerOptions;
  readonly #usage: Usage;
  readonly #watches: Watches;

  constructor(options: ApiServerOptions) {
    this.#options = options;
    this.#usage = options.usage;
    this.#watches = new Watches(options);
  }

  /** Answers one request; every failure becomes a Status. */
  async handle(message: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      await this.#dispatch(message, response);
    } catch (thrown) {
      const status = thrown instanceof ApiStatusError ? thrown : internalError(toError(thrown).message);
      if (!(thrown instanceof ApiStatusError))
        this.#options.logger.error({ err: thrown, url: message.url }, "Devcluster request failed");
      if (response.headersSent) response.destroy();
      else sendStatus({ message, response }, status.body);
    }
  }

  /** Answers an Upgrade request: only kubelets speak upgraded protocols. */
  async handleUpgrade(message: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    // Node watches an upgraded connection no more: unheard, its reset would end the process.
    socket.on("error", () => socket.destroy());
    try {
      const url = new URL(message.url ?? "/", "http://devcluster");
      const route = parseRoute(url.pathname);
      if (!route) throw resourceNotFound();
      this.#authorize(message, { ...attributesOf(route, "get"), path: url.pathname });
      if (!(await this.#options.kubelets.handleUpgrade(message, socket, head)))
        throw badRequest("this resource cannot be upgraded");
    } catch (thrown) {
      const { body } = thrown instanceof ApiStatusError ? thrown : internalError(toError(thrown).message);
      const headers = [["Content-Type", "application/json"]] as const;
      sendLastWords(socket, { status: body.code ?? 500, headers, body: JSON.stringify(body) });
    }
  }

  /** Ends every open watch, as a server that shuts down does. */
  closeWatches(): void {
    this.#watches.close();
  }

  async #dispatch(message: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname, searchParams: query } = new URL(message.url ?? "/", "http://devcluster");
    const path = pathname.length > 1 && pathname.endsWith("/") ? pathname.slice(0, -1) : pathname;
    const route = parseRoute(path);
    const method = message.method ?? "GET";
    const verb = route ? verbOf(method, route, query) : method.toLowerCase();
    const user = this.#authorize(message, { ...(route && attributesOf(route, verb)), verb, path });
    if (route) await this.#serveResource({ message, response, query, route, verb, user });
    else serveDocument(path, { message, response }, this.#options.auth);
  }

  /** @throws ApiStatusError 401 or 403 */
  #authorize(message: IncomingMessage, attributes: Attributes): User {
    const { auth } = this.#options;
    const user = auth.authenticate(message.headers);
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

  async #serveResource(request: ApiRequest): Promise<void> {
    const { group, version, resource, namespace, name } = request.route;
    const review = reviewKinds.find((r) => r.group === group && r.version === version && r.resource === resource);
    if (review) {
      if (name !== undefined) throw resourceNotFound();
      if (request.message.method !== "POST") throw methodNotAllowed();
      const body = await readBody(request.message);
      send(request, 201, answerReview(review, body, request.user, this.#options.auth));
      return;
    }
    if (group === "" && resource === "bindings" && namespace && request.message.method === "POST") {
      const binding = await readBody(request.message);
      const context = writeContext(request);
      this.#options.objects.bind(namespace, binding?.metadata?.name ?? "", binding, context);
      sendStatus(request, success(201));
      return;
    }
    if (group === USAGE_GROUP) {
      await this.#serveUsage(request);
      return;
    }
    const kind = findKind(group, version, resource);
    if (!kind && NOT_SERVED.has(resource))
      throw notServed(`has no ${resource}`, "kubectl api-resources lists what it has, a real cluster has the rest");
    if (!kind || (kind.namespaced ? namespace === undefined && name !== undefined : namespace !== undefined))
      throw resourceNotFound();
    await this.#serveKind({ ...request, kind });
  }

  async #serveUsage(request: ApiRequest): Promise<void> {
    const { version, resource, namespace, name, tail } = request.route;
    const kind = usageKinds.find((each) => each.resource === resource);
    if (!kind || version !== USAGE_VERSION || tail.length > 0) throw resourceNotFound();
    if (kind.namespaced ? name !== undefined && namespace === undefined : namespace !== undefined)
      throw resourceNotFound();
    if (request.verb !== "get" && request.verb !== "list") throw methodNotAllowed();
    const labelSelector = request.query.get("labelSelector") ?? undefined;
    send(request, 200, await this.#usage.answer({ resource, namespace, name, labelSelector }));
  }

  async #serveKind(request: KindRequest): Promise<void> {
    const { kind, route, verb } = request;
    const subresource = route.tail[0];
    if (subresource === "scale" && kind.scale && route.tail.length === 1) {
      await this.#serveScale(request);
      return;
    }
    if (subresource !== undefined && kind.subresources[subresource] === undefined) {
      await this.#serveAction(request);
      return;
    }
    if (route.tail.length > 1) throw resourceNotFound();
    if (subresource === undefined && !kind.verbs.includes(verb)) throw methodNotAllowed();
    if (subresource !== undefined && !["get", "update", "patch"].includes(verb)) throw methodNotAllowed();
    const { objects } = this.#options;
    const { namespace, name } = route;
    switch (verb) {
      case "list":
        this.#sendList(request, objects.list(kind, namespace, listOptions(request.query)));
        return;
      case "watch":
        this.#watches.serve(request);
        return;
      case "get":
        this.#sendObject(request, 200, objects.get(kind, namespace, name!));
        return;
      case "deletecollection": {
        const options = await deleteOptions(request);
        const context = writeContext(request);
        const list = listOptions(request.query);
        this.#sendList(request, objects.deleteCollection(kind, namespace, list, options, context));
        return;
      }
      default:
        await this.#write(request);
    }
  }

  async #write(request: KindRequest): Promise<void> {
    const { objects } = this.#options;
    const { kind, message, query, route, verb } = request;
    const context = writeContext(request);
    const { namespace, name } = route;
    const subresource = route.tail[0];
    if (verb === "create") {
      if ((kind.namespaced && namespace === undefined) || subresource !== undefined) throw methodNotAllowed();
      const object = objects.create(kind, namespace, await readBody(message), context);
      this.#sendObject(request, 201, object, context);
      return;
    }
    if (name === undefined) throw methodNotAllowed();
    const target = { kind, namespace, name, subresource };
    switch (verb) {
      case "update": {
        const { object, created } = objects.replace(target, await readBody(message), context);
        this.#sendObject(request, created ? 201 : 200, object, context);
        return;
      }
      case "patch": {
        const type = patchTypeOf(message);
        if (type === "apply" && !query.get("fieldManager")) {
          throw invalid({ group: "meta.k8s.io", kind: "PatchOptions" }, "", [
            required("fieldManager", "is required for apply patch"),
          ]);
        }
        const { object, created } = objects.patch(target, type, await readBody(message, { isPatch: true }), context);
        this.#sendObject(request, created ? 201 : 200, object, context);
        return;
      }
      case "delete": {
        const options = await deleteOptions(request);
        const dryRun = context.dryRun || (options.dryRun?.length ?? 0) > 0;
        const { object, gone } = objects.delete(kind, namespace, name, options, { ...context, dryRun });
        if (kind.returnsDeleted || !gone) {
          this.#sendObject(request, 200, object, context);
          return;
        }
        const { uid } = object.metadata;
        sendWarnings(request, context);
        const details = { name, ...(kind.group && { group: kind.group }), kind: kind.resource, uid };
        sendStatus(request, { ...success(), details });
        return;
      }
      default:
        throw methodNotAllowed();
    }
  }

  async #serveScale(request: KindRequest): Promise<void> {
    const { objects } = this.#options;
    const { kind, route, verb, message } = request;
    const at = { namespace: route.namespace!, name: route.name! };
    if (verb === "get") {
      send(request, 200, scaleOf(kind, objects.get(kind, at.namespace, at.name)));
      return;
    }
    if (verb !== "update" && verb !== "patch") throw methodNotAllowed();
    const context = writeContext(request);
    const type = verb === "patch" ? patchTypeOf(message) : undefined;
    send(
      request,
      200,
      writeScale(objects, kind, at, { body: await readBody(message, { isPatch: verb === "patch" }), type }, context),
    );
  }

  /** Subresources that do something instead of writing the object. */
  async #serveAction(request: KindRequest): Promise<void> {
    const { objects, auth, kubelets } = this.#options;
    const { kind, message, response, route } = request;
    const context = writeContext(request);
    if (await kubelets.handleRequest(message, response)) return;
    const action = `${kind.resource}/${route.tail[0]}`;
    if (action === "pods/proxy" || action === "services/proxy")
      throw notServed("passes no requests on to pods", "kubectl port-forward does");
    if (!["pods/binding", "pods/eviction", "serviceaccounts/token"].includes(action) || route.tail.length > 1)
      throw resourceNotFound();
    if (message.method !== "POST") throw methodNotAllowed();
    const body = await readBody(message);
    switch (action) {
      case "pods/binding":
        objects.bind(route.namespace!, route.name!, body, context);
        sendStatus(request, success(201));
        return;
      case "pods/eviction":
        objects.evict(route.namespace!, route.name!, body, context);
        sendStatus(request, success(201));
        return;
      default: {
        const account = objects.get(kind, route.namespace, route.name!);
        send(
          request,
          201,
          requestToken(account, body, auth, (resource, key) => objects.storage.get(resource, key)),
        );
      }
    }
  }

  #sendObject(request: KindRequest, status: number, object: StoredObject, context?: WriteContext): void {
    if (context) sendWarnings(request, context);
    send(request, status, renderObject(request.kind, object, renderingOf(request), this.#options.clock.now()));
  }

  #sendList(request: KindRequest, list: ListResult): void {
    send(request, 200, renderList(request.kind, list, renderingOf(request), this.#options.clock.now()));
  }
}

function sendWarnings({ response }: ApiRequest, { warnings }: WriteContext): void {
  if (warnings.length > 0)
    response.setHeader(
      "warning",
      warnings.map((warning) => `299 - ${JSON.stringify(warning)}`),
    );
}
