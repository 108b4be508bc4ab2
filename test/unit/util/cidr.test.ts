import { expect, test } from "vitest";
import { inRanges } from "../../../src/util/cidr.ts";

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
