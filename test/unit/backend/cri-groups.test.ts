/** Where systemd has the control groups of machines, and what it is told of them. */
import { describe, expect, test } from "vitest";
import { machineGroups, slicePath, sliceProperties } from "../../../providers/local/engines/cri/machine-groups.ts";
import { systemClock } from "../../../src/util/clock.ts";

describe("a runtime with control groups of its own making", () => {
  test("is given a folder for each machine, in that of the backend", () => {
    const groups = machineGroups("cgroupfs", systemClock, "ab12");
    expect(groups.parentOf("8d0f-5b1c")).toBe("/vmlet-ab12/pod8d0f-5b1c");
  });
});

describe("a runtime whose control groups are systemd's", () => {
  test("is given a slice for each machine, in that of the backend", () => {
    const slice = "vmlet-ab12-pod8d0f_5b1c.slice";
    const groups = machineGroups("systemd", systemClock, "ab12");
    expect(groups.parentOf("8d0f-5b1c")).toBe(`/vmlet.slice/vmlet-ab12.slice/${slice}`);
  });

  // The cases of opencontainers/cgroups, systemd/systemd_test.go and common.go: ExpandSlice.
  test.each([
    ["system.slice", "/system.slice"],
    ["test-a-b.slice", "/test.slice/test-a.slice/test-a-b.slice"],
    [
      "kubepods-besteffort-podab12.slice",
      "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podab12.slice",
    ],
  ])("the slice %s is at %s", (slice, path) => {
    expect(slicePath(slice)).toBe(path);
  });

  const limits = { cpu_millis: 1500, memory_bytes: 1 << 30, pids: 100 };

  test("has limits by the names of cgroup v2", () => {
    expect(sliceProperties(limits, { cpuShareMillis: 2000, version: 2 }).slice(1)).toEqual([
      ["MemoryMax", "t", 1 << 30],
      ["TasksMax", "t", 100],
      ["CPUQuotaPerSecUSec", "t", 1_500_000],
      ["CPUWeight", "t", 79],
    ]);
  });

  test("has limits by the names of cgroup v1", () => {
    expect(sliceProperties(limits, { cpuShareMillis: 2000, version: 1 }).slice(1)).toEqual([
      ["MemoryLimit", "t", 1 << 30],
      ["TasksMax", "t", 100],
      ["CPUQuotaPerSecUSec", "t", 1_500_000],
      ["CPUShares", "t", 2048],
    ]);
  });

  test("loses a limit by systemd's greatest number", () => {
    const none = "18446744073709551615";
    expect(sliceProperties({ cpu_millis: Infinity, memory_bytes: Infinity }, { version: 2 }).slice(1)).toEqual([
      ["MemoryMax", "t", none],
      ["CPUQuotaPerSecUSec", "t", none],
    ]);
  });

  test("has no limit that nobody named", () => {
    expect(sliceProperties({}, { version: 2 })).toEqual([["Description", "s", expect.any(String)]]);
  });
});
