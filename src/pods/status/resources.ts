/**
 * What a running container has of cpu and memory, in the words of its pod.
 */
import { Quantity } from "../../resources/quantity.ts";
import type { ContainerStatus, PodStatus } from "../../kube/wire.ts";
import type { ContainerState } from "../../provider/machine.ts";
import { machineResources } from "../../podspec/render/machine-resources.ts";
import type { SpecContainer, StatusInput } from "./input.ts";

type Resources = NonNullable<ContainerStatus["resources"]>;
type Amounts = NonNullable<Resources["requests"]>;

/**
 * What the container has: the spec's own words, but cpu and memory as the machine says, because a change of those may
 * not have been made. An amount keeps the text that the spec, or else the status, has for it.
 */
export function effectiveResources(
  spec: Pick<SpecContainer, "resources">,
  seen: NonNullable<ContainerState["resources"]>,
  old: ContainerStatus["resources"],
): Resources {
  const part = (list: "requests" | "limits"): Amounts | undefined => {
    const amounts: Record<string, string> = { ...spec.resources?.[list] };
    for (const [name, amount, text] of [
      ["cpu", seen[list]?.cpu_millis, cpuText],
      ["memory", seen[list]?.memory_bytes, binary],
    ] as const) {
      delete amounts[name];
      if (amount === undefined) continue;
      const known = [spec.resources?.[list]?.[name], old?.[list]?.[name]];
      amounts[name] = known.find((each) => each !== undefined && amountOf(name, each) === amount) ?? text(amount);
    }
    return Object.keys(amounts).length > 0 ? amounts : undefined;
  };
  const limits = part("limits");
  const requests = part("requests");
  return { ...(limits && { limits }), ...(requests && { requests }) };
}

/**
 * The same of the pod as a whole (kubelet: convertToAPIPodLevelResourcesStatus), where its backend says it or the pod
 * has resources of its own.
 */
export function podLevelResources({ pod, machine }: Pick<StatusInput, "pod" | "machine">): Partial<PodStatus> {
  const { spec, status } = pod;
  if (spec === undefined || (spec.resources === undefined && machine?.resources === undefined)) return {};
  const seen = machine?.resources ?? machineResources(spec) ?? {};
  const resources = effectiveResources(spec, seen, status?.resources);
  if (resources.requests === undefined && resources.limits === undefined) return {};
  return { resources, ...(resources.requests && { allocatedResources: resources.requests }) };
}

const amountOf = (name: "cpu" | "memory", text: string) =>
  name === "cpu" ? Quantity.parse(text).toMillis() : Quantity.parse(text).toNumber();

const cpuText = (millis: number) => (millis % 1000 === 0 ? `${millis / 1000}` : `${millis}m`);

/** Canonical quantity of bytes: the largest binary suffix that divides it. */
function binary(bytes: number): string {
  const suffixes = ["Ti", "Gi", "Mi", "Ki"];
  for (const [i, suffix] of suffixes.entries()) {
    const unit = 1024 ** (suffixes.length - i);
    if (bytes >= unit && bytes % unit === 0) return `${bytes / unit}${suffix}`;
  }
  return `${bytes}`;
}
