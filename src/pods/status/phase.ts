/**
 * The outcome of a pod: its phase, and the reason and message that go with it. `podOutcome` alone decides it.
 * Source of the rules: kubelet's `getPhase`, its status manager's `TerminatePod`, and KEP 3329 for ends that are the
 * node's doing.
 */
import { isSidecar } from "../../resources/pod-resources.ts";
import { isDeleting, isTerminal, isTerminalPhase } from "../../kube/pod.ts";
import type { ContainerStatus, Pod } from "../../kube/wire.ts";
import type { Machine } from "../../provider/machine.ts";
import { everStarted, lastEnd } from "./facts.ts";
import { toldMessage, toldReason, type ContainerStatuses, type StatusInput } from "./input.ts";
import { shouldRestart } from "./restart.ts";

export interface PodOutcome {
  readonly phase: string;
  readonly reason: string | undefined;
  readonly message: string | undefined;
}

/**
 * Ends of a pod that are the node's doing, not its own (KEP 3329), in a kubelet's words. A pod that outgrew its own
 * limits of local storage is evicted without: its owner may count that as a failure, since it would happen again.
 */
const DISRUPTIONS = new Map([
  ["Preempting", "Pod was preempted by Kubelet to accommodate a critical pod."],
  ["NodeShutdown", undefined],
  ["Terminated", "Pod was terminated in response to imminent node shutdown."],
]);

/**
 * What has become of the pod, from the statuses of its containers and from why it ended. A terminal phase is final, and
 * appears only when nothing of the machine runs any more; a pod that has been Running does not fall back to Pending.
 */
export function podOutcome(input: StatusInput, containers: ContainerStatuses): PodOutcome {
  const { pod, machine, ended, verdict } = input;
  const { phase: before = "", reason, message } = pod.status ?? {};
  if (isTerminal(pod)) return { phase: before, reason, message };
  const computed = phaseOf(pod, containers, ended && machine !== undefined);
  // Of a phase that stays, what was kept of it stays as well.
  const kept = computed === before ? { reason, message } : { reason: undefined, message: undefined };
  if (!ended) {
    const alive = isTerminalPhase(computed) ? livingPhase(containers) : computed;
    return { ...kept, phase: alive === "Pending" && before === "Running" ? "Running" : alive };
  }
  if (verdict !== undefined) return { phase: "Failed", reason: verdict.reason, message: toldMessage(verdict.message) };
  if (machine !== undefined && hasFailed(pod, machine, computed)) return failureOf(machine);
  // kubelet: status_manager.TerminatePod; a pod that ended before it could finish has failed.
  return { ...kept, phase: computed === "Succeeded" ? "Succeeded" : "Failed" };
}

/**
 * The condition DisruptionTarget's message, when the node's doing ended the pod; undefined when it was something else.
 */
export function disruptionOf({ phase, reason = "", message = "" }: PodOutcome): { message: string } | undefined {
  const isNodes = DISRUPTIONS.has(reason) || (reason === "Evicted" && message.startsWith("The node "));
  if (phase !== "Failed" || !isNodes) return undefined;
  return { message: DISRUPTIONS.get(reason) ?? message };
}

/** Nothing terminal is kept while the machine may still run something. */
const livingPhase = ({ main }: ContainerStatuses) => (main.some(everStarted) ? "Running" : "Pending");

/** True when the end of the machine says more than the ends of its containers. */
function hasFailed(pod: Pod, machine: Machine, computed: string): boolean {
  if (machine.state === "stopped" || isOwnTombstone(pod, machine)) return false;
  return computed !== "Succeeded" || machine.reason === "Evicted" || DISRUPTIONS.has(machine.reason ?? "");
}

/** What is left of a machine that the agent deleted because its pod is: it was not lost. */
function isOwnTombstone(pod: Pod, machine: Machine): boolean {
  return machine.state === "deleted" && machine.reason === undefined && isDeleting(pod);
}

function failureOf(machine: Machine): PodOutcome {
  const isLost = machine.state === "deleted";
  const otherwise = isLost ? "The machine was deleted outside of Kubernetes" : undefined;
  return {
    phase: "Failed",
    reason: toldReason(machine.reason) ?? (isLost ? "MachineLost" : "MachineFailed"),
    message: toldMessage(machine.message) ?? otherwise,
  };
}

/** kubelet: getPhase. `over` says that nothing of the pod runs or will run again. */
function phaseOf(pod: Pod, { init, main }: ContainerStatuses, over: boolean): string {
  const inits = countInits(pod, init);
  const sidecars = countSidecars(pod, init);
  const mains = countMains(pod, main);

  if (inits.failedForGood > 0) return "Failed";
  const sidecarsToStart = main.some(everStarted) ? 0 : sidecars.pending;
  const pending = inits.pending + sidecarsToStart + sidecars.waiting + mains.waiting;
  const allStopped = mains.stopped > 0 && mains.stopped === main.length;
  if (pending > 0 && !(over && allStopped)) return "Pending";
  if (sidecars.unknown > 0 || mains.running + mains.stopped === 0)
    return sidecars.running + mains.running > 0 ? "Running" : "Pending";
  if (mains.running > 0 || (!over && mains.stopped !== mains.stoppedForGood)) return "Running";
  return mains.stopped === mains.succeeded ? "Succeeded" : "Failed";
}

/** Counts init containers that are not sidecars. */
function countInits(pod: Pod, init: readonly ContainerStatus[]) {
  const count = { pending: 0, failedForGood: 0 };
  for (const [i, spec] of (pod.spec?.initContainers ?? []).entries()) {
    if (isSidecar(spec)) continue;
    const { state, lastState } = init[i] ?? {};
    const exit = (state?.terminated ?? (state?.waiting && lastState?.terminated))?.exitCode;
    if (exit === 0) continue;
    if (exit === undefined || shouldRestart(pod, spec, exit, "init")) count.pending++;
    else count.failedForGood++;
  }
  return count;
}

/** Counts sidecars. `pending` are those that have not started, whether they run or wait for it. */
function countSidecars(pod: Pod, init: readonly ContainerStatus[]) {
  const count = { pending: 0, running: 0, waiting: 0, unknown: 0 };
  for (const [i, spec] of (pod.spec?.initContainers ?? []).entries()) {
    if (!isSidecar(spec)) continue;
    const status = init[i];
    if (status === undefined) count.unknown++;
    else if (status.state?.running) {
      count.running++;
      if (!status.started) count.pending++;
    } else if (status.state?.waiting && !status.lastState?.terminated) {
      count.waiting++;
      count.pending++;
    }
  }
  return count;
}

/** Counts main containers; `succeeded` are those that ended with 0 and have not been started again. */
function countMains(pod: Pod, main: readonly ContainerStatus[]) {
  const specs = new Map((pod.spec?.containers ?? []).map((c) => [c.name, c]));
  const count = { running: 0, waiting: 0, stopped: 0, stoppedForGood: 0, succeeded: 0 };
  for (const status of main) {
    const end = lastEnd(status);
    if (status.state?.running) count.running++;
    else if (end === undefined) count.waiting++;
    else {
      count.stopped++;
      if (!shouldRestart(pod, specs.get(status.name)!, end.exitCode, "main")) count.stoppedForGood++;
      if (status.state?.terminated?.exitCode === 0) count.succeeded++;
    }
  }
  return count;
}
