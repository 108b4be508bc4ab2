/** How a pod's machine is named and marked: the id comes from the pod's UID, so creating it twice makes one machine. */
import { uidOf } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import { clusterPrefix, LABEL_NAMESPACE, LABEL_POD, LABEL_UID, ownerLabels } from "../provider/owner.ts";

export { LABEL_NAMESPACE, LABEL_POD, LABEL_UID, ownerLabels } from "../provider/owner.ts";

export function machineId(clusterId: string, podUid: string): string {
  return `${clusterPrefix(clusterId)}-${podUid}`;
}

/** The pod's UID, or undefined when the id is not one of this cluster's. */
export function parseMachineId(clusterId: string, id: string): string | undefined {
  const prefix = `${clusterPrefix(clusterId)}-`;
  return id.startsWith(prefix) && id.length > prefix.length ? id.slice(prefix.length) : undefined;
}

export function machineLabels(clusterId: string, nodeName: string, pod: Pod): Record<string, string> {
  return {
    ...ownerLabels(clusterId, nodeName),
    [LABEL_NAMESPACE]: pod.metadata?.namespace ?? "",
    [LABEL_POD]: pod.metadata?.name ?? "",
    [LABEL_UID]: uidOf(pod),
  };
}
