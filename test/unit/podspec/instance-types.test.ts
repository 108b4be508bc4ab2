import { describe, expect, test } from "vitest";
import { ALL_CAPABILITIES } from "../../../src/provider/capabilities.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { checkCapabilities } from "../../../src/podspec/admission/capability-gate.ts";
import { type InstanceTypeRule, instanceTypeFault } from "../../../src/podspec/admission/instance-types.ts";
import { renderMachineSpec } from "../../../src/podspec/render/render.ts";
import { refusalPolicy } from "../../../src/pods/refusals.ts";
import { inputFor, podWith } from "./fixtures.ts";

const rule = (given: Partial<InstanceTypeRule>): InstanceTypeRule => ({
  namespaces: ["*"],
  podLabels: {},
  allow: ["*"],
  ...given,
});

function podOf(type: string | undefined, namespace = "team-a", labels: Record<string, string> = {}): Pod {
  const annotations = type === undefined ? {} : { "vmlet.dev/instance-type": type };
  return { ...podWith({}), metadata: { name: "p", namespace, uid: "0a1b", labels, annotations } };
}

describe("instance types of a node", () => {
  const rules = [
    rule({ namespaces: ["team-a", "batch-*"], allow: ["small", "gpu-*"] }),
    rule({ podLabels: { tier: "web", stage: "live" }, allow: ["medium"] }),
  ];

  test.each([
    ["small", "team-a", {}],
    ["gpu-8", "batch-nightly", {}],
    [undefined, "elsewhere", {}],
    ["medium", "elsewhere", { tier: "web", stage: "live", more: "x" }],
  ])("lets a pod have %s in %s", (type, namespace, labels) => {
    expect(instanceTypeFault(podOf(type, namespace, labels), rules)).toBeUndefined();
  });

  test.each([
    ["huge", "team-a", {}],
    ["small", "team-b", {}],
    ["small", "xbatch-nightly", {}],
    ["Small", "team-a", {}],
    ["", "team-a", {}],
    ["medium", "elsewhere", { tier: "web" }],
    ["medium", "elsewhere", { tier: "web", stage: "test" }],
    ["toString", "elsewhere", {}],
  ])("refuses %s in %s", (type, namespace, labels) => {
    expect(instanceTypeFault(podOf(type, namespace, labels), rules)).toBeDefined();
  });

  test.each(["small, gpu-8", "gpu-*", "gpu-8*,small", "gpu-[0-9]"])("lets a pod have the list %s", (list) => {
    expect(instanceTypeFault(podOf(list), rules)).toBeUndefined();
  });

  test.each(["small,huge", "*", "g*", "small*", "gpu?8", "[g]pu-8", "small,"])(
    "refuses the list %s, of which a part could be something else",
    (list) => {
      expect(instanceTypeFault(podOf(list), rules)).toBeDefined();
    },
  );

  test("are any where no rules are configured, and none where the list is empty", () => {
    expect(instanceTypeFault(podOf("huge"), undefined)).toBeUndefined();
    expect(instanceTypeFault(podOf("huge"), [])).toBeDefined();
    expect(instanceTypeFault(podOf(undefined), [])).toBeUndefined();
  });

  test("do not match what is longer than any instance type's name, so that nobody can make the matching slow", () => {
    expect(instanceTypeFault(podOf("a".repeat(256)), [rule({})])).toBeUndefined();
    expect(instanceTypeFault(podOf("a".repeat(257)), [rule({})])).toBeDefined();
  });

  test("do not take a property that every object has for a label", () => {
    const demanding = [rule({ podLabels: { constructor: "x" } })];
    expect(instanceTypeFault(podOf("small"), demanding)).toBeDefined();
  });
});

describe("a pod that asks for an instance type that it may not have", () => {
  const pod = podOf("huge");
  const instanceTypes = [rule({ namespaces: ["team-a"], allow: ["small", "gpu-*"] })];

  test("is refused, with annotation, value and cure in the message", () => {
    const context = { backend: "b", capabilities: new Set(ALL_CAPABILITIES), allowHostPath: true, agentProbes: false };
    expect(checkCapabilities(pod, { ...context, instanceTypes })).toEqual({
      ok: false,
      reason: "InstanceTypeForbidden",
      message:
        'metadata.annotations[vmlet.dev/instance-type]: "huge" is not allowed for this pod on this node; choose one of small, gpu-*, leave the annotation out, or have a rule added to instanceTypes in the node\'s configuration',
      missing: [],
    });
  });

  test("is not rendered", () => {
    expect(renderMachineSpec(inputFor(pod, { node: { instanceTypes } }))).toMatchObject({
      kind: "reject",
      reason: "InstanceTypeForbidden",
    });
    const allowed = renderMachineSpec(inputFor(podOf("gpu-8"), { node: { instanceTypes } }));
    expect(allowed).toMatchObject({ kind: "ready", spec: { instance_type: "gpu-8" } });
  });

  test("stays Pending where its controller would make another at once", () => {
    const owner = { apiVersion: "apps/v1", kind: "ReplicaSet", name: "web", uid: "1", controller: true };
    const replica = { ...pod, metadata: { ...pod.metadata, ownerReferences: [owner] } };
    expect(refusalPolicy(replica, "InstanceTypeForbidden")).toBe("hold");
  });

  test("gets a message of bounded length that still names the cure, whatever it asked for", () => {
    const fault = instanceTypeFault(podOf("x".repeat(200_000)), instanceTypes)!;
    expect(fault.length).toBeLessThan(1000);
    expect(fault).toContain("leave the annotation out");
  });
});
