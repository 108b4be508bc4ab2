/** Ranges of addresses. */
import { BlockList, isIP } from "node:net";

/**
 * Whether an address lies in one of these ranges (`10.0.0.0/8`, `fd00::/8`).
 * @throws TypeError when a text is not a range
 */
export function inRanges(ranges: readonly string[]): (ip: string) => boolean {
  const list = new BlockList();
  for (const range of ranges) {
    const [network = "", prefix = ""] = range.split("/");
    if (isIP(network) === 0 || !/^\d{1,3}$/.test(prefix)) throw new TypeError(`${range} is not a range of addresses`);
    list.addSubnet(network, Number(prefix), familyOf(network));
  }
  return (ip) => isIP(ip) !== 0 && list.check(ip, familyOf(ip));
}

const familyOf = (ip: string) => (isIP(ip) === 6 ? "ipv6" : "ipv4");
