/** What the agent writes into a pod's annotations, along with its status. Pure. */
import type { Pod } from "../kube/wire.ts";
import type { Machine } from "../provider/machine.ts";

/** Which machine the pod is on, in the backend's words. It stays when the machine is gone. */
export const MACHINE = "vmlet.dev/machine";
/** The host that carries the machine, where the backend tells. */
export const HOST = "vmlet.dev/host";
/** Of which of the backend's sizes it is, where the backend tells. */
const MACHINE_TYPE = "vmlet.dev/machine-type";
/** Where it is, and what it costs by the hour, where the backend tells. */
const ZONE = "vmlet.dev/machine-zone";
const PRICE = "vmlet.dev/machine-price";
const DELETION_COST = "controller.kubernetes.io/pod-deletion-cost";
/**
 * Pods without the annotation count as 0; users' own small numbers still order the virtual node's pods among others.
 */
const CHEAP = "-1000000";

/**
 * The annotations that the pod lacks or has otherwise; undefined when there are none.
 *
 * @param machine the pod's, when there is one
 * @param options `markCheapToDelete`: a ReplicaSet that has to choose removes this pod before others
 */
export function missingAnnotations(
  { metadata }: Pod,
  machine: Machine | undefined,
  options: { markCheapToDelete?: boolean | undefined },
): Record<string, string> | undefined {
  const present = metadata?.annotations ?? {};
  const wanted: Record<string, string> = {};
  if (machine !== undefined && machine.state !== "deleted") {
    wanted[MACHINE] = machine.id;
    if (machine.host) wanted[HOST] = machine.host;
    if (machine.instance_type) wanted[MACHINE_TYPE] = machine.instance_type;
    if (machine.zone) wanted[ZONE] = machine.zone;
    if (machine.price !== undefined) wanted[PRICE] = String(machine.price);
  }
  const isReplica = metadata?.ownerReferences?.some((owner) => owner.kind === "ReplicaSet" && owner.controller);
  // A value that the user has set stays.
  if (options.markCheapToDelete && isReplica && present[DELETION_COST] === undefined) wanted[DELETION_COST] = CHEAP;
  const missing = Object.entries(wanted).filter(([name, value]) => present[name] !== value);
  return missing.length > 0 ? Object.fromEntries(missing) : undefined;
}
