/**
 * HTTP to the API server. It owns connections, credentials, time limits, the client-side rate limit and the retries
 * that are safe for everybody; it knows nothing of resources. client-node's own HTTP layer is not used because it opens
 * one TLS connection per request.
 *
 * Calls, watches and the node's lease have connections of their own: a watch never takes a call's place, and nothing
 * can delay the lease.
 */
import type { KubeConfig } from "@kubernetes/client-node";
import { Agent, ProxyAgent, request as httpRequest, type Dispatcher } from "undici";
import { TokenBucket } from "../queue/rate-limit.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { CertificatePair } from "./certificates.ts";
import { CredentialSource, type Credentials } from "./credentials.ts";
import { KubeApiError, isUnauthorized, type StatusDetails, type TransportReason } from "./errors.ts";
import type { Kube, KubeRequest, WatchEvent, WatchRequest } from "./kube.ts";
import { decodeWatch } from "./watch-decoder.ts";

export interface TransportMetrics {
  /** After every reply or fault. `code` is the HTTP status, or `<error>` as client-go has it. */
  onRequest(request: { verb: string; host: string; code: string; seconds: number }): void;
  onRetry(request: { verb: string; host: string; code: string }): void;
  onRateLimited(request: { verb: string; host: string; seconds: number }): void;
}

export interface KubeTransportOptions {
  kubeConfig: KubeConfig;
  clock: Clock;
  logger: Logger;
  metrics?: TransportMetrics;
  /** Sent as `User-Agent: vmlet/<version>`. */
  version?: string;
  /** Every request is made as this user: the agent acts as `system:node:<name>`. */
  impersonate?: { user: string; groups: readonly string[] } | undefined;
  /** Who we are instead of what the kubeconfig says, as soon as there is a value; asked again every few seconds. */
  clientCertificate?: () => CertificatePair | undefined;
  /** Client-side limit of everything but the lease lane. Default 50/s with bursts of 100, as the kubelet's; `false` for none. */
  rateLimit?: { perSecond: number; burst: number } | false | undefined;
  /** Limit of one request, retries included. Default 30 s. */
  timeoutMs?: number;
  /** Connections for calls. Default 16. */
  connections?: number;
  /** Longest watch event taken. Default 4 MiB: the API server's largest object (3 MiB) and its envelope. */
  maxEventBytes?: number;
  /** Longest reply taken. Default 64 MiB. */
  maxReplyBytes?: number;
}

/** client-go's `withRetry` gives up after as many. */
const MAX_RETRIES = 10;
/** Between two tries of an overloaded server, whatever it says: a proxy's `Retry-After: 0` must not make it ten at once. */
const MIN_RETRY_MS = 1_000;
/** As client-node and client-go: below the idle limit of common load balancers (60 s). */
const TCP_KEEPALIVE_MS = 30_000;
/** kube-apiserver closes idle connections after 90 s; being first avoids sending into a closed one. */
const IDLE_CONNECTION_MS = 60_000;
const CONNECT_TIMEOUT_MS = 10_000;

type Lane = "default" | "lease" | "watch";

interface Connections {
  key: string;
  lanes: Record<Lane, Dispatcher>;
}

interface Reply {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  body: Dispatcher.ResponseData["body"];
  host: string;
}

export class KubeTransport implements Kube {
  readonly #options: KubeTransportOptions;
  readonly #clock: Clock;
  readonly #credentials: CredentialSource;
  readonly #bucket: TokenBucket | undefined;
  #connections: Connections | undefined;
  #closed = false;

  constructor(options: KubeTransportOptions) {
    this.#options = options;
    this.#clock = options.clock;
    this.#credentials = new CredentialSource(options.kubeConfig, options.clock, options.clientCertificate);
    const limit = options.rateLimit ?? { perSecond: 50, burst: 100 };
    this.#bucket = limit === false ? undefined : new TokenBucket({ ...limit, clock: options.clock });
  }

  /**
   * One request. Repeats it after 429 (any verb: the server refused before doing anything), after 503 with Retry-After
   * and after a connection that the server closed (both only where repeating is safe), and once with fresh credentials
   * after 401.
   *
   * @returns the reply's JSON without `managedFields`; undefined for an empty reply
   * @throws KubeApiError for any other status, every transport fault and when time is up; the signal's reason when
   *   `signal` aborts
   */
  async request<T>(request: KubeRequest): Promise<T> {
    return parseReply(what(request), await this.requestText(request)) as T;
  }

  /** Like `request`, for replies that are not JSON: logs, metrics. */
  async requestText(request: KubeRequest): Promise<string> {
    const { signal } = request;
    const timeoutMs = request.timeoutMs ?? this.#options.timeoutMs ?? 30_000;
    const deadline = this.#clock.monotonic() + timeoutMs;
    const limit = this.#limit(signal, timeoutMs, what(request));
    try {
      if (request.lane !== "lease") await this.#awaitTurn(request.method, limit.signal);
      return await this.#withRetries(request, limit.signal, deadline, async (credentials) => {
        const reply = await this.#send(request, request.lane ?? "default", credentials, limit.signal);
        const text = await this.#readBody(request, reply, limit.signal);
        if (reply.status < 200 || reply.status > 299) throw statusError(what(request), reply, text);
        return text;
      });
    } catch (error) {
      throw this.#explain(error, request, signal, limit.signal);
    } finally {
      limit.release();
    }
  }

  async *watch<T>({ onOpen, ...request }: WatchRequest): AsyncGenerator<WatchEvent<T>> {
    const get: KubeRequest = { ...request, method: "GET", query: { ...request.query, watch: true } };
    const { signal } = request;
    signal.throwIfAborted();
    const name = `Watch ${request.path}`;
    const timeoutMs = this.#options.timeoutMs ?? 30_000;
    // Limits only the opening: how long a watch may be silent is the reflector's business.
    const opening = this.#limit(signal, timeoutMs, name);
    // The connection follows the caller's signal for good, and the opening's until the reply is there.
    const stream = new AbortController();
    const onAbort = () => stream.abort(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    const onOpeningTimeout = () => stream.abort(opening.signal.reason);
    opening.signal.addEventListener("abort", onOpeningTimeout, { once: true });
    try {
      let reply: Reply;
      try {
        await this.#awaitTurn("WATCH", opening.signal);
        const deadline = this.#clock.monotonic() + timeoutMs;
        reply = await this.#withRetries(get, opening.signal, deadline, async (credentials) => {
          const opened = await this.#send(get, "watch", credentials, stream.signal);
          if (opened.status === 200) return opened;
          throw statusError(name, opened, await this.#readBody(get, opened, stream.signal));
        });
      } catch (error) {
        throw this.#explain(error, get, signal, opening.signal);
      } finally {
        opening.release();
      }
      onOpen?.();
      try {
        const maxLineBytes = this.#options.maxEventBytes ?? 4 * 1024 * 1024;
        for await (const event of decodeWatch(reply.body, { maxLineBytes, what: name })) {
          dropManagedFields((event as { object?: unknown } | null)?.object);
          yield event as WatchEvent<T>;
        }
      } catch (error) {
        throw this.#explain(error, get, signal, signal);
      }
    } finally {
      signal.removeEventListener("abort", onAbort);
    }
  }

  /** Lets requests under way finish and closes all connections; watches must have been aborted before. */
  async close(): Promise<void> {
    this.#closed = true;
    const connections = this.#connections;
    this.#connections = undefined;
    if (connections) await Promise.all(Object.values(connections.lanes).map((lane) => lane.close()));
  }

  async #awaitTurn(verb: string, signal: AbortSignal): Promise<void> {
    if (!this.#bucket) return;
    const waitedMs = await this.#bucket.take(signal);
    if (waitedMs > 0) {
      const host = this.#options.kubeConfig.getCurrentCluster()?.server ?? "";
      this.#options.metrics?.onRateLimited({ verb, host, seconds: waitedMs / 1000 });
    }
  }

  async #withRetries<T>(
    request: KubeRequest,
    signal: AbortSignal,
    deadline: number,
    attempt: (credentials: Credentials) => Promise<T>,
  ): Promise<T> {
    let refreshed = false;
    let reconnected = false;
    for (let retries = 0; ; retries++) {
      try {
        return await attempt(await this.#freshCredentials());
      } catch (error) {
        signal.throwIfAborted();
        let delayMs: number;
        if (isUnauthorized(error) && !refreshed) {
          refreshed = true;
          delayMs = 0;
          this.#credentials.invalidate();
        } else if (isClosedConnection(error) && isRepeatable(request) && !reconnected) {
          // A kept-alive connection that the server closed just as it was used again.
          reconnected = true;
          delayMs = 0;
        } else if (error instanceof KubeApiError && mayRepeatLater(error, request)) {
          delayMs = Math.max(error.retryAfterMs ?? 0, MIN_RETRY_MS);
        } else {
          throw error;
        }
        // Waiting past the deadline would turn a clear answer into a time-out.
        if (retries >= MAX_RETRIES || this.#clock.monotonic() + delayMs >= deadline) throw error;
        const code = error instanceof KubeApiError ? String(error.status) : "<error>";
        const host = this.#options.kubeConfig.getCurrentCluster()?.server ?? "";
        this.#options.metrics?.onRetry({ verb: request.method, host, code });
        if (delayMs > 0) await this.#clock.sleep(delayMs, signal);
      }
    }
  }

  async #freshCredentials(): Promise<Credentials> {
    try {
      return await this.#credentials.get();
    } catch (error) {
      throw new KubeApiError(`Cannot read the credentials for the API server: ${toError(error).message}`, {
        status: 0,
        reason: "Transport",
        cause: error,
      });
    }
  }

  async #send(request: KubeRequest, lane: Lane, credentials: Credentials, signal: AbortSignal): Promise<Reply> {
    const url = new URL(credentials.server + request.path);
    for (const [name, value] of Object.entries(request.query ?? {})) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    const { impersonate, version } = this.#options;
    const headers: Record<string, string | string[]> = {
      ...credentials.headers,
      accept: "application/json",
      "user-agent": version === undefined ? "vmlet" : `vmlet/${version}`,
    };
    if (impersonate) {
      headers["impersonate-user"] = impersonate.user;
      if (impersonate.groups.length > 0) headers["impersonate-group"] = [...impersonate.groups];
    }
    if (request.body !== undefined) headers["content-type"] = request.contentType ?? "application/json";

    const startedAt = this.#clock.monotonic();
    const verb = lane === "watch" ? "WATCH" : request.method;
    const observe = (code: string) =>
      this.#options.metrics?.onRequest({
        verb,
        host: url.host,
        code,
        seconds: (this.#clock.monotonic() - startedAt) / 1000,
      });
    try {
      const reply = await httpRequest(url, {
        method: request.method,
        headers,
        body: request.body === undefined ? null : JSON.stringify(request.body),
        signal,
        dispatcher: this.#dispatcher(credentials, lane),
        // undici closes the connection after any DELETE that has a body, unless it is told that the server minds no such thing.
        reset: false,
      });
      observe(String(reply.statusCode));
      return { status: reply.statusCode, headers: reply.headers, body: reply.body, host: url.host };
    } catch (error) {
      observe("<error>");
      throw error;
    }
  }

  async #readBody(request: KubeRequest, reply: Reply, signal: AbortSignal): Promise<string> {
    const limit = this.#options.maxReplyBytes ?? 64 * 1024 * 1024;
    const chunks: Buffer[] = [];
    let bytes = 0;
    for await (const chunk of reply.body as AsyncIterable<Buffer>) {
      signal.throwIfAborted();
      bytes += chunk.length;
      if (bytes > limit) {
        throw new KubeApiError(`${what(request)}: the reply has more than ${limit} bytes`, {
          status: 0,
          reason: "Malformed",
        });
      }
      chunks.push(chunk);
    }
    return Buffer.concat(chunks).toString("utf8");
  }

  #dispatcher(credentials: Credentials, lane: Lane): Dispatcher {
    if (this.#closed) throw new Error("The transport is closed");
    if (this.#connections?.key !== credentials.tlsKey) {
      const old = this.#connections;
      this.#connections = { key: credentials.tlsKey, lanes: this.#connect(credentials) };
      if (old) {
        this.#options.logger.info({ server: credentials.server }, "TLS credentials changed, connecting anew");
        // close() drains; destroy() would kill requests under way. Watches end by themselves within minutes.
        for (const dispatcher of Object.values(old.lanes)) {
          dispatcher.close().catch((error: unknown) => {
            this.#options.logger.debug({ err: toError(error) }, "Closing old connections failed");
          });
        }
      }
    }
    return this.#connections.lanes[lane];
  }

  #connect(credentials: Credentials): Record<Lane, Dispatcher> {
    const { proxyUrl, tls } = credentials;
    const connect = {
      ...tls,
      keepAlive: true,
      keepAliveInitialDelay: TCP_KEEPALIVE_MS,
      timeout: CONNECT_TIMEOUT_MS,
    };
    const shared = {
      allowH2: false,
      pipelining: 1,
      keepAliveTimeout: IDLE_CONNECTION_MS,
      // Our own deadlines cover whole exchanges, and a watch may be silent.
      headersTimeout: 0,
      bodyTimeout: 0,
    };
    const pool = (connections: number | null): Dispatcher => {
      if (proxyUrl === undefined || proxyUrl === null) return new Agent({ ...shared, connections, connect });
      if (!/^https?:/.test(proxyUrl)) {
        throw new Error(
          `The kubeconfig's proxy-url ${new URL(proxyUrl).protocol}// is not supported: use an http proxy`,
        );
      }
      return new ProxyAgent({ ...shared, connections, uri: proxyUrl, requestTls: connect });
    };
    return { default: pool(this.#options.connections ?? 16), lease: pool(1), watch: pool(null) };
  }

  /** A signal that follows `signal` and also aborts after `timeoutMs`. */
  #limit(signal: AbortSignal, timeoutMs: number, name: string): { signal: AbortSignal; release(): void } {
    const controller = new AbortController();
    const onAbort = () => controller.abort(signal.reason);
    if (signal.aborted) onAbort();
    signal.addEventListener("abort", onAbort, { once: true });
    const cancelTimer = this.#clock.after(timeoutMs, () =>
      controller.abort(
        new KubeApiError(`${name}: no answer within ${timeoutMs / 1000} s`, { status: 0, reason: "Timeout" }),
      ),
    );
    return {
      signal: controller.signal,
      release: () => {
        cancelTimer();
        signal.removeEventListener("abort", onAbort);
      },
    };
  }

  /** What callers see: the caller's abort as it is, a time-out or an API error as it is, anything else as a transport fault. */
  #explain(error: unknown, request: KubeRequest, callers: AbortSignal, limit: AbortSignal): unknown {
    if (callers.aborted) return callers.reason;
    if (limit.aborted) return limit.reason;
    if (error instanceof KubeApiError) return error;
    const reason: TransportReason = errorCodes(error).includes("ECONNREFUSED") ? "ConnectionRefused" : "Transport";
    return new KubeApiError(`${what(request)}: ${rootCause(error).message}`, { status: 0, reason, cause: error });
  }
}

function what(request: Pick<KubeRequest, "method" | "path">): string {
  return `${request.method} ${request.path}`;
}

/** Safe to send twice. A JSON patch is not: it may append. Neither is POST: it may create twice. */
function isRepeatable(request: KubeRequest): boolean {
  return request.method !== "POST" && request.contentType !== "application/json-patch+json";
}

function mayRepeatLater(error: KubeApiError, request: KubeRequest): boolean {
  if (error.status === 429) return true;
  return error.status === 503 && error.retryAfterMs !== undefined && isRepeatable(request);
}

function isClosedConnection(error: unknown): boolean {
  return errorCodes(error).some((code) => code === "UND_ERR_SOCKET" || code === "ECONNRESET" || code === "EPIPE");
}

/** The `code`s of an error and of everything that caused it. */
function errorCodes(error: unknown): string[] {
  const codes: string[] = [];
  for (let e = error, depth = 0; e instanceof Error && depth < 8; e = e.cause, depth++) {
    const { code } = e as { code?: unknown };
    if (typeof code === "string") codes.push(code);
    if (e instanceof AggregateError) for (const inner of e.errors) codes.push(...errorCodes(inner));
  }
  return codes;
}

/** The innermost message is the telling one: "connect ECONNREFUSED 127.0.0.1:6443", not "fetch failed". */
function rootCause(error: unknown): Error {
  let root = toError(error);
  for (let depth = 0; depth < 8; depth++) {
    const inner: unknown = root instanceof AggregateError ? root.errors[0] : root.cause;
    if (!(inner instanceof Error)) break;
    root = inner;
  }
  return root;
}

function parseReply(name: string, text: string): unknown {
  if (text === "") return undefined;
  let reply: unknown;
  try {
    reply = JSON.parse(text);
  } catch (error) {
    throw new KubeApiError(`${name}: the reply is not JSON`, { status: 0, reason: "Malformed", cause: error });
  }
  dropManagedFields(reply);
  return reply;
}

/** They are 40 % of a pod's bytes and nobody here reads them. Assigning undefined keeps the object's fast shape; delete would not. */
function dropManagedFields(value: unknown): void {
  if (typeof value !== "object" || value === null) return;
  const { metadata, items } = value as { metadata?: { managedFields?: unknown } | null; items?: unknown };
  if (metadata?.managedFields !== undefined) metadata.managedFields = undefined;
  if (Array.isArray(items)) for (const item of items) dropManagedFields(item);
}

function statusError(name: string, reply: Reply, text: string): KubeApiError {
  let status: { message?: unknown; reason?: unknown; details?: StatusDetails } = {};
  try {
    const parsed: unknown = JSON.parse(text);
    // Only a Status says what the API server means: others on the way answer in JSON of their own.
    if (isStatus(parsed)) status = parsed;
  } catch {
    // Proxies and overload protection answer in plain text.
    status = { message: text.trim().slice(0, 512) };
  }
  const words = typeof status.message === "string" && status.message !== "" ? status.message : "no message";
  const reason = typeof status.reason === "string" && status.reason !== "" ? status.reason : `HTTP${reply.status}`;
  const details = status.details ?? undefined;
  return new KubeApiError(`${name}: ${reply.status} ${words}`, {
    status: reply.status,
    reason,
    details,
    retryAfterMs: retryAfterMs(reply.headers["retry-after"], details),
  });
}

function isStatus(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  const { kind, apiVersion } = value as { kind?: unknown; apiVersion?: unknown };
  return kind === "Status" && apiVersion === "v1";
}

function retryAfterMs(header: string | string[] | undefined, details: StatusDetails | undefined): number | undefined {
  const seconds = Number(Array.isArray(header) ? header[0] : (header ?? details?.retryAfterSeconds));
  return Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : undefined;
}
