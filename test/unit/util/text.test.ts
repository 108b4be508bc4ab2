import { expect, test } from "vitest";
import { cutBytes } from "../../../src/util/text.ts";

test.each([
  ["short", 10, "short"],
  ["0123456789", 10, "0123456789"],
  ["0123456789x", 10, "0123456789"],
  ["ääää", 8, "ääää"],
  ["ääää", 7, "äää"],
  ["😀😀", 7, "😀"],
  ["x", 0, ""],
])("of %j the first %i bytes are %j", (text, bytes, expected) => {
  expect(cutBytes(text, bytes)).toBe(expected);
});
