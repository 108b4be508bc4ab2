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

/** The statuses with which each code is believed. */
const AGREEING: Readonly<Record<Exclude<ProviderErrorCode, "unavailable">, readonly number[]>> = {
  not_found: [404],
  gone: [410],
  conflict: [409, 412],
  in_use: [409, 412, 423],
  out_of_zone: [409, 412, 422],
  invalid: [400, 413, 422],
  unsupported: [501, 404, 405, 422],
  unauthorized: [401, 403],
  rate_limited: [429],
  quota: [503, 429, 507],
};

/** A code that contradicts its status is not believed: `not_found` with 500, `invalid` with 502. */
const agrees = (code: ProviderErrorCode, status: number): boolean =>
  code === "unavailable" || AGREEING[code].includes(status);

/** Seconds or an HTTP date. */
function retryAfter(header: unknown, now: number): number | undefined {
  if (typeof header !== "string") return undefined;
  if (/^\d{1,9}$/.test(header)) return Number(header) * 1000;
  const date = Date.parse(header);
  return Number.isNaN(date) ? undefined : Math.max(0, date - now);
}
