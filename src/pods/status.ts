/**
 * From a pod and what its machine last said to the status that a kubelet would write: a pure function, no I/O, no clock.
 *
 * It owns phase, the kubelet's conditions and all container statuses; it keeps what belongs to others (readiness gates,
 * claim statuses, the QoS class). Its promises: a terminal phase is final, `startTime` never changes, restart counts never
 * fall, and a terminal phase appears only when nothing of the machine runs any more. Source of the rules: kubelet's
 * `getPhase`, `convertToAPIContainerStatuses`, `status.GenerateXCondition` and the status manager's `mergePodStatus`.
 */
import { Quantity } from "../resources/quantity.ts";
import { rfc3339 } from "../util/clock.ts";
import { oneOfEachFamily } from "../util/ip-families.ts";
import { cutBytes } from "../util/text.ts";
import type { Container, ContainerStatus, Pod, PodCondition, PodStatus } from "../kube/wire.ts";
import { isOver, type ContainerState, type ContainerTermination, type Machine } from "../provider/machine.ts";

/** What became of a change of resources that a running pod asked for; both absent when there is none under way. */
export interface ResizeState {
  /** It was not begun: it can never fit here, or it does not fit now. */
  pending?: { reason: "Infeasible" | "Deferred"; message: string };
  /** It was asked of the backend and is not in effect yet. */
  inProgress?: { error?: string };
}

/** Why a pod ends that its machine did not end by itself: becomes phase Failed with this reason and message. */
export interface Verdict {
  reason: string;
  message: string;
}

export interface StatusInput {
  pod: Pod;
  /** The machine as last seen; undefined when there is none (not created yet, refused, lost). */
  machine: Machine | undefined;
  /** The node's addresses, primary first. */
  hostIPs: readonly string[];
  now: number;
  /** True when nothing of the pod can run any more: its machine is over, was never made, or is gone. */
  ended: boolean;
  verdict?: Verdict | undefined;
  /** Containers that wait for something that only the agent knows of (a missing ConfigMap). */
  waiting?: ReadonlyMap<string, { reason: string; message: string }> | undefined;
  /** Undefined while it has not been looked at: what the status says already then stands. */
  resize?: ResizeState | undefined;
  /** The machine has not been brought to this generation yet: whoever waits for `observedGeneration` must go on waiting. */
  behind?: boolean;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };
type SpecContainer = Pick<Container, "name" | "image" | "resources" | "volumeMounts"> & {
  readonly restartPolicy?: string | undefined;
};

/** Terminal phases are final: nothing that vmlet does may leave them. */
export function isTerminal(pod: Pod): boolean {
  return pod.status?.phase === "Succeeded" || pod.status?.phase === "Failed";
}

/** True when the API server's copy proves that a container of this pod has been started once. */
export function hasRun(pod: Pod): boolean {
  if (pod.status?.phase === "Running") return true;
  const all = [...(pod.status?.initContainerStatuses ?? []), ...(pod.status?.containerStatuses ?? [])];
  return all.some(
    (s) => s.containerID !== undefined || s.state?.running || s.state?.terminated || s.lastState?.terminated,
  );
}

export function podStatus(input: StatusInput): PodStatus {
  const { pod, machine, now } = input;
  const old = pod.status ?? {};
  const generation = input.behind ? pod.status?.observedGeneration : pod.metadata?.generation;
  const spec = pod.spec;
  const initSpecs = spec?.initContainers ?? [];
  const mainSpecs = spec?.containers ?? [];
  // kubelet: a pod that was never taken in has no containers (`rejectPod`); one that was keeps what was said of them.
  const wasTakenIn = (old.containerStatuses ?? []).length > 0;
  const rejected = input.verdict !== undefined && machine === undefined && !wasTakenIn;

  let init: ContainerStatus[] = [];
  let main: ContainerStatus[] = [];
  let ephemeral: ContainerStatus[] = [];
  if (!rejected) {
    const status = (c: SpecContainer, kind: ContainerState["kind"], before: readonly ContainerStatus[] | undefined) =>
      containerStatus(
        c,
        kind,
        input,
        before?.find((s) => s.name === c.name),
      );
    init = initSpecs.map((c) => status(c, "init", old.initContainerStatuses));
    main = mainSpecs.map((c) => status(c, "main", old.containerStatuses)).sort(byName);
    ephemeral = (spec?.ephemeralContainers ?? [])
      .map((c) => status(c, "ephemeral", old.ephemeralContainerStatuses))
      .sort(byName);
  }

  let phase = isTerminal(pod) ? old.phase! : computePhase(pod, init, main, input.ended && machine !== undefined);
  let reason = phase === old.phase ? old.reason : undefined;
  let message = phase === old.phase ? old.message : undefined;
  if (!isTerminal(pod)) {
    if (input.ended && input.verdict !== undefined) {
      phase = "Failed";
      reason = input.verdict.reason;
      message = toldMessage(input.verdict.message);
    } else if (
      input.ended &&
      machine !== undefined &&
      machine.state !== "stopped" &&
      !isOwnTombstone(pod, machine) &&
      (phase !== "Succeeded" || endsFailed(machine.reason))
    ) {
      phase = "Failed";
      reason = toldReason(machine.reason) ?? (machine.state === "deleted" ? "MachineLost" : "MachineFailed");
      message =
        toldMessage(machine.message) ??
        (machine.state === "deleted" ? "The machine was deleted outside of Kubernetes" : undefined);
    } else if (input.ended && phase !== "Succeeded") {
      // kubelet: status_manager.TerminatePod; a pod that ended before it could finish has failed.
      phase = "Failed";
    } else if (!input.ended && (phase === "Succeeded" || phase === "Failed")) {
      // Nothing terminal is said while the machine may still run something.
      phase = main.some((s) => s.state?.running || s.state?.terminated || s.lastState?.terminated)
        ? "Running"
        : "Pending";
      if (old.phase !== undefined && old.phase !== phase) reason = message = undefined;
    }
  }
  if (phase === "Pending" && old.phase === "Running") phase = "Running";
  const terminal = phase === "Succeeded" || phase === "Failed";
  if (terminal && !rejected) {
    // kubelet: TerminatePod. Once a pod has initialised, a container whose end nobody saw counts as failed, though it may never
    // have begun; of the init containers those up to the last that has begun, and the first in any case.
    if (old.phase === "Running" || hasInitialised(initSpecs, init, main)) main = main.map(endUnseen);
    const begun = init.findLastIndex((s) => s.state?.waiting === undefined || s.lastState?.terminated !== undefined);
    init = init.map((s, i) => (i <= Math.max(begun, 0) ? endUnseen(s) : s));
    ephemeral = ephemeral.map(endUnseen);
  }

  const hostIPs = oneOfEachFamily(input.hostIPs);
  const machineIPs = oneOfEachFamily(machine?.addresses.map((a) => a.ip) ?? [], hostIPs[0]);
  const podIPs = machineIPs.length > 0 ? machineIPs : (old.podIPs?.map((p) => p.ip) ?? (old.podIP ? [old.podIP] : []));
  const status: Mutable<PodStatus> = {
    phase,
    conditions: conditions(input, init, main, phase, reason, message, generation),
    startTime: old.startTime ?? rfc3339(now),
    ...(reason !== undefined && { reason }),
    ...(message !== undefined && { message }),
    ...(old.qosClass !== undefined && { qosClass: old.qosClass }),
    ...(generation !== undefined && { observedGeneration: generation }),
    ...(hostIPs.length > 0 && { hostIP: hostIPs[0]!, hostIPs: hostIPs.map((ip) => ({ ip })) }),
    ...(podIPs.length > 0 && { podIP: podIPs[0]!, podIPs: podIPs.map((ip) => ({ ip })) }),
  };
  if (!rejected) {
    status.containerStatuses = main;
    if (initSpecs.length > 0) status.initContainerStatuses = init;
    if (ephemeral.length > 0) status.ephemeralContainerStatuses = ephemeral;
  }
  return status;
}

/** What is left of a machine that the agent deleted because its pod is: nobody has lost it. */
function isOwnTombstone(pod: Pod, machine: Machine): boolean {
  return machine.state === "deleted" && machine.reason === undefined && pod.metadata?.deletionTimestamp !== undefined;
}

/** kubelet: hasPodInitialized. */
function hasInitialised(
  specs: readonly SpecContainer[],
  init: readonly ContainerStatus[],
  main: readonly ContainerStatus[],
): boolean {
  const spec = specs.at(-1);
  if (spec === undefined || main.some((s) => s.state?.waiting === undefined || s.lastState?.terminated)) return true;
  const last = init.at(-1);
  if (isSidecar(spec)) return last?.state?.running !== undefined && last.started === true;
  return last?.state?.terminated?.exitCode === 0 || last?.lastState?.terminated?.exitCode === 0;
}

const byName = (a: ContainerStatus, b: ContainerStatus) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
const isSidecar = (c: SpecContainer) => c.restartPolicy === "Always";

function containerStatus(
  spec: SpecContainer,
  kind: ContainerState["kind"],
  input: StatusInput,
  old: ContainerStatus | undefined,
): ContainerStatus {
  const seen = input.machine?.containers.find((c) => c.name === spec.name && c.kind === kind);
  if (seen === undefined) {
    if (old !== undefined && (old.containerID !== undefined || old.state?.terminated || old.state?.running)) return old;
    return waitingStatus(spec, kind, input, old);
  }
  const restartCount = Math.max(seen.restart_count, old?.restartCount ?? 0);
  const messageBytes = terminationMessageBytes(input.pod);
  const running = seen.state === "running";
  const status: Mutable<ContainerStatus> = {
    name: spec.name,
    state: stateOf(seen, input, messageBytes, old),
    lastState: seen.last
      ? { terminated: terminated(seen.last, containerId(input.machine!, seen.last.id), messageBytes) }
      : (old?.lastState ?? {}),
    ready:
      kind === "init" && !isSidecar(spec)
        ? seen.terminated?.exit_code === 0
        : running && seen.ready && kind !== "ephemeral",
    restartCount,
    image: seen.image || spec.image!,
    imageID: seen.image_id,
    started: running && seen.started,
  };
  const id = containerId(input.machine!, seen.id);
  if (id !== undefined) status.containerID = id;
  Object.assign(status, mounts(spec));
  if (seen.resources !== undefined && kind !== "ephemeral") {
    const resources = effectiveResources(spec, seen.resources, old?.resources);
    status.resources = resources;
    if (resources.requests !== undefined) status.allocatedResources = resources.requests;
  }
  if (seen.user !== undefined) {
    status.user = {
      linux: { uid: seen.user.uid, gid: seen.user.gid, supplementalGroups: seen.user.supplemental_groups },
    };
  }
  return status;
}

/** `vmlet://MACHINE/INSTANCE`: tools split on `://`, and the id must change with every restart. */
function containerId(_machine: Machine, instance: string | undefined): string | undefined {
  return instance === undefined ? undefined : `vmlet://${instance}`;
}

function stateOf(
  seen: ContainerState,
  input: StatusInput,
  messageBytes: number,
  old: ContainerStatus | undefined,
): NonNullable<ContainerStatus["state"]> {
  switch (seen.state) {
    case "running": {
      // A backend need not tell; what was said of this instance then stands, or each look would be a new status.
      const before =
        old?.containerID === containerId(input.machine!, seen.id) ? old?.state?.running?.startedAt : undefined;
      return { running: { startedAt: seconds(seen.started_at) ?? before ?? rfc3339(input.now) } };
    }
    case "terminated":
      return {
        terminated: terminated(
          seen.terminated!,
          containerId(input.machine!, seen.terminated!.id ?? seen.id),
          messageBytes,
        ),
      };
    case "waiting":
      return {
        waiting: {
          reason: toldReason(seen.reason) ?? "ContainerCreating",
          ...(seen.message && { message: toldMessage(seen.message)! }),
        },
      };
  }
}

function terminated(t: ContainerTermination, id: string | undefined, messageBytes: number) {
  return {
    exitCode: t.exit_code,
    ...(t.signal !== undefined && { signal: t.signal }),
    reason: toldReason(t.reason)!,
    ...(t.message && { message: cutBytes(t.message, messageBytes) }),
    startedAt: seconds(t.started_at) ?? null!,
    finishedAt: seconds(t.finished_at)!,
    ...(id !== undefined && { containerID: id }),
  };
}

function waitingStatus(
  spec: SpecContainer,
  kind: ContainerState["kind"],
  input: StatusInput,
  old: ContainerStatus | undefined,
): ContainerStatus {
  const inits = input.pod.spec?.initContainers ?? [];
  const first = inits[0]?.name === spec.name;
  const reason = inits.length > 0 && !(kind === "init" && first) ? "PodInitializing" : "ContainerCreating";
  // An agent that has just been started has not looked yet why: what was said before stands.
  const said = kind === "ephemeral" ? old?.state?.waiting : undefined;
  return {
    name: spec.name,
    state: { waiting: input.waiting?.get(spec.name) ?? said ?? { reason } },
    lastState: {},
    ready: false,
    restartCount: 0,
    image: spec.image ?? "",
    imageID: "",
    started: false,
    ...mounts(spec),
  };
}

/** kubelet: convertToAPIContainerStatuses. Recursive read-only mounts are for backends that have them, and none has. */
function mounts({ volumeMounts = [] }: SpecContainer): Pick<ContainerStatus, "volumeMounts"> {
  if (volumeMounts.length === 0) return {};
  return {
    volumeMounts: volumeMounts.map(({ name, mountPath, readOnly }) => ({
      name,
      mountPath,
      ...(readOnly && { readOnly, recursiveReadOnly: "Disabled" }),
    })),
  };
}

function endUnseen(status: ContainerStatus): ContainerStatus {
  if (status.state?.terminated) return status;
  return {
    ...status,
    ready: false,
    started: false,
    state: {
      terminated: {
        exitCode: 137,
        reason: "ContainerStatusUnknown",
        message: "The container could not be located when the pod was terminated",
        startedAt: null!,
        finishedAt: null!,
      },
    },
  };
}

/** What a backend says is bounded before it is written into a pod: a status has room for all that is in it, or none is written. */
const toldReason = (reason: string | undefined) => reason && cutBytes(reason, 256);
const toldMessage = (message: string | undefined) => message && cutBytes(message, 4096);

/** kubelet: MaxPodTerminationMessageLogLength, shared evenly by the pod's containers; one has at most 4096 bytes. */
const POD_TERMINATION_MESSAGE_BYTES = 12 * 1024;
const TERMINATION_MESSAGE_BYTES = 4096;

function terminationMessageBytes({ spec }: Pod): number {
  const containers =
    (spec?.containers.length ?? 0) + (spec?.initContainers?.length ?? 0) + (spec?.ephemeralContainers?.length ?? 0);
  return Math.min(TERMINATION_MESSAGE_BYTES, Math.floor(POD_TERMINATION_MESSAGE_BYTES / Math.max(1, containers)));
}

const seconds = (at: string | undefined) => (at === undefined ? undefined : rfc3339(Date.parse(at)));

type Resources = NonNullable<ContainerStatus["resources"]>;
type Amounts = NonNullable<Resources["requests"]>;

/**
 * What the container has: the spec's own words, but cpu and memory as the machine says, because a change of those may not
 * have been made. An amount keeps the text that the spec, or else the status, has for it.
 */
function effectiveResources(
  spec: SpecContainer,
  seen: NonNullable<ContainerState["resources"]>,
  old: ContainerStatus["resources"],
): Resources {
  const part = (list: "requests" | "limits"): Amounts | undefined => {
    const amounts: Record<string, string> = { ...spec.resources?.[list] };
    for (const [name, amount, text] of [
      ["cpu", seen[list]?.cpu_millis, cpuText],
      ["memory", seen[list]?.memory_bytes, binary],
    ] as const) {
      delete amounts[name];
      if (amount === undefined) continue;
      const known = [spec.resources?.[list]?.[name], old?.[list]?.[name]];
      amounts[name] = known.find((each) => each !== undefined && amountOf(name, each) === amount) ?? text(amount);
    }
    return Object.keys(amounts).length > 0 ? amounts : undefined;
  };
  const limits = part("limits");
  const requests = part("requests");
  return { ...(limits && { limits }), ...(requests && { requests }) };
}

const amountOf = (name: "cpu" | "memory", text: string) =>
  name === "cpu" ? Quantity.parse(text).toMillis() : Quantity.parse(text).toNumber();

const cpuText = (millis: number) => (millis % 1000 === 0 ? `${millis / 1000}` : `${millis}m`);

/** Canonical quantity of bytes: the largest binary suffix that divides it. */
function binary(bytes: number): string {
  const suffixes = ["Ti", "Gi", "Mi", "Ki"];
  for (const [i, suffix] of suffixes.entries()) {
    const unit = 1024 ** (suffixes.length - i);
    if (bytes >= unit && bytes % unit === 0) return `${bytes / unit}${suffix}`;
  }
  return `${bytes}`;
}

// ------------------------------------------------------------------------------------------------------------- phase

interface RestartRule {
  readonly action: string;
  readonly exitCodes?: { readonly operator: string; readonly values?: readonly number[] };
}

const restartRules = (c: SpecContainer): readonly RestartRule[] =>
  (c as { restartPolicyRules?: readonly RestartRule[] }).restartPolicyRules ?? [];

/** The first rule that fits decides. */
function matchingRule(rules: readonly RestartRule[] | undefined, exitCode: number): RestartRule | undefined {
  return rules?.find(
    ({ exitCodes }) => exitCodes && (exitCodes.values?.includes(exitCode) ?? false) === (exitCodes.operator === "In"),
  );
}

/** kubelet: ContainerShouldRestart. Init containers under a pod policy of Always behave as OnFailure. */
export function shouldRestart(pod: Pod, c: SpecContainer, exitCode: number, kind: "init" | "main"): boolean {
  if (matchingRule(restartRules(c), exitCode)) return true;
  const policy = c.restartPolicy ?? pod.spec?.restartPolicy ?? "Always";
  if (policy === "Never") return false;
  if (policy === "OnFailure" || (kind === "init" && !isSidecar(c))) return exitCode !== 0;
  return true;
}

/** kubelet: getPhase. `over` says that nothing of the pod runs or will run again. */
function computePhase(
  pod: Pod,
  init: readonly ContainerStatus[],
  main: readonly ContainerStatus[],
  over: boolean,
): string {
  const initSpecs = pod.spec?.initContainers ?? [];
  const mainSpecs = new Map((pod.spec?.containers ?? []).map((c) => [c.name, c]));
  let pendingInit = 0;
  let initFailedForGood = 0;
  let pendingSidecar = 0;
  let unknown = 0;
  let running = 0;
  let waiting = 0;
  let stopped = 0;
  let stoppedForGood = 0;
  let succeeded = 0;
  const initialised = main.some((s) => s.state?.running || s.state?.terminated || s.lastState?.terminated);

  for (const [i, c] of initSpecs.entries()) {
    const s = init[i];
    if (isSidecar(c)) {
      if (s === undefined) unknown++;
      else if (s.state?.running) {
        running++;
        if (!s.started) pendingSidecar++;
      } else if (s.state?.waiting && !s.lastState?.terminated) {
        pendingSidecar++;
        waiting++;
      }
      continue;
    }
    const exit = s?.state?.terminated?.exitCode ?? (s?.state?.waiting ? s.lastState?.terminated?.exitCode : undefined);
    if (s === undefined || s.state?.running || exit === undefined) pendingInit++;
    else if (exit !== 0 && !shouldRestart(pod, c, exit, "init")) initFailedForGood++;
    else if (exit !== 0) pendingInit++;
  }
  for (const s of main) {
    const c = mainSpecs.get(s.name)!;
    if (s.state?.running) running++;
    else if (s.state?.terminated || s.lastState?.terminated) {
      stopped++;
      const exit = s.state?.terminated?.exitCode ?? s.lastState?.terminated?.exitCode ?? 0;
      if (!shouldRestart(pod, c, exit, "main")) stoppedForGood++;
      if (s.state?.terminated && exit === 0) succeeded++;
    } else waiting++;
  }
  const mainRunning = main.some((s) => s.state?.running);
  if (initFailedForGood > 0) return "Failed";
  if (
    !(over && stopped > 0 && stopped === main.length) &&
    (pendingInit > 0 || (pendingSidecar > 0 && !initialised) || waiting > 0)
  )
    return "Pending";
  if (mainRunning && unknown === 0) return "Running";
  if (stopped > 0 && unknown === 0) {
    if (over) return stopped === succeeded ? "Succeeded" : "Failed";
    if (stopped !== stoppedForGood) return "Running";
    return stopped === succeeded ? "Succeeded" : "Failed";
  }
  return running > 0 ? "Running" : "Pending";
}

// -------------------------------------------------------------------------------------------------------- conditions

const OWNED = new Set([
  "PodScheduled",
  "Ready",
  "Initialized",
  "ContainersReady",
  "PodReadyToStartContainers",
  "PodResizePending",
  "PodResizeInProgress",
  "AllContainersRestarting",
]);
/**
 * Ends of a pod that are the node's doing, not its own (KEP 3329), in a kubelet's words. A pod that outgrew its own limits of
 * local storage is evicted without: its owner may count that as a failure, since it would happen again.
 */
const DISRUPTIONS = new Map([
  ["Preempting", "Pod was preempted by Kubelet to accommodate a critical pod."],
  ["NodeShutdown", undefined],
]);
const isNodeEviction = (reason: string | undefined, message: string | undefined) =>
  reason === "Evicted" && (message ?? "").startsWith("The node ");
const endsFailed = (reason: string | undefined) => reason === "Evicted" || DISRUPTIONS.has(reason ?? "");

function conditions(
  input: StatusInput,
  init: readonly ContainerStatus[],
  main: readonly ContainerStatus[],
  phase: string,
  podReason: string | undefined,
  podMessage: string | undefined,
  generation: number | undefined,
): PodCondition[] {
  const { pod, machine } = input;
  const old = pod.status?.conditions ?? [];
  const disrupted = phase === "Failed" && (DISRUPTIONS.has(podReason ?? "") || isNodeEviction(podReason, podMessage));
  const result: PodCondition[] = old.filter((c) => !OWNED.has(c.type) && !(disrupted && c.type === "DisruptionTarget"));
  const put = (type: string, value: boolean, reason?: string, message?: string) => {
    const before = old.find((c) => c.type === type);
    const status = value ? "True" : "False";
    result.push({
      type,
      status,
      ...(generation !== undefined && { observedGeneration: generation }),
      lastProbeTime: null!,
      lastTransitionTime:
        before?.status === status &&
        before.lastTransitionTime &&
        !(type.startsWith("PodResize") && before.reason !== reason)
          ? before.lastTransitionTime
          : rfc3339(input.now),
      ...(reason && { reason }),
      ...(message && { message: toldMessage(message)! }),
    });
  };
  const terminal = phase === "Succeeded" || phase === "Failed";

  if (disrupted) put("DisruptionTarget", true, "TerminationByKubelet", DISRUPTIONS.get(podReason ?? "") ?? podMessage);
  const { resize } = input;
  if (resize === undefined)
    result.push(...old.filter((c) => c.type === "PodResizePending" || c.type === "PodResizeInProgress"));
  else if (!terminal) {
    if (resize.pending) put("PodResizePending", true, resize.pending.reason, resize.pending.message);
    if (resize.inProgress)
      put("PodResizeInProgress", true, resize.inProgress.error && "Error", resize.inProgress.error);
  }
  put("PodReadyToStartContainers", !terminal && machine !== undefined && machine.sandbox_ready && !isOver(machine));

  const started = main.some((s) => s.state?.running || s.state?.terminated || s.lastState?.terminated);
  const incomplete = (pod.spec?.initContainers ?? [])
    .filter((c, i) => (isSidecar(c) ? !(init[i]?.started ?? false) : init[i]?.state?.terminated?.exitCode !== 0))
    .map((c) => c.name);
  // Once initialised, always initialised, although init containers may run again (kubelet: GeneratePodInitializedCondition).
  const before = old.some((c) => c.type === "Initialized" && c.status === "True");
  if (phase === "Succeeded") put("Initialized", true, "PodCompleted");
  else if (started || before || incomplete.length === 0) put("Initialized", true);
  else
    put(
      "Initialized",
      false,
      "ContainersNotInitialized",
      `containers with incomplete status: [${incomplete.join(" ")}]`,
    );

  const sidecars = init.filter((_, i) => isSidecar(pod.spec!.initContainers![i]!));
  const unready = [...sidecars, ...main].filter((s) => !s.ready).map((s) => s.name);
  let ready = false;
  let reason: string | undefined;
  let message: string | undefined;
  if (phase === "Succeeded") reason = "PodCompleted";
  else if (phase === "Failed") reason = "PodFailed";
  else if (main.length === 0) reason = "UnknownContainerStatuses";
  else if (machine?.reachability === "unknown" && unready.length === 0) ready = true;
  else if (unready.length > 0) {
    reason = "ContainersNotReady";
    message = `containers with unready status: [${unready.join(" ")}]`;
  } else ready = true;

  let readyStatus = ready;
  let readyReason = reason;
  let readyMessage = message;
  if (ready) {
    const missing: string[] = [];
    for (const gate of pod.spec?.readinessGates ?? []) {
      const value = old.find((c) => c.type === gate.conditionType);
      if (value === undefined)
        missing.push(`corresponding condition of pod readiness gate "${gate.conditionType}" does not exist.`);
      else if (value.status !== "True") {
        missing.push(`the status of pod readiness gate "${gate.conditionType}" is not "True", but ${value.status}`);
      }
    }
    if (missing.length > 0) {
      readyStatus = false;
      readyReason = "ReadinessGatesNotReady";
      readyMessage = missing.join(", ");
    }
  }
  put("Ready", readyStatus, readyReason, readyMessage);
  put("ContainersReady", ready, reason, message);
  put("PodScheduled", true);
  const rules = restartAllRules(pod);
  if (rules.size > 0) {
    const triggered = [...init, ...main].some((s) => {
      const exit = s.state?.terminated?.exitCode;
      return exit !== undefined && matchingRule(rules.get(s.name), exit)?.action === "RestartAllContainers";
    });
    if (phase === "Succeeded") put("AllContainersRestarting", false, "PodCompleted");
    else if (phase === "Failed") put("AllContainersRestarting", false, "PodFailed");
    else if (!triggered) put("AllContainersRestarting", false);
    else {
      const why = "container exited with restart policy rule";
      put("AllContainersRestarting", true, "RestartAllContainersStarted", why);
    }
  }
  return result;
}

/** The containers of a pod in which one may restart all the others, with their rules; else empty. */
function restartAllRules({ spec }: Pod): Map<string, readonly RestartRule[]> {
  const all = [...(spec?.initContainers ?? []), ...(spec?.containers ?? [])];
  const rules = new Map(all.map((c) => [c.name, restartRules(c)]));
  return [...rules.values()].flat().some(({ action }) => action === "RestartAllContainers") ? rules : new Map();
}

// -------------------------------------------------------------------------------------------------------------- diff

const OWNED_FIELDS = [
  "phase",
  "reason",
  "message",
  "hostIP",
  "hostIPs",
  "podIP",
  "podIPs",
  "startTime",
  "observedGeneration",
  "conditions",
  "containerStatuses",
  "initContainerStatuses",
  "ephemeralContainerStatuses",
] as const;

/**
 * The fields of `next` that differ from what the API server has, as a JSON merge patch of the status; undefined when
 * nothing differs. Lists are sent whole, which is safe because the patch carries the resourceVersion.
 */
export function statusDiff(current: PodStatus | undefined, next: PodStatus): Record<string, unknown> | undefined {
  const patch: Record<string, unknown> = {};
  for (const field of OWNED_FIELDS) {
    const before = current?.[field];
    const after = next[field];
    if (
      field === "conditions" ? !sameConditions(before as PodCondition[], after as PodCondition[]) : !same(before, after)
    ) {
      patch[field] = after ?? null;
    }
  }
  return Object.keys(patch).length === 0 ? undefined : patch;
}

/** Deep equality of JSON in which absent, null, and an empty list or object are the same. */
function same(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (isEmpty(a) && isEmpty(b)) return true;
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((v, i) => same(v, b[i]));
  if (
    typeof a === "object" &&
    typeof b === "object" &&
    a !== null &&
    b !== null &&
    !Array.isArray(a) &&
    !Array.isArray(b)
  ) {
    const keys = new Set([...Object.keys(a), ...Object.keys(b)]);
    for (const key of keys)
      if (!same((a as Record<string, unknown>)[key], (b as Record<string, unknown>)[key])) return false;
    return true;
  }
  return false;
}

function isEmpty(v: unknown): boolean {
  return v === undefined || v === null || v === "" || (typeof v === "object" && Object.keys(v).length === 0);
}

function sameConditions(a: readonly PodCondition[] | undefined, b: readonly PodCondition[]): boolean {
  if (a === undefined || a.length !== b.length) return false;
  return b.every((c) =>
    same(
      a.find((o) => o.type === c.type),
      c,
    ),
  );
}
