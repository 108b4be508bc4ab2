import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { machineId, machineLabels, parseMachineId } from "../../../src/podspec/machine-id.ts";
import { podWith } from "./fixtures.ts";

describe("machineId", () => {
  test("begins with eight hex digits of the cluster's hash", () => {
    // printf cluster-1 | sha256sum
    expect(machineId("cluster-1", "0a1b")).toMatch(/^[0-9a-f]{8}-0a1b$/);
  });

  test("gives the UID back, in its own cluster only", () => {
    fc.assert(
      fc.property(fc.uuid(), fc.string(), fc.string(), (uid, cluster, other) => {
        expect(parseMachineId(cluster, machineId(cluster, uid))).toBe(uid);
        if (other !== cluster) expect(parseMachineId(other, machineId(cluster, uid))).toBeUndefined();
      }),
    );
  });

  test("is not found in foreign ids", () => {
    expect(parseMachineId("cluster-1", "vm-17")).toBeUndefined();
  });
});

describe("machineLabels", () => {
  test("say whose machine it is", () => {
    expect(machineLabels("cluster-1", "burst-0", podWith())).toMatchObject({
      "vmlet.dev/node": "burst-0",
      "vmlet.dev/namespace": "shop",
      "vmlet.dev/pod": "web",
      "vmlet.dev/uid": "0a1b",
    });
  });
});
