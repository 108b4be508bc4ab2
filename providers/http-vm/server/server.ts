/**
 * Serves any Provider as the Machine API (src/provider/contract/openapi.yaml): who may call, request ids, limits, the
 * error envelope and an orderly end are here; routes.ts and streams.ts translate single requests. It keeps no state of
 * its own.
 */
import { chmodSync } from "node:fs";
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from "node:http";
import { createServer as createTlsServer, Server as TlsServer } from "node:https";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import {
  AuditLog,
  closeWithin,
  Connections,
  listen,
  onAbort,
  type Logger,
  loggedPath,
  matchRoute,
  ProviderError,
  removeStaleSocket,
  sendLastWords,
  sendReply,
  serverOptions,
  systemClock,
  tlsContext,
  type Tracing,
  urlOf,
  whileConnected,
} from "../../../src/provider/kit/index.ts";
import { machineOf, PodNames } from "../pod-names.ts";
import { CallAudit, LOOKUP_MS } from "./audit.ts";
import { Bodies } from "./bodies.ts";
import { type Caller, Clients } from "./clients.ts";
import { asProviderError, isTold, renderError, requestIdOf } from "./http.ts";
import {
  DEFAULT_SERVER_LIMITS,
  type ListenAddress,
  type MachineApiServerOptions,
  type ServerAuth,
  type ServerLimits,
  type ServerTls,
} from "./options.ts";
import { type Exchange, findRoute, type RouteContext } from "./router.ts";
import { ROUTES } from "./routes.ts";
import { STREAM_ROUTES, StreamRoutes } from "./streams.ts";
import { ListenError } from "./listen-error.ts";
import { traceRequest } from "./trace.ts";

/** @see MachineApiServerOptions */
export class MachineApiServer {
  readonly #context: RouteContext;
  readonly #logger: Logger;
  readonly #auth: ServerAuth;
  readonly #clients: Clients;
  readonly #audit: CallAudit;
  readonly #tracing: Tracing | undefined;
  #tls: ServerTls | undefined;
  readonly #server: Server;
  readonly #connections: Connections;
  readonly #streams: StreamRoutes;
  readonly #bodies: Bodies;
  readonly #pods = new PodNames();
  /** Ends what only waits; then, after the grace, everything. */
  readonly #closing = new AbortController();
  readonly #closed = new AbortController();
  /** Connections for which the provider has yet to open a stream. Node no longer looks after them. */
  readonly #upgrading = new Set<Duplex>();

  constructor(options: MachineApiServerOptions) {
    const limits = { ...DEFAULT_SERVER_LIMITS, ...options.limits };
    this.#context = { provider: options.provider, clock: options.clock ?? systemClock, limits };
    this.#logger = options.logger;
    this.#auth = options.auth ?? {};
    this.#clients = new Clients(this.#auth, options.provider, this.#context.clock);
    const audit = new AuditLog({ logger: options.logger, clock: this.#context.clock, commands: options.auditCommands });
    this.#audit = new CallAudit(audit, [...ROUTES, ...STREAM_ROUTES], options.provider);
    this.#tracing = options.tracing;
    this.#tls = options.tls;
    this.#streams = new StreamRoutes(this.#context.clock, options.logger, limits.unreadBytes);
    this.#bodies = new Bodies(limits);
    this.#server = listener(options.tls, limits, (request, response) => void this.#serve(request, response));
    this.#connections = new Connections(this.#server, {
      total: limits.connections,
      strangersPerAddress: limits.strangersPerAddress,
      trustedPerOwner: (this.#auth.clients?.length ?? 0) > 1 ? limits.connectionsPerClient : undefined,
    });
    this.#server.maxRequestsPerSocket = 0;
    this.#server.on("secureConnection", (socket: Socket) => this.#clients.connected(socket));
    this.#server.on("upgrade", (request, socket, head) => void this.#upgrade(request, socket, head));
    this.#connections.answerGarbage((_error, socket) => refuseGarbage(socket));
  }

  /**
   * Port 0 picks a free one. Resolves to what a client's `url` has to be: http(s)://host:port or unix:///path.
   *
   * @throws Error when the address cannot be bound, or other hosts can reach it and no client has to authenticate
   */
  async listen(address: ListenAddress): Promise<{ url: string; port: number }> {
    if ("socketPath" in address) {
      if (!(await removeStaleSocket(address.socketPath)))
        throw new ListenError(`another server listens on ${address.socketPath}: stop it, or choose another path`);
    } else if (!this.#asksForCredentials()) {
      // Who gets a server of this host to send a request would run commands in any machine.
      if (!isLoopback(address.host))
        throw new ListenError(
          `${address.host} is reached by other hosts: give auth or tls.clientCa, or listen on a socket`,
        );
      this.#logger.warn(
        { host: address.host },
        "The Machine API asks for no credentials: every program of this host may use it",
      );
    }
    const where = "socketPath" in address ? { path: address.socketPath } : address;
    const port = await listen(this.#server, where, (thrown) =>
      this.#logger.warn({ err: thrown }, "A connection was not accepted"),
    );
    if (!("socketPath" in address))
      return { url: urlOf(this.#tls === undefined ? "http" : "https", address.host, port), port };
    // A program that may write to the socket may run anything.
    chmodSync(address.socketPath, 0o600);
    return { url: `unix://${address.socketPath}`, port };
  }

  #asksForCredentials(): boolean {
    const { bearerTokens, clients = [] } = this.#auth;
    return bearerTokens !== undefined || clients.length > 0 || this.#tls?.clientCa !== undefined;
  }

  /**
   * Other certificates for new connections; idle ones are closed. Whether clients need certificates stays as it was.
   * @throws Error when certificate and key do not belong together, or the server was made without TLS; then all stays
   *   as it was
   */
  setTls(tls: ServerTls): void {
    if (!(this.#server instanceof TlsServer)) throw new Error("the server was made without TLS");
    this.#server.setSecureContext(tlsContext(tls, tls.clientCa));
    if (String(tls.clientCa) !== String(this.#tls?.clientCa)) {
      this.#clients.forgetCertificates();
      // Their handshakes may be under way, with the CA before.
      this.#connections.destroyStrangers();
    }
    this.#tls = tls;
    this.#server.closeIdleConnections();
  }

  /**
   * Takes no new requests, ends long polls and streams, waits up to `graceMs` (default 5000) for the rest. The provider
   * stays open.
   */
  async close(options: { graceMs?: number | undefined } = {}): Promise<void> {
    this.#closing.abort(new ProviderError("unavailable", "the backend is closing"));
    this.#streams.close();
    await closeWithin(this.#server, options.graceMs ?? 5000, this.#context.clock, () => {
      this.#closed.abort(new ProviderError("unavailable", "the backend is closing"));
      this.#streams.terminate();
      for (const socket of this.#upgrading) socket.destroy();
      this.#server.closeAllConnections();
    });
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const requestId = requestIdOf(request);
    response.setHeader("x-request-id", requestId);
    // A connection that stayed open would hold up the end of the server until the caller is idle for long enough.
    using _ = onAbort(this.#closing.signal, () => {
      if (!response.headersSent) response.setHeader("connection", "close");
    });
    const { signal } = whileConnected(response, hungUp, this.#closing.signal);
    const startedAt = this.#context.clock.monotonic();
    const audited = this.#audit.begin(request, requestId);
    let caller: Caller | undefined;
    try {
      caller = this.#authenticate(request);
      if (audited !== undefined) audited.client = caller.name;
      await this.#dispatch(caller, { request, response, requestId, signal, audited });
      audited?.end();
    } catch (thrown) {
      audited?.end(asProviderError(thrown));
      // It may be a connection that can never be accepted, as one with a certificate of a CA that is gone.
      if (caller === undefined && !response.headersSent) response.setHeader("connection", "close");
      this.#fail(request, response, requestId, thrown);
    }
    if (!request.complete) request.resume();
    const durationMs = Math.round(this.#context.clock.monotonic() - startedAt);
    const path = loggedPath(request);
    const pod = caller && (await this.#podOf(path, audited?.labels));
    this.#logger.debug(
      { requestId, method: request.method, path, status: response.statusCode, durationMs, pod },
      "Request served",
    );
  }

  /** A machine that is not known yet is looked up, once. A stranger is not to make the provider work. */
  async #podOf(path: string, labels: Readonly<Record<string, string>> | undefined): Promise<string | undefined> {
    const id = machineOf(path);
    if (id === undefined || this.#pods.of(path) !== undefined) return this.#pods.of(path);
    const signal = AbortSignal.any([this.#closed.signal, AbortSignal.timeout(LOOKUP_MS)]);
    const known = labels ?? (await this.#context.provider.getPod(id, { signal }).catch(() => undefined))?.labels;
    this.#pods.remember(id, known ?? {});
    return this.#pods.of(path);
  }

  /**
   * Asynchronous also where nothing is waited for, so that bytes behind the head that are not HTTP are refused first.
   * @throws ProviderError to answer with
   */
  async #dispatch(
    { name, provider }: Caller,
    exchange: Pick<Exchange, "request" | "response" | "requestId" | "signal" | "audited">,
  ): Promise<void> {
    const { request, response, requestId } = exchange;
    const url = parseUrl(request);
    const match = findRoute(ROUTES, request.method, url.pathname);
    const { route, params } = match;
    const workSignal = this.#closed.signal;
    using _ = this.#bodies.take(name, request);
    const handle = () =>
      route.handle({ ...this.#context, provider }, { ...exchange, params, query: url.searchParams, workSignal });
    const status = () => response.statusCode;
    await traceRequest(this.#tracing, { request, match, requestId, client: name, status }, handle);
  }

  #fail(request: IncomingMessage, response: ServerResponse, requestId: string, thrown: unknown): void {
    if (!isTold(thrown) && !response.destroyed) {
      this.#logger.error(
        { err: thrown, requestId, method: request.method, path: loggedPath(request) },
        "A request failed",
      );
    }
    if (response.headersSent) {
      // A body that breaks off without its last chunk is how HTTP says that it is not whole.
      response.destroy();
      return;
    }
    const { status, headers, body } = renderError(asProviderError(thrown), requestId);
    // The rest of a body that was refused is not worth reading.
    if (!request.complete) headers["connection"] = "close";
    sendReply(response, status, headers, body);
  }

  async #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const requestId = requestIdOf(request);
    const { signal } = whileConnected(socket, hungUp, this.#closed.signal);
    this.#upgrading.add(socket);
    const audited = this.#audit.begin(request, requestId);
    try {
      const { name, provider } = this.#authenticate(request);
      if (audited !== undefined) audited.client = name;
      if (this.#closing.signal.aborted) throw this.#closing.signal.reason as Error;
      const url = parseUrl(request);
      const found = matchRoute(STREAM_ROUTES, request.method ?? "", url.pathname);
      const match = typeof found === "object" ? found : undefined;
      const open = () =>
        this.#streams.open({ request, socket, head, url, requestId, signal, client: name, provider, audited });
      await traceRequest(this.#tracing, { request, match, requestId, client: name, status: () => undefined }, open);
    } catch (thrown) {
      audited?.end(asProviderError(thrown));
      if (!(thrown instanceof ProviderError))
        this.#logger.error({ err: thrown, requestId }, "A stream could not be opened");
      refuseUpgrade(socket, asProviderError(thrown), requestId);
    } finally {
      this.#upgrading.delete(socket);
    }
  }

  /** @throws ProviderError unauthorized, rate_limited, and invalid for a request of a web page */
  #authenticate(request: IncomingMessage): Caller {
    // A browser carries them to what listens on its own host, too: a page must not run commands there.
    if (request.headers.origin !== undefined)
      throw new ProviderError("invalid", "the request has an Origin: web pages are not served");
    const caller = this.#clients.authenticate(request);
    if (!this.#connections.trust(request.socket, caller.name))
      throw new ProviderError("rate_limited", `the client ${caller.name} has as many connections as it may`);
    return caller;
  }
}

function listener(tls: MachineApiServerOptions["tls"], limits: ServerLimits, serve: RequestListener): Server {
  const http = serverOptions({ headersMs: limits.headersMs, requestMs: 60_000, keepAliveMs: 60_000 });
  if (tls === undefined) return createServer(http, serve);
  const mutual = tls.clientCa === undefined ? {} : { requestCert: true, rejectUnauthorized: true };
  return createTlsServer({ ...http, ...tlsContext(tls, tls.clientCa), ...mutual }, serve);
}

const hungUp = (): ProviderError => new ProviderError("unavailable", "the caller hung up");

function parseUrl(request: IncomingMessage): URL {
  try {
    return new URL(request.url ?? "/", "http://backend");
  } catch (thrown) {
    throw new ProviderError("invalid", "the request's target is not a URL", { cause: thrown });
  }
}

function refuseUpgrade(socket: Duplex, error: ProviderError, requestId: string): void {
  const { status, headers, body } = renderError(error, requestId);
  sendLastWords(socket, { status, headers: Object.entries(headers), body });
}

/** Bytes that are not HTTP still get the envelope, as the document promises for every reply. */
function refuseGarbage(socket: Duplex): void {
  refuseUpgrade(socket, new ProviderError("invalid", "the request is not HTTP"), "none");
}

const isLoopback = (host: string): boolean => /^(?:127\.|::1$|localhost$)/.test(host);
