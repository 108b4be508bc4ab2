/** How a resize that was deferred ended, by the statuses before and after (kubelet: status_manager.go). Pure. */
import type { Pod, PodCondition } from "../kube/wire.ts";
import { isTerminal } from "../kube/pod.ts";

export interface DeferralEnd {
  /** Accepted: there was room; reverted: nobody wishes it, or it can never be; terminated: its pod is over. */
  resolution: "accepted" | "reverted" | "terminated";
  /** Since it was deferred, by the condition's own time. */
  seconds: number;
  priority: number | undefined;
}

export const PENDING = "PodResizePending";
export const IN_PROGRESS = "PodResizeInProgress";

/** Undefined where none was deferred before, or it is still. @param now wall clock, in milliseconds */
export function deferralEnd(before: Pod, after: Pod, now: number): DeferralEnd | undefined {
  const was = conditionOf(before, PENDING);
  if (was?.reason !== "Deferred" || conditionOf(after, PENDING)?.reason === "Deferred") return undefined;
  const since = Date.parse(was.lastTransitionTime ?? "");
  if (Number.isNaN(since)) return undefined;
  return {
    resolution: isTerminal(after) ? "terminated" : isAccepted(before, after) ? "accepted" : "reverted",
    seconds: Math.max(0, now - since) / 1000,
    priority: before.spec?.priority,
  };
}

/** It is under way, or what the containers have has changed by now. */
function isAccepted(before: Pod, after: Pod): boolean {
  if (conditionOf(after, PENDING) !== undefined) return false;
  return conditionOf(after, IN_PROGRESS) !== undefined || resourcesOf(before) !== resourcesOf(after);
}

function resourcesOf({ status }: Pod): string {
  const all = [...(status?.initContainerStatuses ?? []), ...(status?.containerStatuses ?? [])];
  return JSON.stringify([status?.resources, all.map(({ name, resources }) => [name, resources])]);
}

/** Undefined unless it is true. */
export function conditionOf({ status }: Pod, type: string): PodCondition | undefined {
  return status?.conditions?.find((each) => each.type === type && each.status === "True");
}

/** kubelet: GetPriorityBucketLabel. */
export function priorityBucket(priority = 0): string {
  if (priority >= 2_000_000_000) return "system-critical";
  if (priority >= 100_000) return "high";
  if (priority > 0) return "medium";
  if (priority === 0) return "normal";
  return priority > -1000 ? "low" : "very-low";
}
