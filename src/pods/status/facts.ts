/**
 * What a pod and the statuses of its containers prove: the questions that phase and conditions are decided by.
 */
import { isSidecar } from "../../resources/pod-resources.ts";
import { containerStatusesOf } from "../../kube/pod.ts";
import type { ContainerStatus, Pod } from "../../kube/wire.ts";
import type { ContainerStatuses } from "./input.ts";

/** True when the API server's copy proves that a container of this pod has been started once. */
export function hasRun(pod: Pod): boolean {
  if (pod.status?.phase === "Running") return true;
  return containerStatusesOf(pod).some((each) => each.containerID !== undefined || everStarted(each));
}

/** True when it runs, or an end of it was seen. */
export function everStarted(status: ContainerStatus): boolean {
  return status.state?.running !== undefined || lastEnd(status) !== undefined;
}

/** The last end of it that was seen, though it may run again; undefined when none was. */
export function lastEnd({ state, lastState }: ContainerStatus) {
  return state?.terminated ?? lastState?.terminated;
}

/** True unless it is known to wait for its first start. */
export function hasLeftFirstWait({ state, lastState }: ContainerStatus): boolean {
  return state?.waiting === undefined || lastState?.terminated !== undefined;
}

/** True when the init containers have done their work, or no container would have begun. kubelet: hasPodInitialized. */
export function hasInitialised(pod: Pod, { init, main }: ContainerStatuses): boolean {
  const spec = pod.spec?.initContainers?.at(-1);
  if (spec === undefined || main.some(hasLeftFirstWait)) return true;
  const last = init.at(-1);
  if (isSidecar(spec)) return last?.state?.running !== undefined && last.started === true;
  return [last?.state, last?.lastState].some((each) => each?.terminated?.exitCode === 0);
}
