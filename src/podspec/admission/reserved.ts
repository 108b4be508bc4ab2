/** Capabilities that the owner of a backend's host gives to some namespaces alone. */
import type { Pod } from "../../kube/wire.ts";
import type { Capability } from "../../provider/capabilities.ts";
import type { ReservedCapabilities } from "../../provider/machine.ts";
import { namesNamespace } from "../../provider/owner.ts";

/** Whether it is for other namespaces than the pod's. */
export function isReserved(
  capability: Capability,
  pod: Pod,
  { reserved }: { reserved?: ReservedCapabilities | undefined },
): boolean {
  if (reserved === undefined || !reserved.capabilities.includes(capability)) return false;
  return !namesNamespace(reserved.namespaces, pod.metadata?.namespace ?? "default");
}
