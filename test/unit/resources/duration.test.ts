import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { DurationError, formatDuration, parseDuration } from "../../../src/resources/duration.ts";

describe("parseDuration", () => {
  test.each([
    ["0", 0],
    ["10m", 600_000],
    ["1h30m", 5_400_000],
    ["300ms", 300],
    ["1.5s", 1500],
    [".5m", 30_000],
    ["2h45m30.5s", 9_930_500],
    ["-1m", -60_000],
    ["1us", 0.001],
    ["1µs", 0.001],
  ])("reads %s as %d ms", (text, ms) => {
    expect(parseDuration(text)).toBeCloseTo(ms, 9);
  });

  test.each(["", "10", "m", "1d", "1h 30m", "1,5s", "--1s", "1.2.3s"])("refuses %j", (text) => {
    expect(() => parseDuration(text)).toThrow(DurationError);
  });
});

describe("formatDuration", () => {
  test.each([
    [0, "0s"],
    [300, "300ms"],
    [1500, "1.5s"],
    [60_000, "1m0s"],
    [123_000, "2m3s"],
    [5_400_000, "1h30m0s"],
    [-1000, "-1s"],
  ])("writes %d ms as %s", (ms, text) => {
    expect(formatDuration(ms)).toBe(text);
  });

  test("writes what it can read again", () => {
    fc.assert(
      fc.property(fc.integer({ min: -1e12, max: 1e12 }), (ms) => {
        expect(parseDuration(formatDuration(ms))).toBeCloseTo(ms, 3);
      }),
    );
  });
});
