/**
 * What the steps share that the reconciler takes for a pod: creation, status, update and removal.
 */
import type { Pod } from "../kube/wire.ts";
import type { PodApi } from "./pod-api.ts";
import type { Observed } from "./decision.ts";
import type { PodCopies } from "./pod-copies.ts";
import type { PodRecords } from "./pod-record.ts";
import type { ReconcilerOptions } from "./reconciler-options.ts";

export interface StepContext extends ReconcilerOptions {
  readonly api: PodApi;
  readonly records: PodRecords;
  readonly copies: PodCopies;
  /** Asks the backend about the pod's machine. @throws ProviderError when it cannot say */
  readonly look: (uid: string, signal: AbortSignal) => Promise<Observed>;
}

/** @returns the error, which the pod's author has been told of */
export function reported(
  { event }: Pick<StepContext, "event">,
  pod: Pod,
  reason: string,
  what: string,
  error: Error,
): Error {
  event(pod, { type: "Warning", reason, message: `${what}: ${error.message}` });
  return error;
}
