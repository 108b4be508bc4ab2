/** The lint rules that give log lines one voice, and listeners back. */
import { expect, test } from "vitest";
import plugin from "../support/lint-rules.ts";

const identifier = (name: string) => ({ type: "Identifier", name });
const member = (object: object, name: string) => ({ type: "MemberExpression", object, property: identifier(name) });
const text = (value: string) => ({ type: "Literal", value });

/** What the rule says of `logger.warn({ [key]: value }, message)`. */
function faultsOf({ key = "pod", value = identifier("name") as object, message = text("Pod failed") as object }) {
  const found: string[] = [];
  plugin.rules["log-call"].create({ report: ({ message: fault }) => found.push(fault) }).CallExpression({
    type: "CallExpression",
    callee: member(member({ type: "ThisExpression" }, "#logger"), "warn"),
    arguments: [{ type: "ObjectExpression", properties: [{ key: identifier(key), value }] }, message],
  } as never);
  return found;
}

test("a constant sentence with fields is a log line", () => {
  expect(faultsOf({})).toEqual([]);
  expect(faultsOf({ key: "err", value: identifier("thrown") })).toEqual([]);
  expect(faultsOf({ key: "err", value: member(identifier("outcome"), "error") })).toEqual([]);
});

test("the message is constant and begins with a capital letter", () => {
  expect(faultsOf({ message: { type: "TemplateLiteral" } })).toHaveLength(1);
  expect(faultsOf({ message: text("pod failed") })).toHaveLength(1);
});

test("what was thrown is logged whole, and as err", () => {
  expect(faultsOf({ key: "error", value: identifier("thrown") })).toHaveLength(1);
  expect(faultsOf({ key: "err", value: member(identifier("thrown"), "message") })).toHaveLength(1);
  expect(faultsOf({ key: "err", value: { type: "CallExpression" } })).toHaveLength(1);
});

test("a listener that nobody gives back is found", () => {
  const found: string[] = [];
  const rule = plugin.rules["abort-listener"].create({ report: ({ message }) => found.push(message) });
  const callee = member(identifier("signal"), "addEventListener");
  rule.CallExpression({ type: "CallExpression", callee, arguments: [text("abort")] } as never);
  expect(found).toHaveLength(1);
  rule.CallExpression({ type: "CallExpression", callee, arguments: [text("close")] } as never);
  expect(found).toHaveLength(1);
});
