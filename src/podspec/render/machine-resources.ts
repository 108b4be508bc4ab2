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

/** Cpu in millicores, memory and local storage in bytes, everything else in whole numbers by name; rounded up. */
function resourceAmounts(list: ResourceList): ResourceAmounts | undefined {
  const amounts: ResourceAmounts = {};
  const extended: NonNullable<ResourceAmounts["extended"]> = [];
  for (const [name, quantity] of list) {
    if (name === "cpu") amounts.cpu_millis = quantity.toMillis();
    else if (name === "memory") amounts.memory_bytes = quantity.toNumber();
    else if (name === "ephemeral-storage") amounts.ephemeral_bytes = quantity.toNumber();
    else extended.push({ name, count: quantity.toNumber() });
  }
  if (extended.length > 0) amounts.extended = extended;
  return Object.keys(amounts).length > 0 ? amounts : undefined;
}

interface WireResources {
  readonly requests?: Readonly<Record<string, string>> | undefined;
  readonly limits?: Readonly<Record<string, string>> | undefined;
}

/** A container's resources; undefined when it names none. */
export function containerResources(resources: WireResources | undefined): ContainerResources | undefined {
  return build(parseResourceList(resources?.requests), parseResourceList(resources?.limits));
}

/** The machine's size: what the pod asks for with overhead, and limits where the pod as a whole has one. */
export function machineResources(spec: PodSpecWithResources): ContainerResources | undefined {
  const limits = podLimits(spec);
  for (const name of limits.keys()) {
    if (!isFullyLimited(spec, name)) limits.delete(name);
  }
  return build(podRequests(spec), limits);
}

function build(requestList: ResourceList, limitList: ResourceList): ContainerResources | undefined {
  const requests = resourceAmounts(requestList);
  const limits = resourceAmounts(limitList);
  if (requests === undefined && limits === undefined) return undefined;
  return { ...(requests && { requests }), ...(limits && { limits }) };
}
