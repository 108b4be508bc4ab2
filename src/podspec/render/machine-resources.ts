/** Kubernetes' quantities as the integers that a machine's spec carries. */
import type { ContainerResources, ResourceAmounts } from "../../provider/machine.ts";
import {
  isFullyLimited,
  parseResourceList,
  podLimits,
  podRequests,
  type PodSpecWithResources,
  type ResourceList,
} from "../../resources/pod-resources.ts";

const NONE: ReadonlySet<string> = new Set();

/** Cpu in millicores, memory and local storage in bytes, everything else in whole numbers by name; rounded up. */
function resourceAmounts(list: ResourceList, others: ReadonlySet<string>): ResourceAmounts | undefined {
  const amounts: ResourceAmounts = {};
  const extended: NonNullable<ResourceAmounts["extended"]> = [];
  for (const [name, quantity] of list) {
    if (name === "cpu") amounts.cpu_millis = quantity.toMillis();
    else if (name === "memory") amounts.memory_bytes = quantity.toNumber();
    else if (name === "ephemeral-storage") amounts.ephemeral_bytes = quantity.toNumber();
    else if (!others.has(name)) extended.push({ name, count: quantity.toNumber() });
  }
  if (extended.length > 0) amounts.extended = extended;
  return Object.keys(amounts).length > 0 ? amounts : undefined;
}

interface WireResources {
  readonly requests?: Readonly<Record<string, string>> | undefined;
  readonly limits?: Readonly<Record<string, string>> | undefined;
}

/**
 * A container's resources; undefined when it names none.
 * @param others extended resources that are no backend's
 */
export function containerResources(
  resources: WireResources | undefined,
  others?: ReadonlySet<string>,
): ContainerResources | undefined {
  return build(parseResourceList(resources?.requests), parseResourceList(resources?.limits), others);
}

/**
 * The machine's size: what the pod asks for with overhead, and limits where the pod as a whole has one.
 * @param others extended resources that are no backend's
 */
export function machineResources(
  spec: PodSpecWithResources,
  others?: ReadonlySet<string>,
): ContainerResources | undefined {
  const limits = podLimits(spec);
  for (const name of limits.keys()) {
    if (!isFullyLimited(spec, name)) limits.delete(name);
  }
  return build(podRequests(spec), limits, others);
}

function build(
  requestList: ResourceList,
  limitList: ResourceList,
  others: ReadonlySet<string> = NONE,
): ContainerResources | undefined {
  const requests = resourceAmounts(requestList, others);
  const limits = resourceAmounts(limitList, others);
  if (requests === undefined && limits === undefined) return undefined;
  return { ...(requests && { requests }), ...(limits && { limits }) };
}
