import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { parse } from "yaml";
import plugin, { superLinear } from "../support/lint-rules.ts";

const ROOT = join(import.meta.dirname, "../..");

test.each([/\/+$/, /\0+$/, /\s*x\s*/, /^(a+)+$/, /^(?:\d+\.?\d*(?:s|m))+$/, /^.*a.*b.*$/])(
  "%s is not linear",
  ({ source, flags }) => {
    expect(superLinear(source, flags)).toMatch(/^takes (quadratic|exponential) time/);
  },
);

test.each([/^\/+/, /^[a-z0-9]+(?:[._-][a-z0-9]+)*$/, /^https?:\/\//])("%s is linear", ({ source, flags }) => {
  expect(superLinear(source, flags)).toBeUndefined();
});

test("what may be a pattern is a literal", () => {
  const found: string[] = [];
  const rules = plugin.rules["no-variable-regexp"].create({ report: ({ message }) => found.push(message) });
  const identifier = (name: string) => ({ type: "Identifier", name });
  rules.NewExpression({ type: "NewExpression", callee: identifier("RegExp"), arguments: [identifier("glob")] });
  rules.CallExpression({ type: "CallExpression", callee: identifier("RegExp"), arguments: [identifier("glob")] });
  const match = { type: "MemberExpression", property: identifier("match") };
  rules.CallExpression({ type: "CallExpression", callee: match, arguments: [{ type: "TemplateLiteral" }] });
  expect(found).toHaveLength(3);
  rules.CallExpression({ type: "CallExpression", callee: match, arguments: [identifier("PATTERN")] });
  expect(found).toHaveLength(3);
});

test("each pattern of the Machine API's schemas is linear", () => {
  const document: unknown = parse(readFileSync(join(ROOT, "src/provider/contract/openapi.yaml"), "utf8"));
  const patterns = patternsOf(document);
  expect(patterns.length).toBeGreaterThan(3);
  expect(
    patterns.flatMap((pattern) => superLinear(pattern, "u") && `${pattern}: ${superLinear(pattern, "u")}`),
  ).toEqual(patterns.map(() => undefined));
});

function patternsOf(node: unknown): string[] {
  if (typeof node !== "object" || node === null) return [];
  return Object.entries(node).flatMap(([key, value]) =>
    key === "pattern" && typeof value === "string" ? [value] : patternsOf(value),
  );
}
