/** What a node is called in CSI: with its cluster, for clusters may share a backend and name their nodes alike. */
import { clusterPrefix } from "../provider/owner.ts";

/**
 * The name of a node in its CSINode object. It is the name of the reservation by which its machines have volumes, too.
 * @internal
 */
export function csiNodeId(clusterId: string, nodeName: string): string {
  return `${clusterPrefix(clusterId)}.${nodeName}`;
}

/** True for what `csiNodeId` makes of this cluster's nodes. */
export function isNodeOf(clusterId: string, nodeId: string): boolean {
  const prefix = `${clusterPrefix(clusterId)}.`;
  return nodeId.startsWith(prefix) && /^[a-z0-9]([-a-z0-9.]{0,242}[a-z0-9])?$/.test(nodeId.slice(prefix.length));
}
