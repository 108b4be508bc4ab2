import { isProviderError, type ProviderErrorCode } from "../provider/errors.ts";
import { plainText } from "../streaming/plain-text.ts";
import { UpgradeRefused } from "../streaming/upgrade.ts";
import { toError, VmletError } from "../util/errors.ts";

/** A reply other than 200, as plain text: what the kubelet says, word for word, since clients show it. */
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

/** What to answer to whatever was thrown; a surprise tells nothing of its inside. */
export function toHttpError(thrown: unknown): HttpError {
  if (thrown instanceof HttpError) return thrown;
  if (thrown instanceof UpgradeRefused) return new HttpError(thrown.status, thrown.message, thrown.headers);
  if (isProviderError(thrown)) {
    if (thrown.code === "unauthorized") return new HttpError(502, "the backend refused the agent's credentials");
    return new HttpError(PROVIDER_STATUS[thrown.code], plainText(thrown.message));
  }
  if (toError(thrown).name === "AbortError") return new HttpError(503, "the request was cancelled");
  return new HttpError(500, "internal error");
}
