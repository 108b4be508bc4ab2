import { expect, test } from "vitest";
import { nearest } from "../../../src/util/nearest.ts";

const KNOWN = ["capacity", "nodeName", "labels", "tokenFile", "port", "url"];

test.each([
  ["capcity", "capacity"],
  ["capactiy", "capacity"],
  ["Capacity", "capacity"],
  ["node-name", "nodeName"],
  ["NODE_NAME", "nodeName"],
  ["label", "labels"],
  ["tokenfile", "tokenFile"],
  ["prot", "port"],
])("%s is near to %s", (name, meant) => {
  expect(nearest(name, KNOWN)).toBe(meant);
});

test.each(["", "replicas", "x", "toString", "c".repeat(100_000)])("nothing is near to %.20s", (name) => {
  expect(nearest(name, KNOWN)).toBeUndefined();
});
