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

describe("of several deferred resizes that could be done now", () => {
  interface Wish {
    has: string;
    wants: string;
    priority?: number;
    guaranteed?: boolean;
    since?: number | undefined;
    message?: string;
  }
  const wishing = ({ has, wants, priority, guaranteed = false, since, message }: Wish): Pod => {
    const amounts = { cpu: wants, ...(guaranteed && { memory: "1Mi" }) };
    const pod = podWithContainer({ resources: { requests: amounts, ...(guaranteed && { limits: amounts }) } });
    const condition = {
      ...{ type: "PodResizePending", status: "True", reason: "Deferred" },
      message: message ?? "Node didn't have enough resource: cpu, requested: 1, used: 1, capacity: 1",
      lastTransitionTime: `2026-01-01T00:00:0${since}Z`,
    };
    const given = { cpu: has, ...(guaranteed && { memory: "1Mi" }) };
    const container = { name: "app", image: "", imageID: "", ready: true, restartCount: 0, allocatedResources: given };
    return {
      ...pod,
      spec: { ...pod.spec!, ...(priority !== undefined && { priority }) },
      status: { containerStatuses: [container], ...(since !== undefined && { conditions: [condition] }) },
    };
  };
  /** The node has four. */
  const mine = { has: "1", wants: "3", since: 5 };
  const theirs = { has: "1", wants: "3", since: 7 };

  test.each<[string, Wish, Wish, "go" | "pending"]>([
    ["goes first: it has waited longer", mine, theirs, "go"],
    ["waits: the other has waited longer", mine, { ...theirs, since: 1 }, "pending"],
    ["waits: it was asked for only now", { ...mine, since: undefined }, theirs, "pending"],
    ["waits: the other has priority", mine, { ...theirs, priority: 1 }, "pending"],
    ["goes first: it has priority", { ...mine, priority: 1000 }, { ...theirs, since: 1, priority: 1 }, "go"],
    ["waits: the other is Guaranteed", mine, { ...theirs, guaranteed: true }, "pending"],
    ["goes: the other has no room yet", mine, { ...theirs, wants: "4", since: 1 }, "go"],
    ["goes: the other waits for its backend", mine, { ...theirs, since: 1, message: "quota" }, "go"],
    ["goes: it asks for less", { ...mine, has: "2", wants: "1" }, { ...theirs, wants: "2", since: 1 }, "go"],
  ])("one %s", (_what, own, other, kind) => {
    expect(judge(wishing(own), [wishing(other)])).toMatchObject({ kind });
  });

  test("an earlier one takes the room that a later one would have had", () => {
    const others = [
      { has: "500m", wants: "1", since: 1 },
      { has: "500m", wants: "1500m", since: 2 },
    ];
    const wish = { has: "500m", wants: "2", since: 3 };
    expect(judge(wishing(wish), [wishing(others[0]!)])).toMatchObject({ kind: "go" });
    expect(judge(wishing(wish), others.map(wishing))).toMatchObject({ kind: "pending", reason: "Deferred" });
  });
});

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
