/**
 * Whether a running pod can have the cpu and memory that it now asks for (pkg/kubelet/allocation: canResizePod): never
 * on this node or backend, not now, or yes. Pure.
 */
import { containersOf } from "../../kube/pod.ts";
import type { Node, Pod } from "../../kube/wire.ts";
import { parseResourceList, podRequests } from "../../resources/pod-resources.ts";
import { checkResources } from "./admission.ts";
import type { OtherPods } from "./allocation.ts";
import { withEarlierResizes } from "./resize-order.ts";
import type { Backend, ResizeOutlook } from "../types.ts";

type Resources = NonNullable<Pod["spec"]>["resources"];

interface ResizeInput {
  pod: Pod;
  /** Containers whose machine has other resources than the pod says. */
  containers: readonly string[];
  /** The machine as a whole has other resources than the pod says. */
  machine?: boolean;
  node: Node | undefined;
  otherPods: OtherPods;
  backend: Backend;
}

export function judgeResize({
  pod,
  containers,
  machine = false,
  node,
  otherPods,
  backend,
}: ResizeInput): ResizeOutlook {
  if (containers.length === 0 && !machine) return { kind: "none" };
  const wish = { ...wishes(pod, containers), generation: pod.metadata?.generation };
  const pending = (reason: "Infeasible" | "Deferred", message: string): ResizeOutlook => ({
    kind: "pending",
    reason,
    message,
    text: JSON.stringify({ ...wish, error: message }),
  });
  const needed = [
    ...(containers.length > 0 ? (["resize"] as const) : []),
    ...(machine ? (["resize_machine"] as const) : []),
  ];
  const lacking = needed.find((capability) => !backend.capabilities.has(capability));
  if (lacking !== undefined) {
    const message = `In-place resize is not possible: backend "${backend.name}" lacks capability ${lacking}`;
    return pending("Infeasible", message);
  }
  const allocatable = parseResourceList(node?.status?.allocatable);
  const requests = podRequests(pod.spec ?? { containers: [] });
  for (const name of ["cpu", "memory"]) {
    const requested = requests.get(name);
    const capacity = allocatable.get(name);
    if (requested === undefined || capacity === undefined || requested.compare(capacity) <= 0) continue;
    const units = (quantity: typeof capacity) => (name === "cpu" ? quantity.milliValue() : quantity.value());
    return pending(
      "Infeasible",
      `Node didn't have enough capacity: ${name}, requested: ${units(requested)}, capacity: ${units(capacity)}`,
    );
  }
  // The others are asked only where it would fit: on a full node that is never.
  const shortage =
    checkResources(pod, allocatable, otherPods) ??
    checkResources(pod, allocatable, withEarlierResizes(pod, allocatable, otherPods));
  if (shortage !== undefined) return pending("Deferred", shortage.message);
  return { kind: "go", text: JSON.stringify(wish) };
}

/** As a kubelet has it in its events (pkg/kubelet/events/resize.go). */
function wishes(pod: Pod, names: readonly string[]) {
  const of = (resources: Resources) => ({ limits: resources?.limits, requests: resources?.requests });
  return {
    ...(pod.spec?.resources && { resources: of(pod.spec.resources) }),
    containers: containersOf(pod)
      .filter(({ name }) => names.includes(name))
      .map(({ name, resources }) => ({ name, resources: of(resources) })),
  };
}
