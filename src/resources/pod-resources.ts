/**
 * What a pod asks for in all, as the scheduler, the kubelet and quota compute it (component-helpers
 * `resource/helpers.go`): containers add up, init containers set a floor, sidecars count in both, pod-level values
 * replace the sum, overhead comes on top. Also the QoS class.
 */
import { Quantity } from "./quantity.ts";

/** Amounts by resource name: `cpu`, `memory`, `ephemeral-storage`, `nvidia.com/gpu`. */
export type ResourceList = ReadonlyMap<string, Quantity>;

type WireResourceList = Readonly<Record<string, string>>;

interface WireResources {
  readonly requests?: WireResourceList | undefined;
  readonly limits?: WireResourceList | undefined;
}

interface ContainerWithResources {
  readonly name: string;
  readonly restartPolicy?: string | undefined;
  readonly resources?: WireResources | undefined;
}

/** The part of a PodSpec that these functions read. */
export interface PodSpecWithResources {
  readonly containers: readonly ContainerWithResources[];
  readonly initContainers?: readonly ContainerWithResources[] | undefined;
  readonly overhead?: WireResourceList | undefined;
  readonly resources?: WireResources | undefined;
}

type QosClass = "Guaranteed" | "Burstable" | "BestEffort";

/** @throws QuantityError for a value that is not a quantity */
export function parseResourceList(list: WireResourceList | undefined): Map<string, Quantity> {
  const parsed = new Map<string, Quantity>();
  for (const name in list) parsed.set(name, Quantity.parse(list[name]!));
  return parsed;
}

/** The sum, by name. */
export function addResources(a: ResourceList, b: ResourceList): Map<string, Quantity> {
  const sum = new Map(a);
  for (const [name, quantity] of b) sum.set(name, sum.get(name)?.add(quantity) ?? quantity);
  return sum;
}

/** The greater of both, by name. */
function maxResources(a: ResourceList, b: ResourceList): Map<string, Quantity> {
  const greater = new Map(a);
  for (const [name, quantity] of b) {
    const current = greater.get(name);
    if (current === undefined || quantity.compare(current) > 0) greater.set(name, quantity);
  }
  return greater;
}

/** Whether an init container is a sidecar: it starts in order and then stays. */
export function isSidecar(initContainer: { readonly restartPolicy?: string | undefined }): boolean {
  return initContainer.restartPolicy === "Always";
}

/** True when `spec.resources` may set this resource for the pod as a whole. */
export function isPodLevelResource(name: string): boolean {
  return name === "cpu" || name === "memory" || name.startsWith("hugepages-");
}

/** What the pod asks for, overhead included. `excludeOverhead` leaves that out. */
export function podRequests(
  spec: PodSpecWithResources,
  options: { excludeOverhead?: boolean | undefined } = {},
): Map<string, Quantity> {
  let requests = aggregate(spec, "requests");
  for (const [name, quantity] of parseResourceList(spec.resources?.requests)) {
    if (isPodLevelResource(name)) requests.set(name, quantity);
  }
  if (!options.excludeOverhead) requests = addResources(requests, parseResourceList(spec.overhead));
  return requests;
}

/**
 * The pod's limits. Overhead is added only where there is a limit. A resource that some container leaves unlimited is
 * in the result all the same with the sum of the others, as in Kubernetes: see `isFullyLimited`.
 */
export function podLimits(
  spec: PodSpecWithResources,
  options: { excludeOverhead?: boolean | undefined } = {},
): Map<string, Quantity> {
  const limits = aggregate(spec, "limits");
  for (const [name, quantity] of parseResourceList(spec.resources?.limits)) {
    if (isPodLevelResource(name)) limits.set(name, quantity);
  }
  if (!options.excludeOverhead) {
    for (const [name, quantity] of parseResourceList(spec.overhead)) {
      const limit = limits.get(name);
      if (limit !== undefined && !limit.isZero) limits.set(name, limit.add(quantity));
    }
  }
  return limits;
}

/** True when the pod itself or every one of its containers has a limit for `name`: then the pod as a whole has one. */
export function isFullyLimited(spec: PodSpecWithResources, name: string): boolean {
  if (isPodLevelResource(name) && spec.resources?.limits?.[name] !== undefined) return true;
  const all = [...spec.containers, ...(spec.initContainers ?? [])];
  return all.every((container) => {
    const limit = container.resources?.limits?.[name];
    return limit !== undefined && !Quantity.parse(limit).isZero;
  });
}

function aggregate(spec: PodSpecWithResources, kind: "requests" | "limits"): Map<string, Quantity> {
  let total: Map<string, Quantity> = new Map();
  for (const container of spec.containers) total = addResources(total, parseResourceList(container.resources?.[kind]));

  // While the i-th init container runs, the sidecars before it run too.
  let sidecars: Map<string, Quantity> = new Map();
  let initPeak: Map<string, Quantity> = new Map();
  for (const container of spec.initContainers ?? []) {
    const own = parseResourceList(container.resources?.[kind]);
    if (isSidecar(container)) {
      total = addResources(total, own);
      sidecars = addResources(sidecars, own);
      initPeak = maxResources(initPeak, sidecars);
    } else {
      initPeak = maxResources(initPeak, addResources(own, sidecars));
    }
  }
  return initPeak.size === 0 ? total : maxResources(total, initPeak);
}

/**
 * The QoS class (pkg/apis/core/v1/helper/qos). Only cpu and memory count; zero counts as unset; ephemeral containers
 * cannot have resources; pod-level resources, when given, replace the containers' in this question.
 */
export function computeQosClass(spec: PodSpecWithResources): QosClass {
  const holders: readonly WireResources[] =
    spec.resources === undefined
      ? [...spec.containers, ...(spec.initContainers ?? [])].map((container) => container.resources ?? {})
      : [spec.resources];
  const requests = new Map<string, Quantity>();
  const limits = new Map<string, Quantity>();
  let isGuaranteed = true;
  for (const holder of holders) {
    addPositive(requests, holder.requests);
    const limited = addPositive(limits, holder.limits);
    if (limited < 2) isGuaranteed = false;
  }
  if (requests.size === 0 && limits.size === 0) return "BestEffort";
  if (!isGuaranteed || requests.size !== limits.size) return "Burstable";
  for (const [name, request] of requests) {
    if (!(limits.get(name)?.equals(request) ?? false)) return "Burstable";
  }
  return "Guaranteed";
}

/** Adds the positive amounts of cpu and memory; says how many there were. */
function addPositive(sum: Map<string, Quantity>, list: WireResourceList | undefined): number {
  let found = 0;
  for (const name of ["cpu", "memory"]) {
    const text = list?.[name];
    if (text === undefined) continue;
    const quantity = Quantity.parse(text);
    if (quantity.nano <= 0n) continue;
    found++;
    sum.set(name, (sum.get(name) ?? Quantity.zero).add(quantity));
  }
  return found;
}
