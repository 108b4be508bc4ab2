import { expect, test } from "vitest";
import { countPhases, History, pastOf } from "../../../src/ui/history.ts";
import type { PodRow } from "../../../src/ui/rows.ts";

const pod = (row: Partial<PodRow>): PodRow =>
  ({ phase: "Pending", created: 0, started: 0, ended: 0, ...row }) as PodRow;

test("the past is read from the pods' own times", () => {
  const rows = [
    pod({ phase: "Succeeded", created: 10_000, started: 11_000, ended: 13_000 }),
    pod({ phase: "Running", created: 10_000, started: 12_000 }),
    pod({ created: 12_000 }),
  ];
  expect(pastOf(rows, 15_000)).toEqual([
    [10_000, 2, 0, 0, 0],
    [11_000, 1, 1, 0, 0],
    [12_000, 1, 2, 0, 0],
    [13_000, 1, 1, 1, 0],
    [14_000, 1, 1, 1, 0],
  ]);
});

test("a pod that failed before anything ran never ran in the past either", () => {
  const points = pastOf([pod({ phase: "Failed", created: 10_000 })], 12_000);
  expect(points.map(([, , running]) => running)).toEqual([0, 0]);
  expect(points.at(-1)).toEqual([11_000, 0, 0, 0, 1]);
});

test("times of tenants' making do not make the past longer than half an hour", () => {
  expect(pastOf([pod({ created: 0 })], Date.parse("2026-01-01")).length).toBe(1_800);
});

test("the present is counted by phase", () => {
  const rows = (["Running", "Running", "Pending", "Unknown", "Failed"] as const).map((phase) => pod({ phase }));
  expect(countPhases(rows, 7)).toEqual([7, 2, 2, 0, 1]);
});

test("a time in which nothing changes takes two points, and a wall clock that is set back none", () => {
  const history = new History();
  for (const at of [1, 2, 3, 4]) history.add([at * 1_000, 1, 0, 0, 0]);
  history.add([1_000, 9, 9, 9, 9]);
  history.add([5_000, 0, 1, 0, 0]);
  expect(history.points).toEqual([
    [1_000, 1, 0, 0, 0],
    [4_000, 1, 0, 0, 0],
    [5_000, 0, 1, 0, 0],
  ]);
});

test("points older than half an hour go, but for the one that says how it was then", () => {
  const history = new History();
  const minute = 60_000;
  for (const at of [0, 10, 20, 45]) history.add([at * minute, at, 0, 0, 0]);
  expect(history.points.map(([at]) => at / minute)).toEqual([10, 20, 45]);
});
