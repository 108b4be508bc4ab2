/** Which of a node's deferred resizes comes first (kubelet: allocation_manager.go, sortPendingResizes). Pure. */
import { isTerminal } from "../../kube/pod.ts";
import type { Pod } from "../../kube/wire.ts";
import { computeQosClass, type ResourceList } from "../../resources/pod-resources.ts";
import { allocatedUnits, givenUnits, type OtherPods, unitsOf, wantedUnits } from "./allocation.ts";

const RESIZED = ["cpu", "memory"] as const;
/** In the words of admission: one that waits for the backend's room keeps none of the node's from others. */
const FOR_ROOM = "Node didn't have enough resource";

/** What a pod's place in the order is made of, and what it asks for. */
interface Wish {
  units: ReadonlyMap<string, bigint>;
  isDeferred: boolean;
  /** In the order of what counts: lower goes first. */
  rank: readonly number[];
}

/** A thousand that wait ask this of each other, again and again. */
const wishes = new WeakMap<Pod, Wish>();

/** The other pods, with what those will have whose resizes go before this pod's and have room by now. */
export function withEarlierResizes(pod: Pod, allocatable: ResourceList, otherPods: OtherPods): OtherPods {
  const own = givenUnits(pod);
  const { units: wanted } = wishOf(pod);
  if (RESIZED.every((name) => (wanted.get(name) ?? 0n) <= (own.get(name) ?? 0n))) return otherPods;
  const taken = new Map<string, bigint>();
  const allocated = (name: string) => otherPods.allocated(name) + (taken.get(name) ?? 0n);
  const earlier = otherPods.list().filter((other) => wishOf(other).isDeferred && compare(other, pod) < 0);
  for (const other of earlier.toSorted(compare)) {
    const [wish, given] = [wishOf(other).units, allocatedUnits(other)];
    const more = RESIZED.map((name) => [name, (wish.get(name) ?? 0n) - (given.get(name) ?? 0n)] as const);
    const hasRoom = more.every(([name, units]) => {
      const capacity = allocatable.get(name);
      if (units <= 0n || capacity === undefined) return true;
      return allocated(name) + (own.get(name) ?? 0n) + units <= unitsOf(name, capacity);
    });
    if (hasRoom) for (const [name, units] of more) taken.set(name, (taken.get(name) ?? 0n) + units);
  }
  return { ...otherPods, allocated };
}

function compare(one: Pod, other: Pod): number {
  const [first, second] = [wishOf(one).rank, wishOf(other).rank];
  const at = first.findIndex((each, index) => each !== second[index]);
  return at === -1 ? 0 : first[at]! - second[at]!;
}

function wishOf(pod: Pod): Wish {
  let wish = wishes.get(pod);
  if (wish === undefined) wishes.set(pod, (wish = readWish(pod)));
  return wish;
}

function readWish(pod: Pod): Wish {
  const { spec, status, metadata } = pod;
  const deferral = status?.conditions?.find((each) => each.type === "PodResizePending" && each.status === "True");
  const waitsForRoom = deferral?.reason === "Deferred" && deferral.message?.startsWith(FOR_ROOM) === true;
  const since = Date.parse(deferral?.lastTransitionTime ?? "");
  const isGuaranteed = spec !== undefined && computeQosClass(spec) === "Guaranteed";
  return {
    units: wantedUnits(pod),
    isDeferred: waitsForRoom && !isTerminal(pod) && metadata?.deletionTimestamp === undefined,
    // Priority, then Guaranteed before Burstable, then who has waited longest; one that has not waited yet comes last.
    rank: [-(spec?.priority ?? 0), isGuaranteed ? 0 : 1, Number.isNaN(since) ? Number.MAX_SAFE_INTEGER : since],
  };
}
