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

export interface Ipv4Range {
  /** With the first address: `10.244.1.0/24`. */
  text: string;
  prefix: number;
  first: number;
  last: number;
}

/** `10.244.1.7/24` is 10.244.1.0 to 10.244.1.255; undefined for what is no IPv4 range. */
export function parseIpv4Range(text: string): Ipv4Range | undefined {
  const [address = "", prefixText = "", ...rest] = text.split("/");
  const prefix = Number(prefixText);
  if (rest.length > 0 || isIP(address) !== 4 || !/^\d{1,2}$/.test(prefixText) || prefix > 32) return undefined;
  const size = 2 ** (32 - prefix);
  const first = Math.floor(ipv4Number(address) / size) * size;
  return { text: `${ipv4Text(first)}/${prefix}`, prefix, first, last: first + size - 1 };
}

export interface Ipv6Range {
  /** With the first address, as RFC 5952 has it: `fd00:10::/64`. */
  text: string;
  prefix: number;
  first: bigint;
  last: bigint;
}

/** `fd00:10::7/64` is fd00:10:: to fd00:10::ffff:ffff:ffff:ffff; undefined for what is no IPv6 range. */
export function parseIpv6Range(text: string): Ipv6Range | undefined {
  const [address = "", prefixText = "", ...rest] = text.split("/");
  const prefix = Number(prefixText);
  if (rest.length > 0 || isIP(address) !== 6 || address.includes("%")) return undefined;
  if (!/^\d{1,3}$/.test(prefixText) || prefix > 128) return undefined;
  const size = 1n << BigInt(128 - prefix);
  const first = (ipv6Number(address) / size) * size;
  return { text: `${ipv6Text(first)}/${prefix}`, prefix, first, last: first + size - 1n };
}

/** Numbers and bigints alike: of two families, neither has anything of the other. */
export const overlaps = <T extends Ipv4Range | Ipv6Range>(one: T, other: T): boolean =>
  one.first <= other.last && other.first <= one.last;

export const containsRange = <T extends Ipv4Range | Ipv6Range>(outer: T, inner: T): boolean =>
  outer.first <= inner.first && inner.last <= outer.last;

export function ipv4Number(address: string): number {
  return address.split(".").reduce((sum, octet) => sum * 256 + Number(octet), 0);
}

export function ipv4Text(address: number): string {
  return [24, 16, 8, 0].map((shift) => Math.floor(address / 2 ** shift) % 256).join(".");
}

export function ipv6Number(address: string): bigint {
  const [head = "", tail] = plainIpv6(address).split("::");
  const left = head === "" ? [] : head.split(":");
  const right = tail === undefined || tail === "" ? [] : tail.split(":");
  const zeros = Array.from({ length: 8 - left.length - right.length }, () => "0");
  return [...left, ...zeros, ...right].reduce((sum, group) => (sum << 16n) + BigInt(`0x${group}`), 0n);
}

/** As RFC 5952 has it. */
export function ipv6Text(address: bigint): string {
  const groups = Array.from({ length: 8 }, (_, at) => ((address >> BigInt(16 * (7 - at))) & 0xffffn).toString(16));
  return plainIpv6(groups.join(":"));
}

/** The URL standard's serializer: shortest, lower case, without dots. */
const plainIpv6 = (address: string): string => new URL(`http://[${address}]`).hostname.slice(1, -1);
