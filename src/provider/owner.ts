/**
 * Labels by which a machine is known to be one cluster's and one node's: agents list by them, and a backend may hold a
 * client to them.
 */
import { createHash } from "node:crypto";

/** Asked for several times a pod, and a process knows few clusters. */
const prefixes = new Map<string, string>();

/** First eight hex digits of SHA-256 of the cluster's id: short, and enough to tell clusters on one backend apart. */
export function clusterPrefix(clusterId: string): string {
  let prefix = prefixes.get(clusterId);
  if (prefix === undefined)
    prefixes.set(clusterId, (prefix = createHash("sha256").update(clusterId).digest("hex").slice(0, 8)));
  return prefix;
}

/** Its value is the cluster's prefix. */
export const LABEL_CLUSTER = "vmlet.dev/cluster";
export const LABEL_NODE = "vmlet.dev/node";

/** Labels that say whose machine it is: those of this cluster and node are listed by them. */
export function ownerLabels(clusterId: string, nodeName: string): Record<string, string> {
  return { [LABEL_CLUSTER]: clusterPrefix(clusterId), [LABEL_NODE]: nodeName };
}
