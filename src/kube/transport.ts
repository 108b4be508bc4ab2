/**
 * HTTP to the API server. It owns connections, credentials, time limits, the client-side rate limit and the retries
 * that are safe for every request; it knows nothing of resources. client-node's own HTTP layer is not used because it
 * opens one TLS connection per request.
 *
 * Calls, reviews, watches and the node's lease have connections and limits of their own: a watch never takes a call's
 * place, and nothing can delay the lease. Of the calls, those about the objects of one namespace have a share: an
 * admission webhook that is slow for that namespace holds up no other.
 */
import openReply from "undici/lib/api/api-request.js";
import { GroupLimit } from "../queue/group-limit.ts";
import { TokenBucket } from "../queue/rate-limit.ts";
import type { Logger } from "../telemetry/logger.ts";
import { type SpanOptions, tracedStep, type Tracing } from "../telemetry/tracing.ts";
import { onAbort } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { toError, VmletError } from "../util/errors.ts";
import { tlsFault } from "../util/tls-fault.ts";
import { timeLimit, type TimeLimit } from "../util/time-limit.ts";
import type { CertificatePair } from "./certificates.ts";
import { collect } from "./collect.ts";
import { Connections, type Lane } from "./connections.ts";
import { CredentialSource, type Credentials } from "./credentials.ts";
import { KubeApiError, isUnauthorized, type TransportReason } from "./errors.ts";
import type { KubeConfig } from "./kubeconfig.ts";
import type { Kube, KubeRequest, WatchEvent, WatchRequest } from "./kube.ts";
import { decodeList } from "./list-decoder.ts";
import { namespaceOf } from "./paths.ts";
import { dropManagedFields, parseReply, pieces, readBeginning, statusError, type Reply } from "./replies.ts";
import { decodeWatch } from "./watch-decoder.ts";

interface TransportMetrics {
  /** After every reply or fault. `code` is the HTTP status, or `<error>` as client-go has it. */
  onRequest(request: { verb: string; host: string; code: string; seconds: number }): void;
  onRetry(request: { verb: string; host: string; code: string }): void;
  onRateLimited(request: { verb: string; host: string; seconds: number }): void;
  /** The server's clock as it replied to a lease, in milliseconds since the epoch; it gives whole seconds. */
  onServerTime?(ms: number): void;
}

export interface KubeTransportOptions {
  kubeConfig: KubeConfig;
  clock: Clock;
  logger: Logger;
  metrics?: TransportMetrics | undefined;
  /** Requests that are part of a trace become spans of it, which the API server is told. Absent: nothing is traced. */
  tracing?: Tracing | undefined;
  /** Sent as `User-Agent: vmlet/<version>`. */
  version?: string | undefined;
  /** Every request is made as this user: the agent acts as `system:node:<name>`. */
  impersonate?: { user: string; groups: readonly string[] } | undefined;
  /** Who we are instead of what the kubeconfig says, as soon as there is a value; asked again every few seconds. */
  clientCertificate?: (() => CertificatePair | undefined) | undefined;
  /**
   * Client-side limit of each lane but the lease's. Default 50/s with bursts of 100, as the kubelet's; `false` for
   * none.
   */
  rateLimit?: { perSecond: number; burst: number } | false | undefined;
  /** Limit of one request, retries included. Default 30 s. */
  timeoutMs?: number | undefined;
  /** Connections for calls. Default 64. */
  connections?: number | undefined;
  /** Calls about the objects of one namespace that may be under way at once. Default a quarter of `connections`. */
  perNamespace?: number | undefined;
  /**
   * Longest watch event and longest item of a list taken. Default 32 MiB: the largest request that the API server takes
   * (3 MiB), every character of it escaped (a `<` comes back as six), and as much again.
   */
  maxEventBytes?: number | undefined;
  /** Longest reply taken. Default 64 MiB. */
  maxReplyBytes?: number | undefined;
}

/** client-go's `withRetry` gives up after as many. */
const MAX_RETRIES = 10;
/**
 * Between two tries of an overloaded server, whatever it says: a proxy's `Retry-After: 0` must not make it ten at once.
 */
const MIN_RETRY_MS = 1_000;
const DEFAULT_CONNECTIONS = 64;
const MAX_EVENT_BYTES = 32 * 1024 * 1024;
const MAX_REPLY_BYTES = 64 * 1024 * 1024;
/** A refusal says why in a few words; what it says beyond that is not worth reading. */
const MAX_STATUS_BYTES = 1024 * 1024;
const DEFAULT_TIMEOUT_MS = 30_000;
const DRAIN_MS = 5_000;
/** A list may take this many times as long as any other reply, as long as it goes on coming. */
const LIST_PATIENCE = 10;

export class KubeTransport implements Kube {
  readonly #options: KubeTransportOptions;
  readonly #clock: Clock;
  readonly #credentials: CredentialSource;
  readonly #connections: Connections;
  readonly #namespaces: GroupLimit;
  /** What ends each exchange that is under way. */
  readonly #underWay = new Set<(reason: KubeApiError) => void>();
  #constants: Constants | undefined;
  readonly #buckets: Record<Exclude<Lane, "lease">, TokenBucket> | undefined;

  constructor(options: KubeTransportOptions) {
    this.#options = options;
    const { clock, logger, connections = DEFAULT_CONNECTIONS } = options;
    this.#clock = clock;
    this.#credentials = new CredentialSource(options.kubeConfig, clock, {
      certificate: options.clientCertificate,
      logger,
    });
    this.#connections = new Connections({ connections, logger });
    this.#namespaces = new GroupLimit(options.perNamespace ?? Math.max(1, Math.floor(connections / 4)));
    const limit = options.rateLimit ?? { perSecond: 50, burst: 100 };
    const bucket = () => new TokenBucket({ ...(limit as { perSecond: number; burst: number }), clock });
    this.#buckets =
      limit === false ? undefined : { default: bucket(), review: bucket(), event: bucket(), watch: bucket() };
  }

  /** Another client-side limit from now on; without effect on a client that has none. */
  changeRate(limit: { perSecond: number; burst: number }): void {
    for (const bucket of Object.values(this.#buckets ?? {})) bucket.change(limit);
  }

  /**
   * One request. Repeats it after 429 (any verb: the server refused before doing anything; not where that is its
   * answer), after 503 with Retry-After and after a connection that the server closed (both only where repeating is
   * safe), and once with fresh credentials after 401.
   *
   * @returns the reply's JSON without `managedFields`; undefined for an empty reply
   * @throws KubeApiError for any other status, every transport fault and when time is up; the signal's reason when
   *   `signal` aborts
   */
  async request<T>(request: KubeRequest): Promise<T> {
    const { list } = request;
    if (list === undefined) return parseReply(what(request), await this.requestText(request)) as T;
    const { maxReplyBytes = MAX_REPLY_BYTES, maxEventBytes = MAX_EVENT_BYTES } = this.#options;
    const decoding = {
      what: what(request),
      maxBytes: maxReplyBytes,
      // A page of one item must fit whatever the limits are, or the list would end there.
      maxItemBytes: Math.min(maxEventBytes, maxReplyBytes / 2),
      onSkipped: list.onSkipped,
    };
    const reply = await this.#exchange(request, async (credentials, limit) => {
      const opened = await this.#open(request, credentials, limit.signal);
      limit.touch();
      if (!isSuccess(opened.status)) throw await this.#failure(what(request), opened, limit);
      return await decodeList(pieces(opened, limit.signal, limit.touch), decoding);
    });
    dropManagedFields(reply);
    return reply as T;
  }

  /** Like `request`, for replies that are not JSON: logs, metrics. */
  async requestText(request: KubeRequest): Promise<string> {
    return this.#exchange(request, (credentials, limit) => this.#collect(request, credentials, limit));
  }

  async #exchange<T>(
    request: KubeRequest,
    attempt: (credentials: Credentials, limit: TimeLimit) => Promise<T>,
  ): Promise<T> {
    const { signal, lane = "default" } = request;
    const timeoutMs = request.timeoutMs ?? this.#options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    const totalMs = request.list === undefined ? timeoutMs : timeoutMs * LIST_PATIENCE;
    const deadline = this.#clock.monotonic() + timeoutMs;
    const limit = timeLimit(this.#clock, signal, { totalMs, silenceMs: timeoutMs }, noAnswer(what(request)));
    this.#underWay.add(limit.abort);
    let leave: (() => void) | undefined;
    try {
      const namespace = lane === "default" ? namespaceOf(request.path) : undefined;
      if (namespace !== undefined) leave = await this.#namespaces.enter(namespace, limit.signal);
      await this.#awaitTurn(request.method, lane, limit.signal);
      const send = () =>
        this.#withRetries(request, limit.signal, deadline, (credentials) => attempt(credentials, limit));
      const { tracing } = this.#options;
      return await (tracing === undefined
        ? send()
        : tracedStep(tracing, `HTTP ${request.method}`, spanOf(request), send));
    } catch (thrown) {
      throw explain(thrown, request, signal, limit.signal);
    } finally {
      leave?.();
      this.#underWay.delete(limit.abort);
      limit.release();
    }
  }

  async *watch<T>({ onOpen, ...request }: WatchRequest): AsyncGenerator<WatchEvent<T>> {
    const get: KubeRequest = { ...request, method: "GET", query: { ...request.query, watch: true } };
    const name = `Watch ${request.path}`;
    const { maxEventBytes: maxLineBytes = MAX_EVENT_BYTES } = this.#options;
    const read = (reply: Reply) => decodeWatch(reply.body, { maxLineBytes, what: name });
    for await (const event of this.#stream(get, { name, onOpen, read })) {
      dropManagedFields((event as { object?: unknown } | null)?.object);
      yield event as WatchEvent<T>;
    }
  }

  /**
   * A GET whose reply may take for ever and is passed on as it comes: a log that is followed. Nothing more is read
   * from the connection than is taken here.
   *
   * @throws as `request`, also in the middle
   */
  stream({ onOpen, ...request }: WatchRequest): AsyncGenerator<Buffer> {
    const get: KubeRequest = { ...request, method: "GET" };
    return this.#stream(get, { name: what(get), onOpen, read: (reply) => reply.body as AsyncIterable<Buffer> });
  }

  /**
   * Who we are to the API server at the moment, for a connection that is none of HTTP's requests: a WebSocket.
   *
   * @throws KubeApiError when they cannot be read; the signal's reason on abort
   */
  credentials(signal: AbortSignal): Promise<Credentials> {
    return this.#freshCredentials(signal);
  }

  async *#stream<T>(
    get: KubeRequest,
    {
      name,
      onOpen,
      read,
    }: { name: string; onOpen?: (() => void) | undefined; read: (reply: Reply) => AsyncIterable<T> },
  ): AsyncGenerator<T> {
    const { signal } = get;
    signal.throwIfAborted();
    const timeoutMs = this.#options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    // Limits only the opening: how long a watch may be silent is the reflector's business.
    const opening = timeLimit(this.#clock, signal, { totalMs: timeoutMs }, noAnswer(name));
    // The connection follows the caller's signal for good, and the opening's until the reply is there.
    const stream = new AbortController();
    const end = (reason: unknown) => stream.abort(reason);
    using _ = onAbort(signal, () => end(signal.reason));
    this.#underWay.add(end);
    using _opening = onAbort(opening.signal, () => end(opening.signal.reason));
    try {
      let reply: Reply;
      try {
        await this.#awaitTurn("WATCH", "watch", opening.signal);
        const deadline = this.#clock.monotonic() + timeoutMs;
        reply = await this.#withRetries(get, opening.signal, deadline, async (credentials) => {
          const opened = await this.#open(get, credentials, stream.signal, "watch");
          if (opened.status === 200) return opened;
          throw await this.#failure(name, opened, opening);
        });
      } catch (thrown) {
        throw explain(thrown, get, signal, opening.signal);
      } finally {
        opening.release();
      }
      onOpen?.();
      try {
        yield* read(reply);
      } catch (thrown) {
        throw explain(thrown, get, signal, stream.signal);
      }
    } finally {
      this.#underWay.delete(end);
    }
  }

  /** Lets requests under way finish for 5 s, ends what is left, watches too, and closes all connections. */
  async close(): Promise<void> {
    const closed = new AbortController();
    const late = this.#clock.sleep(DRAIN_MS, closed.signal).then(
      () => {
        const reason = new KubeApiError("the transport was closed", { status: 0, reason: "Transport" });
        for (const end of this.#underWay) end(reason);
      },
      () => undefined,
    );
    await this.#connections.close();
    this.#credentials.close();
    closed.abort();
    await late;
  }

  async #awaitTurn(verb: string, lane: Lane, signal: AbortSignal): Promise<void> {
    if (!this.#buckets || lane === "lease") return;
    const waitedMs = await this.#buckets[lane].take(signal);
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
      const credentials = await this.#freshCredentials(signal);
      try {
        return await attempt(credentials);
      } catch (thrown) {
        signal.throwIfAborted();
        let delayMs: number;
        if (isUnauthorized(thrown) && !refreshed) {
          refreshed = true;
          delayMs = 0;
          this.#credentials.refuse(credentials);
        } else if (isClosedConnection(thrown) && isRepeatable(request) && !reconnected) {
          // A kept-alive connection that the server closed just as it was used again.
          reconnected = true;
          delayMs = 0;
        } else if (thrown instanceof KubeApiError && mayRepeatLater(thrown, request)) {
          delayMs = Math.max(thrown.retryAfterMs ?? 0, MIN_RETRY_MS);
        } else {
          throw thrown;
        }
        // Waiting past the deadline would turn a clear answer into a time-out.
        if (retries >= MAX_RETRIES || this.#clock.monotonic() + delayMs >= deadline) throw thrown;
        const code = thrown instanceof KubeApiError ? String(thrown.status) : "<error>";
        const host = this.#options.kubeConfig.getCurrentCluster()?.server ?? "";
        this.#options.metrics?.onRetry({ verb: request.method, host, code });
        if (delayMs > 0) await this.#clock.sleep(delayMs, signal);
      }
    }
  }

  async #freshCredentials(signal: AbortSignal): Promise<Credentials> {
    try {
      return await this.#credentials.get(signal);
    } catch (thrown) {
      signal.throwIfAborted();
      throw new KubeApiError(`Cannot read the credentials for the API server: ${toError(thrown).message}`, {
        status: 0,
        reason: "Transport",
        cause: thrown,
      });
    }
  }

  async #collect(request: KubeRequest, credentials: Credentials, limit: TimeLimit): Promise<string> {
    const sending = this.#sending(request, credentials, request.lane ?? "default");
    try {
      const reply = await collect(sending.dispatcher, sending.request, {
        signal: limit.signal,
        maxBytes: this.#options.maxReplyBytes ?? MAX_REPLY_BYTES,
        maxFailureBytes: MAX_STATUS_BYTES,
        what: what(request),
        onHeaders: (status, headers) => {
          limit.touch();
          sending.answered(status, headers);
        },
        onPiece: limit.touch,
      });
      if (!isSuccess(reply.status)) throw statusError(what(request), reply, reply.text);
      return reply.text;
    } catch (thrown) {
      sending.failed();
      throw thrown;
    }
  }

  /** A reply whose body is read as it comes. */
  async #open(
    request: KubeRequest,
    credentials: Credentials,
    signal: AbortSignal,
    lane: Lane = request.lane ?? "default",
  ): Promise<Reply> {
    const { dispatcher, request: sent, answered, failed } = this.#sending(request, credentials, lane);
    try {
      const reply = await openReply.call(dispatcher, { ...sent, signal });
      answered(reply.statusCode, reply.headers);
      return { status: reply.statusCode, headers: reply.headers, body: reply.body };
    } catch (thrown) {
      failed();
      throw thrown;
    }
  }

  /** A request as undici takes it, and what its outcome is told to: whichever comes first. */
  #sending(request: KubeRequest, credentials: Credentials, lane: Lane) {
    const { origin, prefix, host, headers } = this.#constantsOf(credentials);
    const dispatcher = this.#connections.dispatcher(credentials, lane);
    request.guard?.();
    const startedAt = this.#clock.monotonic();
    const verb = lane === "watch" ? "WATCH" : request.method;
    let isObserved = false;
    const observe = (code: string) => {
      if (isObserved) return;
      isObserved = true;
      const seconds = (this.#clock.monotonic() - startedAt) / 1000;
      this.#options.metrics?.onRequest({ verb, host, code, seconds });
    };
    return {
      dispatcher,
      request: {
        origin,
        path: prefix + request.path + queryOf(request.query),
        method: request.method,
        headers: {
          ...headers,
          ...this.#options.tracing?.active(),
          ...(request.metadataOnly && { accept: metadataOnly(request.metadataOnly === "list") }),
          ...(request.body !== undefined && { "content-type": request.contentType ?? "application/json" }),
        },
        body: request.body === undefined ? null : JSON.stringify(request.body),
        // undici closes the connection after any DELETE that has a body, unless this option says that the server does
        // not mind.
        reset: false,
      },
      answered: (status: number, { date }: Reply["headers"]) => {
        observe(String(status));
        if (lane === "lease") this.#noteServerTime(date);
      },
      failed: () => observe("<error>"),
    };
  }

  /** What all requests with the same credentials have in common. */
  #constantsOf(credentials: Credentials): Constants {
    if (this.#constants?.of === credentials) return this.#constants;
    const { impersonate, version } = this.#options;
    const { origin, host, pathname } = new URL(credentials.server);
    const headers: Record<string, string | string[]> = {
      ...credentials.headers,
      accept: "application/json",
      "user-agent": version === undefined ? "vmlet" : `vmlet/${version}`,
    };
    if (impersonate) {
      headers["impersonate-user"] = impersonate.user;
      if (impersonate.groups.length > 0) headers["impersonate-group"] = [...impersonate.groups];
    }
    this.#constants = { of: credentials, origin, host, prefix: pathname === "/" ? "" : pathname, headers };
    return this.#constants;
  }

  #noteServerTime(date: string | string[] | undefined): void {
    const ms = typeof date === "string" ? Date.parse(date) : Number.NaN;
    if (!Number.isNaN(ms)) this.#options.metrics?.onServerTime?.(ms);
  }

  /** The error that a reply stands for. */
  async #failure(name: string, reply: Reply, limit: TimeLimit): Promise<KubeApiError> {
    const chunks = pieces(reply, limit.signal, limit.touch);
    return statusError(name, reply, await readBeginning(chunks, MAX_STATUS_BYTES));
  }
}

interface Constants {
  of: Credentials;
  origin: string;
  host: string;
  /** Of every path: the API server may lie under one. */
  prefix: string;
  headers: Readonly<Record<string, string | string[]>>;
}

/** Servers that do not know it, as proxies and toys may not, take the second and send the whole object. */
function metadataOnly(ofList: boolean): string {
  return `application/json;as=PartialObjectMetadata${ofList ? "List" : ""};g=meta.k8s.io;v=v1,application/json`;
}

function isSuccess(status: number): boolean {
  return status >= 200 && status <= 299;
}

function queryOf(query: KubeRequest["query"]): string {
  if (query === undefined) return "";
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined) params.set(name, String(value));
  return params.size === 0 ? "" : `?${params.toString()}`;
}

const TLS_SETTINGS = {
  ca: "certificate-authority-data of the kubeconfig's cluster",
  pair: "client-certificate and client-key of the kubeconfig's user",
};

/**
 * What callers see: the caller's abort as it is, a time-out or an API error as it is, anything else as a transport
 * fault.
 */
function explain(error: unknown, request: KubeRequest, callers: AbortSignal, limit: AbortSignal): unknown {
  if (callers.aborted) return callers.reason;
  if (limit.aborted) return limit.reason;
  // Our own errors, such as those of a request's guard, say what they mean and pass as they are.
  if (error instanceof VmletError) return error;
  const reason: TransportReason = errorCodes(error).includes("ECONNREFUSED") ? "ConnectionRefused" : "Transport";
  const root = rootCause(error);
  return new KubeApiError(`${what(request)}: ${tlsFault(root, TLS_SETTINGS) ?? root.message}`, {
    status: 0,
    reason,
    cause: error,
  });
}

function what(request: Pick<KubeRequest, "method" | "path">): string {
  return `${request.method} ${request.path}`;
}

function spanOf({ method, path }: KubeRequest): SpanOptions {
  return { kind: "client", attributes: { "http.request.method": method, "url.path": path } };
}

/** Safe to send twice. A JSON patch is not: it may append. Neither is POST: it may create twice. */
function isRepeatable(request: KubeRequest): boolean {
  return request.method !== "POST" && request.contentType !== "application/json-patch+json";
}

function mayRepeatLater(error: KubeApiError, request: KubeRequest): boolean {
  if (error.status === 429) return request.once !== true;
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

/** The error of a request, of which `what` says method and path, that took longer than it may. */
const noAnswer = (what: string) => (limitMs: number) =>
  new KubeApiError(`${what}: no answer within ${limitMs / 1000} s`, { status: 0, reason: "Timeout" });
