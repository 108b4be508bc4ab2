import { describe, expect, test } from "vitest";
import { requireDevicePattern, requireDevices } from "../../../providers/local/engines/cri/devices.ts";
import { createEngine, engineSchema } from "../../../providers/local/engines/index.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

const machine = (...cdi_devices: string[]): MachineSpec => ({
  labels: {},
  restart_policy: "never",
  containers: [{ name: "a", image: "i", cdi_devices }],
});

describe("a machine may have a device", () => {
  test.each([
    ["by its name", "v.example/gpu=0", "v.example/gpu=0"],
    ["as all of its kind", "v.example/gpu=*", "v.example/gpu=mig-1:2"],
    ["by the start of its name", "v.example/gpu=mig-*", "v.example/gpu=mig-1"],
  ])("%s", (_, allowed, device) => {
    expect(() => requireDevices(machine(device), [allowed])).not.toThrow();
  });

  test.each([
    ["of another name", "v.example/gpu=0", "v.example/gpu=00"],
    ["of another kind", "v.example/gpu=*", "v.example/gpus=0"],
    ["when there are none", "", "v.example/gpu=0"],
  ])("but not one %s", (_, allowed, device) => {
    expect(() => requireDevices(machine("v.example/gpu=0", device), ["v.example/gpu=0", allowed].slice(1))).toThrow(
      expect.objectContaining({ code: "unsupported", field: "containers.cdi_devices" }),
    );
  });
});

test.each(["gpu", "v.example/gpu", "v.example/*", "*", "v.example/gpu=**", ""])(
  "a configuration that gives away %j is refused",
  (text) => expect(() => requireDevicePattern(text)).toThrow(/names no CDI device/),
);

test("an engine says that it has devices where its owner gives some away, and only there", () => {
  const capabilities = (cdiDevices?: string[]) => {
    const config = engineSchema.parse({ type: "cri", socket: "/nowhere", cdiDevices });
    return createEngine(config, { stateDir: "/nowhere", clock: systemClock, logger: silentLogger }).capabilities;
  };
  expect(capabilities(["v.example/gpu=*"])).toContain("cdi_devices");
  expect(capabilities()).not.toContain("cdi_devices");
});
