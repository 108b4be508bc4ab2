/**
 * One backend's HTTP: a request goes out paced and authenticated, and comes back as a validated reply or as a
 * ProviderError. What cannot be understood is `unavailable`, which means "unknown". Retrying is left to the caller,
 * with one exception: a kept connection that the backend had closed already, because every call of this API is safe to
 * repeat.
 */
import { randomBytes } from "node:crypto";
import type { Agent as HttpAgent, IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import axios, { AxiosError, type AxiosInstance, type AxiosResponse } from "axios";
import {
  type Clock,
  isProviderError,
  linkAbort,
  ProviderError,
  systemClock,
  type TraceContext,
} from "../../src/provider/kit/index.ts";
import { nodeAdapter } from "./adapter.ts";
import { createAgents, type Agents } from "./agents.ts";
import { readText, whileAlive } from "./body.ts";
import { asProviderError, type Call, kindOf } from "./call.ts";
import { CredentialStore, type Credentials } from "./credentials.ts";
import type { SchemaName, Schemas } from "../../src/provider/contract/document.ts";
import {
  DEFAULT_DEADLINES,
  DEFAULT_PACING,
  parseTarget,
  REPLY_BYTES,
  type Deadlines,
  type Dial,
  type HttpVmOptions,
  type Target,
} from "./options.ts";
import { Pacing } from "./pacing.ts";
import { InvalidReplyError, type InvalidReason } from "./invalid-reply.ts";
import { refusalOf, type Refusal } from "./refusal.ts";
import { parseReply, plainText } from "./validate.ts";
import { JSON_TYPE } from "./wire.ts";

interface StreamReply {
  chunks: AsyncIterable<Buffer>;
  close(): void;
}

/** What a WebSocket needs to reach the same backend in the same way. */
interface Dialing {
  url: string;
  agent: HttpAgent;
  headers: Record<string, string>;
  requestId: string;
  handshakeMs: number;
}

export class MachineApiClient {
  readonly target: Target;
  readonly deadlines: Deadlines;
  readonly clock: Clock;
  readonly pacing: Pacing;
  readonly #axios: AxiosInstance;
  readonly #credentials: CredentialStore;
  readonly #maxSockets: number;
  readonly #dial: Dial | undefined;
  readonly #keepDialled: boolean;
  readonly #tracing: HttpVmOptions["tracing"];
  readonly #onExchange: HttpVmOptions["onExchange"];
  readonly #onInvalidReply: (reason: InvalidReason) => void;
  readonly #idPrefix = randomBytes(6).toString("hex");
  #requests = 0;
  readonly #sockets = new WeakMap<AxiosResponse, Socket>();
  #agents: { for: Credentials; agents: Agents } | undefined;
  readonly #closed = new AbortController();

  constructor(options: HttpVmOptions) {
    this.target = parseTarget(options.url, options.allowPlainHttp ?? false);
    this.deadlines = { ...DEFAULT_DEADLINES, ...options.deadlines };
    this.clock = options.clock ?? systemClock;
    const pacing = { ...DEFAULT_PACING, ...options.pacing };
    this.pacing = new Pacing(pacing, this.clock);
    this.#maxSockets = pacing.concurrency;
    this.#dial = options.dial;
    this.#keepDialled = options.keepDialled ?? false;
    this.#credentials = new CredentialStore(options.credentials ?? {}, this.clock);
    this.#tracing = options.tracing;
    this.#onExchange = options.onExchange;
    this.#onInvalidReply = options.onInvalidReply ?? (() => {});
    this.#axios = axios.create({
      adapter: nodeAdapter(this.target),
      // The document's types go out as they are; bodies are read here, with a cap and a deadline.
      transformRequest: [],
      transformResponse: [],
    });
  }

  /** Counts a reply that was refused or corrected outside this module. */
  countInvalid(reason: InvalidReason): void {
    this.#onInvalidReply(reason);
  }

  /** One JSON reply. @throws ProviderError */
  json<N extends SchemaName>(call: Call, schema: N): Promise<Schemas[N]> {
    return this.#paced(call, async (response, requestId) => {
      const text = await this.#textOf(response, requestId, REPLY_BYTES.single, call);
      return this.#trusting(response, () => parseReply(schema, text));
    });
  }

  /**
   * The text of one JSON reply, which the caller judges. In a list, bytes that are not UTF-8 are replaced: one item's
   * text must not keep the others from being read. @throws ProviderError, whose cause is an InvalidReplyError of reason
   * `size` when it is too long
   */
  text(call: Call, kind: "single" | "list"): Promise<string> {
    return this.#paced(call, (response, requestId) =>
      this.#textOf(response, requestId, REPLY_BYTES[kind], call, kind === "single"),
    );
  }

  /**
   * A call that is done when the backend's status says so; the rest of its reply does not matter. @returns the reply's
   * text, if there is one that can be read. @throws ProviderError
   */
  accepted(call: Call): Promise<string | undefined> {
    return this.#paced(call, async (response, requestId) => {
      this.#requireEcho(response, requestId);
      return await this.#readBody(response, REPLY_BYTES.single, call.signal).catch(() => undefined);
    });
  }

  /**
   * A reply that goes on for as long as it likes, outside the pacing once it has begun. It breaks when it is silent for
   * too long, if `silenceMs` is given. @throws ProviderError
   */
  async stream(
    asked: Call,
    contentType: string,
    options: { accept?: string | undefined; silenceMs?: number | undefined } = {},
  ): Promise<StreamReply> {
    const call = this.#traced(asked);
    const response = await this.#repeatable(call, async () => {
      const { response, requestId } = await this.#send(call, "streams", options.accept);
      await this.#throwRefusal(response, requestId, call);
      this.#requireType(response, contentType);
      this.#requireEcho(response, requestId);
      return response;
    });
    const body = response.data as IncomingMessage;
    const chunks = options.silenceMs === undefined ? body : whileAlive(body, options.silenceMs, this.clock);
    return { chunks: chunks as AsyncIterable<Buffer>, close: () => void body.destroy() };
  }

  /** @throws ProviderError unauthorized when a credential file cannot be read */
  async dial(path: string, query: URLSearchParams): Promise<Dialing> {
    const trace = this.#tracing?.active();
    const credentials = await this.#credentials.read();
    const requestId = this.#nextRequestId();
    const { baseUrl, socketPath } = this.target;
    const search = query.size === 0 ? "" : `?${query.toString()}`;
    return {
      url:
        socketPath === undefined
          ? `${baseUrl.replace(/^http/, "ws")}${path}${search}`
          : `ws+unix://${socketPath}:${path}${search}`,
      agent: this.#agentsFor(credentials).streams,
      headers: this.#headers(credentials, requestId, trace),
      requestId,
      handshakeMs: this.deadlines.connectMs + this.deadlines.headersMs,
    };
  }

  /** The error that a WebSocket's refusal carries. */
  async refusalOf(reply: IncomingMessage, requestId: string): Promise<ProviderError> {
    const text = await this.#collect(reply, REPLY_BYTES.single, new AbortController().signal);
    return this.#refusal({ status: reply.statusCode ?? 0, headers: reply.headers, text }, requestId);
  }

  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  close(): void {
    this.#closed.abort(new ProviderError("unavailable", "the provider is closed"));
    const { agents } = this.#agents ?? {};
    agents?.calls.destroy();
    agents?.streams.destroy();
  }

  #paced<T>(asked: Call, read: (response: AxiosResponse, requestId: string) => Promise<T>): Promise<T> {
    const call = this.#traced(asked);
    const attempt = async () => {
      const { response, requestId } = await this.#send(call, "calls");
      await this.#throwRefusal(response, requestId, call);
      return read(response, requestId);
    };
    return this.pacing
      .run(kindOf(call), () => this.#repeatable(call, attempt), call.signal)
      .catch((thrown: unknown) => {
        throw asProviderError(thrown, call);
      });
  }

  #traced(call: Call): Call {
    const trace = this.#tracing?.active();
    return trace === undefined ? call : { ...call, trace };
  }

  /** Tries once more where that heals by itself. @throws ProviderError */
  async #repeatable<T>(call: Call, attempt: () => Promise<T>): Promise<T> {
    try {
      return await attempt();
    } catch (thrown) {
      // A token that was replaced a moment ago.
      if (isProviderError(thrown, "unauthorized")) this.#credentials.expire();
      else if (!isStaleConnection(thrown)) throw asProviderError(thrown, call);
    }
    return await attempt().catch((thrown: unknown) => {
      throw asProviderError(thrown, call);
    });
  }

  /** Sends and waits for headers, no longer than the deadlines allow. */
  async #send(
    call: Call,
    pool: keyof Agents,
    accept: string = JSON_TYPE,
  ): Promise<{ response: AxiosResponse; requestId: string }> {
    this.#closed.signal.throwIfAborted();
    const credentials = await this.#credentials.read();
    const agent = this.#agentsFor(credentials)[pool];
    const requestId = this.#nextRequestId();
    const late = new AbortController();
    const cancel = this.clock.after(this.deadlines.connectMs + this.deadlines.headersMs, () =>
      late.abort(new ProviderError("unavailable", `no reply to ${call.method} ${call.path} in time`)),
    );
    const content = call.body === undefined ? undefined : JSON.stringify(call.body);
    const { signal, release } = linkAbort(call.signal, late.signal, this.#closed.signal);
    const startedAt = this.clock.monotonic();
    const url = call.query === undefined || call.query.size === 0 ? call.path : `${call.path}?${call.query.toString()}`;
    const seen = (outcome: { status?: number; error?: string }) =>
      this.#onExchange?.({
        method: call.method,
        path: url,
        requestId,
        durationMs: this.clock.monotonic() - startedAt,
        ...outcome,
      });
    try {
      const response = await this.#axios.request({
        method: call.method,
        url,
        ...(content === undefined ? {} : { data: content }),
        headers: {
          ...this.#headers(credentials, requestId, call.trace),
          accept,
          ...(content === undefined ? {} : { "content-type": JSON_TYPE }),
          ...(call.ifAbsent === true ? { "if-none-match": "*" } : {}),
        },
        httpAgent: agent,
        httpsAgent: agent,
        signal,
      });
      seen({ status: response.status });
      // Once its body is read, a reply has lost its connection, which may have to be destroyed all the same.
      const body = response.data as IncomingMessage;
      const { socket } = body;
      // Until its end, the body is broken off by the same signals.
      if (body.closed) release();
      else body.once("close", release);
      if (socket) this.#sockets.set(response, socket);
      return { response, requestId };
    } catch (thrown) {
      seen({ error: plainText(thrown instanceof Error ? thrown.message : String(thrown), 256) });
      release();
      if (late.signal.aborted && !call.signal.aborted) throw late.signal.reason;
      throw isStaleConnection(thrown) ? thrown : asProviderError(thrown, call);
    } finally {
      cancel();
    }
  }

  #headers(credentials: Credentials, requestId: string, trace: TraceContext | undefined): Record<string, string> {
    return {
      "x-request-id": requestId,
      "accept-encoding": "identity",
      "user-agent": "vmlet",
      ...trace,
      ...(credentials.token === undefined ? {} : { authorization: `Bearer ${credentials.token}` }),
    };
  }

  #nextRequestId(): string {
    return `${this.#idPrefix}-${++this.#requests}`;
  }

  /** Connections that were made with other certificates are not used again. */
  #agentsFor(credentials: Credentials): Agents {
    if (this.#agents?.for === credentials) return this.#agents.agents;
    const previous = this.#agents?.agents;
    const agents = createAgents({
      isTls: this.target.isTls,
      credentials,
      maxSockets: this.#maxSockets,
      connectMs: this.deadlines.connectMs,
      clock: this.clock,
      dial: this.#dial,
      keepDialled: this.#keepDialled,
    });
    this.#agents = { for: credentials, agents };
    previous?.calls.destroy();
    return agents;
  }

  /** @throws ProviderError for any status but 2xx */
  async #throwRefusal(response: AxiosResponse, requestId: string, call: Call): Promise<void> {
    if (response.status >= 200 && response.status < 300) return;
    const text = await this.#readBody(response, REPLY_BYTES.single, call.signal);
    throw this.#refusal({ status: response.status, headers: response.headers, text }, requestId);
  }

  #refusal(reply: Omit<Refusal, "requestId" | "now">, requestId: string): ProviderError {
    return refusalOf({ ...reply, requestId, now: this.clock.now() }, this.#onInvalidReply);
  }

  #requireType(response: AxiosResponse, expected: string): void {
    const type = String(response.headers["content-type"] ?? "");
    const encoding = response.headers["content-encoding"] as unknown;
    if (type.toLowerCase().startsWith(expected) && (encoding === undefined || encoding === "identity")) return;
    throw this.#refuseReply(
      response,
      "content_type",
      `the reply's type is ${type.slice(0, 100) || "missing"}, not ${expected}`,
    );
  }

  /** An answer to another request means that replies are mixed up on this connection. */
  #requireEcho(response: AxiosResponse, requestId: string): void {
    if (response.headers["x-request-id"] === requestId) return;
    throw this.#refuseReply(response, "request_id", "the reply's X-Request-Id is not the request's");
  }

  async #textOf(
    response: AxiosResponse,
    requestId: string,
    maxBytes: number,
    call: Call,
    fatal: boolean = true,
  ): Promise<string> {
    this.#requireType(response, JSON_TYPE);
    const text = await this.#readBody(response, maxBytes, call.signal, fatal);
    this.#requireEcho(response, requestId);
    return text;
  }

  #trusting<T>(response: AxiosResponse, work: () => T): T {
    try {
      return work();
    } catch (thrown) {
      if (thrown instanceof InvalidReplyError) throw this.#refuseReply(response, thrown.reason, thrown.message);
      throw thrown;
    }
  }

  /** The connection is not used again. */
  #refuseReply(response: AxiosResponse, reason: InvalidReason, message: string): ProviderError {
    this.#onInvalidReply(reason);
    const stream = response.data as IncomingMessage;
    this.#sockets.get(response)?.destroy();
    stream.destroy();
    const cause = new InvalidReplyError(reason, message);
    return new ProviderError("unavailable", `invalid reply: ${plainText(message, 1024)}`, { cause });
  }

  async #readBody(
    response: AxiosResponse,
    maxBytes: number,
    signal: AbortSignal,
    fatal: boolean = true,
  ): Promise<string> {
    const declared = Number(response.headers["content-length"] ?? 0);
    if (declared > maxBytes)
      throw this.#refuseReply(response, "size", `the reply has ${declared} bytes, more than ${maxBytes}`);
    try {
      return await this.#collect(response.data as IncomingMessage, maxBytes, signal, fatal);
    } catch (thrown) {
      if (thrown instanceof InvalidReplyError) throw this.#refuseReply(response, thrown.reason, thrown.message);
      throw thrown;
    }
  }

  #collect(body: IncomingMessage, maxBytes: number, signal: AbortSignal, fatal?: boolean): Promise<string> {
    return readText(body, { maxBytes, fatal, withinMs: this.deadlines.bodyMs, clock: this.clock, signal });
  }
}

/** A kept connection that broke before any reply came on it. */
function isStaleConnection(thrown: unknown): boolean {
  if (!(thrown instanceof AxiosError) || thrown.response !== undefined) return false;
  const request = thrown.request as
    | { reusedSocket?: boolean; _currentRequest?: { reusedSocket?: boolean } }
    | undefined;
  const reused = request?.reusedSocket ?? request?._currentRequest?.reusedSocket ?? false;
  return reused && (thrown.code === "ECONNRESET" || thrown.code === "EPIPE");
}
