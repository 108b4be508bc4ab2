import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { WRITTEN_PARTS, withPart } from "../../support/readme.ts";

test.each(WRITTEN_PARTS)("$path says what the code does (npm run docs writes it)", (part) => {
  const text = readFileSync(part.path, "utf8");
  expect(text).toBe(withPart(text, part));
});

test.each(WRITTEN_PARTS)("$path without the marks is an error that names them", (part) => {
  expect(() => withPart("# vmlet", part)).toThrow(part.begin);
});
