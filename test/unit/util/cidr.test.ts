import { expect, test } from "vitest";
import { containsRange, inRanges, ipv6Number, ipv6Text, overlaps, parseIpv6Range } from "../../../src/util/cidr.ts";

test.each([
  ["10.9.0.0/16", "10.9.255.255", true],
  ["10.9.0.0/16", "10.10.0.0", false],
  ["10.9.1.1/16", "10.9.0.5", true],
  ["0.0.0.0/0", "1.2.3.4", true],
  ["0.0.0.0/0", "fd00::1", false],
  ["fd00::/8", "fd12::1", true],
  ["fd00::/8", "FD12::1", true],
  ["fd00::/8", "fe80::1", false],
  ["10.0.0.0/8", "host", false],
  ["10.0.0.0/8", "", false],
])("in %s, %s: %s", (range, ip, expected) => {
  expect(inRanges([range])(ip)).toBe(expected);
});

test("an address may lie in any of several ranges", () => {
  const lies = inRanges(["10.0.0.0/24", "10.0.2.0/24"]);
  expect(["10.0.0.1", "10.0.1.1", "10.0.2.1"].map(lies)).toEqual([true, false, true]);
});

test.each(["10.0.0.0", "10.0.0.0/x", "host/8", "10.0.0.0/33", ""])("%s is no range", (range) => {
  expect(() => inRanges([range])).toThrow();
});

test.each([
  ["fd00:10::7/64", "fd00:10::/64"],
  ["FD00:0:0:0:1::/48", "fd00::/48"],
  ["::ffff:10.0.0.1/120", "::ffff:a00:0/120"],
  ["::/0", "::/0"],
  ["2001:db8::1/128", "2001:db8::1/128"],
])("%s is the range %s", (text, expected) => {
  expect(parseIpv6Range(text)?.text).toBe(expected);
});

test.each(["10.0.0.0/8", "fd00::/129", "fd00::", "fd00::/x", "fd00::/64/64", "fe80::1%eth0/64", "g::/8", "/64", ""])(
  "%s is no IPv6 range",
  (text) => expect(parseIpv6Range(text)).toBeUndefined(),
);

test("IPv6 addresses are numbers and back, in their plain form", () => {
  for (const address of ["::", "::1", "fd00:1:2:3:4:5:6:7", "fd00::a63:2", "2001:db8:0:1::"])
    expect(ipv6Text(ipv6Number(address))).toBe(address);
  expect(ipv6Number("::1:0") - ipv6Number("::ffff")).toBe(1n);
});

test("ranges of one family overlap and hold each other", () => {
  const [wide, narrow, other] = ["fd00:10::/32", "fd00:10:5::/48", "fd00:11::/48"].map((text) => parseIpv6Range(text)!);
  expect([overlaps(wide!, narrow!), overlaps(narrow!, wide!), overlaps(wide!, other!)]).toEqual([true, true, false]);
  expect([containsRange(wide!, narrow!), containsRange(narrow!, wide!)]).toEqual([true, false]);
});
