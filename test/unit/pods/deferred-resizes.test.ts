import { expect, test } from "vitest";
import type { Pod, PodCondition } from "../../../src/kube/wire.ts";
import { deferralEnd, priorityBucket } from "../../../src/pods/deferred-resizes.ts";

const pending = (reason: string): PodCondition => ({
  type: "PodResizePending",
  status: "True",
  reason,
  lastTransitionTime: "2026-06-01T12:00:00Z",
});
const underWay: PodCondition = { type: "PodResizeInProgress", status: "True" };
const pod = (cpu: string, ...conditions: PodCondition[]): Pod => ({
  spec: { containers: [{ name: "a" }], priority: 7 },
  status: {
    conditions,
    containerStatuses: [
      { name: "a", image: "i", imageID: "", ready: true, restartCount: 0, resources: { requests: { cpu } } },
    ],
  },
});
const over: Pod = { spec: { containers: [] }, status: { phase: "Failed" } };
const waited = Date.parse("2026-06-01T12:00:30Z");

test.each([
  ["that is under way was accepted", pod("1", underWay), "accepted"],
  ["that has been made was accepted", pod("2"), "accepted"],
  ["that nobody wishes any more was reverted", pod("1"), "reverted"],
  ["that will never be possible was reverted", pod("1", pending("Infeasible")), "reverted"],
  ["of a pod that is over was terminated", over, "terminated"],
])("a deferred resize %s", (_, after, resolution) => {
  expect(deferralEnd(pod("1", pending("Deferred")), after, waited)).toEqual({ resolution, seconds: 30, priority: 7 });
});

test.each([
  ["is deferred still", pod("1", pending("Deferred")), pod("1", pending("Deferred"))],
  ["was never deferred", pod("1", pending("Infeasible")), pod("2")],
])("of one that %s no end is told", (_, before, after) => {
  expect(deferralEnd(before, after, waited)).toBeUndefined();
});

test("a clock that was set back makes no span negative", () => {
  expect(deferralEnd(pod("1", pending("Deferred")), pod("2"), waited - 3_600_000)?.seconds).toBe(0);
});

test.each([
  [undefined, "normal"],
  [0, "normal"],
  [1, "medium"],
  [99_999, "medium"],
  [100_000, "high"],
  [1_999_999_999, "high"],
  [2_000_000_000, "system-critical"],
  [-1, "low"],
  [-999, "low"],
  [-1000, "very-low"],
])("priority %s is %s", (priority, bucket) => {
  expect(priorityBucket(priority)).toBe(bucket);
});
