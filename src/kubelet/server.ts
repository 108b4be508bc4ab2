/**
 * The kubelet API, with all that serves it in this folder: HTTPS on the node's port, for the API server, metrics-server
 * and Prometheus. Every request is authenticated and authorised before anything else of it is read, and everything a
 * client can hold open is counted and bounded.
 */
import { createServer, type Server as HttpsServer } from "node:https";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { SecureContextOptions } from "node:tls";
import { readBody } from "../http/body.ts";
import { Connections } from "../http/connections.ts";
import { loggedPath, sendReply, whileConnected } from "../http/exchange.ts";
import { HttpError } from "../http/http-error.ts";
import { closeWithin, listen } from "../http/listen.ts";
import { matchRoute } from "../http/routes.ts";
import { serverOptions, tlsContext } from "../http/server-options.ts";
import type { UserInfo } from "../kube/reviews.ts";
import type { UpgradeRequest } from "../streaming/upgrade.ts";
import { linkAbort, type LinkedSignal } from "../util/abort.ts";
import { UnreadBytes } from "../util/unread.ts";
import { AuditLog } from "../telemetry/audit.ts";
import { readTraceContext } from "../telemetry/trace-context.ts";
import { traced } from "../telemetry/tracing.ts";
import { toError } from "../util/errors.ts";
import { auditRequest, type AuditedRequest } from "./audit.ts";
import { Authenticator, Authorizer, Reviews, type AuthOptions } from "./auth.ts";
import { StatsSource, processUsage } from "./metrics/stats.ts";
import { DEFAULT_LIMITS, type KubeletLimits, type KubeletServerOptions } from "./options.ts";
import { answerClientError, answerError, refuseUpgrade, toHttpError, TooManyFailures } from "./refusals.ts";
import { accessOf, parseTarget, type Handler, type Match, type RequestContext, type Route } from "./router.ts";
import { kubeletRoutes } from "./routes.ts";
import { Sessions } from "./sessions.ts";

/** No route takes a body; a small one is read away so that the connection can be used again. */
const MAX_BODY_BYTES = 64 * 1024;
/** How long a client that tries too many credentials waits for its refusal. */
const REFUSAL_DELAY_MS = 1_000;

/** The API server's name for a client without credentials. */
const ANONYMOUS: UserInfo = { username: "system:anonymous", groups: ["system:unauthenticated"] };

function isMetricsRead({ method, url = "" }: IncomingMessage): boolean {
  return method === "GET" && /^\/(metrics\/resource|stats\/summary)(\?|$)/.test(url);
}

export class KubeletServer {
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
  #port = 0;

  constructor(options: KubeletServerOptions) {
    this.#options = options;
    this.#limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.#audit = new AuditLog({
      logger: options.logger,
      clock: options.clock,
      commands: options.auditCommands,
    });
    const reviews = new Reviews(options.kube, options.auth?.maxReviewsInFlight ?? 32);
    const auth: AuthOptions = {
      ...options.auth,
      nodeName: options.nodeName,
      kube: options.kube,
      clock: options.clock,
      logger: options.logger,
      metrics: options.metrics,
      acceptCertificates: (connection) => !this.#isOutdated(connection) && this.#checkedBy.has(connection),
    };
    this.#authenticator = new Authenticator(auth, reviews);
    this.#authorizer = new Authorizer(auth, reviews);
    this.#routes = routesOf(options, this.#limits);
    this.#server = createServer({
      ...serverOptions({
        headersMs: this.#limits.headersTimeoutMs,
        requestMs: this.#limits.requestTimeoutMs,
        keepAliveMs: this.#limits.keepAliveMs,
      }),
      ...this.#tlsContext(),
      ALPNProtocols: ["http/1.1"],
      requestCert: true,
      rejectUnauthorized: false,
    });
    this.#server.maxHeadersCount = 100;
    this.#connections = new Connections(this.#server, {
      total: this.#limits.connections,
      strangersPerAddress: this.#limits.unauthenticatedPerAddress,
    });
    this.#hear();
    options.certificate.onChange(() => this.#reload());
    options.clientCa?.onChange(() => {
      this.#reload();
      // Their handshakes may be under way, with the CA before.
      this.#connections.destroyStrangers();
    });
  }

  /** The port listened on. */
  get port(): number {
    return this.#port;
  }

  /** @throws Error when the address cannot be bound */
  async listen(): Promise<void> {
    const { host, port, logger } = this.#options;
    this.#port = await listen(this.#server, { host, port }, (error) =>
      logger.warn({ err: error }, "Kubelet API server error"),
    );
  }

  /** Reloads certificates and the CA until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.#options.certificate.run(signal), this.#options.clientCa?.run(signal)]);
  }

  /** Refuses new connections, ends streams, and after `graceMs` cuts what is left. */
  async close(graceMs = 5_000): Promise<void> {
    this.#connections.close();
    this.#stopping.abort(new Error("the node is shutting down"));
    await closeWithin(this.#server, graceMs, this.#options.clock, () => this.#connections.destroyAll());
  }

  #hear(): void {
    const { clientCa, logger } = this.#options;
    this.#server.on("secureConnection", (socket) => {
      const ca = clientCa?.current();
      if (ca !== undefined) this.#checkedBy.set(socket, ca);
    });
    this.#server.on("request", (request, response) => void this.#serve(request, response));
    this.#server.on("upgrade", (request, socket, head) => void this.#upgrade(request, socket, head));
    this.#server.on("tlsClientError", (error) => logger.debug({ err: error }, "TLS handshake failed"));
    this.#connections.answerGarbage(answerClientError);
  }

  #tlsContext(): SecureContextOptions {
    return tlsContext(this.#options.certificate.current(), this.#options.clientCa?.current());
  }

  /**
   * New connections see the new certificate and CA; idle ones are closed, so that an old CA does not live on in them.
   * The others are closed after their response.
   */
  #reload(): void {
    this.#server.setSecureContext(this.#tlsContext());
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
    response.once("close", () => {
      if (this.#isOutdated(request.socket)) request.socket.destroySoon();
    });
    await this.#answer(request, response, {
      handle: async (handler, context) => {
        await readBody(request, MAX_BODY_BYTES);
        if (handler.kind === "upgrade")
          throw new HttpError(400, "unable to upgrade: missing upgrade headers in request");
        if (handler.kind === "stream") return await handler.handle(context, response);
        const { status, contentType, body } = await handler.handle(context);
        response.setTimeout(this.#limits.responseIdleMs, () => response.destroy());
        sendReply(response, status, { "content-type": contentType, "x-content-type-options": "nosniff" }, body);
      },
      refuse: (error) => {
        // A reply that has begun can only be broken off, so that the client sees that it is not whole.
        if (response.headersSent) response.destroy();
        else if (!response.destroyed) {
          response.setTimeout(this.#limits.responseIdleMs, () => response.destroy());
          answerError(response, error, request);
        }
      },
    });
  }

  async #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const upgrade: UpgradeRequest = { request, socket, head, answered: false };
    await this.#answer(request, socket, {
      handle: async (handler, context) => {
        if (handler.kind !== "upgrade") throw new HttpError(400, "this endpoint does not upgrade connections");
        await handler.handle(context, upgrade);
        socket.destroy();
      },
      refuse: (error) => {
        if (upgrade.answered) socket.destroy();
        else refuseUpgrade(socket, error);
      },
    });
  }

  /** From the question who calls to the line in the audit, for plain requests and upgrades alike. Never rejects. */
  async #answer(
    request: IncomingMessage,
    stream: ServerResponse | Duplex,
    answer: {
      handle(handler: Handler, context: RequestContext): Promise<void>;
      refuse(error: HttpError): void;
    },
  ): Promise<void> {
    const gone = () => new Error("the client closed the connection");
    using exchange = whileConnected(stream, gone, this.#stopping.signal);
    const { signal } = exchange;
    const audited = auditRequest(this.#audit, this.#routes, request);
    let finish = () => {};
    let error: HttpError | undefined;
    try {
      const { user, match, query } = await this.#authorize(request, audited);
      finish = this.#observe(request, match.route);
      const { params, route } = match;
      const notes = audited?.notes ?? {};
      using limited = this.#whileYoung(signal, route);
      const context = { params, query, user, request, signal: limited.signal, notes };
      await this.#traced(route, context, () => answer.handle(route.handler, context));
    } catch (thrown) {
      error = toHttpError(thrown, this.#options.nodeName);
      this.#report(thrown, error, request, signal);
      if (thrown instanceof TooManyFailures) await this.#holdBack(signal);
      answer.refuse(error);
    } finally {
      finish();
      audited?.end(error);
    }
  }

  /** A session or a log as a span; of the API server's trace, and of no other caller's. */
  async #traced(route: Route, { params, request }: RequestContext, work: () => Promise<void>): Promise<void> {
    const { tracing, nodeName } = this.#options;
    if (tracing === undefined || route.handler.kind === "plain") return await work();
    const parent = this.#authenticator.isByCertificate(request) ? readTraceContext(request.headers) : undefined;
    const attributes = {
      "http.request.method": request.method,
      "http.route": route.pattern,
      "k8s.node.name": nodeName,
      "k8s.namespace.name": params["namespace"],
      "k8s.pod.name": params["pod"],
      "k8s.container.name": params["container"],
    };
    await traced(tracing, `${request.method ?? ""} ${route.pattern}`, { kind: "server", parent, attributes }, work);
  }

  /** Aborts with `signal`, or when what the route serves has gone on for as long as it may. */
  #whileYoung(signal: AbortSignal, { handler }: Route): LinkedSignal {
    const { sessionMaxAgeMs } = this.#limits;
    const tooOld = new AbortController();
    const linked = linkAbort(signal, tooOld.signal);
    if (handler.kind === "plain" || sessionMaxAgeMs === Infinity) return linked;
    const cancel = this.#options.clock.after(sessionMaxAgeMs, () =>
      tooOld.abort(new Error(`it has gone on for ${sessionMaxAgeMs / 1000} s, as long as a session may on this node`)),
    );
    const release = () => {
      cancel();
      linked.release();
    };
    return { signal: linked.signal, release, [Symbol.dispose]: release };
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

  #report(thrown: unknown, { status }: HttpError, request: IncomingMessage, signal: AbortSignal): void {
    const fields = { method: request.method, path: loggedPath(request), status, err: toError(thrown) };
    // A failure that follows from the client's leaving is not an error.
    if (status === 500 && !(thrown instanceof HttpError) && !signal.aborted)
      this.#options.logger.warn(fields, "Kubelet API request failed");
    else this.#options.logger.debug(fields, "Kubelet API request refused");
  }
}

function routesOf(options: KubeletServerOptions, limits: KubeletLimits): readonly Route[] {
  const { clock, logger, metrics, provider, pods } = options;
  return kubeletRoutes({
    lookup: pods,
    provider,
    can: options.can ?? (() => undefined),
    clock,
    metrics,
    sessions: new Sessions(limits.sessions, metrics),
    streamLimits: { clock, idleTimeoutMs: limits.streamIdleMs, creationTimeoutMs: limits.streamCreationMs },
    unread: new UnreadBytes(limits.unreadBytes),
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
    version: options.version,
    capacity: options.capacity,
    livez: options.livez,
    configuration: options.configuration,
    ownProbes: options.ownProbes ?? (() => []),
  });
}
