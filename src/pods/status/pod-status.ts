/**
 * From a pod and what its machine last said to the status that a kubelet would write: a pure function, no I/O, no
 * clock.
 *
 * It owns phase, the kubelet's conditions and all container statuses; it keeps what belongs to others (readiness gates,
 * claim statuses, the QoS class). Its promises: a terminal phase is final, `startTime` never changes, restart counts
 * never fall, and a terminal phase appears only when nothing of the machine runs any more. Source of the rules:
 * kubelet's `getPhase`, `convertToAPIContainerStatuses`, `status.GenerateXCondition` and the status manager's
 * `mergePodStatus`.
 *
 * The containers' statuses come first (container.ts), the pod's outcome from them (phase.ts), the conditions from both
 * (conditions.ts). What of it is written, diff.ts says.
 */
import { rfc3339 } from "../../util/clock.ts";
import { oneOfEachFamily } from "../../util/ip-families.ts";
import { isTerminalPhase } from "../../kube/pod.ts";
import type { PodStatus } from "../../kube/wire.ts";
import { podConditions } from "./conditions.ts";
import { containerStatuses, withUnseenEnds } from "./container.ts";
import type { ContainerStatuses, StatusInput } from "./input.ts";
import { podOutcome } from "./phase.ts";
import { podLevelResources } from "./resources.ts";

const NO_CONTAINERS: ContainerStatuses = { init: [], main: [], ephemeral: [] };

export function podStatus(input: StatusInput): PodStatus {
  const { pod } = input;
  const old = pod.status ?? {};
  const rejected = isRejected(input);
  const seen = rejected ? NO_CONTAINERS : containerStatuses(input);
  const outcome = podOutcome(input, seen);
  const { phase, reason, message } = outcome;
  const containers = isTerminalPhase(phase) && !rejected ? withUnseenEnds(pod, seen) : seen;
  const generation = input.behind ? old.observedGeneration : pod.metadata?.generation;
  return {
    phase,
    conditions: podConditions(input, containers, outcome, generation),
    startTime: old.startTime ?? rfc3339(input.now),
    ...(reason !== undefined && { reason }),
    ...(message !== undefined && { message }),
    ...(old.qosClass !== undefined && { qosClass: old.qosClass }),
    ...(generation !== undefined && { observedGeneration: generation }),
    ...addresses(input),
    ...(!rejected && podLevelResources(input)),
    ...(!rejected && { containerStatuses: [...containers.main] }),
    ...(containers.init.length > 0 && { initContainerStatuses: [...containers.init] }),
    ...(containers.ephemeral.length > 0 && { ephemeralContainerStatuses: [...containers.ephemeral] }),
  };
}

/** kubelet: a pod that was never taken in has no containers (`rejectPod`); one that was keeps what was said of them. */
function isRejected({ pod, machine, verdict }: StatusInput): boolean {
  const wasTakenIn = (pod.status?.containerStatuses ?? []).length > 0;
  return verdict !== undefined && machine === undefined && !wasTakenIn;
}

/** At most one address of each family; the machine's last ones stay when it has none any more. */
function addresses({ pod, machine, hostIPs: known }: StatusInput): Partial<PodStatus> {
  const { podIP, podIPs: lastIPs } = pod.status ?? {};
  const hostIPs = oneOfEachFamily(known);
  // On the host's network a pod has the node's addresses, whatever the backend says.
  const isHosts = machine !== undefined && pod.spec?.hostNetwork === true;
  const machineIPs = isHosts ? hostIPs : oneOfEachFamily(machine?.addresses.map((a) => a.ip) ?? [], hostIPs[0]);
  const last = lastIPs?.map((p) => p.ip) ?? (podIP ? [podIP] : []);
  const podIPs = machineIPs.length > 0 ? machineIPs : last;
  return {
    ...(hostIPs.length > 0 && { hostIP: hostIPs[0]!, hostIPs: hostIPs.map((ip) => ({ ip })) }),
    ...(podIPs.length > 0 && { podIP: podIPs[0]!, podIPs: podIPs.map((ip) => ({ ip })) }),
  };
}
