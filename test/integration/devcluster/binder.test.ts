import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { Json } from "../../e2e/fidelity/api.ts";
import { create, node, pod, podWhen, PODS, runDevCluster, type Running } from "./support.ts";

describe("the binder", () => {
  let running: Running;
  beforeEach(async () => {
    running = await runDevCluster();
  });
  afterEach(() => running[Symbol.asyncDispose]());

  const isBound = (p: Json) => p.spec.nodeName !== undefined;
  const isRefused = (p: Json) => p.status.conditions?.some((c: Json) => c.reason === "Unschedulable");
  const messageOf = (p: Json) => p.status.conditions.find((c: Json) => c.type === "PodScheduled").message as string;
  const eventsOf = async (reason: string) =>
    (await running.api.request("GET", `/api/v1/namespaces/default/events?fieldSelector=reason%3D${reason}`)).body
      .items as Json[];

  test("binds a pod to a node that has room, with condition and event", async () => {
    const { api } = running;
    await create(api, "/api/v1/nodes", node("n1"));
    await create(api, PODS, pod("p"));
    const bound = await podWhen(api, "p", isBound);
    expect(bound.spec.nodeName).toBe("n1");
    expect(bound.status.conditions).toMatchObject([{ type: "PodScheduled", status: "True" }]);
    const [event] = await eventsOf("Scheduled");
    expect(event).toMatchObject({
      type: "Normal",
      message: "Successfully assigned default/p to n1",
      involvedObject: { kind: "Pod", name: "p", uid: bound.metadata.uid },
    });
  });

  test("says why a pod fits nowhere, and binds it when a node for it appears", async () => {
    const { api } = running;
    await create(api, PODS, pod("p", { nodeSelector: { type: "virtual-kubelet" } }));
    expect(messageOf(await podWhen(api, "p", isRefused))).toBe("no nodes available to schedule pods");
    await create(api, "/api/v1/nodes", node("wrong"));
    const refused = await podWhen(api, "p", (p) => isRefused(p) && messageOf(p).startsWith("0/1"));
    expect(messageOf(refused)).toBe("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.");
    expect((await eventsOf("FailedScheduling")).length).toBe(2);
    await create(api, "/api/v1/nodes", node("right", {}, { type: "virtual-kubelet" }));
    expect((await podWhen(api, "p", isBound)).spec.nodeName).toBe("right");
  });

  test("respects taints unless they are tolerated", async () => {
    const { api } = running;
    await create(
      api,
      "/api/v1/nodes",
      node("n1", { taints: [{ key: "virtual-kubelet.io/provider", value: "vmlet", effect: "NoSchedule" }] }),
    );
    await create(api, PODS, pod("without"));
    await create(api, PODS, pod("with", { tolerations: [{ key: "virtual-kubelet.io/provider", operator: "Exists" }] }));
    expect((await podWhen(api, "with", isBound)).spec.nodeName).toBe("n1");
    expect(messageOf(await podWhen(api, "without", isRefused))).toBe(
      "0/1 nodes are available: 1 node(s) had untolerated taint(s).",
    );
  });

  test("respects required node affinity", async () => {
    const { api } = running;
    await create(api, "/api/v1/nodes", node("a", {}, { zone: "a" }));
    await create(api, "/api/v1/nodes", node("b", {}, { zone: "b" }));
    const terms = [{ matchExpressions: [{ key: "zone", operator: "In", values: ["b"] }] }];
    await create(
      api,
      PODS,
      pod("p", {
        affinity: { nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: terms } } },
      }),
    );
    expect((await podWhen(api, "p", isBound)).spec.nodeName).toBe("b");
  });

  test.for([
    ["cpu", { cpu: "3" }],
    ["memory", { memory: "5Gi" }],
    ["vendor.example/license", { "vendor.example/license": "2" }],
  ] as const)("refuses a pod that asks for more %s than there is", async ([name, limits]) => {
    const { api } = running;
    await create(api, "/api/v1/nodes", node("n1"));
    await create(api, PODS, pod("p", { containers: [{ name: "a", image: "i", resources: { limits } }] }));
    expect(messageOf(await podWhen(api, "p", isRefused))).toBe(`0/1 nodes are available: 1 Insufficient ${name}.`);
  });

  test("gives the room of a pod that ended to the next", async () => {
    const { api } = running;
    await create(api, "/api/v1/nodes", node("n1"));
    for (const name of ["p1", "p2"]) await create(api, PODS, pod(name));
    await podWhen(api, "p2", isBound);
    await create(api, PODS, pod("p3"));
    expect(messageOf(await podWhen(api, "p3", isRefused))).toBe("0/1 nodes are available: 1 Too many pods.");
    await api.request(
      "PATCH",
      `${PODS}/p1/status`,
      { status: { phase: "Succeeded" } },
      { "content-type": "application/merge-patch+json" },
    );
    expect((await podWhen(api, "p3", isBound)).spec.nodeName).toBe("n1");
  });

  test("leaves pods of other schedulers and cordoned nodes alone", async () => {
    const { api, cluster } = running;
    await create(api, "/api/v1/nodes", node("n1", { unschedulable: true }));
    await create(api, PODS, pod("foreign", { schedulerName: "other" }));
    await create(api, PODS, pod("p"));
    expect(messageOf(await podWhen(api, "p", isRefused))).toBe(
      "0/1 nodes are available: 1 node(s) were unschedulable.",
    );
    expect(cluster.storage.get("/pods", "default/foreign")!.status).toEqual({
      phase: "Pending",
      qosClass: "BestEffort",
    });
  });
});
