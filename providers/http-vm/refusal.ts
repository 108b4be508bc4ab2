/** What a reply other than success means. */
import { ProviderError, type ProviderErrorCode } from "../../src/provider/kit/index.ts";
import type { Schemas } from "../../src/provider/contract/document.ts";
import { InvalidReplyError, type InvalidReason } from "./invalid-reply.ts";
import { parseReply, plainText } from "./validate.ts";

export interface Refusal {
  status: number;
  headers: Readonly<Record<string, unknown>>;
  /** Of the body. */
  text: string;
  /** Of the request. */
  requestId: string;
  /** Wall clock, for a `Retry-After` that is a date. */
  now: number;
}

/**
 * Without a valid envelope, a reply to this very request, nothing that a backend "says" is believed: it may be a
 * proxy's.
 *
 * @param onInvalid told why the reply is not a refusal by the Machine API's rules
 */
export function refusalOf(
  { status, headers, text, requestId, now }: Refusal,
  onInvalid: (reason: InvalidReason) => void,
): ProviderError {
  const retryAfterMs = retryAfter(headers["retry-after"], now);
  if (status >= 300 && status < 400) {
    onInvalid("redirect");
    return new ProviderError("unavailable", `the backend redirects (HTTP ${status}), which is never followed`);
  }
  let envelope: Schemas["ErrorReply"]["error"] | undefined;
  try {
    envelope = parseReply("ErrorReply", text).error;
  } catch (thrown) {
    if (!(thrown instanceof InvalidReplyError)) throw thrown;
  }
  const isOurs = headers["x-request-id"] === requestId;
  if (envelope === undefined || !isOurs) {
    onInvalid(envelope === undefined ? "schema" : "request_id");
    const code = codeWithoutEnvelope(status);
    return new ProviderError(
      code,
      `HTTP ${status} without a Machine API error${envelope === undefined ? "" : " for this request"}`,
      { retryAfterMs },
    );
  }
  return new ProviderError(
    agrees(envelope.code, status) ? envelope.code : "unavailable",
    plainText(envelope.message, 1024),
    {
      retryAfterMs: envelope.retry_after_ms ?? retryAfterMs,
      field: envelope.field === undefined ? undefined : plainText(envelope.field, 256),
      requestId,
    },
  );
}

function codeWithoutEnvelope(status: number): ProviderErrorCode {
  if (status === 401 || status === 403) return "unauthorized";
  if (status === 429) return "rate_limited";
  return "unavailable";
}

/** A code that contradicts its status is not believed: `not_found` with 500, `invalid` with 502. */
function agrees(code: ProviderErrorCode, status: number): boolean {
  switch (code) {
    case "not_found":
      return status === 404;
    case "gone":
      return status === 410;
    case "conflict":
      return status === 409 || status === 412;
    case "invalid":
      return status === 400 || status === 413 || status === 422;
    case "unsupported":
      return status === 501 || status === 404 || status === 405 || status === 422;
    case "unauthorized":
      return status === 401 || status === 403;
    case "rate_limited":
      return status === 429;
    case "quota":
      return status === 503 || status === 429 || status === 507;
    case "unavailable":
      return true;
  }
}

/** Seconds or an HTTP date. */
function retryAfter(header: unknown, now: number): number | undefined {
  if (typeof header !== "string") return undefined;
  if (/^\d{1,9}$/.test(header)) return Number(header) * 1000;
  const date = Date.parse(header);
  return Number.isNaN(date) ? undefined : Math.max(0, date - now);
}
