/** One voice of errors: every class has a code, and every code is explained where ERRORS.md is written from. */
import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { PROVIDER_CODES } from "../../src/provider/errors.ts";
import { ERROR_CODES } from "../../src/util/error-codes.ts";

const ROOT = join(import.meta.dirname, "../..");

/** Of simulated programs: they end one, or a command of it, and nobody reads them. */
const NO_ERRORS = ["ExitSignal", "OutOfMemory", "ReadOnlyFile"];

const sources = ["src", "providers"]
  .flatMap((folder) => globSync(`${folder}/**/*.ts`, { cwd: ROOT }))
  .filter((path) => !path.includes(".gen."))
  .map((path) => readFileSync(join(ROOT, path), "utf8"));

const matches = (pattern: RegExp) =>
  sources.flatMap((text) => [...text.matchAll(pattern)].map(([, found = ""]) => found)).toSorted();

test("every error class of our own is a VmletError", () => {
  expect(matches(/class (\w+) extends Error\b/g)).toEqual([...NO_ERRORS, "VmletError"].toSorted());
});

test("every code that a class has is explained, and no other", () => {
  expect(matches(/readonly code = "([^"]*)"/g)).toEqual(Object.keys(ERROR_CODES).toSorted());
});

test.each(Object.entries(ERROR_CODES))("%s is explained in sentences, with a cure", (code, { meaning, cure }) => {
  expect(code).toMatch(/^[A-Z]+(?:_[A-Z]+)*$/);
  for (const text of [meaning, cure]) expect(text).toMatch(/^[A-Z`d4].*\.$/s);
});

test.each(Object.entries(PROVIDER_CODES))(
  "the Machine API's %s is explained in sentences, with what the agent does and a cure",
  (_code, { meaning, reaction, cure }) => {
    for (const text of [meaning, reaction, cure]) expect(text).toMatch(/^[A-Z].*\.$/s);
    expect(cure).not.toBe(reaction);
  },
);
