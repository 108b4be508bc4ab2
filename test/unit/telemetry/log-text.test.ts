import { closeSync, mkdtempSync, openSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { logText } from "../../../src/telemetry/log-text.ts";
import { createLogger, type LogFormat } from "../../../src/telemetry/logger.ts";

const line = (fields: object) => `${JSON.stringify({ level: "warn", time: "2026-01-01T10:00:00.000Z", ...fields })}\n`;

test("a line for people has time, level, sentence and fields", () => {
  const text = logText(line({ pod: "web", why: "it is full", n: 3, msg: "A sentence" }), { color: false });
  expect(text).toMatch(/^\d\d:\d\d:00 WARN  A sentence pod=web why="it is full" n=3\n$/);
});

test("the stack of an error stands below it", () => {
  const err = { type: "TypeError", message: "x is not a function", stack: "TypeError: x\n    at a (b.ts:1)" };
  expect(logText(line({ err, msg: "Broke" }), { color: false })).toContain(
    'Broke err="x is not a function"\n  at a (b.ts:1)\n',
  );
});

test("no escape sequence but its own reaches the terminal", () => {
  const evil = "\u001b]0;owned\u0007\u009b31m\u202e\nforged";
  const text = logText(line({ [evil]: evil, err: { message: evil, stack: `a\n${evil}` }, msg: evil }), {
    color: false,
  });
  for (const character of ["\u001b", "\u0007", "\u009b", "\u202e"]) expect(text).not.toContain(character);
  expect(text.split("\n").filter((each) => each.startsWith("forged"))).toEqual([]);
});

test("colours are its own, and only where they are wanted", () => {
  expect(logText(line({ msg: "a" }), { color: true })).toContain("\u001b[33mWARN");
  expect(logText(line({ msg: "a" }), { color: false })).not.toContain("\u001b");
});

test("what is no JSON stays as it is", () => {
  expect(logText("a note\n", { color: true })).toBe("a note\n");
});

test.each([
  ["auto", /^\{/],
  ["json", /^\{/],
  ["text", /^\d\d:\d\d:\d\d WARN /],
] as const)("a file gets lines of format %s as they are asked for", (format: LogFormat, expected) => {
  const file = join(mkdtempSync(join(tmpdir(), "vmlet-logger-")), "log");
  const destination = openSync(file, "w");
  createLogger({ level: "info", destination, format }).warn({ token: "secret" }, "A sentence");
  closeSync(destination);
  const text = readFileSync(file, "utf8");
  expect(text).toMatch(expected);
  expect(text).not.toContain("secret");
});
