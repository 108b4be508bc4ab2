import { describe, expect, test } from "vitest";
import type { InstanceType } from "../../../providers/cloud/cloud.ts";
import { fittingTypes, Quarantine, QUARANTINE_MS, soldTypes } from "../../../providers/cloud/instance-types.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { machineSpec } from "../../support/builders.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const type = (name: string, cpu: number, price: number, rest: Partial<InstanceType> = {}): InstanceType => ({
  name,
  resources: { cpu_millis: cpu * 1000, memory_bytes: cpu * 2 ** 30 },
  price,
  ...rest,
});

const GPU = type("gpu.large", 8, 50, {
  resources: { cpu_millis: 8000, memory_bytes: 2 ** 33, extended: [{ name: "nvidia.com/gpu", count: 1 }] },
});
const TYPES = [type("c1.large", 8, 8), type("c1.small", 1, 1), type("m1.small", 1, 2), type("m1.large", 8, 7), GPU];

const names = (rest: Partial<MachineSpec>): string[] => fittingTypes(machineSpec(rest), TYPES).map(({ name }) => name);
const asking = (requests: NonNullable<MachineSpec["resources"]>["requests"]): Partial<MachineSpec> => ({
  resources: { requests: requests! },
});

test.each([NaN, -1, Infinity, 1e9 + 1])("a type that costs %d is not sold", (price) => {
  const types = [type("odd", 1, price), type("free", 1, 0), type("dear", 1, 1e9)];
  expect(soldTypes(types).map(({ name }) => name)).toEqual(["free", "dear"]);
});

describe("the types that a machine may have", () => {
  test("are all of them, the cheapest first", () => {
    expect(names({})).toEqual(["c1.small", "m1.small", "m1.large", "c1.large", "gpu.large"]);
  });

  test("are those that hold what it asks for", () => {
    expect(names(asking({ cpu_millis: 1001 }))).toEqual(["m1.large", "c1.large", "gpu.large"]);
    expect(names(asking({ memory_bytes: 2 ** 30 + 1 }))[0]).toBe("m1.large");
    expect(names(asking({ extended: [{ name: "nvidia.com/gpu", count: 1 }] }))).toEqual(["gpu.large"]);
  });

  test("are those that its pod names, in the order of the list, and within a glob by price", () => {
    expect(names({ instance_type: "m1.*, c1.small" })).toEqual(["m1.small", "m1.large", "c1.small"]);
  });

  test("are the smaller first where the price is the same", () => {
    const free = [type("b", 4, 0), type("a", 2, 0)];
    expect(fittingTypes(machineSpec(), free).map(({ name }) => name)).toEqual(["a", "b"]);
  });

  test("are none that does not exist, which is the pod's fault", () => {
    expect(() => names({ instance_type: "x1.*" })).toThrow(
      expect.objectContaining({ code: "invalid", field: "instance_type" }),
    );
  });

  test("are none for what no type holds, and the largest is named", () => {
    expect(() => names({ ...asking({ cpu_millis: 9000 }), instance_type: "c1.*" })).toThrow(/the largest is c1.large/);
  });
});

describe("a type that was sold out", () => {
  test("is left alone for three minutes, in its zone", async () => {
    const clock = new VirtualClock();
    const quarantine = new Quarantine(clock);
    const north = type("c1", 1, 1, { zone: "north" });
    quarantine.add(north);
    expect(quarantine.has(north)).toBe(true);
    expect(quarantine.has({ ...north, zone: "south" })).toBe(false);
    await clock.advance(QUARANTINE_MS - 1000);
    expect(quarantine.leftMs(north)).toBe(1000);
    await clock.advance(1001);
    expect(quarantine.has(north)).toBe(false);
  });
});
