import { describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import type { Capability } from "../../../src/provider/capabilities.ts";
import { judgeResize } from "../../../src/podspec/admission/resize.ts";
import { node } from "../../support/builders.ts";
import { otherPods, podWithContainer } from "./fixtures.ts";

const burst0 = node();

const asking = (cpu: string, status: Pod["status"] = {}): Pod => ({
  ...podWithContainer({ resources: { requests: { cpu } } }),
  status,
});

function judge(pod: Pod, others: Pod[] = [], capabilities: Capability[] = ["resize"]) {
  const backend = { name: "b", capabilities: new Set(capabilities) };
  return judgeResize({ pod, containers: ["app"], node: burst0, otherPods: otherPods(...others), backend });
}

describe("judgeResize", () => {
  test("lets a pod grow into what is free", () => {
    expect(judge(asking("3"), [asking("1")])).toMatchObject({ kind: "go" });
  });

  test("defers a pod that does not fit beside the others, in the words of admission", () => {
    expect(judge(asking("3"), [asking("2")])).toMatchObject({
      kind: "pending",
      reason: "Deferred",
      message: "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000",
    });
  });

  test("counts against a pod that runs no extended resource that the node has no more", () => {
    const requests = { cpu: "1", "example.com/gone": "1" };
    expect(judge(podWithContainer({ resources: { requests } }))).toMatchObject({ kind: "go" });
  });

  test("calls infeasible what the node could never give", () => {
    expect(judge(asking("5"))).toMatchObject({
      reason: "Infeasible",
      message: "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000",
    });
  });

  test("calls everything infeasible on a backend that cannot resize, and names the capability", () => {
    expect(judge(asking("1"), [], [])).toMatchObject({
      reason: "Infeasible",
      message: 'In-place resize is not possible: backend "b" lacks capability resize',
    });
  });

  test("calls it infeasible where the backend cannot change the machine itself", () => {
    const change = { pod: asking("1"), containers: [], machine: true, node: burst0, otherPods: otherPods() };
    const judged = (capability: Capability) =>
      judgeResize({ ...change, backend: { name: "b", capabilities: new Set([capability]) } });
    expect(judged("resize")).toMatchObject({
      reason: "Infeasible",
      message: 'In-place resize is not possible: backend "b" lacks capability resize_machine',
    });
    expect(judged("resize_machine")).toMatchObject({ kind: "go" });
  });

  test("counts a pod whose own resize is pending with what it was given, not with what it asks for", () => {
    const pending = asking("100", {
      conditions: [{ type: "PodResizePending", status: "True" }],
      containerStatuses: [
        { name: "app", image: "", imageID: "", ready: true, restartCount: 0, allocatedResources: { cpu: "1" } },
      ],
    });
    expect(judge(asking("3"), [pending])).toMatchObject({ kind: "go" });
  });

  test("tells the events what is asked for, and by which generation", () => {
    const outlook = judge({ ...asking("3"), metadata: { generation: 7 } });
    expect(outlook.kind === "go" && JSON.parse(outlook.text)).toEqual({
      containers: [{ name: "app", resources: { requests: { cpu: "3" } } }],
      generation: 7,
    });
  });
});
