/**
 * Which pods must go so that a critical pod has room: the kubelet's own choice (pkg/kubelet/preemption). Pure.
 *
 * The scheduler preempts too, and before a pod is bound; this is for pods that are bound to a full node all the same,
 * as those of a DaemonSet's or of two schedulers may be.
 */
import type { Pod } from "../../kube/wire.ts";
import { computeQosClass } from "../../resources/pod-resources.ts";

/** SystemCriticalPriority: `system-cluster-critical` and above. */
const CRITICAL_PRIORITY = 2_000_000_000;

/** A resource of which the node has too little left. In millicores, bytes or whole numbers. */
export interface Shortage {
  name: string;
  requested: bigint;
  used: bigint;
  capacity: bigint;
}

/** What a pod has been given, by resource name, in the units of a shortage. */
type UnitsOf = (pod: Pod) => ReadonlyMap<string, bigint>;

export function isCriticalPod(pod: Pod): boolean {
  return (pod.spec?.priority ?? 0) >= CRITICAL_PRIORITY;
}

/**
 * Fewest and cheapest first: BestEffort before Burstable before Guaranteed, and of those the pod that comes nearest to
 * the need.
 */
export function choosePodsToPreempt(
  pod: Pod,
  shortages: readonly Shortage[],
  otherPods: readonly Pod[],
  unitsOf: UnitsOf,
): { ok: true; victims: Pod[] } | { ok: false; message: string } {
  const needs = new Map(shortages.map(({ name, requested, used, capacity }) => [name, requested - (capacity - used)]));
  const preemptable = otherPods.filter((other) => isPreemptable(pod, other));
  const ofClass = (qos: string) =>
    preemptable.filter((other) => computeQosClass(other.spec ?? { containers: [] }) === qos);
  const [bestEffort, burstable, guaranteed] = [ofClass("BestEffort"), ofClass("Burstable"), ofClass("Guaranteed")];
  const without = (...pods: readonly Pod[][]) => subtract(needs, pods.flat(), unitsOf);

  const unmet = without(bestEffort, burstable, guaranteed);
  if (unmet.size > 0) {
    const text = [...unmet].map(([name, quantity]) => `(res: ${name}, q: ${quantity}), `).join("");
    return {
      ok: false,
      message: `preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [${text}]`,
    };
  }
  // Of a class, only what the classes below it could not give even if all of them went.
  const fromGuaranteed = nearest(guaranteed, without(bestEffort, burstable), unitsOf);
  const fromBurstable = nearest(burstable, without(bestEffort, fromGuaranteed), unitsOf);
  const fromBestEffort = nearest(bestEffort, without(fromBurstable, fromGuaranteed), unitsOf);
  return { ok: true, victims: [...fromBestEffort, ...fromBurstable, ...fromGuaranteed] };
}

type Needs = ReadonlyMap<string, bigint>;

function isPreemptable(preemptor: Pod, other: Pod): boolean {
  if (isCriticalPod(preemptor) && !isCriticalPod(other)) return true;
  return (preemptor.spec?.priority ?? 0) > (other.spec?.priority ?? 0);
}

function allocatedTo(pod: Pod, name: string, unitsOf: UnitsOf): bigint {
  return name === "pods" ? 1n : (unitsOf(pod).get(name) ?? 0n);
}

/** What is still needed when these pods are gone. */
function subtract(needs: Needs, pods: readonly Pod[], unitsOf: UnitsOf): Needs {
  const left = [...needs].map(
    ([name, need]) => [name, pods.reduce((rest, pod) => rest - allocatedTo(pod, name, unitsOf), need)] as const,
  );
  return new Map(left.filter(([, need]) => need > 0n));
}

/** Takes the pod that covers most of what is still needed, until nothing is. */
function nearest(pods: readonly Pod[], needs: Needs, unitsOf: UnitsOf): Pod[] {
  const chosen: Pod[] = [];
  let candidates = [...pods];
  for (let rest = needs; rest.size > 0 && candidates.length > 0;) {
    const needed = rest;
    const best = candidates.reduce((a, b) => {
      const difference = distance(needed, b, unitsOf) - distance(needed, a, unitsOf);
      return difference < 0 || (difference === 0 && isSmaller(b, a, unitsOf)) ? b : a;
    });
    chosen.push(best);
    candidates = candidates.filter((pod) => pod !== best);
    rest = subtract(rest, [best], unitsOf);
  }
  return chosen;
}

/** By how much the pod falls short of the needs: each counts the same, in any unit. */
function distance(needs: Needs, pod: Pod, unitsOf: UnitsOf): number {
  return [...needs].reduce((sum, [name, need]) => {
    const missing = Number(need - allocatedTo(pod, name, unitsOf));
    return missing > 0 ? sum + (missing / Number(need)) ** 2 : sum;
  }, 0);
}

function isSmaller(a: Pod, b: Pod, unitsOf: UnitsOf): boolean {
  for (const name of ["memory", "cpu"]) {
    const difference = allocatedTo(a, name, unitsOf) - allocatedTo(b, name, unitsOf);
    if (difference !== 0n) return difference < 0n;
  }
  return true;
}
