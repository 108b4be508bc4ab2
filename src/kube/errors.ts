/**
 * Failures of requests to the API server, and what they prove: above all, which of them says that an object is gone.
 */
import { VmletError } from "../util/errors.ts";

/** The part of a `metav1.Status` that anybody here reads. */
export interface StatusDetails {
  readonly name?: string;
  readonly kind?: string;
  readonly retryAfterSeconds?: number;
  readonly causes?: readonly { readonly reason?: string; readonly message?: string; readonly field?: string }[];
}

/**
 * Reasons of faults that no API server reported: nothing, or nothing readable, came back. Their `status` is 0.
 *
 * After any of them but `ConnectionRefused` the request may or may not have been carried out.
 */
export type TransportReason = "ConnectionRefused" | "Timeout" | "Transport" | "Malformed";

/** A server that names a longer pause, as a proxy's maintenance page does, is asked again after this one. */
const LONGEST_PAUSE_MS = 60_000;

/**
 * A request to the API server failed. `status` is the HTTP status, or 0 when no usable reply came; `reason` is the
 * reason of the `Status` object (`NotFound`, `Conflict`, `Expired`...) or a `TransportReason`.
 *
 * The message names the verb, the path and the server's words, never headers or credentials.
 */
export class KubeApiError extends VmletError {
  readonly code = "KUBE_API";
  readonly status: number;
  readonly reason: string;
  readonly details: StatusDetails | undefined;

  constructor(
    message: string,
    options: {
      status: number;
      reason: string;
      details?: StatusDetails | undefined;
      retryAfterMs?: number | undefined;
      cause?: unknown;
    },
  ) {
    const { status } = options;
    // 401 heals when the credentials are rotated, 409 when the object is read again.
    const retryable =
      status === 0 || status === 401 || status === 408 || status === 409 || status === 429 || status >= 500;
    const retryAfterMs =
      options.retryAfterMs === undefined ? undefined : Math.min(options.retryAfterMs, LONGEST_PAUSE_MS);
    super(message, { cause: options.cause, retryable, retryAfterMs });
    this.status = status;
    this.reason = options.reason;
    this.details = options.details;
  }
}

/** A reply that came, or would have come, but has more bytes than are taken: a smaller part of it may do. */
export class ReplyTooLargeError extends KubeApiError {
  constructor(message: string) {
    super(message, { status: 0, reason: "Malformed" });
  }
}

export function isKubeApiError(thrown: unknown): thrown is KubeApiError {
  return thrown instanceof KubeApiError;
}

const withStatus = (status: number) => (thrown: unknown) => isKubeApiError(thrown) && thrown.status === status;

export const isUnauthorized = withStatus(401);
export const isForbidden = withStatus(403);
export const isNotFound = withStatus(404);

/**
 * The API server itself says that there is no object of this name. Any other 404 proves nothing: a proxy, a load
 * balancer or an API server that does not know the path answers so as well, about objects that are there.
 *
 * @param what the resource in the plural, as in paths and in a Status' `details.kind`, and the object's name
 */
export function saysNotFound(thrown: unknown, what: { resource: string; name: string }): boolean {
  if (!isKubeApiError(thrown) || thrown.status !== 404 || thrown.reason !== "NotFound") return false;
  const { kind, name } = thrown.details ?? {};
  return name === what.name && kind === what.resource;
}

/** 409 of a write that lost against another, or whose UID or resourceVersion no longer holds. Not `AlreadyExists`. */
export function isConflict(thrown: unknown): boolean {
  return isKubeApiError(thrown) && thrown.status === 409 && thrown.reason !== "AlreadyExists";
}

export function isAlreadyExists(thrown: unknown): boolean {
  return isKubeApiError(thrown) && thrown.status === 409 && thrown.reason === "AlreadyExists";
}

/** The resourceVersion or continue token is too old: list again from the start. */
export function isGone(thrown: unknown): boolean {
  return isKubeApiError(thrown) && (thrown.status === 410 || thrown.reason === "Expired" || thrown.reason === "Gone");
}

/** The server is behind the resourceVersion that was asked for (client-go: `IsTooLargeResourceVersion`). */
export function isTooLargeResourceVersion(thrown: unknown): boolean {
  if (!isKubeApiError(thrown)) return false;
  return (
    thrown.details?.causes?.some((cause) => cause.reason === "ResourceVersionTooLarge") === true ||
    (thrown.status === 504 && thrown.message.includes("Too large resource version"))
  );
}

/** Nothing can be created in this namespace any more. */
export function isNamespaceTerminating(thrown: unknown): boolean {
  return (
    isKubeApiError(thrown) &&
    thrown.status === 403 &&
    thrown.details?.causes?.some((cause) => cause.reason === "NamespaceTerminating") === true
  );
}
