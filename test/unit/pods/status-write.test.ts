import { describe, expect, test } from "vitest";
import { payStatus, splitFields, statusDelay, withUnwritable, writable } from "../../../src/pods/status-write.ts";

describe("a field that the API server does not take", () => {
  const refused = withUnwritable(new Map(), { podIPs: [{ ip: "1" }], phase: "Running" }, ["podIPs"]);

  test("is left out for as long as it says the same", () => {
    expect(writable({ podIPs: [{ ip: "1" }], phase: "Running" }, refused)).toEqual({ phase: "Running" });
  });

  test("is written again when it says something else", () => {
    expect(writable({ podIPs: [{ ip: "2" }] }, refused)).toEqual({ podIPs: [{ ip: "2" }] });
  });

  test("says the same although it was computed at another time", () => {
    const at = (time: string) => ({
      conditions: [{ type: "Ready", status: "False", lastTransitionTime: time }],
      startTime: time,
    });
    const both = withUnwritable(new Map(), at("1"), ["conditions", "startTime"]);
    expect(writable(at("2"), both)).toEqual({});
  });

  test("is known by its content, however long that is", () => {
    const long = (end: string) => ({ message: "x".repeat(10_000) + end });
    const known = withUnwritable(new Map(), long("a"), ["message"]);
    expect(writable(long("a"), known)).toEqual({});
    expect(writable(long("b"), known)).toEqual(long("b"));
    expect(known.get("message")!.length).toBeLessThan(100);
  });
});

test("annotations are told from the status", () => {
  expect(splitFields({ phase: "Running", annotations: { a: "b" } })).toEqual({
    status: { phase: "Running" },
    annotations: { a: "b" },
  });
});

describe("what one pod may write", () => {
  /** Times in seconds at which it writes, when it wants to each second. */
  const writes = (seconds: number) => {
    let paidUntil = 0;
    const at: number[] = [];
    for (let now = 0; now < seconds; now++) {
      if (statusDelay(paidUntil, now * 1000) > 0) continue;
      at.push(now);
      paidUntil = payStatus(paidUntil, now * 1000);
    }
    return at;
  };

  test("is eight statuses at once and then one in twelve seconds", () => {
    expect(writes(40)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 12, 24, 36]);
  });

  test("is at most sixty in ten minutes", () => {
    expect(writes(600).length).toBeLessThanOrEqual(60);
  });

  test("is not used up for longer by writes that do not wait", () => {
    let paidUntil = 0;
    for (let i = 0; i < 100; i++) paidUntil = payStatus(paidUntil, 0);
    expect(statusDelay(paidUntil, 0)).toBe(12_000);
  });
});
