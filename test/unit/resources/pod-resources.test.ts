import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  computeQosClass,
  isFullyLimited,
  podLimits,
  podRequests,
  type ResourceList,
} from "../../../src/resources/pod-resources.ts";

const textOf = (list: ResourceList) =>
  Object.fromEntries([...list].map(([name, quantity]) => [name, quantity.toString()]));

const container = (name: string, requests: Record<string, string>, extra: object = {}) => ({
  name,
  resources: { requests },
  ...extra,
});

describe("podRequests", () => {
  test("adds up the containers", () => {
    const spec = { containers: [container("a", { cpu: "100m" }), container("b", { cpu: "1", memory: "1Gi" })] };
    expect(textOf(podRequests(spec))).toEqual({ cpu: "1100m", memory: "1Gi" });
  });

  test("takes the largest init container as a floor", () => {
    const spec = {
      containers: [container("a", { cpu: "1", memory: "1Gi" })],
      initContainers: [container("i", { cpu: "2" }), container("j", { cpu: "500m" })],
    };
    expect(textOf(podRequests(spec))).toEqual({ cpu: "2", memory: "1Gi" });
  });

  test("counts sidecars beside the containers and beside the init containers after them", () => {
    const spec = {
      containers: [container("a", { cpu: "1" })],
      initContainers: [
        container("before", { cpu: "3" }),
        container("sidecar", { cpu: "2" }, { restartPolicy: "Always" }),
        container("after", { cpu: "2500m" }),
      ],
    };
    // while `after` runs: 2 + 2.5; while the containers run: 2 + 1
    expect(textOf(podRequests(spec))).toEqual({ cpu: "4500m" });
  });

  test("lets pod-level values replace the sum, for cpu and memory only", () => {
    const spec = {
      containers: [container("a", { cpu: "1", "nvidia.com/gpu": "1" })],
      resources: { requests: { cpu: "5", "nvidia.com/gpu": "9" } },
    };
    expect(textOf(podRequests(spec))).toEqual({ cpu: "5", "nvidia.com/gpu": "1" });
  });

  test("adds the overhead unless told not to", () => {
    const spec = { containers: [container("a", { cpu: "1" })], overhead: { cpu: "250m", memory: "64Mi" } };
    expect(textOf(podRequests(spec))).toEqual({ cpu: "1250m", memory: "64Mi" });
    expect(textOf(podRequests(spec, { excludeOverhead: true }))).toEqual({ cpu: "1" });
  });

  test("never asks for less than any of its containers", () => {
    const anyContainer = fc.record({ name: fc.constant("c"), cpu: fc.nat(4000), sidecar: fc.boolean() });
    fc.assert(
      fc.property(
        fc.array(anyContainer, { minLength: 1, maxLength: 4 }),
        fc.array(anyContainer, { maxLength: 4 }),
        (mains, inits) => {
          const spec = {
            containers: mains.map((m) => container("m", { cpu: `${m.cpu}m` })),
            initContainers: inits.map((i) =>
              container("i", { cpu: `${i.cpu}m` }, i.sidecar ? { restartPolicy: "Always" } : {}),
            ),
          };
          const total = podRequests(spec).get("cpu")?.toMillis() ?? 0;
          const steady =
            mains.reduce((sum, m) => sum + m.cpu, 0) + inits.reduce((sum, i) => sum + (i.sidecar ? i.cpu : 0), 0);
          expect(total).toBeGreaterThanOrEqual(Math.max(steady, ...inits.map((i) => i.cpu)));
        },
      ),
    );
  });
});

describe("podLimits", () => {
  test("adds overhead only where there is a limit", () => {
    const spec = {
      containers: [{ name: "a", resources: { limits: { memory: "1Gi" } } }],
      overhead: { cpu: "250m", memory: "64Mi" },
    };
    expect(textOf(podLimits(spec))).toEqual({ memory: "1088Mi" });
  });
});

describe("isFullyLimited", () => {
  test("is false when one container has no limit", () => {
    const spec = { containers: [{ name: "a", resources: { limits: { memory: "1Gi" } } }, { name: "b" }] };
    expect(isFullyLimited(spec, "memory")).toBe(false);
    expect(isFullyLimited({ ...spec, resources: { limits: { memory: "2Gi" } } }, "memory")).toBe(true);
  });
});

const of = (requests: Record<string, string> | undefined, limits: Record<string, string> | undefined) => ({
  name: "c",
  resources: { ...(requests && { requests }), ...(limits && { limits }) },
});

describe("computeQosClass", () => {
  const full = { cpu: "1", memory: "1Gi" };

  test.each([
    ["nothing is set", [of(undefined, undefined)], "BestEffort"],
    ["everything is zero", [of({ cpu: "0" }, { memory: "0" })], "BestEffort"],
    ["only an extended resource is set", [of({ "x.y/z": "1" }, { "x.y/z": "1" })], "BestEffort"],
    ["requests equal limits for both", [of(full, full)], "Guaranteed"],
    ["equal amounts are written differently", [of({ cpu: "1000m", memory: "1024Mi" }, full)], "Guaranteed"],
    ["one container has none", [of(full, full), of(undefined, undefined)], "Burstable"],
    ["limits exceed requests", [of({ cpu: "500m", memory: "1Gi" }, full)], "Burstable"],
    ["only requests are set", [of(full, undefined)], "Burstable"],
  ])("%s", (_name, containers, expected) => {
    expect(computeQosClass({ containers })).toBe(expected);
  });

  test("counts init containers", () => {
    expect(computeQosClass({ containers: [of(full, full)], initContainers: [of(undefined, undefined)] })).toBe(
      "Burstable",
    );
  });

  test("asks only the pod-level resources when there are any", () => {
    const resources = { requests: full, limits: full };
    expect(computeQosClass({ containers: [of(undefined, undefined)], resources })).toBe("Guaranteed");
  });
});
