import { allContainerStatusesOf, isDeleting, isTerminal } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import type { Machine } from "../provider/machine.ts";
import type { Observed } from "./decision.ts";

/**
 * Whether users wait for what is to be done about a pod: its creation, its deletion, a status that no longer holds. The
 * rest, refreshing a pod that runs as it should, may come later.
 */
export function isUrgent(pod: Pod, observed: Observed): boolean {
  if (isDeleting(pod)) return true;
  if (isTerminal(pod)) return false;
  if (pod.status?.phase !== "Running") return true;
  if (observed.kind === "unknown") return false;
  return observed.kind === "absent" || isNews(pod, observed.machine);
}

/**
 * Whether a running pod's status says something else than its machine. A cheap look: `status/pod-status.ts` has the
 * last word.
 */
function isNews(pod: Pod, machine: Machine): boolean {
  if (machine.state !== "running") return true;
  const told = allContainerStatusesOf(pod);
  return machine.containers.some(({ name, ready, restart_count, state }) => {
    const status = told.find((each) => each.name === name);
    return (
      status === undefined ||
      status.ready !== ready ||
      status.restartCount !== restart_count ||
      status.state?.[state] === undefined
    );
  });
}
