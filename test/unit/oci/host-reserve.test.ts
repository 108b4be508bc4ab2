/** What a host keeps for itself, however much its machines ask for. */
import { describe, expect, test } from "vitest";
import { cpuShares, cpuWeight, machinesShare } from "../../../providers/local/bundle/host-reserve.ts";

const GIB = 1024 ** 3;
const host = { cpuMillis: 8000, memoryBytes: 32 * GIB };

describe("all machines together", () => {
  test.each([
    [32, 32 - 0.05 * 32],
    [256, 254],
    [2, 1.75],
    [0.25, 0.125],
  ])("of a host with %d GiB have %d GiB at most", (memory, left) =>
    expect(machinesShare({}, { ...host, memoryBytes: memory * GIB }).memory_bytes).toBe(Math.floor(left * GIB)),
  );
  test("have less where the owner says so", () =>
    expect(machinesShare({ cpu_millis: 2000, memory_bytes: GIB }, host)).toEqual({
      cpu_millis: 2000,
      memory_bytes: GIB,
    }));
  test("have no more than there is, whatever the owner says", () =>
    expect(machinesShare({ cpu_millis: 64_000, memory_bytes: 1024 * GIB }, host)).toEqual(machinesShare({}, host)));
});

test("their part of the processors is as a kubelet gives it", () => {
  expect([0, 1, 1000, 8000].map(cpuShares)).toEqual([2, 2, 1024, 8192]);
  expect([0, 1000, 8000].map(cpuWeight)).toEqual([1, 39, 313]);
});

test("what the owner reserves is not machines', and replaces the usual reserve", () =>
  expect(
    machinesShare({}, { cpuMillis: 4000, memoryBytes: 16 * GIB }, { cpu_millis: 500, memory_bytes: 4 * GIB }),
  ).toEqual({ cpu_millis: 3500, memory_bytes: 12 * GIB }));
