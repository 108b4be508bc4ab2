/**
 * The decision: what is the one next thing to do for a pod UID, given what Kubernetes wants, what the backend was last
 * seen to do and what this process remembers. Pure; the reconciler carries the action out, observes again and asks
 * again.
 *
 * The machine is known to run, known to be over, known to be absent, or not known at all:
 *
 *     pod            | machine runs               | over                 | absent                | not known
 *     ---------------|----------------------------|----------------------|-----------------------|----------
 *     to run         | planEnding, planRunning    | planOver             | planLost, planUnmade  | wait
 *     over           | stop, bury                 | wait                 | wait                  | wait, stop
 *     being deleted  | stop, bury                 | tell, bury, finalize | tell, bury, finalize  | look
 *     gone           | wait for a grace, reap     | reap                 | reap, forget          | wait, look
 *     not known      | wait                       | wait                 | wait                  | wait
 *
 * Each row is a function, each name in it another one. In these the first line that has an action decides, and the
 * order of the lines is the protocol (ARCHITECTURE.md, "The protocol"): an uncertain read never creates, deletes or
 * fails anything; a pod object goes only after its machine is known to be over and has left a tombstone; a machine
 * without a pod goes only after the API server itself was asked.
 */
import { isDeleting, isTerminal } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import { isKnownOver, isOver, type Machine, type UnknownMachine } from "../provider/machine.ts";
import type { Action, Desired, Observed, PlanContext } from "./decision.ts";
import { endedOutOfTime, outOfTime, planEviction, timeLeft } from "./disruption.ts";
import { finalStatus, isBehind, statusAction } from "./planned-status.ts";
import type { PodMemory } from "./pod-memory.ts";
import { hasRun } from "./status/facts.ts";
import type { Verdict } from "./status/input.ts";
import { DEADLINE, deadline, endedByDeadline, LOST } from "./verdicts.ts";

/** @internal */
export const LOST_DEBOUNCE_MS = 10_000;
/** A step that acts on an absence asks the backend just before. */
const MISSED_HOLDS_MS = 1_000;
/** @internal */
export const ORPHAN_GRACE_MS = 60_000;
/** How long after its deadline a stop may take before it is turned into a kill. */
const STOP_SLACK_MS = 10_000;

export function plan(desired: Desired, observed: Observed, memory: PodMemory, context: PlanContext): Action {
  const action = decide(desired, observed, memory, context);
  if (action.do !== "bury" && action.do !== "reap") return action;
  // A machine that is seen to be gone needs no patience, unless the backend has said since that it is still there.
  const machine = observed.kind === "absent" ? undefined : observed.machine;
  const isGone = machine?.state === "deleted" && machine.version !== memory.confirmedVersion;
  const isThere = machine !== undefined && !isGone;
  const afterMs = (memory.burial?.retryAt ?? 0) - context.monotonic;
  return isThere && afterMs > 0 ? { do: "wait", afterMs } : action;
}

function decide(desired: Desired, observed: Observed, memory: PodMemory, context: PlanContext): Action {
  switch (desired.kind) {
    case "unknown":
      return { do: "wait" };
    case "none":
      return planWithoutPod(observed, memory, context);
    case "pod":
      if (isDeleting(desired.pod)) return planDeletion(desired.pod, observed, memory, context);
      if (isTerminal(desired.pod)) return planTerminal(desired.pod, observed, memory, context);
      return planLive(desired.pod, observed, memory, context);
  }
}

/** No pod: it was deleted by force, or while no agent ran, or its machine is a leak. */
function planWithoutPod(observed: Observed, memory: PodMemory, { monotonic }: PlanContext): Action {
  if (memory.buried) return { do: "forget" };
  switch (observed.kind) {
    case "unknown":
      if (observed.machine !== undefined) return planUnknownOrphan(observed.machine, memory, monotonic);
      // Of what this process never had to do with, the next list tells.
      return memory.podSeenGone || memory.created ? { do: "look" } : { do: "wait" };
    case "absent":
      // A create of ours may still be in flight; only a tombstone keeps it from reviving the machine.
      return memory.created ? { do: "reap" } : { do: "forget" };
    case "found":
      return planOrphan(observed.machine, memory, monotonic);
  }
}

/** Of one whose pod nobody saw go, a second look, a grace period later, has to confirm that there is none. */
function planOrphan(machine: Machine, memory: PodMemory, monotonic: number): Action {
  if (machine.state === "deleted") return { do: "forget" };
  if (!memory.podSeenGone) {
    const graceMs = (memory.orphanSince ?? monotonic) + ORPHAN_GRACE_MS - monotonic;
    if (graceMs > 0) return { do: "wait", afterMs: graceMs };
  }
  const stopMs = stopLeftMs(memory, monotonic);
  if (stopMs > 0 && !isOver(machine)) return { do: "wait", afterMs: stopMs };
  return { do: "reap" };
}

/**
 * Of a machine whose description makes no sense, only the id is certain. It is never swept: only one whose pod this
 * process has seen go is ended, as that pod's deletion would have.
 */
function planUnknownOrphan(machine: UnknownMachine, memory: PodMemory, monotonic: number): Action {
  if (machine.state === "deleted") return { do: "forget" };
  if (!memory.podSeenGone) return { do: "wait" };
  const stopMs = stopLeftMs(memory, monotonic);
  if (stopMs > 0 && !isKnownOver(machine)) return { do: "wait", afterMs: stopMs };
  return { do: "reap" };
}

/** deletionTimestamp is set. In this order, each step confirmed before the next. */
function planDeletion(pod: Pod, observed: Observed, memory: PodMemory, context: PlanContext): Action {
  return (
    endMachine(pod, observed, memory, context) ??
    tellEnd(pod, observed, memory, context) ??
    (memory.buried ? removeObject(memory, context) : { do: "bury", force: false })
  );
}

/** Undefined as soon as nothing of the machine runs. */
function endMachine(pod: Pod, observed: Observed, memory: PodMemory, context: PlanContext): Action | undefined {
  if (memory.buried || observed.kind === "absent") return undefined;
  if (observed.machine === undefined) return { do: "look" };
  if (isKnownOver(observed.machine)) return undefined;
  const { monotonic } = context;
  // The whole grace, as a kubelet: deletionTimestamp is by another clock. Said again, it lengthens no stop under way.
  const graceSeconds = Math.max(1, pod.metadata?.deletionGracePeriodSeconds ?? graceOf(pod));
  if (memory.stopDeadline === undefined || monotonic + graceSeconds * 1000 < memory.stopDeadline - 1000)
    return { do: "stop", graceSeconds };
  const stopMs = stopLeftMs(memory, monotonic);
  if (stopMs <= 0) return { do: "bury", force: true };
  const wait: Action = { do: "wait", afterMs: stopMs };
  if (observed.kind !== "found" || memory.finalized !== undefined) return wait;
  // Another agent saw more, and has written exit codes: this one, which has yet to see the end, must not overwrite
  // them.
  if (isBehind(observed, pod, memory)) return { do: "look" };
  // While it stops, the pod says truthfully what still runs.
  return statusAction(pod, observed.machine, memory, context, { ended: false }) ?? wait;
}

/** A machine that is over still tells exit codes; they are written before it is buried. */
function tellEnd(pod: Pod, observed: Observed, memory: PodMemory, context: PlanContext): Action | undefined {
  const machine = observed.kind === "found" ? observed.machine : undefined;
  if (memory.finalized !== undefined || (machine === undefined && !memory.buried)) return undefined;
  if (isBehind(observed, pod, memory)) return { do: "look" };
  return finalStatus(pod, machine, memory, context);
}

function removeObject({ finalized }: PodMemory, { monotonic }: PlanContext): Action {
  const afterMs = (finalized?.retryAt ?? monotonic) - monotonic;
  return afterMs > 0 ? { do: "wait", afterMs } : { do: "finalize" };
}

/** The pod is over in the API server. Its machine stays, stopped, for logs, until the object goes. */
function planTerminal(pod: Pod, observed: Observed, memory: PodMemory, { monotonic }: PlanContext): Action {
  const machine = observed.kind === "absent" ? undefined : observed.machine;
  // Of a description that makes no sense, the state may.
  if (machine?.state === undefined || isKnownOver(machine)) return { do: "wait" };
  if (memory.stopDeadline === undefined) return { do: "stop", graceSeconds: graceOf(pod) };
  const stopMs = stopLeftMs(memory, monotonic);
  return stopMs > 0 ? { do: "wait", afterMs: stopMs } : { do: "bury", force: true };
}

/** The pod is to run. */
function planLive(pod: Pod, observed: Observed, memory: PodMemory, context: PlanContext): Action {
  switch (observed.kind) {
    case "unknown":
      // Also for a pod that was refused: an agent that is gone may have made its machine.
      return planEviction(observed.machine, memory, context) ?? { do: "wait" };
    case "absent":
      return hasRun(pod) ? planLost(pod, memory, context) : planUnmade(pod, memory, context);
    case "found":
      if (isBehind(observed, pod, memory)) return { do: "look" };
      if (isOver(observed.machine)) return planOver(pod, observed.machine, memory, context);
      return planEnding(pod, observed.machine, memory, context) ?? planRunning(pod, observed.machine, memory, context);
  }
}

/** What has run may still do so, whatever was decided about it: one list that lacks it does not end it. */
function planLost(pod: Pod, memory: PodMemory, context: PlanContext): Action {
  const { monotonic } = context;
  const [first] = memory.missedAt;
  if (first === undefined) return { do: "look" };
  if (monotonic - first < LOST_DEBOUNCE_MS) return { do: "wait", afterMs: first + LOST_DEBOUNCE_MS - monotonic };
  if (memory.missedAt.length < 2) return { do: "look" };
  const verdict = memory.verdict ?? LOST;
  const write = statusAction(pod, undefined, { ...memory, verdict }, context, { ended: true });
  return write?.do === "status" ? { ...write, verdict } : { do: "wait" };
}

/** There is no machine, and none has run. */
function planUnmade(pod: Pod, memory: PodMemory, context: PlanContext): Action {
  const verdict = memory.verdict ?? (deadline(pod, context.now).passed ? DEADLINE : undefined);
  if (verdict !== undefined) {
    // A list may lack a machine that is there, and a create may still be on its way to the backend: another agent's as
    // well.
    const missedAt = memory.missedAt.at(-1) ?? -Infinity;
    if (!memory.buried)
      return context.monotonic - missedAt > MISSED_HOLDS_MS
        ? { do: "look" }
        : { do: "bury", force: false, ifAbsent: true, verdict };
    return statusAction(pod, undefined, { ...memory, verdict }, context, { ended: true }) ?? { do: "wait" };
  }
  // A create that has to wait, or that failed for now, leaves a pod that says why it is Pending.
  if (memory.waiting !== undefined || memory.created) {
    const write = statusAction(pod, undefined, memory, context, { ended: false });
    if (write?.do === "status") return write;
  }
  return { do: "create" };
}

/** The machine has ended: its pod gets its final status, and with it phase Succeeded or Failed. */
function planOver(pod: Pod, machine: Machine, memory: PodMemory, context: PlanContext): Action {
  // The machine was never made: this tombstone keeps a create from making it, left by an agent that was killed before
  // it said why. The next create gets the reason.
  const wasNeverMade = machine.state === "deleted" && machine.containers.length === 0;
  if (wasNeverMade && memory.verdict === undefined && !hasRun(pod)) return { do: "create" };
  const decided = wasNeverMade ? memory.verdict : ofMachine(memory.verdict);
  const isLate = endedByDeadline(pod, machine, context.now);
  const verdict = decided ?? (isLate ? DEADLINE : endedOutOfTime(pod, machine, context.now));
  const made = wasNeverMade ? undefined : machine;
  return statusAction(pod, made, { ...memory, verdict }, context, { ended: true }) ?? { do: "wait" };
}

/** The machine runs and must not go on: this agent has decided so, or its deadline has passed. */
function planEnding(pod: Pod, machine: Machine, memory: PodMemory, context: PlanContext): Action | undefined {
  const { disruption } = machine;
  const isOutOfTime = disruption !== undefined && timeLeft(pod, disruption, context.now) <= 0;
  const verdict = ofMachine(memory.verdict) ?? (isOutOfTime ? outOfTime(disruption) : undefined);
  if (memory.stopDeadline === undefined) {
    if (verdict === undefined && !deadline(pod, context.now).passed) return undefined;
    return { do: "stop", graceSeconds: graceOf(pod), verdict: verdict ?? DEADLINE };
  }
  // A stop that was begun goes on, though the wall clock has jumped and the deadline is to come again.
  const stopMs = stopLeftMs(memory, context.monotonic);
  if (stopMs <= 0) return { do: "bury", force: true };
  return statusAction(pod, machine, memory, context, { ended: false }) ?? { do: "wait", afterMs: stopMs };
}

/** The machine runs as it should: the pod says so, and changes of the pod reach the machine. */
function planRunning(pod: Pod, machine: Machine, memory: PodMemory, context: PlanContext): Action {
  const { now, monotonic, version } = context;
  const eviction = planEviction(machine, memory, context);
  if (eviction?.do === "evict") return eviction;
  const mayUpdate = version !== undefined && machine.state !== "stopping";
  const isDue = mayUpdate && version !== memory.appliedVersion;
  const behind = isDue && pod.metadata?.generation !== memory.appliedGeneration;
  const write = statusAction(pod, machine, memory, context, { ended: false, behind });
  if (write?.do === "status") return write;
  const retryMs = memory.retryUpdateAt === undefined ? Infinity : memory.retryUpdateAt - monotonic;
  if (mayUpdate && (isDue || retryMs <= 0)) return { do: "update" };
  const endMs = Math.min(deadline(pod, now).afterMs ?? Infinity, timeLeft(pod, machine.disruption, now));
  const afterMs = Math.min(endMs, retryMs, write?.afterMs ?? Infinity, eviction?.afterMs ?? Infinity);
  return afterMs === Infinity ? { do: "wait" } : { do: "wait", afterMs };
}

/** How long an accepted stop may still take before it is turned into a kill; nothing of it when there was none. */
function stopLeftMs({ stopDeadline }: PodMemory, monotonic: number): number {
  return stopDeadline === undefined ? 0 : stopDeadline + STOP_SLACK_MS - monotonic;
}

/** What was decided, as far as it holds for a pod that has a machine. */
const ofMachine = (verdict: Verdict | undefined) => (verdict?.ofNoMachine ? undefined : verdict);

/** Seconds. */
const graceOf = (pod: Pod): number => pod.spec?.terminationGracePeriodSeconds ?? 30;
