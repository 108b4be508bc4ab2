/**
 * Sends spans to a collector: OTLP over HTTP, as JSON. One that is away, slow or full costs the spans that it does not
 * take, and nobody waits for it; that is logged once in a while. What is kept for it meanwhile is the queue's to bound.
 *
 * By hand, because the SDK's exporter brings those of logs and metrics along, and variables of the environment that
 * would go over the configuration.
 */
import { readFile } from "node:fs/promises";
import { request as requestPlain } from "node:http";
import { request as requestTls } from "node:https";
import type { Attributes as SpanAttributes, HrTime, SpanContext } from "@opentelemetry/api";
import type { ReadableSpan, SpanExporter } from "@opentelemetry/sdk-trace";
import { linkAbort, pause } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { toError, VmletError } from "../util/errors.ts";
import type { Logger } from "./logger.ts";
import type { Attributes } from "./tracing.ts";

export interface OtlpOptions {
  /** http:// or https://; without a path it is /v1/traces. */
  endpoint: string;
  /** Headers to send, `Name: value` a line: credentials. This file and the others are read again for each request. */
  headersFile?: string | undefined;
  /** Who signed the collector's certificate. Default: the public CAs. */
  caFile?: string | undefined;
  certFile?: string | undefined;
  keyFile?: string | undefined;
  /** What all spans have in common. */
  resource: Attributes;
  version: string;
  clock: Clock;
  logger: Logger;
}

/** Of one try. */
const REPLY_MS = 5_000;
const TRIES = 3;
/** Between the first two tries; then twice as long. */
const RETRY_MS = 1_000;
/** Between two lines in the log while nothing is taken. */
const SILENCE_MS = 10 * 60_000;
/** Of the protocol: it may be tried again. */
const LATER: readonly number[] = [429, 502, 503, 504];
const MAX_HEADERS = 64 * 1024;
const HEADER = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*([!-~][ -~]*)$/;
const HTTP_OF_OURS: readonly string[] = ["host", "connection", "content-length", "content-type", "transfer-encoding"];

/** The collector refused the spans, or a file of the exporter's cannot be used. */
class TracingError extends VmletError {
  readonly code = "TRACING";
}

export class OtlpExporter implements SpanExporter {
  readonly #options: OtlpOptions;
  readonly #url: URL;
  readonly #sending = new Set<Promise<void>>();
  readonly #closed = new AbortController();
  #failing: { toldAt: number; lost: number } | undefined;

  constructor(options: OtlpOptions) {
    this.#options = options;
    this.#url = new URL(options.endpoint);
    if (this.#url.pathname === "/") this.#url.pathname = "/v1/traces";
  }

  /** @throws TracingError when a file cannot be used */
  async check(): Promise<void> {
    await this.#credentials();
  }

  export(spans: ReadableSpan[], done: (result: { code: 0 }) => void): void {
    const sending = this.#send(spans);
    this.#sending.add(sending);
    // That it failed is told here: the SDK would tell everybody in the process.
    void sending.finally(() => {
      this.#sending.delete(sending);
      done({ code: 0 });
    });
  }

  /** Resolves when nothing is under way any more. */
  async shutdown(): Promise<void> {
    await Promise.all(this.#sending);
  }

  /** Gives up what is under way. */
  abandon(): void {
    this.#closed.abort(new TracingError("the process ends"));
  }

  /** Never rejects. */
  async #send(spans: readonly ReadableSpan[]): Promise<void> {
    const { clock } = this.#options;
    try {
      const body = Buffer.from(JSON.stringify(encode(spans, this.#options)));
      for (let tries = 1; ; tries++) {
        const refusal = await this.#post(body);
        if (refusal === undefined) return this.#arrived();
        if (!refusal.retryable || tries === TRIES || this.#closed.signal.aborted) throw refusal;
        await pause(clock, RETRY_MS * 2 ** (tries - 1), this.#closed.signal);
      }
    } catch (thrown) {
      this.#failed(toError(thrown), spans.length);
    }
  }

  #arrived(): void {
    if (this.#failing === undefined) return;
    this.#options.logger.info({ lost: this.#failing.lost }, "The collector takes traces again");
    this.#failing = undefined;
  }

  #failed(err: Error, count: number): void {
    const { clock, logger } = this.#options;
    const now = clock.monotonic();
    const lost = (this.#failing?.lost ?? 0) + count;
    const isToBeTold = this.#failing === undefined || now - this.#failing.toldAt >= SILENCE_MS;
    this.#failing = { toldAt: isToBeTold ? now : this.#failing!.toldAt, lost };
    if (isToBeTold && !this.#closed.signal.aborted)
      logger.warn({ endpoint: this.#url.href, lost, err }, "The collector does not take traces, which are dropped");
  }

  /** @returns why it was not taken. @throws TracingError when a file cannot be used */
  async #post(body: Buffer): Promise<TracingError | undefined> {
    const { headers, tls } = await this.#credentials();
    const late = new AbortController();
    const cancel = this.#options.clock.after(REPLY_MS, () =>
      late.abort(new TracingError("it does not answer in time")),
    );
    using ends = linkAbort(late.signal, this.#closed.signal);
    try {
      const status = await this.#exchange(body, headers, tls, ends.signal);
      if (status >= 200 && status < 300) return undefined;
      return new TracingError(`HTTP ${status}`, { retryable: LATER.includes(status) });
    } catch (thrown) {
      const cause = ends.signal.aborted ? toError(ends.signal.reason) : toError(thrown);
      return new TracingError(cause.message, { retryable: true, cause });
    } finally {
      cancel();
    }
  }

  /** The reply's status. Each request has a connection of its own, so that it is made with the files of now. */
  #exchange(body: Buffer, headers: Headers, tls: Tls, signal: AbortSignal): Promise<number> {
    const { promise, resolve, reject } = Promise.withResolvers<number>();
    const options = {
      method: "POST",
      headers: {
        ...headers,
        "content-type": "application/json",
        "content-length": body.length,
        "user-agent": `vmlet/${this.#options.version}`,
      },
      agent: false as const,
      signal,
    };
    const sent =
      this.#url.protocol === "https:"
        ? requestTls(this.#url, { ...options, ...tls })
        : requestPlain(this.#url, options);
    sent.once("response", (response) => {
      resolve(response.statusCode ?? 0);
      // What it says beyond that is not worth a wait.
      response.on("error", () => undefined);
      response.destroy();
    });
    sent.once("upgrade", (response, socket) => {
      socket.destroy();
      resolve(response.statusCode ?? 0);
    });
    sent.on("error", reject);
    // Whatever it was: nothing more comes.
    sent.once("close", () => reject(new TracingError("it closes the connection without a reply")));
    sent.end(body);
    return promise;
  }

  async #credentials(): Promise<{ headers: Headers; tls: Tls }> {
    const { headersFile, caFile, certFile, keyFile } = this.#options;
    const [text, ca, cert, key] = await Promise.all([
      read("headersFile", headersFile),
      read("caFile", caFile),
      read("certFile", certFile),
      read("keyFile", keyFile),
    ]);
    return { headers: headersOf(text ?? "", headersFile ?? ""), tls: { ca, cert, key } };
  }
}

type Headers = Readonly<Record<string, string>>;
interface Tls {
  ca: string | undefined;
  cert: string | undefined;
  key: string | undefined;
}

async function read(field: string, path: string | undefined): Promise<string | undefined> {
  if (path === undefined) return undefined;
  try {
    return await readFile(path, "utf8");
  } catch (thrown) {
    throw new TracingError(`${field}: ${toError(thrown).message}: correct the path, or let this user read it`, {
      cause: thrown,
    });
  }
}

/** Nothing of the file is repeated: it holds secrets. @throws TracingError that names the line */
function headersOf(text: string, path: string): Headers {
  if (text.length > MAX_HEADERS) throw new TracingError(`headersFile: ${path} is longer than ${MAX_HEADERS} bytes`);
  const lines = text.split("\n").map((line, index) => ({ line: line.trim(), number: index + 1 }));
  const headers = lines
    .filter(({ line }) => line !== "" && !line.startsWith("#"))
    .map(({ line, number }) => {
      const [, name, value] = HEADER.exec(line) ?? [];
      if (name === undefined || value === undefined)
        throw new TracingError(`headersFile: line ${number} of ${path} is no header: write Name: value`);
      if (HTTP_OF_OURS.includes(name.toLowerCase()))
        throw new TracingError(`headersFile: line ${number} of ${path} sets ${name}, which the request itself has`);
      return [name.toLowerCase(), value] as const;
    });
  return Object.fromEntries(headers);
}

// ------------------------------------------------------------------------------------------------------ OTLP's JSON

/** An ExportTraceServiceRequest (opentelemetry-proto, JSON with hexadecimal ids). */
function encode(spans: readonly ReadableSpan[], { resource, version }: OtlpOptions): object {
  const scope = { name: "vmlet", version };
  return {
    resourceSpans: [
      { resource: { attributes: encodeAttributes(resource) }, scopeSpans: [{ scope, spans: spans.map(encodeSpan) }] },
    ],
  };
}

function encodeSpan(span: ReadableSpan): object {
  const { parentSpanContext: parent, status, links } = span;
  return {
    ...encodeContext(span.spanContext()),
    ...(parent !== undefined && { parentSpanId: parent.spanId }),
    name: span.name,
    // The API counts from 0, the protocol has 0 for what is not said.
    kind: span.kind + 1,
    startTimeUnixNano: nanoseconds(span.startTime),
    endTimeUnixNano: nanoseconds(span.endTime),
    attributes: encodeAttributes(span.attributes),
    droppedAttributesCount: span.droppedAttributesCount,
    links: links.map(({ context }) => encodeContext(context)),
    status: { code: status.code },
  };
}

function encodeContext({ traceId, spanId, traceState }: SpanContext): object {
  const state = traceState?.serialize() ?? "";
  return { traceId, spanId, ...(state !== "" && { traceState: state }) };
}

function encodeAttributes(attributes: Attributes | SpanAttributes): object[] {
  return Object.entries(attributes).flatMap(([key, value]) => {
    const encoded = encodeValue(value);
    return encoded === undefined ? [] : [{ key, value: encoded }];
  });
}

function encodeValue(value: unknown): object | undefined {
  if (typeof value === "string") return { stringValue: value };
  if (typeof value === "boolean") return { boolValue: value };
  if (typeof value !== "number") return undefined;
  return Number.isInteger(value) ? { intValue: String(value) } : { doubleValue: value };
}

const nanoseconds = ([seconds, rest]: HrTime): string => String(BigInt(seconds) * 1_000_000_000n + BigInt(rest));
