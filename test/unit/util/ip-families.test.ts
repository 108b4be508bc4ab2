import { expect, test } from "vitest";
import { oneOfEachFamily } from "../../../src/util/ip-families.ts";

test.each([
  [[], []],
  [["10.0.0.1", "10.0.0.2"], ["10.0.0.1"]],
  [["fd00::1", "fd00::2"], ["fd00::1"]],
  [
    ["fd00::1", "10.0.0.1", "10.0.0.2", "fd00::2"],
    ["fd00::1", "10.0.0.1"],
  ],
  [
    ["10.0.0.1", "fd00::1"],
    ["10.0.0.1", "fd00::1"],
  ],
  [["", "999.0.0.1", "fe80::1%eth0", "10.0.0.1"], ["10.0.0.1"]],
])("of %j takes %j", (addresses, expected) => {
  expect(oneOfEachFamily(addresses)).toEqual(expected);
});

test.each([
  ["192.168.0.1", ["10.0.0.1", "fd00::1"]],
  ["fd99::1", ["fd00::1", "10.0.0.1"]],
])("puts the family of %s first", (before, expected) => {
  expect(oneOfEachFamily(["10.0.0.1", "fd00::1"], before)).toEqual(expected);
  expect(oneOfEachFamily(["fd00::1", "10.0.0.1"], before)).toEqual(expected);
});
