/**
 * Requests and replies of the Machine API server: ids, queries, bodies, error envelopes. No route knows of node:http
 * but through this.
 */
import { randomBytes } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { HttpError, ProviderError, readBody, sendReply } from "../../../src/provider/kit/index.ts";
import { violation, type SchemaName, type Schemas } from "../../../src/provider/contract/document.ts";
import { InvalidReplyError } from "../invalid-reply.ts";
import { parseJson } from "../json.ts";
import { upgrade } from "../last-release.ts";
import { errorReply, JSON_TYPE, STATUS_OF_CODE } from "../wire.ts";

const REQUEST_ID = /^[A-Za-z0-9._-]{1,64}$/;
const ID_PREFIX = randomBytes(6).toString("hex");
let ids = 0;

/** The caller's id, or a new one when it sent none that is fit to be echoed. */
export function requestIdOf(request: IncomingMessage): string {
  const given = request.headers["x-request-id"];
  return typeof given === "string" && REQUEST_ID.test(given) ? given : `${ID_PREFIX}-${++ids}`;
}

export function sendJson(response: ServerResponse, status: number, body: string): void {
  sendReply(response, status, { "content-type": JSON_TYPE }, body);
}

export function sendNothing(response: ServerResponse): void {
  response.writeHead(204);
  response.end();
}

/** Head (without the length) and body of an error reply: for a response, and for an upgrade that is refused. */
export function renderError(
  error: ProviderError,
  requestId: string,
): { status: number; headers: Record<string, string>; body: string } {
  const body = JSON.stringify(errorReply(error, requestId));
  const headers: Record<string, string> = {
    "content-type": JSON_TYPE,
    "x-request-id": requestId,
  };
  if (error.retryAfterMs !== undefined) headers["retry-after"] = String(Math.ceil(error.retryAfterMs / 1000));
  if (error.code === "unauthorized") headers["www-authenticate"] = "Bearer";
  return { status: STATUS_OF_CODE[error.code], headers, body };
}

/** Reads the body as JSON and checks it against the document. @throws ProviderError invalid */
export async function readJson<N extends SchemaName>(
  request: IncomingMessage,
  name: N,
  maxBytes: number,
): Promise<Schemas[N]> {
  const type = request.headers["content-type"];
  if (type !== undefined && !type.toLowerCase().startsWith(JSON_TYPE)) {
    throw new ProviderError("invalid", `the body must be ${JSON_TYPE}, not ${type.slice(0, 100)}`);
  }
  const text = await readText(request, maxBytes);
  let value: unknown;
  try {
    value = parseJson(text);
  } catch (thrown) {
    if (thrown instanceof InvalidReplyError) throw new ProviderError("invalid", thrown.message, { cause: thrown });
    throw thrown;
  }
  upgrade(name, value);
  const found = violation("request", name, value);
  if (found !== undefined) {
    const what = found.field === "" ? "the body" : found.field;
    throw new ProviderError("invalid", `${what} ${found.message}`, { field: found.field || undefined });
  }
  return value as Schemas[N];
}

async function readText(request: IncomingMessage, maxBytes: number): Promise<string> {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await readBody(request, maxBytes));
  } catch (thrown) {
    if (thrown instanceof HttpError) throw new ProviderError("invalid", thrown.message, { cause: thrown });
    if (thrown instanceof TypeError) throw new ProviderError("invalid", "the body is not UTF-8", { cause: thrown });
    throw thrown;
  }
}

/** A request's query, read parameter by parameter; unknown parameters are refused. */
export class Query {
  readonly #params: URLSearchParams;

  constructor(params: URLSearchParams, known: readonly string[]) {
    for (const name of params.keys()) {
      if (!known.includes(name) && !name.startsWith("x-")) {
        throw new ProviderError("invalid", `the query parameter ${name.slice(0, 100)} is not known`, {
          field: name.slice(0, 100),
        });
      }
    }
    this.#params = params;
  }

  text(name: string): string | undefined {
    return this.#params.get(name) ?? undefined;
  }

  all(name: string): string[] {
    return this.#params.getAll(name);
  }

  flag(name: string): boolean {
    const value = this.text(name);
    if (value === undefined || value === "false") return false;
    if (value === "true") return true;
    throw new ProviderError("invalid", `${name} must be true or false`, { field: name });
  }

  /** A whole number. */
  count(
    name: string,
    range: { min: number; max: number } = { min: 0, max: Number.MAX_SAFE_INTEGER },
  ): number | undefined {
    const value = this.text(name);
    if (value === undefined) return undefined;
    const number = Number(value);
    if (!/^\d{1,16}$/.test(value) || number < range.min || number > range.max) {
      throw new ProviderError("invalid", `${name} must be a whole number from ${range.min} to ${range.max}`, {
        field: name,
      });
    }
    return number;
  }

  /** The document's `timeout`, seconds with a fraction, in milliseconds. */
  timeoutMs(maxMs: number): number {
    const value = this.text("timeout") ?? "30";
    const seconds = Number(value);
    if (!/^\d{1,6}(\.\d{1,6})?$/.test(value) || seconds > 60) {
      throw new ProviderError("invalid", "timeout must be seconds from 0 to 60", { field: "timeout" });
    }
    return Math.min(seconds * 1000, maxMs);
  }

  labels(): Record<string, string> {
    const labels: Record<string, string> = {};
    for (const pair of this.all("label")) {
      const at = pair.indexOf("=");
      if (at <= 0 || pair.startsWith("__proto__="))
        throw new ProviderError("invalid", "label must be key=value", { field: "label" });
      labels[pair.slice(0, at)] = pair.slice(at + 1);
    }
    return labels;
  }
}

/**
 * Anything thrown, as the error that the caller sees. An error that is not a ProviderError is a fault of the server,
 * and its message is not sent.
 */
export function asProviderError(thrown: unknown): ProviderError {
  if (isTold(thrown)) return thrown;
  return new ProviderError("unavailable", "the backend failed; its log has the reason", { cause: thrown });
}

/** Whether a client can be told it: modules that are not compiled may give an error a code of their own. */
export function isTold(thrown: unknown): thrown is ProviderError {
  return thrown instanceof ProviderError && Object.hasOwn(STATUS_OF_CODE, thrown.code);
}
