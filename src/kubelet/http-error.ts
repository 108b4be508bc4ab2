/** Failures of the kubelet API as HTTP replies: the kubelet's own, and what a provider's error becomes. */
import { isProviderError, type ProviderErrorCode } from "../provider/errors.ts";
import { plainText } from "../streaming/plain-text.ts";
import { UpgradeRefused } from "../streaming/upgrade.ts";
import { toError, VmletError } from "../util/errors.ts";

/** A reply other than 200: what the kubelet says, word for word, since clients show it. */
export class HttpError extends VmletError {
  readonly code = "HTTP";
  readonly status: number;
  readonly headers: readonly (readonly [string, string])[];

  constructor(status: number, message: string, headers: readonly (readonly [string, string])[] = []) {
    super(message);
    this.status = status;
    this.headers = headers;
  }
}

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
  if (thrown instanceof UpgradeRefused) return new HttpError(thrown.status, thrown.message, thrown.headers);
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
export function statusBody({ status: code, message, headers }: HttpError): string {
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
