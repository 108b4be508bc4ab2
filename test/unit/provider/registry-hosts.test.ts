import { expect, test } from "vitest";
import { registryHostMatches } from "../../../src/provider/registry-hosts.ts";

test.each([
  ["reg.example", "reg.example", true],
  ["*.example", "reg.example", true],
  ["*.example", "a.reg.example", false],
  ["*.*.example", "a.reg.example", true],
  ["r*g.example", "reg.example", true],
  ["reg.example", "reg.example:5000", false],
  ["reg.example:5000", "reg.example:5000", true],
  ["reg.example:*", "reg.example:5000", false],
  ["127.0.0.1:5000", "127.0.0.1:5000", true],
  ["[::1]:5000", "[::1]:5000", true],
  ["[::1]", "[::1]", true],
  ["[::1]", "[::1]:5000", false],
  ["REG.example", "reg.example", false],
  ["*".repeat(513), "localhost", false],
])("a key for %s, the registry %s: %s", (key, host, expected) => {
  expect(registryHostMatches(key, host)).toBe(expected);
});
