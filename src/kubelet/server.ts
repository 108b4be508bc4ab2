/**
 * The kubelet API, with all that serves it in this folder: HTTPS on the node's port, for the API server, metrics-server
 * and Prometheus. Every request is authenticated and authorised before anything else of it is read, and everything a
 * client can hold open is counted and bounded.
 */
import { createServer, type Server as HttpsServer } from "node:https";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Duplex } from "node:stream";
import { constants } from "node:crypto";
import type { SecureContextOptions } from "node:tls";
import { Connections } from "../http/connections.ts";
import { sendLastWords } from "../http/last-words.ts";
import type { Kube } from "../kube/kube.ts";
import type { UserInfo } from "../kube/reviews.ts";
import type { Provider } from "../provider/provider.ts";
import type { UpgradeRequest } from "../streaming/upgrade.ts";
import { UnreadBytes } from "../streaming/unread.ts";
import { AuditLog, type AuditedCommand } from "../telemetry/audit.ts";
import type { HealthChecks } from "../telemetry/health.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import { linkAbort } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { TLS_CIPHERS } from "../util/tls-ciphers.ts";
import { auditRequest, type AuditedRequest } from "./audit.ts";
import { Authenticator, Authorizer, Reviews, type AuthOptions } from "./auth.ts";
import type { MachineCapacity } from "./endpoints/metrics-cadvisor.ts";
import { HttpError, statusBody, toHttpError, TooManyFailures } from "./http-error.ts";
import type { PodLookup } from "./pod-lookup.ts";
import { accessOf, matchRoute, parseTarget, type Match, type RequestContext, type Route } from "./router.ts";
import { kubeletRoutes } from "./routes.ts";
import { DEFAULT_SESSION_LIMITS, Sessions, type SessionLimits } from "./sessions.ts";
import { StatsSource, processUsage, type ContainerProbes, type SelfUsage } from "./metrics/stats.ts";
import type { Reloadable } from "./certificates/reloadable.ts";
import type { ServingCertificate } from "./certificates/serving.ts";

interface KubeletLimits {
  /**
   * Connections in all. Default 1024. Beyond that, a new one takes the place of one on which no request has been
   * allowed yet, or, if there is none, of an idle one.
   */
  connections: number;
  /**
   * Connections of one address on which nothing was allowed yet; a new one beyond takes the place of the oldest.
   * Default 512: all users of an API server come from its one address, and a hundred may come at once. Others do not
   * count.
   */
  unauthenticatedPerAddress: number;
  /** Default 10 s. */
  headersTimeoutMs: number;
  /** Until a request is read in whole. Default 30 s. */
  requestTimeoutMs: number;
  /** A client that takes nothing of a plain reply for so long is cut off. Default 30 s. */
  responseIdleMs: number;
  /** Default 90 s, the kubelet's. */
  keepAliveMs: number;
  /** Sessions without traffic. Default 4 h, the kubelet's streamingConnectionIdleTimeout. */
  streamIdleMs: number;
  /** How long a client may take to open its streams. Default 30 s. */
  streamCreationMs: number;
  /** Unread bytes of all sessions that are held in memory. Default 64 MiB. */
  unreadBytes: number;
  sessions: SessionLimits;
}

export const DEFAULT_LIMITS: KubeletLimits = {
  connections: 1024,
  unauthenticatedPerAddress: 512,
  headersTimeoutMs: 10_000,
  requestTimeoutMs: 30_000,
  responseIdleMs: 30_000,
  keepAliveMs: 90_000,
  streamIdleMs: 4 * 3600_000,
  streamCreationMs: 30_000,
  unreadBytes: 64 * 1024 * 1024,
  sessions: DEFAULT_SESSION_LIMITS,
};

/** A command to execute is part of the URL, and scripts are passed that way: as much as the backend's side takes. */
const MAX_HEADER_BYTES = 64 * 1024;
const MAX_BODY_BYTES = 64 * 1024;
const TCP_KEEPALIVE_MS = 30_000;
/** How long a client that tries too many credentials waits for its refusal. */
const REFUSAL_DELAY_MS = 1_000;

export interface KubeletServerOptions {
  host: string;
  /** 0 takes a free one. */
  port: number;
  nodeName: string;
  provider: Provider;
  pods: PodLookup;
  /** For reviews. Needs `create` on tokenreviews and subjectaccessreviews. */
  kube: Kube;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
  certificate: Reloadable<ServingCertificate>;
  /** Without one, or while it has no value, only bearer tokens are accepted. */
  clientCa?: Reloadable<string> | undefined;
  /**
   * Answer GET of /metrics/resource and /stats/summary without credentials. For test suites that scrape through
   * pods/proxy. Default false.
   */
  anonymousMetrics?: boolean | undefined;
  /** Select this node's machines, for one call of `getStats`. */
  machineLabels: Readonly<Record<string, string>>;
  capacity: () => MachineCapacity;
  livez: HealthChecks;
  /** The effective KubeletConfiguration, without kind and apiVersion. */
  configuration: () => object;
  /** The tallies of the probes that the agent runs itself. */
  ownProbes?: (() => readonly ContainerProbes[]) | undefined;
  /** How much of a command the audit says. Default: its first word. */
  auditCommands?: AuditedCommand | undefined;
  auth?:
    | Pick<AuthOptions, "tokenTtlMs" | "allowTtlMs" | "denyTtlMs" | "failuresPerSecond" | "maxReviewsInFlight">
    | undefined;
  limits?: Partial<KubeletLimits> | undefined;
  selfUsage?: SelfUsage | undefined;
}

export interface KubeletServer {
  /** @throws when the address cannot be bound */
  listen(): Promise<void>;
  /** The port listened on. */
  readonly port: number;
  /** Reloads certificates and the CA until the signal aborts. */
  run(signal: AbortSignal): Promise<void>;
  /** Refuses new connections, ends streams, and after `graceMs` (default 5 s) cuts what is left. */
  close(graceMs?: number): Promise<void>;
}

/** The API server's name for a client without credentials. */
const ANONYMOUS: UserInfo = { username: "system:anonymous", groups: ["system:unauthenticated"] };

function isMetricsRead({ method, url = "" }: IncomingMessage): boolean {
  return method === "GET" && /^\/(metrics\/resource|stats\/summary)(\?|$)/.test(url);
}

export function createKubeletServer(options: KubeletServerOptions): KubeletServer {
  return new Server(options);
}

class Server implements KubeletServer {
  readonly #options: KubeletServerOptions;
  readonly #limits: KubeletLimits;
  readonly #server: HttpsServer;
  readonly #routes: readonly Route[];
  readonly #audit: AuditLog;
  readonly #authenticator: Authenticator;
  readonly #authorizer: Authorizer;
  readonly #connections: Connections;
  /** The client CA that each connection's certificate was checked against. */
  readonly #checkedBy = new WeakMap<Socket, string>();
  readonly #stopping = new AbortController();

  constructor(options: KubeletServerOptions) {
    this.#options = options;
    this.#limits = { ...DEFAULT_LIMITS, ...options.limits };
    const { clock, logger, metrics, provider, pods } = options;
    this.#audit = new AuditLog({ logger, clock, commands: options.auditCommands });
    const reviews = new Reviews(options.kube, options.auth?.maxReviewsInFlight ?? 32);
    const auth: AuthOptions = {
      ...options.auth,
      nodeName: options.nodeName,
      kube: options.kube,
      clock,
      logger,
      metrics,
      acceptCertificates: (connection) => !this.#isOutdated(connection) && this.#checkedBy.has(connection),
    };
    this.#authenticator = new Authenticator(auth, reviews);
    this.#authorizer = new Authorizer(auth, reviews);
    this.#routes = kubeletRoutes({
      lookup: pods,
      provider,
      clock,
      metrics,
      sessions: new Sessions(this.#limits.sessions, metrics),
      streamLimits: {
        clock,
        idleTimeoutMs: this.#limits.streamIdleMs,
        creationTimeoutMs: this.#limits.streamCreationMs,
      },
      unread: new UnreadBytes(this.#limits.unreadBytes),
      stats: new StatsSource({
        provider,
        pods,
        labels: options.machineLabels,
        clock,
        logger,
        selfUsage: options.selfUsage ?? processUsage,
      }),
      nodeName: options.nodeName,
      startedAtMs: clock.now(),
      capacity: options.capacity,
      livez: options.livez,
      configuration: options.configuration,
      ownProbes: options.ownProbes ?? (() => []),
    });
    this.#server = createServer({
      ...this.#secureContext(),
      ALPNProtocols: ["http/1.1"],
      requestCert: true,
      rejectUnauthorized: false,
      handshakeTimeout: this.#limits.headersTimeoutMs,
      // Probes detect a peer that vanished: on a connection that follows a silent log, neither side sends anything.
      keepAlive: true,
      keepAliveInitialDelay: TCP_KEEPALIVE_MS,
      noDelay: true,
      headersTimeout: this.#limits.headersTimeoutMs,
      requestTimeout: this.#limits.requestTimeoutMs,
      connectionsCheckingInterval: Math.min(5_000, this.#limits.headersTimeoutMs),
      keepAliveTimeout: this.#limits.keepAliveMs,
      maxHeaderSize: MAX_HEADER_BYTES,
    });
    this.#server.maxHeadersCount = 100;
    this.#connections = new Connections(this.#server, {
      total: this.#limits.connections,
      strangersPerAddress: this.#limits.unauthenticatedPerAddress,
    });
    this.#server.on("secureConnection", (socket) => {
      const ca = options.clientCa?.current();
      if (ca !== undefined) this.#checkedBy.set(socket, ca);
    });
    // A connection that could not be accepted, for example without a free file descriptor.
    this.#server.on("error", (error) => logger.warn({ err: error.message }, "kubelet API server error"));
    this.#server.on("request", (request, response) => void this.#serve(request, response));
    this.#server.on("upgrade", (request, socket, head) => void this.#upgrade(request, socket, head));
    this.#server.on("tlsClientError", (error) => logger.debug({ err: error.message }, "TLS handshake failed"));
    this.#server.on("clientError", (error, socket) => {
      if (this.#connections.canAnswer(socket)) answerClientError(error, socket);
      else socket.destroy();
    });
    options.certificate.onChange(() => this.#reload());
    options.clientCa?.onChange(() => {
      this.#reload();
      // Their handshakes may be under way, with the CA before.
      this.#connections.destroyStrangers();
    });
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  listen(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once("error", reject);
      this.#server.listen(this.#options.port, this.#options.host, () => {
        this.#server.off("error", reject);
        resolve();
      });
    });
  }

  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.#options.certificate.run(signal), this.#options.clientCa?.run(signal)]);
  }

  async close(graceMs = 5_000): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#connections.close();
    this.#stopping.abort(new Error("the node is shutting down"));
    this.#server.closeIdleConnections();
    const cancel = this.#options.clock.after(graceMs, () => this.#connections.destroyAll());
    await closed;
    cancel();
  }

  /** All of it, since a new context takes nothing over from the one before. */
  #secureContext(): SecureContextOptions {
    const pair = this.#options.certificate.current();
    const ca = this.#options.clientCa?.current();
    return {
      ...pair,
      // An empty list, for without any Node would trust the public CAs.
      ca: ca === undefined ? [] : [ca],
      minVersion: "TLSv1.2",
      ciphers: TLS_CIPHERS,
      // No tickets: a resumed session would carry a client certificate past a change of the CA.
      secureOptions: constants.SSL_OP_NO_TICKET | constants.SSL_OP_NO_RENEGOTIATION,
    };
  }

  /**
   * New connections see the new certificate and CA; idle ones are closed, so that an old CA does not live on in them.
   * The others are closed after their response.
   */
  #reload(): void {
    this.#server.setSecureContext(this.#secureContext());
    this.#server.closeIdleConnections();
  }

  #isOutdated(connection: Socket): boolean {
    return this.#checkedBy.get(connection) !== this.#options.clientCa?.current();
  }

  async #authorize(
    request: IncomingMessage,
    audited: AuditedRequest | undefined,
  ): Promise<{ user: UserInfo; match: Match; path: string; query: URLSearchParams }> {
    const isOpen = this.#options.anonymousMetrics === true && isMetricsRead(request);
    const user = isOpen ? ANONYMOUS : await this.#authenticator.authenticate(request);
    if (audited !== undefined) audited.user = user;
    const { path, query } = parseTarget(request.url ?? "");
    const method = request.method ?? "";
    const match = matchRoute(this.#routes, method, path);
    if (!isOpen) {
      await this.#authorizer.authorize(user, accessOf(match, method, path));
      // Not before: every pod of the cluster has a token that authenticates.
      this.#connections.trust(request.socket);
    }
    if (match === undefined) throw new HttpError(404, "404 page not found");
    if (match === "method not allowed") throw new HttpError(405, "405: Method Not Allowed");
    return { user, match, path, query };
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    // A client that tries thousands of tokens would take all our time with refusals. So requests that it sent behind
    // the first refused one are not looked at, and what it still sends is not read.
    if (this.#authenticator.hasGivenUp(request.socket)) {
      request.socket.pause();
      return;
    }
    const cancel = new AbortController();
    response.once("close", () => {
      cancel.abort(new Error("the client closed the connection"));
      if (this.#isOutdated(request.socket)) request.socket.destroySoon();
    });
    response.on("error", () => {});
    const { signal, release } = linkAbort(cancel.signal, this.#stopping.signal);
    let finish = () => {};
    const audited = auditRequest(this.#audit, this.#routes, request);
    const notes = audited?.notes ?? {};
    let error: HttpError | undefined;
    try {
      const { user, match, query } = await this.#authorize(request, audited);
      const { handler } = match.route;
      finish = this.#observe(request, match.route);
      await discardBody(request);
      const context: RequestContext = { params: match.params, query, user, request, signal, notes };
      if (handler.kind === "upgrade") throw new HttpError(400, "unable to upgrade: missing upgrade headers in request");
      if (handler.kind === "stream") {
        await handler.handle(context, response);
        return;
      }
      const { status, contentType, body } = await handler.handle(context);
      response.setTimeout(this.#limits.responseIdleMs, () => response.destroy());
      response.writeHead(status, {
        "content-type": contentType,
        "x-content-type-options": "nosniff",
        "content-length": Buffer.byteLength(body),
      });
      response.end(request.method === "HEAD" ? undefined : body);
    } catch (thrown) {
      error = this.#errorOf(thrown);
      this.#report(thrown, request, signal);
      if (thrown instanceof TooManyFailures) await this.#holdBack(signal);
      // A reply that has begun can only be broken off, so that the client sees that it is not whole.
      if (response.headersSent) response.destroy();
      else if (!response.destroyed) {
        response.setTimeout(this.#limits.responseIdleMs, () => response.destroy());
        answerError(response, error, request);
      }
    } finally {
      release();
      finish();
      audited?.end(error);
    }
  }

  async #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const cancel = new AbortController();
    socket.on("error", () => {});
    socket.once("close", () => cancel.abort(new Error("the client closed the connection")));
    const { signal, release } = linkAbort(cancel.signal, this.#stopping.signal);
    const upgrade: UpgradeRequest = { request, socket, head, answered: false };
    let finish = () => {};
    const audited = auditRequest(this.#audit, this.#routes, request);
    const notes = audited?.notes ?? {};
    let error: HttpError | undefined;
    try {
      const { user, match, query } = await this.#authorize(request, audited);
      finish = this.#observe(request, match.route);
      if (match.route.handler.kind !== "upgrade")
        throw new HttpError(400, "this endpoint does not upgrade connections");
      const context: RequestContext = { params: match.params, query, user, request, signal, notes };
      await match.route.handler.handle(context, upgrade);
      socket.destroy();
    } catch (thrown) {
      error = this.#errorOf(thrown);
      this.#report(thrown, request, signal);
      if (thrown instanceof TooManyFailures) await this.#holdBack(signal);
      if (upgrade.answered) socket.destroy();
      else refuseUpgrade(socket, error);
    } finally {
      release();
      finish();
      audited?.end(error);
    }
  }

  /** Makes the client wait, so that it cannot try the next tokens at once on another connection. */
  async #holdBack(signal: AbortSignal): Promise<void> {
    await this.#options.clock.sleep(REFUSAL_DELAY_MS, signal).catch(() => {});
  }

  /** Counts the request by its route's first segment, of which there are few. */
  #observe(request: IncomingMessage, route: Route): () => void {
    const { metrics, clock } = this.#options;
    const labels = {
      method: request.method ?? "",
      path: route.pattern.split("/")[1] ?? "",
      server_type: "readwrite",
      long_running: String(route.handler.kind !== "plain"),
    };
    const startedAt = clock.monotonic();
    metrics.httpRequests.inc(labels);
    metrics.httpInflight.inc(labels);
    return () => {
      metrics.httpInflight.dec(labels);
      metrics.httpDuration.observe(labels, (clock.monotonic() - startedAt) / 1000);
    };
  }

  #errorOf(thrown: unknown): HttpError {
    return toHttpError(thrown, this.#options.nodeName);
  }

  #report(thrown: unknown, request: IncomingMessage, signal: AbortSignal): void {
    const { status } = this.#errorOf(thrown);
    const fields = {
      method: request.method,
      path: (request.url ?? "").split("?", 1)[0],
      status,
      err: toError(thrown),
    };
    // A failure that follows from the client's leaving is not an error.
    if (status === 500 && !(thrown instanceof HttpError) && !signal.aborted)
      this.#options.logger.warn(fields, "kubelet API request failed");
    else this.#options.logger.debug(fields, "kubelet API request refused");
  }
}

/** No route takes a body; a small one is read away so that the connection can be used again. */
async function discardBody(request: IncomingMessage): Promise<void> {
  let size = 0;
  for await (const chunk of request) {
    size += (chunk as Buffer).length;
    if (size > MAX_BODY_BYTES) throw new HttpError(413, "request body too large", [["Connection", "close"]]);
  }
}

const TEXT_TYPE = "text/plain; charset=utf-8";

function errorHeaders(error: HttpError, contentType: string): [string, string][] {
  return [
    ...error.headers.map(([name, value]): [string, string] => [name, value]),
    ...(error.status === 401 ? [["WWW-Authenticate", "Bearer"] as [string, string]] : []),
    ["Content-Type", contentType],
    ["X-Content-Type-Options", "nosniff"],
  ];
}

/** In plain text, of which the API server makes a Status, as of a kubelet's. */
function answerError(response: ServerResponse, error: HttpError, request: IncomingMessage): void {
  for (const [name, value] of errorHeaders(error, TEXT_TYPE)) response.appendHeader(name, value);
  // The body was not read; it must not be taken for the next request.
  if (!request.complete || error instanceof TooManyFailures) response.setHeader("connection", "close");
  response.writeHead(error.status);
  response.end(request.method === "HEAD" ? undefined : error.message);
}

/**
 * The API server passes this on untouched, and kubectl shows what a Status says. But 401 is about the API server's
 * credentials, and of a Status with it kubectl would say that its user must log in.
 */
function refuseUpgrade(socket: Duplex, error: HttpError): void {
  const [contentType, body] =
    error.status === 401 ? [TEXT_TYPE, error.message] : ["application/json", statusBody(error)];
  sendLastWords(socket, { status: error.status, headers: errorHeaders(error, contentType), body });
}

/** What Node's parser refused, answered without a word about why. */
function answerClientError(error: NodeJS.ErrnoException, socket: Duplex): void {
  const status = error.code === "HPE_HEADER_OVERFLOW" ? 431 : error.code === "ERR_HTTP_REQUEST_TIMEOUT" ? 408 : 400;
  sendLastWords(socket, { status, headers: [["Content-Type", TEXT_TYPE]], body: "" });
}
