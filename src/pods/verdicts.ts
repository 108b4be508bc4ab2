/** Why this agent ends a pod: the reasons that it decides by itself, and the pod's own deadline. */
import type { Pod } from "../kube/wire.ts";
import type { Machine } from "../provider/machine.ts";
import type { Verdict } from "./status/input.ts";

export const LOST: Verdict = {
  reason: "MachineLost",
  message: "The machine that ran this pod is gone from the backend",
};
/** kubelet: preemption.go. */
export const PREEMPTED: Verdict = { reason: "Preempting", message: "Preempted in order to admit critical pod" };
/** kubelet: active_deadline.go. */
export const DEADLINE: Verdict = {
  reason: "DeadlineExceeded",
  message: "Pod was active on the node longer than the specified deadline",
};

/** Whether activeDeadlineSeconds have passed, or how many milliseconds are left; neither for a pod without. */
export function deadline(pod: Pod, now: number): { passed: boolean; afterMs?: number } {
  const seconds = pod.spec?.activeDeadlineSeconds;
  const start = pod.status?.startTime;
  if (seconds === undefined || seconds === null || start === undefined) return { passed: false };
  const leftMs = Date.parse(start) + seconds * 1000 - now;
  return leftMs <= 0 ? { passed: true } : { passed: false, afterMs: leftMs };
}

/**
 * A machine that ended after the deadline was ended because of it; one that finished before it was not. `now` counts as
 * well: the end is by the backend's clock, which may be ahead.
 */
export function endedByDeadline(pod: Pod, machine: Machine, now: number): boolean {
  const end = Date.parse(machine.stopped_at ?? machine.deleted_at ?? "");
  return !Number.isNaN(end) && deadline(pod, end).passed && deadline(pod, now).passed;
}
