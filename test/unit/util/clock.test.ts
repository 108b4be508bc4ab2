import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { systemClock } from "../../../src/util/clock.ts";

const DAY_MS = 86_400_000;

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** Longer than a timer of Node's can be, which would fire at once. */
test("what is due in a month comes in a month", async () => {
  const told: string[] = [];
  systemClock.after(30 * DAY_MS, () => told.push("after"));
  void systemClock.sleep(60 * DAY_MS).then(() => told.push("sleep"));
  await vi.advanceTimersByTimeAsync(29 * DAY_MS);
  expect(told).toEqual([]);
  await vi.advanceTimersByTimeAsync(DAY_MS);
  expect(told).toEqual(["after"]);
  await vi.advanceTimersByTimeAsync(30 * DAY_MS);
  expect(told).toEqual(["after", "sleep"]);
});

test("what is due in a month can be cancelled at any time before", async () => {
  const told: string[] = [];
  const cancel = systemClock.after(30 * DAY_MS, () => told.push("after"));
  const abort = new AbortController();
  const sleeping = expect(systemClock.sleep(60 * DAY_MS, abort.signal)).rejects.toThrow("enough");
  await vi.advanceTimersByTimeAsync(28 * DAY_MS);
  cancel();
  abort.abort(new Error("enough"));
  await sleeping;
  await vi.advanceTimersByTimeAsync(90 * DAY_MS);
  expect(told).toEqual([]);
  expect(vi.getTimerCount()).toBe(0);
});
