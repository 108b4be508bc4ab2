/**
 * Failures of the kubelet API as HTTP replies: the kubelet's own, what a provider's error becomes, and the form that
 * each client understands.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { HttpError } from "../http/http-error.ts";
import { sendLastWords } from "../http/last-words.ts";
import { isProviderError, type ProviderErrorCode } from "../provider/errors.ts";
import { plainText } from "../streaming/plain-text.ts";
import { toError } from "../util/errors.ts";

/** Of an address that tries too many credentials: its connection is to be held back and closed. */
export class TooManyFailures extends HttpError {
  constructor() {
    super(429, "Too many failed authentications", [["Retry-After", "1"]]);
  }
}

/** Never a redirect, and never 401 or 403, which would speak of the client's own credentials. */
const PROVIDER_STATUS: Record<ProviderErrorCode, number> = {
  not_found: 404,
  gone: 404,
  invalid: 400,
  unsupported: 501,
  conflict: 409,
  in_use: 409,
  out_of_zone: 409,
  quota: 429,
  rate_limited: 429,
  unauthorized: 502,
  unavailable: 503,
};

/**
 * The reply for an error that was thrown; an unexpected one shows nothing of its message.
 *
 * @param nodeName the node whose backend is unavailable: a user has to name it to an administrator
 */
export function toHttpError(thrown: unknown, nodeName: string): HttpError {
  if (thrown instanceof HttpError) return thrown;
  if (isProviderError(thrown)) {
    const where = `the backend of node ${nodeName}`;
    if (thrown.code === "unauthorized") return new HttpError(502, `${where} refused the agent's credentials`);
    const message = plainText(thrown.message);
    return new HttpError(
      PROVIDER_STATUS[thrown.code],
      thrown.code === "unavailable" ? `${where} is unavailable: ${message}` : message,
    );
  }
  if (toError(thrown).name === "AbortError") return new HttpError(503, "the request was cancelled");
  return new HttpError(500, "internal error");
}

/** `metav1.StatusReason` by status; those that Kubernetes has no word for are HTTP's own. */
const REASONS: Readonly<Record<number, string>> = {
  400: "BadRequest",
  401: "Unauthorized",
  403: "Forbidden",
  404: "NotFound",
  405: "MethodNotAllowed",
  409: "Conflict",
  413: "RequestEntityTooLarge",
  429: "TooManyRequests",
  500: "InternalError",
  501: "NotImplemented",
  502: "BadGateway",
  503: "ServiceUnavailable",
};

/** gorilla/websocket, which is kubectl's, hands on no more of a refusal. */
const MAX_STATUS_BYTES = 1024;

/**
 * The error as a `metav1.Status` of at most 1024 bytes. A refused upgrade has to be one: API servers pass it on as it
 * is, and kubectl takes every text with a colon in it for a Status in YAML that says nothing.
 */
function statusBody({ status: code, message, headers }: HttpError): string {
  const retryAfter = Number(headers.find(([name]) => name.toLowerCase() === "retry-after")?.[1]);
  const body = (text: string) =>
    JSON.stringify({
      kind: "Status",
      apiVersion: "v1",
      metadata: {},
      status: "Failure",
      message: text,
      ...(REASONS[code] !== undefined && { reason: REASONS[code] }),
      ...(retryAfter > 0 && { details: { retryAfterSeconds: retryAfter } }),
      code,
    });
  let kept = message.trimEnd();
  let text = kept;
  for (let excess; (excess = Buffer.byteLength(body(text)) - MAX_STATUS_BYTES) > 0;) {
    // A character is six bytes at most.
    kept = kept.slice(0, -Math.ceil(excess / 6));
    text = `${kept}…`;
  }
  return body(text);
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
export function answerError(response: ServerResponse, error: HttpError, request: IncomingMessage): void {
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
export function refuseUpgrade(socket: Duplex, error: HttpError): void {
  const [contentType, body] =
    error.status === 401 ? [TEXT_TYPE, error.message] : ["application/json", statusBody(error)];
  sendLastWords(socket, { status: error.status, headers: errorHeaders(error, contentType), body });
}

/** What Node's parser refused, answered without a word about why. */
export function answerClientError(error: NodeJS.ErrnoException, socket: Duplex): void {
  const status = error.code === "HPE_HEADER_OVERFLOW" ? 431 : error.code === "ERR_HTTP_REQUEST_TIMEOUT" ? 408 : 400;
  sendLastWords(socket, { status, headers: [["Content-Type", TEXT_TYPE]], body: "" });
}
