import type { Pod } from "../kube/wire.ts";
import type { Machine } from "../provider/machine.ts";
import type { DeferralEnd } from "./deferred-resizes.ts";
import type { Termination } from "./terminations.ts";

/**
 * What happens to pods, for metrics and what is written of their volumes. Nothing is decided by it, and nothing waits
 * for it. All times in seconds.
 */
export interface PodHooks {
  /** The backend was asked to create a machine; `code` says why it did not. */
  onCreate?(result: { ok: true } | { ok: false; code: string }, pod: Pod): void;
  /** The API server took the status that says Running for the first time. */
  onRunning?(seconds: { sinceCreated: number; sinceSeen: number; withoutBoot: number }): void;
  /** The API server took a status. */
  onStatusWritten?(seconds: number): void;
  /** It took a status by which a container has ended. */
  onTerminated?(termination: Termination, pod: Pod): void;
  /** It took one by which a resize waits no longer for room. */
  onDeferralEnded?(end: DeferralEnd): void;
  /** The pod was refused; `missing` names the capabilities that the backend lacks for it. */
  onRejected?(reason: string, missing: readonly string[]): void;
  /** A machine whose pod is gone was stopped. `seen`: this process had seen the pod. */
  onOrphan?(seen: boolean): void;
  /** A machine vanished while its pod wanted it. */
  onLost?(): void;
  /** This many addresses of a machine were not believed. */
  onAddressIgnored?(count: number): void;
  /** The first look at a pod, after it waited for its turn. */
  onFirstLook?(waitedSeconds: number): void;
  /** The backend's machines were listed; `interval` is the time since the list before. */
  onListed?(seconds: number, interval: number | undefined): void;
  /** A look at a pod shows its machine. */
  onMachine?(pod: Pod, machine: Machine): void;
  /** After each call of the reconciler. */
  onReconciled?(seconds: number, outcome: "settled" | "after" | "retry"): void;
}
