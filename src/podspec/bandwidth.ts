/** Limits of a pod's traffic, by its annotations (kubelet: pkg/util/bandwidth). */
import type { Pod } from "../kube/wire.ts";
import type { MachineSpec } from "../provider/machine.ts";
import { Quantity } from "../resources/quantity.ts";
import { pickDefined } from "./security-context.ts";

const INGRESS_BANDWIDTH = "kubernetes.io/ingress-bandwidth";
const EGRESS_BANDWIDTH = "kubernetes.io/egress-bandwidth";
export const BANDWIDTH_ANNOTATIONS = [INGRESS_BANDWIDTH, EGRESS_BANDWIDTH];

const LEAST = Quantity.parse("1k");
const MOST = Quantity.parse("1P");

type PodBandwidth = { ok: true; bandwidth: MachineSpec["bandwidth"] } | { ok: false; message: string };

/** Where a pod names limits, as `metadata.annotations[NAME]`. */
export function bandwidthPaths({ metadata }: Pod): string[] {
  const asked = BANDWIDTH_ANNOTATIONS.filter((name) => metadata?.annotations?.[name] !== undefined);
  return asked.map((name) => `metadata.annotations[${name}]`);
}

/** Undefined when the pod names none; what is out of bounds, or no quantity, keeps it from being made. */
export function podBandwidth({ metadata }: Pod): PodBandwidth {
  const faults: string[] = [];
  const bits = (annotation: string): number | undefined => {
    const text = metadata?.annotations?.[annotation];
    if (text === undefined) return undefined;
    const quantity = Quantity.tryParse(text);
    if (quantity === undefined) faults.push(`annotation ${annotation}: ${JSON.stringify(text)} is no quantity`);
    else if (quantity.compare(LEAST) < 0)
      faults.push(`annotation ${annotation}: resource is unreasonably small (< 1kbit)`);
    else if (quantity.compare(MOST) > 0)
      faults.push(`annotation ${annotation}: resource is unreasonably large (> 1Pbit)`);
    return quantity?.toNumber();
  };
  const [ingress, egress] = [bits(INGRESS_BANDWIDTH), bits(EGRESS_BANDWIDTH)];
  if (faults.length > 0) return { ok: false, message: faults.join("; ") };
  if (ingress === undefined && egress === undefined) return { ok: true, bandwidth: undefined };
  return {
    ok: true,
    bandwidth: pickDefined({ ingress_bits_per_second: ingress, egress_bits_per_second: egress }),
  };
}
