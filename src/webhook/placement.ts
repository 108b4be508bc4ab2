/**
 * Where the pods of a namespace go, by its owner's policy, so that workloads need not know of virtual nodes. Pure: a
 * pod as it is about to be created, and what is to be changed of it.
 *
 * It is a help and no fence: it may be down, and then pods are created as they are written. What must not run on a node
 * is kept away by that node's taints.
 */
import type { Pod } from "../kube/wire.ts";

export const BURST_POLICIES = ["enforce", "overflow"] as const;

/**
 * `enforce`: on virtual nodes only. `overflow`: on other nodes while they have room, then on virtual ones. Whatever
 * else a namespace says is no policy, and changes nothing.
 */
export type BurstPolicy = (typeof BURST_POLICIES)[number];

/** Of namespaces: their policy. Of a pod, with the value `off`: it takes no part in its namespace's overflow. */
export const BURST_LABEL = "vmlet.dev/burst-policy";

/** How virtual nodes are told from others. */
export interface VirtualNodes {
  /** They have it, and no other node has. */
  label: { key: string; value: string };
  /** The key of the taint that keeps pods off them. */
  taint: string;
}

export interface PatchOperation {
  op: "add";
  path: string;
  value: unknown;
}

/** `left`: the pod stays as it is; `warning` is for its author. */
type Placement = { kind: "placed"; patch: PatchOperation[] } | { kind: "left"; why: string; warning?: string };

/** Namespaces of the cluster itself: what keeps it running goes to nodes that do not depend on it. @internal */
export const SYSTEM_NAMESPACES: readonly string[] = ["kube-system", "kube-public", "kube-node-lease"];

/** The highest there is: a large and empty virtual node would outweigh a small real one by its free resources. */
const WEIGHT = 100;

/** @param pod whose namespace has this policy */
export function place(pod: Pod, namespace: string, policy: BurstPolicy, nodes: VirtualNodes): Placement {
  const why = exemption(pod, namespace);
  if (why !== undefined) return { kind: "left", why };
  return policy === "enforce" ? enforce(pod, nodes) : overflow(pod, nodes);
}

function exemption(pod: Pod, namespace: string): string | undefined {
  if (SYSTEM_NAMESPACES.includes(namespace)) return "system namespace";
  if (pod.metadata?.ownerReferences?.some(({ kind }) => kind === "DaemonSet") === true) return "DaemonSet";
  if (isSet(pod.spec?.nodeName)) return "bound";
  return undefined;
}

function enforce(pod: Pod, { label, taint }: VirtualNodes): Placement {
  const { nodeSelector } = pod.spec ?? {};
  const own = nodeSelector?.[label.key];
  if (own !== undefined && own !== label.value)
    return {
      kind: "left",
      why: "other nodeSelector",
      warning: `spec.nodeSelector: ${label.key} is ${own}, so the pod does not go to a virtual node, as its namespace's label ${BURST_LABEL} asks; leave it out, or have the label of the namespace changed`,
    };
  const selector: PatchOperation[] =
    own === undefined
      ? [{ op: "add", path: "/spec/nodeSelector", value: { ...nodeSelector, [label.key]: label.value } }]
      : [];
  return { kind: "placed", patch: [...selector, ...toleration(pod, taint)] };
}

/** What a machine of its own cannot have keeps a pod on other nodes: sent away, it would wait there for ever. */
function needsHost({ spec }: Pod): boolean {
  const asks = spec?.hostNetwork === true || spec?.hostPID === true || spec?.hostIPC === true;
  return asks || spec?.volumes?.some(({ hostPath }) => isSet(hostPath)) === true;
}

function overflow(pod: Pod, { label, taint }: VirtualNodes): Placement {
  if (pod.metadata?.labels?.[BURST_LABEL] === "off") return { kind: "left", why: "opted out" };
  if (needsHost(pod)) return { kind: "left", why: "needs the host" };
  const { affinity } = pod.spec ?? {};
  const preferred = affinity?.nodeAffinity?.preferredDuringSchedulingIgnoredDuringExecution ?? [];
  const term = {
    weight: WEIGHT,
    preference: { matchExpressions: [{ key: label.key, operator: "NotIn", values: [label.value] }] },
  };
  const value = {
    ...affinity,
    nodeAffinity: {
      ...affinity?.nodeAffinity,
      preferredDuringSchedulingIgnoredDuringExecution: [...preferred, term],
    },
  };
  return { kind: "placed", patch: [{ op: "add", path: "/spec/affinity", value }, ...toleration(pod, taint)] };
}

function toleration(pod: Pod, key: string): PatchOperation[] {
  const own = pod.spec?.tolerations ?? [];
  const tolerated = own.some((each) => {
    const isThis = !isSet(each.key) || (each.key === key && each.operator === "Exists");
    return isThis && (!isSet(each.effect) || each.effect === "NoSchedule");
  });
  if (tolerated) return [];
  // Of this effect alone: NoExecute is for nodes that pods have to leave.
  const added = { key, operator: "Exists", effect: "NoSchedule" };
  return [{ op: "add", path: "/spec/tolerations", value: [...own, added] }];
}

function isSet(value: unknown): boolean {
  return value !== undefined && value !== null && value !== "";
}
