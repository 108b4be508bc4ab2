/** Which containers have ended by a status that was written, as a kubelet counts them (status_manager.go). Pure. */
import type { ContainerStatus, Pod } from "../kube/wire.ts";

export interface Termination {
  containerType: "container" | "init_container" | "ephemeral_container";
  exitCode: number;
  reason: string;
}

/** Those that are over in `after` and were not in `before`: each end once, however often it is written. */
export function newTerminations(before: Pod["status"], after: Pod["status"]): Termination[] {
  return [
    ...ended("init_container", before?.initContainerStatuses, after?.initContainerStatuses),
    ...ended("container", before?.containerStatuses, after?.containerStatuses),
    ...ended("ephemeral_container", before?.ephemeralContainerStatuses, after?.ephemeralContainerStatuses),
  ];
}

function ended(
  containerType: Termination["containerType"],
  before: readonly ContainerStatus[] = [],
  after: readonly ContainerStatus[] = [],
): Termination[] {
  return after.flatMap(({ name, state }) => {
    const terminated = state?.terminated;
    const wasOver = before.some((each) => each.name === name && each.state?.terminated !== undefined);
    if (terminated === undefined || wasOver) return [];
    return [{ containerType, exitCode: terminated.exitCode, reason: terminated.reason ?? "" }];
  });
}
