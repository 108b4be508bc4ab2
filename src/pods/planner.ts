/**
 * The decision: what is the one next thing to do for a pod UID, given what Kubernetes wants, what the backend was last
 * seen to do and what this process remembers. Pure; the reconciler carries the action out, observes again and asks
 * again.
 *
 * The order of the cases is the protocol (ARCHITECTURE.md, "The protocol"): an uncertain read never creates, deletes or
 * fails anything; a pod object goes only after its machine is known to be over and has left a tombstone; a machine
 * without a pod goes only after the API server itself was asked.
 */
import type { Pod, PodStatus } from "../kube/wire.ts";
import { isKnownOver, isOver, type Machine, type UnknownMachine } from "../provider/machine.ts";
import { missingAnnotations } from "./annotations.ts";
import { ANNOTATIONS } from "./api-reactions.ts";
import { containerId } from "./status/container.ts";
import { statusDiff } from "./status/diff.ts";
import { hasRun, isTerminal } from "./status/facts.ts";
import type { ResizeState, Verdict } from "./status/input.ts";
import { podStatus } from "./status/status.ts";
import { splitFields, statusDelay, writable, type Unwritable } from "./status-write.ts";

/** What the API server wants for a UID, by this process's cache. */
export type Desired =
  | { kind: "pod"; pod: Pod }
  /** The cache is complete and holds no pod of this UID. */
  | { kind: "none" }
  /** The cache is not complete: nothing may be concluded. */
  | { kind: "unknown" };

/** The three values of a read of the backend. */
export type Observed =
  | { kind: "found"; machine: Machine }
  /** The backend itself said that there is no such machine. */
  | { kind: "absent" }
  /** With `machine`, the backend has it, and what it says of it cannot be believed. */
  | { kind: "unknown"; machine?: UnknownMachine };

/** Something that is done again, later and later, until it is seen to have worked. */
interface Again {
  since: number;
  /** The last pause. */
  pauseMs: number;
  retryAt: number;
}

/**
 * What this process remembers of a UID between steps. Losing it (a crash) must cost nothing but repeated work: whatever
 * has to survive lives in the API server or in the backend. All times are monotonic milliseconds.
 */
export interface PodMemory {
  /** The first look at the pod. */
  seenAt: number | undefined;
  /** A create was sent, whatever came of it: until a tombstone is confirmed, a machine may appear. */
  created: boolean;
  /** Why the pod must end, decided here: refused at admission, or gone for good. */
  verdict: Verdict | undefined;
  /** Containers that wait for a reference. */
  waiting: ReadonlyMap<string, { reason: string; message: string }> | undefined;
  /** Times at which a direct read of the backend said "absent" while the pod should have a machine. */
  missedAt: readonly number[];
  /** Version of the machine at the last direct read: what contradicts it is not the cache's lag. */
  confirmedVersion: number | undefined;
  /** The pod's resourceVersion at that read: what is written to it later may come from an agent that has seen more. */
  confirmedFor: string | undefined;
  /** When the machine must have ended by the last stop that was accepted; grace included. */
  stopDeadline: number | undefined;
  /**
   * The backend accepted a DELETE while the machine stayed: since when, and when, after how long a pause, it is due
   * again.
   */
  burial: Again | undefined;
  /** The backend confirmed: nothing runs, and a tombstone keeps it so. */
  buried: boolean;
  /**
   * The final DELETE of the pod object was accepted; if the object stays, for a finalizer or another's fault, it is
   * sent again.
   */
  finalized: Again | undefined;
  /** The pod object was seen to go (a DELETED event, or missing from a complete list). */
  podSeenGone: boolean;
  /** First time that the machine was seen without a pod, for UIDs of which this process never saw a pod. */
  orphanSince: number | undefined;
  /** The sweep's budget has paid for this one, however many steps and tries it takes. */
  mayBeReaped: boolean;
  /**
   * The version of what the running machine was last brought to, as it was when that was read: pod, references, tokens.
   */
  appliedVersion: string | undefined;
  /** The pod's generation in it. */
  appliedGeneration: number | undefined;
  /** What became of the last change of resources; undefined until it has been looked at once. */
  resize: ResizeState | undefined;
  /** When a change that could not be made yet is to be tried again. */
  retryUpdateAt: number | undefined;
  /** Fields of the status that the API server does not take or keep as they are. */
  unwritable: Unwritable;
  /** Since when the API server has forbidden every status of this pod. */
  statusDeniedSince: number | undefined;
  /** Until when the statuses that were written use up what one pod may write. */
  statusPaidUntil: number;
}

export const newMemory = (): PodMemory => ({
  seenAt: undefined,
  created: false,
  verdict: undefined,
  waiting: undefined,
  missedAt: [],
  confirmedVersion: undefined,
  confirmedFor: undefined,
  stopDeadline: undefined,
  burial: undefined,
  buried: false,
  finalized: undefined,
  podSeenGone: false,
  orphanSince: undefined,
  mayBeReaped: false,
  appliedVersion: undefined,
  appliedGeneration: undefined,
  resize: undefined,
  retryUpdateAt: undefined,
  unwritable: new Map(),
  statusDeniedSince: undefined,
  statusPaidUntil: 0,
});

export type Action =
  /** Nothing to do now; look again after `afterMs` if that is given. */
  | { do: "wait"; afterMs?: number }
  /** Everything of this UID is over on both sides: forget it. */
  | { do: "forget" }
  /** Ask the backend about this one machine. */
  | { do: "look" }
  /** Quorum GET of the pod, render its spec, PUT the machine. */
  | { do: "create" }
  | { do: "stop"; graceSeconds: number; verdict?: Verdict }
  /** DELETE the machine, whether it exists or not, and confirm that nothing runs. */
  | { do: "bury"; force: boolean; verdict?: Verdict }
  | {
      do: "status";
      /** Fields of the status, as a JSON merge patch. */
      patch: Readonly<Record<string, unknown>>;
      annotations?: Readonly<Record<string, string>> | undefined;
      verdict?: Verdict;
    }
  /** Bring the running machine to the pod's newer spec or references. */
  | { do: "update" }
  /** DELETE the pod object: grace 0, UID precondition. */
  | { do: "finalize" }
  /** Quorum GET of the pod; only if it is gone, stop and bury the machine. */
  | { do: "reap" };

interface PlanContext {
  /** Wall clock, for what is compared with the API server's times. */
  now: number;
  /** For spans: everything that `PodMemory` holds. */
  monotonic: number;
  hostIPs: readonly string[];
  /** Changes when the spec or an object it refers to changed; undefined when not known yet. */
  version: string | undefined;
  /** Annotate pods of ReplicaSets so that scale-in removes them before pods of other nodes. */
  markCheapToDelete?: boolean | undefined;
}

/** @internal */
export const LOST_DEBOUNCE_MS = 10_000;
/** A step that acts on an absence asks the backend just before. */
const MISSED_HOLDS_MS = 1_000;
/** @internal */
export const ORPHAN_GRACE_MS = 60_000;
/** How long after its deadline a stop may take before it is turned into a kill. */
const STOP_SLACK_MS = 10_000;
/**
 * A status that is forbidden, and not for what it says, may be allowed again soon. A deletion waits no longer than this
 * for it.
 */
const DENIED_PATIENCE_MS = 60_000;

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
      if (desired.pod.metadata?.deletionTimestamp !== undefined)
        return planDeletion(desired.pod, observed, memory, context);
      if (isTerminal(desired.pod)) return planTerminal(desired.pod, observed, memory, context);
      return planLive(desired.pod, observed, memory, context);
  }
}

/** A machine without a pod: force-deleted, deleted while no agent ran, or a leak. */
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
      if (observed.machine.state === "deleted") return { do: "forget" };
      if (!memory.podSeenGone) {
        if (memory.orphanSince === undefined || monotonic - memory.orphanSince < ORPHAN_GRACE_MS) {
          return {
            do: "wait",
            afterMs:
              memory.orphanSince === undefined ? ORPHAN_GRACE_MS : memory.orphanSince + ORPHAN_GRACE_MS - monotonic,
          };
        }
      }
      if (
        memory.stopDeadline !== undefined &&
        !isOver(observed.machine) &&
        monotonic < memory.stopDeadline + STOP_SLACK_MS
      ) {
        return { do: "wait", afterMs: memory.stopDeadline + STOP_SLACK_MS - monotonic };
      }
      return { do: "reap" };
  }
}

/**
 * Of a machine whose description makes no sense, only the id is certain. It is never swept: only one whose pod this
 * process has seen go is ended, as that pod's deletion would have.
 */
function planUnknownOrphan(machine: UnknownMachine, memory: PodMemory, monotonic: number): Action {
  if (machine.state === "deleted") return { do: "forget" };
  if (!memory.podSeenGone) return { do: "wait" };
  const { stopDeadline } = memory;
  if (stopDeadline !== undefined && !isKnownOver(machine) && monotonic < stopDeadline + STOP_SLACK_MS)
    return { do: "wait", afterMs: stopDeadline + STOP_SLACK_MS - monotonic };
  return { do: "reap" };
}

/**
 * deletionTimestamp is set: stop, confirm, write the final status, bury, remove the object. In this order, each
 * confirmed.
 */
function planDeletion(pod: Pod, observed: Observed, memory: PodMemory, context: PlanContext): Action {
  const { monotonic } = context;
  if (!memory.buried) {
    if (observed.kind === "unknown" && observed.machine === undefined) return { do: "look" };
    if (observed.kind !== "absent" && !isKnownOver(observed.machine!)) {
      // The whole grace, as a kubelet: deletionTimestamp is by another clock. Said again, it lengthens no stop under
      // way.
      const graceSeconds = Math.max(1, pod.metadata?.deletionGracePeriodSeconds ?? graceOf(pod));
      if (memory.stopDeadline === undefined || monotonic + graceSeconds * 1000 < memory.stopDeadline - 1000)
        return { do: "stop", graceSeconds };
      if (monotonic >= memory.stopDeadline + STOP_SLACK_MS) return { do: "bury", force: true };
      const wait: Action = { do: "wait", afterMs: memory.stopDeadline + STOP_SLACK_MS - monotonic };
      if (observed.kind !== "found" || memory.finalized !== undefined) return wait;
      // Another agent saw more, and has written exit codes: this one, which has yet to see the end, must not overwrite
      // them.
      if (isBehind(observed, pod, memory)) return { do: "look" };
      // While it stops, the pod says truthfully what still runs.
      return statusAction(pod, observed.machine, memory, context, false) ?? wait;
    }
  }
  const machine = observed.kind === "found" ? observed.machine : undefined;
  // A machine that is over still tells exit codes; they are written before it is buried.
  const isToldNow = memory.finalized === undefined && (machine !== undefined || memory.buried);
  if (isToldNow && isBehind(observed, pod, memory)) return { do: "look" };
  const write = isToldNow ? finalStatus(pod, machine, memory, context) : undefined;
  if (write !== undefined) return write;
  if (!memory.buried) return { do: "bury", force: false };
  const afterMs = (memory.finalized?.retryAt ?? monotonic) - monotonic;
  return afterMs > 0 ? { do: "wait", afterMs } : { do: "finalize" };
}

/**
 * The status that goes before the object does. One that may never be written keeps no pod for ever: its author was
 * told.
 */
function finalStatus(pod: Pod, machine: Machine | undefined, memory: PodMemory, context: PlanContext) {
  const { statusDeniedSince } = memory;
  if (statusDeniedSince !== undefined && context.monotonic - statusDeniedSince >= DENIED_PATIENCE_MS) return undefined;
  return statusAction(pod, machine, memory, context, true);
}

/** The pod is over in the API server. Its machine stays, stopped, for logs, until the object goes. */
function planTerminal(pod: Pod, observed: Observed, memory: PodMemory, { monotonic }: PlanContext): Action {
  if (observed.kind !== "found" || isOver(observed.machine)) return { do: "wait" };
  if (memory.stopDeadline === undefined) return { do: "stop", graceSeconds: graceOf(pod) };
  if (monotonic >= memory.stopDeadline + STOP_SLACK_MS) return { do: "bury", force: true };
  return { do: "wait", afterMs: memory.stopDeadline + STOP_SLACK_MS - monotonic };
}

function planLive(pod: Pod, observed: Observed, memory: PodMemory, context: PlanContext): Action {
  const { now, monotonic } = context;
  switch (observed.kind) {
    case "unknown":
      // Also for a pod that was refused: an agent that is gone may have made its machine.
      return { do: "wait" };
    case "absent": {
      // What has run may still do so, whatever was decided about it: one list that lacks it does not end it.
      if (hasRun(pod)) {
        const [first] = memory.missedAt;
        if (first === undefined) return { do: "look" };
        if (monotonic - first < LOST_DEBOUNCE_MS) return { do: "wait", afterMs: first + LOST_DEBOUNCE_MS - monotonic };
        if (memory.missedAt.length < 2) return { do: "look" };
        return endAction(pod, { ...memory, verdict: memory.verdict ?? LOST }, context);
      }
      const verdict = memory.verdict ?? (deadline(pod, now).passed ? DEADLINE : undefined);
      if (verdict !== undefined) {
        // A list may lack a machine that is there, and a create may still be on its way to the backend: another agent's
        // as well.
        const missedAt = memory.missedAt.at(-1) ?? -Infinity;
        if (!memory.buried)
          return monotonic - missedAt > MISSED_HOLDS_MS ? { do: "look" } : { do: "bury", force: false, verdict };
        return statusAction(pod, undefined, { ...memory, verdict }, context, true) ?? { do: "wait" };
      }
      // A create that has to wait, or that failed for now, leaves a pod that says why it is Pending.
      if (memory.waiting !== undefined || memory.created) {
        const write = statusAction(pod, undefined, memory, context, false);
        if (write?.do === "status") return write;
      }
      return { do: "create" };
    }
    case "found": {
      const { machine } = observed;
      if (isBehind(observed, pod, memory)) return { do: "look" };
      if (isOver(machine)) {
        // The machine was never made: this tombstone keeps a create from making it, left by an agent that was killed
        // before it said why. The next create gets the reason.
        const wasNeverMade = machine.state === "deleted" && machine.containers.length === 0;
        if (wasNeverMade && memory.verdict === undefined && !hasRun(pod)) return { do: "create" };
        const decided = wasNeverMade ? memory.verdict : ofMachine(memory.verdict);
        const verdict = decided ?? (endedByDeadline(pod, machine, now) ? DEADLINE : undefined);
        const made = wasNeverMade ? undefined : machine;
        return statusAction(pod, made, { ...memory, verdict }, context, true) ?? { do: "wait" };
      }
      const late = deadline(pod, now);
      const verdict = ofMachine(memory.verdict);
      // A stop that was begun goes on, though the wall clock has jumped and the deadline is to come again.
      if (verdict !== undefined || late.passed || memory.stopDeadline !== undefined) {
        if (memory.stopDeadline === undefined) {
          return {
            do: "stop",
            graceSeconds: graceOf(pod),
            verdict: verdict ?? DEADLINE,
          };
        }
        if (monotonic >= memory.stopDeadline + STOP_SLACK_MS) return { do: "bury", force: true };
        return (
          statusAction(pod, machine, memory, context, false) ?? {
            do: "wait",
            afterMs: memory.stopDeadline + STOP_SLACK_MS - monotonic,
          }
        );
      }
      const mayUpdate = context.version !== undefined && machine.state !== "stopping";
      const isDue = mayUpdate && context.version !== memory.appliedVersion;
      const behind = isDue && pod.metadata?.generation !== memory.appliedGeneration;
      const write = statusAction(pod, machine, memory, context, false, behind);
      if (write?.do === "status") return write;
      const retryMs = memory.retryUpdateAt === undefined ? undefined : memory.retryUpdateAt - monotonic;
      if (mayUpdate && (isDue || (retryMs !== undefined && retryMs <= 0))) return { do: "update" };
      const afterMs = Math.min(late.afterMs ?? Infinity, retryMs ?? Infinity, write?.afterMs ?? Infinity);
      return afterMs === Infinity ? { do: "wait" } : { do: "wait", afterMs };
    }
  }
}

/** What was decided, as far as it holds for a pod that has a machine. */
const ofMachine = (verdict: Verdict | undefined) => (verdict?.ofNoMachine ? undefined : verdict);

/**
 * True when the pod's status is ahead of this view of the machine, and the backend was not asked whether it still
 * holds.
 */
function isBehind(observed: Observed, pod: Pod, { confirmedVersion, confirmedFor }: PodMemory): boolean {
  if (observed.kind !== "found") return false;
  const { machine } = observed;
  const isConfirmed = machine.version === confirmedVersion && pod.metadata?.resourceVersion === confirmedFor;
  return !isConfirmed && isOlderThan(machine, pod);
}

/** True when the pod's status, written by an agent that saw more, is ahead of this view of the machine. */
function isOlderThan(machine: Machine, pod: Pod): boolean {
  const statuses = [...(pod.status?.initContainerStatuses ?? []), ...(pod.status?.containerStatuses ?? [])];
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

/** Seconds. */
const graceOf = (pod: Pod): number => pod.spec?.terminationGracePeriodSeconds ?? 30;

function deadline(pod: Pod, now: number): { passed: boolean; afterMs?: number } {
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
function endedByDeadline(pod: Pod, machine: Machine, now: number): boolean {
  const end = Date.parse(machine.stopped_at ?? machine.deleted_at ?? "");
  return !Number.isNaN(end) && deadline(pod, end).passed && deadline(pod, now).passed;
}

function endAction(pod: Pod, memory: PodMemory, context: PlanContext): Action {
  const write = statusAction(pod, undefined, memory, context, true);
  return write?.do === "status" ? { ...write, ...(memory.verdict && { verdict: memory.verdict }) } : { do: "wait" };
}

/** `wait` when this pod has written more than its share: what others wait for, a phase or the end, never waits. */
function statusAction(
  pod: Pod,
  machine: Machine | undefined,
  memory: PodMemory,
  context: PlanContext,
  ended: boolean,
  behind = false,
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
  const isLeaving = ended || pod.metadata?.deletionTimestamp !== undefined;
  const hasStatus = Object.keys(parts.status).length > 0;
  // Annotations alone are worth a write only for a pod that goes on.
  if (!hasStatus && (parts.annotations === undefined || isLeaving)) return undefined;
  const afterMs = statusDelay(memory.statusPaidUntil, context.monotonic);
  if (afterMs > 0 && !isLeaving && !("phase" in parts.status)) return { do: "wait", afterMs };
  return { do: "status", patch: parts.status, ...(parts.annotations && { annotations: parts.annotations }) };
}
