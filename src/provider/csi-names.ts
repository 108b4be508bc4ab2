/** What is called how where volumes are concerned, for the CSI driver, the agent and the backend's clients alike. */
import { clusterPrefix } from "./owner.ts";

/** The CSI driver's name: in StorageClasses, PersistentVolumes, VolumeAttachments and CSINodes. */
export const CSI_DRIVER = "volumes.vmlet.dev";
/** Where machines of a backend are, in the labels of nodes and in the topology of volumes. */
export const ZONE_KEY = "topology.volumes.vmlet.dev/zone";

/** What precedes the driver in the name that a volume has in a Node's status. */
const IN_NODE = "kubernetes.io/csi/";

/** As it stands in a Node's `volumesInUse` and `volumesAttached` (kubelet: GetUniqueVolumeName). */
export function csiVolumeName(driver: string, handle: string): string {
  return `${IN_NODE}${driver}^${handle}`;
}

/** Undefined for what is no CSI driver's. */
export function csiVolumeOf(name: string): { driver: string; handle: string } | undefined {
  const at = name.indexOf("^");
  if (!name.startsWith(IN_NODE) || at <= IN_NODE.length) return undefined;
  return { driver: name.slice(IN_NODE.length, at), handle: name.slice(at + 1) };
}

/**
 * What a node is called: with its cluster, for clusters may share a backend and name their nodes alike. It is the
 * node's id in CSI, and the name of the reservation by which its machines have volumes.
 */
export function csiNodeId(clusterId: string, nodeName: string): string {
  return nodeIdOf(clusterPrefix(clusterId), nodeName);
}

/** Likewise, by the cluster's prefix, as machines have it in their labels. */
export function nodeIdOf(prefix: string, nodeName: string): string {
  return `${prefix}.${nodeName}`;
}

/** The node of which `csiNodeId` made this; undefined for what is of another cluster, or no node's. */
export function nodeNameOf(clusterId: string, nodeId: string): string | undefined {
  const prefix = `${clusterPrefix(clusterId)}.`;
  const name = nodeId.startsWith(prefix) ? nodeId.slice(prefix.length) : "";
  return /^[a-z0-9]([-a-z0-9.]{0,242}[a-z0-9])?$/.test(name) ? name : undefined;
}
