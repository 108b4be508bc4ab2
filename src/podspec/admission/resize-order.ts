/** Which of a node's deferred resizes comes first (kubelet: allocation_manager.go, sortPendingResizes). Pure. */
import { isTerminal } from "../../kube/pod.ts";
import type { Pod } from "../../kube/wire.ts";
import { computeQosClass, podRequests, type ResourceList } from "../../resources/pod-resources.ts";
import { allocatedUnits, givenUnits, type OtherPods, unitsOf } from "./allocation.ts";

const RESIZED = ["cpu", "memory"] as const;
/** In the words of admission: one that waits for the backend's room keeps none of the node's from others. */
const FOR_ROOM = "Node didn't have enough resource";

/** The other pods, with what those will have whose resizes go before this pod's and have room by now. */
export function withEarlierResizes(pod: Pod, allocatable: ResourceList, otherPods: OtherPods): OtherPods {
  const own = givenUnits(pod);
  if (RESIZED.every((name) => wishOf(pod, name) <= (own.get(name) ?? 0n))) return otherPods;
  const taken = new Map<string, bigint>();
  const allocated = (name: string) => otherPods.allocated(name) + (taken.get(name) ?? 0n);
  const earlier = otherPods.list().filter((other) => isDeferred(other) && compare(other, pod) < 0);
  for (const other of earlier.toSorted(compare)) {
    const more = RESIZED.map((name) => [name, wishOf(other, name) - (allocatedUnits(other).get(name) ?? 0n)] as const);
    const hasRoom = more.every(([name, units]) => {
      const capacity = allocatable.get(name);
      if (units <= 0n || capacity === undefined) return true;
      return allocated(name) + (own.get(name) ?? 0n) + units <= unitsOf(name, capacity);
    });
    if (hasRoom) for (const [name, units] of more) taken.set(name, (taken.get(name) ?? 0n) + units);
  }
  return { ...otherPods, allocated };
}

function wishOf(pod: Pod, name: string): bigint {
  const wish = podRequests(pod.spec ?? { containers: [] }).get(name);
  return wish === undefined ? 0n : unitsOf(name, wish);
}

const deferral = ({ status }: Pod) =>
  status?.conditions?.find(({ type, status: is }) => type === "PodResizePending" && is === "True");

function isDeferred(pod: Pod): boolean {
  if (isTerminal(pod) || pod.metadata?.deletionTimestamp !== undefined) return false;
  const { reason, message = "" } = deferral(pod) ?? {};
  return reason === "Deferred" && message.startsWith(FOR_ROOM);
}

/** Priority, then Guaranteed before Burstable, then who has waited longest; one that has not waited yet comes last. */
function compare(one: Pod, other: Pod): number {
  const byPriority = (other.spec?.priority ?? 0) - (one.spec?.priority ?? 0);
  if (byPriority !== 0) return byPriority;
  const byClass = Number(isGuaranteed(other)) - Number(isGuaranteed(one));
  return byClass === 0 ? Math.sign(since(one) - since(other)) : byClass;
}

const isGuaranteed = ({ spec }: Pod): boolean => spec !== undefined && computeQosClass(spec) === "Guaranteed";

function since(pod: Pod): number {
  const at = Date.parse(deferral(pod)?.lastTransitionTime ?? "");
  return Number.isNaN(at) ? Number.MAX_SAFE_INTEGER : at;
}
