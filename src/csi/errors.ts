/** Errors of the backend in gRPC's words, as CSI's sidecars understand them. */
import { Code, ConnectError } from "@connectrpc/connect";
import { isProviderError, type ProviderErrorCode } from "../provider/errors.ts";
import { toError } from "../util/errors.ts";

/**
 * By what CSI says of each call: what is `Unavailable` or `Aborted` may have been done, and is asked for again as it
 * was; the others say that it was not.
 */
const CODES: Readonly<Record<ProviderErrorCode, Code>> = {
  not_found: Code.NotFound,
  invalid: Code.InvalidArgument,
  unsupported: Code.InvalidArgument,
  conflict: Code.AlreadyExists,
  gone: Code.FailedPrecondition,
  in_use: Code.FailedPrecondition,
  out_of_zone: Code.ResourceExhausted,
  quota: Code.ResourceExhausted,
  rate_limited: Code.Unavailable,
  unauthorized: Code.PermissionDenied,
  unavailable: Code.Unavailable,
};

export function csiError(thrown: unknown): ConnectError {
  if (thrown instanceof ConnectError) return thrown;
  if (isProviderError(thrown))
    return new ConnectError(thrown.message, CODES[thrown.code], undefined, undefined, thrown);
  return new ConnectError(toError(thrown).message, Code.Internal, undefined, undefined, thrown);
}

export const invalid = (message: string): ConnectError => new ConnectError(message, Code.InvalidArgument);

/** Undefined for what is not there. */
export async function orAbsent<T>(call: Promise<T>): Promise<T | undefined> {
  try {
    return await call;
  } catch (thrown) {
    if (isProviderError(thrown, "not_found")) return undefined;
    if (thrown instanceof ConnectError && thrown.code === Code.NotFound) return undefined;
    throw thrown;
  }
}
