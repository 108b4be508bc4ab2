import fc from "fast-check";
import { expect, test } from "vitest";
import { bisect } from "../../../src/util/bisect.ts";

test("finds the first index beyond, wherever that is", () => {
  fc.assert(
    fc.property(fc.nat(50), fc.nat(50), (length, first) => {
      expect(bisect(length, (index) => index >= first)).toBe(Math.min(first, length));
    }),
  );
});

test("asks only for indexes that there are, and for few of them", () => {
  const asked: number[] = [];
  bisect(1000, (index) => {
    asked.push(index);
    return index >= 617;
  });
  expect(asked.every((index) => index >= 0 && index < 1000)).toBe(true);
  expect(asked.length).toBeLessThanOrEqual(10);
});
