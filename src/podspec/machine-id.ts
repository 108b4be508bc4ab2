/** How a pod's machine is named and marked: the id comes from the pod's UID, so creating it twice makes one machine. */
import { createHash } from "node:crypto";
import type { Pod } from "../kube/wire.ts";

/** Asked for several times a pod, and a process knows few clusters. */
const prefixes = new Map<string, string>();

/** First eight hex digits of SHA-256 of the cluster's id: short, and enough to tell clusters on one backend apart. */
export function clusterPrefix(clusterId: string): string {
  let prefix = prefixes.get(clusterId);
  if (prefix === undefined)
    prefixes.set(clusterId, (prefix = createHash("sha256").update(clusterId).digest("hex").slice(0, 8)));
  return prefix;
}

export function machineId(clusterId: string, podUid: string): string {
  return `${clusterPrefix(clusterId)}-${podUid}`;
}

/** The pod's UID, or undefined when the id is not one of this cluster's. */
export function parseMachineId(clusterId: string, id: string): string | undefined {
  const prefix = `${clusterPrefix(clusterId)}-`;
  return id.startsWith(prefix) && id.length > prefix.length ? id.slice(prefix.length) : undefined;
}

export const LABEL_CLUSTER = "vmlet.dev/cluster";
export const LABEL_NODE = "vmlet.dev/node";
export const LABEL_NAMESPACE = "vmlet.dev/namespace";
export const LABEL_POD = "vmlet.dev/pod";
export const LABEL_UID = "vmlet.dev/uid";

/** Labels that say whose machine it is: those of this cluster and node are listed by them. */
export function ownerLabels(clusterId: string, nodeName: string): Record<string, string> {
  return { [LABEL_CLUSTER]: clusterPrefix(clusterId), [LABEL_NODE]: nodeName };
}

export function machineLabels(clusterId: string, nodeName: string, pod: Pod): Record<string, string> {
  return {
    ...ownerLabels(clusterId, nodeName),
    [LABEL_NAMESPACE]: pod.metadata?.namespace ?? "",
    [LABEL_POD]: pod.metadata?.name ?? "",
    [LABEL_UID]: pod.metadata?.uid ?? "",
  };
}
