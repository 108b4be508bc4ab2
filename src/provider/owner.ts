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
/** Whose pod it runs: namespace, name and UID. */
export const LABEL_NAMESPACE = "vmlet.dev/namespace";
export const LABEL_POD = "vmlet.dev/pod";
export const LABEL_UID = "vmlet.dev/uid";

/** Labels that say whose machine it is: those of this cluster and node are listed by them. */
export function ownerLabels(clusterId: string, nodeName: string): Record<string, string> {
  return { [LABEL_CLUSTER]: clusterPrefix(clusterId), [LABEL_NODE]: nodeName };
}

/** `name_namespace(uid)` of the pod that the machine runs, as kubelet's texts name it; other machines by their id. */
export function formatOwner(id: string, labels: Readonly<Record<string, string>>): string {
  return `${labels[LABEL_POD] ?? id}_${labels[LABEL_NAMESPACE] ?? "default"}(${labels[LABEL_UID] ?? id})`;
}

/** In a list of namespaces: each of them. */
export const EVERY_NAMESPACE = "*";

/** Whether a list of namespaces, in which {@link EVERY_NAMESPACE} may stand for all, has this one. */
export function namesNamespace(namespaces: readonly string[], namespace: string): boolean {
  return namespaces.includes(namespace) || namespaces.includes(EVERY_NAMESPACE);
}

/**
 * The tenant that a machine belongs to: a namespace of a cluster. Resources that all machines of a host share are
 * divided among tenants. Machines that say nothing of it are one tenant's.
 */
export function tenantOf(labels: Readonly<Record<string, string>>): string {
  return `${labels[LABEL_CLUSTER] ?? ""}/${labels[LABEL_NAMESPACE] ?? ""}`;
}
