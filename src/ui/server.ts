/**
 * `vmlet ui`: a page that shows the machines of a cluster, for the user who started it. It listens on loopback only,
 * holds the user's credentials, and gives the browser rows, logs and terminals, never a credential or a way to any
 * other request. guard.ts says who may ask; a page is fed by feed.ts from the one view of all pages, cluster-view.ts.
 */
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { WebSocketServer, type WebSocket } from "ws";
import { Connections } from "../http/connections.ts";
import { whileConnected, sendReply } from "../http/exchange.ts";
import { HttpError } from "../http/http-error.ts";
import { sendLastWords } from "../http/last-words.ts";
import { closeWithin, listen, urlOf } from "../http/listen.ts";
import { matchRoute } from "../http/routes.ts";
import { serverOptions } from "../http/server-options.ts";
import { isKubeApiError } from "../kube/errors.ts";
import { InvalidNameError, resourcePath } from "../kube/paths.ts";
import type { KubeTransport } from "../kube/transport.ts";
import type { KubeObject } from "../kube/wire.ts";
import type { Logger } from "../telemetry/logger.ts";
import { unlessAborted } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";
import { toError, VmletError } from "../util/errors.ts";
import { asset } from "./assets.ts";
import { ClusterView } from "./cluster-view.ts";
import { eventRows, type WireEvent } from "./events.ts";
import { feed } from "./feed.ts";
import { allowedHosts, requireOwnPage, requireToken, TERMINAL_PROTOCOL } from "./guard.ts";
import { joinSockets, openTerminal } from "./terminal.ts";

const LOOPBACK = "127.0.0.1";
const CONNECTIONS = 128;
/** Feeds, logs and terminals that may be open at once, each. */
const MAX_OPEN = 24;
const GRACE_MS = 1_000;
const MAX_EVENTS = 500;
/** Lines of a log that is opened. */
const TAIL_LINES = 1_000;
const MAX_TERMINAL_MESSAGE = 1 << 20;

interface UiOptions {
  kube: KubeTransport;
  clock: Clock;
  random: Random;
  logger: Logger;
  /** 0 takes a free one. */
  port: number;
  /** The secret of this page, in the letters of base64url; 32 random bytes or more. */
  token: string;
  /** What the page says of where it is. */
  about: { server: string; context: string; version: string };
  /** Pods of this namespace only; undefined for all. */
  namespace: string | undefined;
}

interface Call {
  query: URLSearchParams;
  signal: AbortSignal;
}

interface Route {
  methods: readonly string[];
  pattern: string;
  /** What may be open at once of it. */
  places: Set<object>;
  answer: (call: Call, response: ServerResponse) => Promise<void>;
}

export class UiServer {
  readonly #options: UiOptions;
  readonly #server: Server;
  readonly #connections: Connections;
  readonly #view: ClusterView;
  readonly #webSockets = new WebSocketServer({
    noServer: true,
    maxPayload: MAX_TERMINAL_MESSAGE,
    perMessageDeflate: false,
    // Never the one with the token in it.
    handleProtocols: (names) => (names.has(TERMINAL_PROTOCOL) ? TERMINAL_PROTOCOL : false),
  });
  readonly #stopping = new AbortController();
  readonly #terminals = new Set<object>();
  readonly #routes: readonly Route[];
  #port = 0;

  constructor(options: UiOptions) {
    this.#options = options;
    this.#view = new ClusterView(options);
    const get = (pattern: string, answer: Route["answer"]): Route => ({
      methods: ["GET"],
      pattern,
      places: new Set(),
      answer,
    });
    this.#routes = [
      get("/api/feed", (call, response) => this.#feed(call, response)),
      get("/api/events", (call, response) => this.#events(call, response)),
      get("/api/log", (call, response) => this.#log(call, response)),
    ];
    this.#server = createServer(serverOptions({ headersMs: 10_000, requestMs: 20_000, keepAliveMs: 30_000 }));
    this.#server.maxHeadersCount = 100;
    this.#connections = new Connections(this.#server, { total: CONNECTIONS });
    this.#connections.answerGarbage((_error, socket) => {
      sendLastWords(socket, { status: 400, headers: [], body: "this is not HTTP\n" });
    });
    this.#server.on("request", (request, response) => void this.#serve(request, response));
    this.#server.on("upgrade", (request, socket, head) => void this.#upgrade(request, socket, head));
  }

  /** With the token in its fragment, which no browser sends anywhere. For the user alone. */
  get url(): string {
    return `${urlOf("http", LOOPBACK, this.#port)}/#token=${this.#options.token}`;
  }

  /** @throws Error when the port is taken */
  async listen(): Promise<void> {
    const { port, logger } = this.#options;
    this.#port = await listen(this.#server, { host: LOOPBACK, port }, (error) =>
      logger.warn({ err: error }, "The page's server has an error"),
    );
  }

  /** Watches the cluster until the signal aborts, then closes the server. */
  async run(signal: AbortSignal): Promise<void> {
    await this.#view.run(signal);
    this.#connections.close();
    this.#stopping.abort(new Error("vmlet ui was stopped"));
    await closeWithin(this.#server, GRACE_MS, this.#options.clock, () => this.#connections.destroyAll());
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    using exchange = whileConnected(response, () => new Error("the page is gone"), this.#stopping.signal);
    try {
      request.resume();
      const { pathname, searchParams } = this.#target(request);
      const file = request.method === "GET" ? await asset(pathname) : undefined;
      if (file !== undefined) {
        response.writeHead(200, { ...file.headers, "content-length": file.body.length }).end(file.body);
        return;
      }
      requireToken(request.headers, this.#options.token);
      this.#connections.trust(request.socket);
      const match = matchRoute(this.#routes, request.method ?? "", pathname);
      if (match === undefined) throw new HttpError(404, "there is nothing of that name");
      if (match === "method not allowed") throw new HttpError(405, "this can only be read");
      const { places, answer } = match.route;
      using _ = takePlace(places);
      await answer({ query: searchParams, signal: exchange.signal }, response);
    } catch (thrown) {
      if (exchange.signal.aborted || response.headersSent) response.destroy();
      else refuse(response, this.#problem(thrown));
    }
  }

  async #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    socket.on("error", () => undefined);
    using exchange = whileConnected(socket, () => new Error("the page is gone"), this.#stopping.signal);
    const { signal } = exchange;
    try {
      const { pathname, searchParams } = this.#target(request);
      requireToken(request.headers, this.#options.token);
      this.#connections.trust(request.socket);
      if (pathname !== "/api/terminal") throw new HttpError(404, "there is nothing of that name");
      using _ = takePlace(this.#terminals);
      const target = {
        namespace: required(searchParams, "namespace"),
        pod: required(searchParams, "pod"),
        container: required(searchParams, "container"),
      };
      // A browser is told nothing of an upgrade that is refused, so a refusal comes as the reason of the close.
      const accepted = new Promise<WebSocket>((resolve) => {
        this.#webSockets.handleUpgrade(request, socket, head, resolve);
      });
      const browser = await unlessAborted(accepted, signal);
      browser.on("error", () => undefined);
      try {
        browser.pause();
        const cluster = await openTerminal(target, await this.#options.kube.credentials(signal), signal);
        browser.resume();
        await joinSockets(browser, cluster, signal);
      } catch (thrown) {
        browser.resume();
        const { message } = this.#problem(thrown);
        browser.send(Buffer.concat([Buffer.from([3]), Buffer.from(JSON.stringify({ status: "Failure", message }))]));
        browser.close(4000);
        await once(browser, "close", { signal });
      }
    } catch (thrown) {
      if (signal.aborted) socket.destroy();
      else {
        const { status, message } = this.#problem(thrown);
        sendLastWords(socket, { status, headers: [["Content-Type", "text/plain"]], body: `${message}\n` });
      }
    }
  }

  /** @throws HttpError for what other pages send, and for what is no path */
  #target({ headers, url = "" }: IncomingMessage): URL {
    requireOwnPage(headers, allowedHosts(this.#port));
    const target = url.startsWith("/") ? URL.parse(`http://page${url}`) : null;
    if (target === null || target.host !== "page") throw new HttpError(400, "this is no path");
    return target;
  }

  async #feed({ signal }: Call, response: ServerResponse): Promise<void> {
    const { about, namespace, clock } = this.#options;
    begin(response, "application/x-ndjson");
    for await (const line of feed(this.#view, { ...about, namespace }, { clock, signal }))
      if (!response.write(`${JSON.stringify(line)}\n`)) await once(response, "drain", { signal });
    response.end();
  }

  async #events({ query, signal }: Call, response: ServerResponse): Promise<void> {
    const uid = required(query, "uid");
    // A field selector is a list: a comma in a value would be the next selector.
    if (!/^[\w.:-]{1,253}$/.test(uid)) throw new HttpError(400, "uid: this is no UID");
    const namespace = query.get("namespace") ?? "default";
    const { items } = await this.#options.kube.request<{ items: (KubeObject & WireEvent)[] }>({
      method: "GET",
      path: resourcePath({ resource: "events", namespace }),
      query: { fieldSelector: `involvedObject.uid=${uid}`, limit: MAX_EVENTS },
      signal,
    });
    sendReply(
      response,
      200,
      { "content-type": "application/json", ...PRIVATE },
      JSON.stringify(eventRows(items ?? [])),
    );
  }

  async #log({ query, signal }: Call, response: ServerResponse): Promise<void> {
    const pieces = this.#options.kube.stream({
      path: resourcePath({
        resource: "pods",
        namespace: required(query, "namespace"),
        name: required(query, "pod"),
        subresource: "log",
      }),
      query: {
        container: required(query, "container"),
        tailLines: TAIL_LINES,
        ...(query.get("previous") === "true" ? { previous: true } : { follow: true }),
      },
      signal,
      onOpen: () => begin(response, "text/plain; charset=utf-8"),
    });
    for await (const piece of pieces) if (!response.write(piece)) await once(response, "drain", { signal });
    response.end();
  }

  #problem(thrown: unknown): { status: number; message: string } {
    if (thrown instanceof HttpError) return thrown;
    if (thrown instanceof InvalidNameError) return { status: 400, message: thrown.message };
    // 401 would say that the page's own token is wrong.
    if (isKubeApiError(thrown))
      return { status: thrown.status === 401 || thrown.status < 400 ? 502 : thrown.status, message: thrown.message };
    if (!(thrown instanceof VmletError))
      this.#options.logger.warn({ err: thrown }, "The page's server failed to answer");
    return { status: 502, message: toError(thrown).message };
  }
}

const PRIVATE = { "cache-control": "no-store", "x-content-type-options": "nosniff" };

function begin(response: ServerResponse, contentType: string): void {
  response.writeHead(200, { "content-type": contentType, ...PRIVATE });
  response.flushHeaders();
}

function refuse(response: ServerResponse, { status, message }: { status: number; message: string }): void {
  sendReply(response, status, { "content-type": "text/plain; charset=utf-8", ...PRIVATE }, message.slice(0, 2_000));
}

/** @throws HttpError 429 when all are taken */
function takePlace(places: Set<object>): Disposable {
  if (places.size >= MAX_OPEN) throw new HttpError(429, "too many of these are open: close another page or terminal");
  const place = {};
  places.add(place);
  return { [Symbol.dispose]: () => places.delete(place) };
}

/** @throws HttpError 400 */
function required(query: URLSearchParams, name: string): string {
  const value = query.get(name);
  if (value === null || value === "") throw new HttpError(400, `${name} is missing`);
  return value;
}
