/**
 * Which nodes a pod could run on, and what keeps it from the others: the scheduler's filters, as far as they concern
 * virtual nodes. Pure.
 */
import type { Node, Pod } from "../kube/wire.ts";
import { findUntoleratedTaint, isSubset, matchesNodeSelectorTerms } from "../resources/labels.ts";

/** Of a pod what the filters look at. */
export interface Wishes {
  readonly nodeSelector: Readonly<Record<string, string>>;
  readonly terms: Parameters<typeof matchesNodeSelectorTerms>[1] | undefined;
  readonly tolerations: Parameters<typeof findUntoleratedTaint>[1];
}

/** Of a node. */
export interface Offer {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly taints: Parameters<typeof findUntoleratedTaint>[0];
  readonly cordoned: boolean;
}

export function wishesOf({ spec }: Pod): Wishes {
  return {
    nodeSelector: spec?.nodeSelector ?? {},
    terms: spec?.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms,
    tolerations: spec?.tolerations ?? [],
  };
}

export function offerOf({ metadata, spec }: Node): Offer {
  return {
    name: metadata?.name ?? "",
    labels: metadata?.labels ?? {},
    // Of a cordoned node the taint says no more than that.
    taints: (spec?.taints ?? []).filter(({ key }) => key !== "node.kubernetes.io/unschedulable"),
    cordoned: spec?.unschedulable === true,
  };
}

/** What keeps the pod from the node, whatever room it has, each in a few words; empty when nothing does. */
export function obstacles({ nodeSelector, terms, tolerations }: Wishes, node: Offer): string[] {
  const found: string[] = [];
  if (node.cordoned) found.push("the node is cordoned");
  const taint = findUntoleratedTaint(node.taints, tolerations, ["NoSchedule", "NoExecute"]);
  if (taint !== undefined)
    found.push(`no toleration for the taint ${taint.key}${taint.value ? `=${taint.value}` : ""}:${taint.effect}`);
  for (const [key, value] of Object.entries(nodeSelector)) {
    if (isSubset({ [key]: value }, node.labels)) continue;
    const has = Object.hasOwn(node.labels, key) ? `has ${key}=${node.labels[key]}` : `has no label ${key}`;
    found.push(`nodeSelector wants ${key}=${value}; the node ${has}`);
  }
  if (terms !== undefined && !matchesNodeSelectorTerms(node, terms))
    found.push("nodeAffinity: none of its terms fits the node");
  return found;
}
