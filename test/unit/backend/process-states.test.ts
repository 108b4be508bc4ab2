import { expect, test } from "vitest";
import { hasEnded, parseStat, runsInUserNamespace } from "../../../providers/local/host/proc.ts";

/** As /proc/PID/stat shows a program of this name. */
const stat = (state: string, threads: number, name = "program") =>
  parseStat(7, `7 (${name}) ${state} 1 2 3 0 -1 0 0 0 0 0 5 6 0 0 20 0 ${threads} 0 4711 1000 42 0`);

test.each([
  ["runs", "R", 1, false],
  ["sleeps", "S", 3, false],
  ["has ended and was not waited for yet", "Z", 1, true],
  ["has ended, with its threads gone", "Z", 0, true],
  ["has lost its first thread, and goes on with others", "Z", 2, false],
  ["is being removed", "X", 0, true],
])("a process that %s (%s, %d threads) has ended: %s", (_title, state, threads, ended) => {
  expect(hasEnded(stat(state, threads))).toBe(ended);
});

test("a program may be called as it likes", () => {
  expect(stat("S", 2, "a) Z 1 (b")).toMatchObject({ state: "S", threads: 2, startTime: "4711" });
});

test.each([
  ["all, as they are", "         0          0 4294967295\n", false],
  ["those of one", "         0       1000          1\n", true],
  ["a range for containers", "         0     100000      65536\n", true],
  ["two ranges", "         0       1000          1\n         1     100000      65536\n", true],
  ["none", "", true],
])("a process whose map has user ids of its parent, %s, is inside a user namespace: %j %s", (_title, map, inside) => {
  expect(runsInUserNamespace(map)).toBe(inside);
});
