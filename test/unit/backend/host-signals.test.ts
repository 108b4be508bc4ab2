import { expect, test } from "vitest";
import { hostSignals, memoryIn } from "../../../providers/local/pressure/host-signals.ts";

test("memory that could be had is free or inactive page cache, as a kubelet counts it", () => {
  const meminfo = `MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    9000000 kB\nInactive(anon):   500000 kB\nInactive(file):  2000000 kB\n`;
  expect(memoryIn(meminfo)).toEqual({ available: 3_000_000 * 1024, capacity: 16_000_000 * 1024 });
});

test("this host's memory, processes and disks are measured, and what cannot be is left out", async () => {
  const observed = await hostSignals({
    stateDir: "/",
    imageDir: () => Promise.reject(new Error("the runtime does not answer")),
    machinesMemory: () => Promise.resolve({ usedBytes: 30, limitBytes: 100 }),
  });
  for (const signal of ["memory.available", "pid.available", "nodefs.available"] as const) {
    const { available, capacity } = observed.get(signal)!;
    expect(available).toBeGreaterThan(0);
    expect(capacity).toBeGreaterThan(available);
  }
  expect(observed.has("imagefs.available")).toBe(false);
  expect(observed.get("allocatableMemory.available")).toEqual({ available: 70, capacity: 100 });
});
