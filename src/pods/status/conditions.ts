/**
 * The conditions that a kubelet owns, in its words; those of others (readiness gates and all that it does not know) are
 * kept. Source of the rules: kubelet's `status.GenerateXCondition`.
 */
import { isSidecar } from "../../resources/pod-resources.ts";
import { rfc3339 } from "../../util/clock.ts";
import { isDeleting, isTerminal, isTerminalPhase } from "../../kube/pod.ts";
import type { Pod, PodCondition } from "../../kube/wire.ts";
import { isOver, type Machine } from "../../provider/machine.ts";
import { everStarted } from "./facts.ts";
import { toldMessage, type ContainerStatuses, type ResizeState, type StatusInput } from "./input.ts";
import { disruptionOf, type PodOutcome } from "./phase.ts";
import { hasRestartAllRules, restartsAll } from "./restart.ts";

/** A condition as decided. Its times and generation come from what it was before. */
interface Decided {
  readonly type: string;
  readonly value: boolean;
  readonly reason?: string | undefined;
  readonly message?: string | undefined;
}

const DISRUPTED = "DisruptionTarget";
const BY_NODE = "TerminationByKubelet";
const RESIZE = ["PodResizePending", "PodResizeInProgress"];
const OWNED = new Set([
  "PodScheduled",
  "Ready",
  "Initialized",
  "ContainersReady",
  "PodReadyToStartContainers",
  "AllContainersRestarting",
  ...RESIZE,
]);

/** @param generation what `observedGeneration` says; undefined leaves it out */
export function podConditions(
  input: StatusInput,
  containers: ContainerStatuses,
  outcome: PodOutcome,
  generation: number | undefined,
): PodCondition[] {
  const { pod, machine, resize } = input;
  const { phase } = outcome;
  const old = pod.status?.conditions ?? [];
  const write = (all: readonly Decided[]) => all.map((each) => written(each, old, generation, input.now));

  const disruption = disruptionOf(outcome) ?? announced(input, phase);
  const ready = containersReady(pod, containers, phase);
  return [
    ...old.filter(
      (each) => !OWNED.has(each.type) && !(each.type === DISRUPTED && (disruption || isCalledOff(each, input))),
    ),
    ...write(disruption ? [{ type: DISRUPTED, value: true, reason: BY_NODE, ...disruption }] : []),
    ...(resize === undefined ? old.filter(({ type }) => RESIZE.includes(type)) : write(resizing(resize, phase))),
    ...write([
      { type: "PodReadyToStartContainers", value: !isTerminalPhase(phase) && hasSandbox(machine) },
      initialized(pod, containers, phase),
      podReady(pod, ready),
      ready,
      { type: "PodScheduled", value: true },
      ...(hasRestartAllRules(pod) ? [allContainersRestarting(pod, containers, phase)] : []),
    ]),
  ];
}

/** Whether the pod says that its machine is about to be taken away. */
export function saysDisrupted({ status }: Pod): boolean {
  return status?.conditions?.some((each) => each.type === DISRUPTED && each.reason === BY_NODE) === true;
}

/** The backend is about to take the machine away. What the API server says of an eviction that is under way stands. */
function announced({ pod, machine, ended }: StatusInput, phase: string): { message: string } | undefined {
  const by = pod.status?.conditions?.find(({ type, status }) => type === DISRUPTED && status === "True")?.reason;
  const isOthers = by !== undefined && by !== BY_NODE;
  if (machine?.disruption === undefined || ended || isTerminalPhase(phase) || isOthers) return undefined;
  const { reason, message } = machine.disruption;
  return { message: `${reason}: ${message}` };
}

/** What was said of a pod that goes on after all. */
function isCalledOff({ reason }: PodCondition, { pod, machine, ended }: StatusInput): boolean {
  if (ended || isTerminal(pod) || isDeleting(pod) || machine === undefined) return false;
  const goesOn = !isOver(machine) && machine.state !== "stopping";
  return reason === BY_NODE && goesOn && machine.disruption === undefined;
}

function written(
  { type, value, reason, message }: Decided,
  old: readonly PodCondition[],
  generation: number | undefined,
  now: number,
): PodCondition {
  const before = old.find((each) => each.type === type);
  const status = value ? "True" : "False";
  // What hinders a resize may change while the condition stays; kubelet counts that as a transition.
  const isSame = before?.status === status && !(RESIZE.includes(type) && before.reason !== reason);
  return {
    type,
    status,
    ...(generation !== undefined && { observedGeneration: generation }),
    lastProbeTime: null!,
    lastTransitionTime: isSame && before.lastTransitionTime ? before.lastTransitionTime : rfc3339(now),
    ...(reason && { reason }),
    ...(message && { message: toldMessage(message)! }),
  };
}

function resizing({ pending, inProgress }: ResizeState, phase: string): Decided[] {
  if (isTerminalPhase(phase)) return [];
  const error = inProgress?.error;
  return [
    ...(pending ? [{ type: "PodResizePending", value: true, ...pending }] : []),
    ...(inProgress ? [{ type: "PodResizeInProgress", value: true, reason: error && "Error", message: error }] : []),
  ];
}

const hasSandbox = (machine: Machine | undefined) => machine !== undefined && machine.sandbox_ready && !isOver(machine);

/**
 * kubelet: GeneratePodInitializedCondition. Once initialised, always initialised, although init containers may run
 * again.
 */
function initialized(pod: Pod, { init, main }: ContainerStatuses, phase: string): Decided {
  const type = "Initialized";
  if (phase === "Succeeded") return { type, value: true, reason: "PodCompleted" };
  const wasBefore = pod.status?.conditions?.some((each) => each.type === type && each.status === "True") ?? false;
  const incomplete = (pod.spec?.initContainers ?? [])
    .filter((c, i) => (isSidecar(c) ? !(init[i]?.started ?? false) : init[i]?.state?.terminated?.exitCode !== 0))
    .map(({ name }) => name);
  if (wasBefore || incomplete.length === 0 || main.some(everStarted)) return { type, value: true };
  const message = `containers with incomplete status: [${incomplete.join(" ")}]`;
  return { type, value: false, reason: "ContainersNotInitialized", message };
}

/** kubelet: GenerateContainersReadyCondition. */
function containersReady(pod: Pod, { init, main }: ContainerStatuses, phase: string): Decided {
  const type = "ContainersReady";
  if (phase === "Succeeded") return { type, value: false, reason: "PodCompleted" };
  if (phase === "Failed") return { type, value: false, reason: "PodFailed" };
  if (main.length === 0) return { type, value: false, reason: "UnknownContainerStatuses" };
  const sidecars = init.filter((_, i) => isSidecar(pod.spec!.initContainers![i]!));
  const unready = [...sidecars, ...main].filter((s) => !s.ready).map((s) => s.name);
  if (unready.length === 0) return { type, value: true };
  const message = `containers with unready status: [${unready.join(" ")}]`;
  return { type, value: false, reason: "ContainersNotReady", message };
}

/** kubelet: GeneratePodReadyCondition. The containers are ready, and so is all that others have made a gate of it. */
function podReady(pod: Pod, containers: Decided): Decided {
  const type = "Ready";
  if (!containers.value) return { ...containers, type };
  const missing: string[] = [];
  for (const { conditionType: gate } of pod.spec?.readinessGates ?? []) {
    const found = pod.status?.conditions?.find((each) => each.type === gate);
    if (found === undefined) missing.push(`corresponding condition of pod readiness gate "${gate}" does not exist.`);
    else if (found.status !== "True")
      missing.push(`the status of pod readiness gate "${gate}" is not "True", but ${found.status}`);
  }
  if (missing.length === 0) return { type, value: true };
  return { type, value: false, reason: "ReadinessGatesNotReady", message: missing.join(", ") };
}

/** kubelet: GenerateAllContainersRestartingCondition. */
function allContainersRestarting(pod: Pod, { init, main }: ContainerStatuses, phase: string): Decided {
  const type = "AllContainersRestarting";
  if (phase === "Succeeded") return { type, value: false, reason: "PodCompleted" };
  if (phase === "Failed") return { type, value: false, reason: "PodFailed" };
  if (![...init, ...main].some((each) => restartsAll(pod, each))) return { type, value: false };
  const message = "container exited with restart policy rule";
  return { type, value: true, reason: "RestartAllContainersStarted", message };
}
