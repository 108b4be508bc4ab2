import { isIPv4, isIPv6 } from "node:net";

/**
 * The first address of each family, so at most two: a pod's status may not hold more. Texts that are not an address, or
 * that have a zone, are left out.
 *
 * kubelet: `GetNodeHostIPs` for the node; `sortPodIPs` for a pod, where the node's own family comes first.
 *
 * @param before an address whose family is to come first; without it, the order stays
 */
export function oneOfEachFamily(addresses: readonly string[], before?: string): string[] {
  const v4 = addresses.find((address) => isIPv4(address));
  // The colon first: it tells nearly all apart, and for each status this is asked several times.
  const v6 = addresses.find((address) => address.includes(":") && isIPv6(address) && !address.includes("%"));
  if (v4 === undefined || v6 === undefined) return [v4 ?? v6 ?? []].flat();
  const isV6First = before === undefined ? addresses.indexOf(v6) < addresses.indexOf(v4) : isIPv6(before);
  return isV6First ? [v6, v4] : [v4, v6];
}
