/**
 * The planner's step that writes a status: what would be written, whether it may be written now, and whether this view
 * of the machine is new enough to be told.
 */
import { containerStatusesOf, isDeleting } from "../kube/pod.ts";
import type { Pod, PodStatus } from "../kube/wire.ts";
import type { Machine } from "../provider/machine.ts";
import { missingAnnotations } from "./annotations.ts";
import { ANNOTATIONS } from "./api-reactions.ts";
import type { Action, Observed, PlanContext } from "./decision.ts";
import type { PodMemory } from "./pod-memory.ts";
import { containerId } from "./status/container.ts";
import { statusDiff } from "./status/diff.ts";
import { podStatus } from "./status/pod-status.ts";
import { splitFields, statusDelay, writable } from "./status-write.ts";

/**
 * A status that is forbidden, and not for what it says, may be allowed again soon. A deletion waits no longer than this
 * for it.
 */
const DENIED_PATIENCE_MS = 60_000;

/**
 * Writes what has changed; undefined when nothing has. `wait` when this pod has written more than its share: what
 * others wait for, a phase or the end, never waits.
 * @param options.ended nothing of the pod can run any more
 * @param options.behind the machine has yet to be brought to what the pod is by now
 */
export function statusAction(
  pod: Pod,
  machine: Machine | undefined,
  memory: PodMemory,
  context: PlanContext,
  { ended, behind = false }: { ended: boolean; behind?: boolean },
): Extract<Action, { do: "status" }> | { do: "wait"; afterMs: number } | undefined {
  const next: PodStatus = podStatus({
    pod,
    machine,
    hostIPs: context.hostIPs,
    now: context.now,
    ended,
    verdict: memory.verdict,
    waiting: memory.waiting,
    resize: memory.resize,
    behind,
  });
  const annotations = missingAnnotations(pod, machine, context);
  const fields = { ...statusDiff(pod.status, next), ...(annotations && { [ANNOTATIONS]: annotations }) };
  const parts = splitFields(writable(fields, memory.unwritable));
  const isLeaving = ended || isDeleting(pod);
  const hasStatus = Object.keys(parts.status).length > 0;
  // Annotations alone are worth a write only for a pod that goes on.
  if (!hasStatus && (parts.annotations === undefined || isLeaving)) return undefined;
  const afterMs = statusDelay(memory.statusPaidUntil, context.monotonic);
  if (afterMs > 0 && !isLeaving && !("phase" in parts.status)) return { do: "wait", afterMs };
  return { do: "status", patch: parts.status, ...(parts.annotations && { annotations: parts.annotations }) };
}

/**
 * The status that goes before the object does. One that may never be written keeps no pod for ever: its author was
 * told.
 */
export function finalStatus(pod: Pod, machine: Machine | undefined, memory: PodMemory, context: PlanContext) {
  const { statusDeniedSince } = memory;
  if (statusDeniedSince !== undefined && context.monotonic - statusDeniedSince >= DENIED_PATIENCE_MS) return undefined;
  return statusAction(pod, machine, memory, context, { ended: true });
}

/**
 * True when the pod's status is ahead of this view of the machine, and the backend was not asked whether it still
 * holds.
 */
export function isBehind(observed: Observed, pod: Pod, { confirmedVersion, confirmedFor }: PodMemory): boolean {
  if (observed.kind !== "found") return false;
  const { machine } = observed;
  const isConfirmed = machine.version === confirmedVersion && pod.metadata?.resourceVersion === confirmedFor;
  return !isConfirmed && isOlderThan(machine, pod);
}

/** True when the pod's status, written by an agent that saw more, is ahead of this view of the machine. */
function isOlderThan(machine: Machine, pod: Pod): boolean {
  const statuses = containerStatusesOf(pod);
  return statuses.some((s) => {
    const seen = machine.containers.find((c) => c.name === s.name);
    if (seen === undefined) return false;
    const hasEnded = s.state?.terminated !== undefined && s.containerID === containerId(seen.id);
    return (
      seen.restart_count < s.restartCount ||
      (seen.id === undefined && s.containerID !== undefined) ||
      (hasEnded && seen.state === "running")
    );
  });
}
