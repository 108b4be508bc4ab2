import { describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { BURST_LABEL, place, type PatchOperation, type VirtualNodes } from "../../../src/webhook/placement.ts";

const nodes: VirtualNodes = { label: { key: "type", value: "virtual-kubelet" }, taint: "virtual-kubelet.io/provider" };
const tolerated = { key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoSchedule" };

const pod = (spec: Partial<NonNullable<Pod["spec"]>> = {}, metadata: Pod["metadata"] = {}): Pod => ({
  metadata: { name: "p", ...metadata },
  spec: { containers: [{ name: "c" }], ...spec },
});

/** The pod as the API server makes it of the patch. */
function placed(before: Pod, policy: "enforce" | "overflow"): NonNullable<Pod["spec"]> {
  const result = place(before, "team", policy, nodes);
  if (result.kind === "left") throw new Error(result.why);
  return Object.assign({}, before.spec, Object.fromEntries(result.patch.map(field)));
}

const field = ({ path, value }: PatchOperation): [string, unknown] => [/^\/spec\/(\w+)$/.exec(path)![1]!, value];

const left = (before: Pod, policy: "enforce" | "overflow", namespace = "team") => {
  const result = place(before, namespace, policy, nodes);
  return result.kind === "left" ? result.why : "placed";
};

describe("enforce", () => {
  test("sends a pod to virtual nodes, past their taint", () => {
    const { nodeSelector, tolerations } = placed(pod(), "enforce");
    expect(nodeSelector).toEqual({ type: "virtual-kubelet" });
    expect(tolerations).toEqual([tolerated]);
  });

  test("keeps what the pod asks for beside that", () => {
    const own = { key: "gpu", operator: "Exists" };
    const { nodeSelector, tolerations } = placed(pod({ nodeSelector: { zone: "a" }, tolerations: [own] }), "enforce");
    expect(nodeSelector).toEqual({ zone: "a", type: "virtual-kubelet" });
    expect(tolerations).toEqual([own, tolerated]);
  });

  test("tells who creates a pod that asks for other nodes, and leaves it", () => {
    const result = place(pod({ nodeSelector: { type: "metal" } }), "team", "enforce", nodes);
    expect(result).toMatchObject({ kind: "left", why: "other nodeSelector" });
    expect(result).toHaveProperty("warning", expect.stringContaining("spec.nodeSelector: type is metal"));
  });

  test("takes pods along that ask not to overflow, and pods that need a host: they say on the node why they wait", () => {
    expect(left(pod({}, { labels: { [BURST_LABEL]: "off" } }), "enforce")).toBe("placed");
    expect(left(pod({ hostNetwork: true }), "enforce")).toBe("placed");
  });
});

describe("overflow", () => {
  const preference = {
    weight: 100,
    preference: { matchExpressions: [{ key: "type", operator: "NotIn", values: ["virtual-kubelet"] }] },
  };

  test("lets a pod go to virtual nodes, and prefers others", () => {
    const { affinity, tolerations, nodeSelector } = placed(pod(), "overflow");
    expect(affinity).toEqual({ nodeAffinity: { preferredDuringSchedulingIgnoredDuringExecution: [preference] } });
    expect(tolerations).toEqual([tolerated]);
    expect(nodeSelector).toBeUndefined();
  });

  test("keeps the pod's own affinities", () => {
    const own = { weight: 1, preference: { matchExpressions: [{ key: "zone", operator: "Exists" }] } };
    const required = { nodeSelectorTerms: [{ matchExpressions: [{ key: "arch", operator: "Exists" }] }] };
    const podAntiAffinity = { preferredDuringSchedulingIgnoredDuringExecution: [] };
    const nodeAffinity = {
      requiredDuringSchedulingIgnoredDuringExecution: required,
      preferredDuringSchedulingIgnoredDuringExecution: [own],
    };
    const { affinity } = placed(pod({ affinity: { nodeAffinity, podAntiAffinity } }), "overflow");
    expect(affinity).toEqual({
      podAntiAffinity,
      nodeAffinity: {
        requiredDuringSchedulingIgnoredDuringExecution: required,
        preferredDuringSchedulingIgnoredDuringExecution: [own, preference],
      },
    });
  });

  test.each([
    ["opted out", pod({}, { labels: { [BURST_LABEL]: "off" } })],
    ["needs the host", pod({ hostNetwork: true })],
    ["needs the host", pod({ hostPID: true })],
    ["needs the host", pod({ hostIPC: true })],
    ["needs the host", pod({ volumes: [{ name: "v", hostPath: { path: "/var/log" } }] })],
  ])("leaves a pod on other nodes that %s", (why, before) => {
    expect(left(before, "overflow")).toBe(why);
  });
});

describe.each(["enforce", "overflow"] as const)("%s", (policy) => {
  test.each([
    ["key alone", { key: "virtual-kubelet.io/provider", operator: "Exists" }, 0],
    ["everything", { operator: "Exists" }, 0],
    ["one value only", { key: "virtual-kubelet.io/provider", operator: "Equal", value: "other" }, 1],
    ["another effect only", { key: "virtual-kubelet.io/provider", operator: "Exists", effect: "NoExecute" }, 1],
  ])("adds a toleration to what the pod tolerates: %s", (_what, own, added) => {
    const { tolerations } = placed(pod({ tolerations: [own] }), policy);
    expect(tolerations).toHaveLength(1 + added);
  });

  test.each([
    [
      "of a DaemonSet",
      pod({}, { ownerReferences: [{ apiVersion: "apps/v1", kind: "DaemonSet", name: "d", uid: "u" }] }),
    ],
    ["that is bound", pod({ nodeName: "n" })],
  ])("leaves a pod alone %s", (_what, before) => {
    expect(left(before, policy)).not.toBe("placed");
  });

  test.each(["kube-system", "kube-public", "kube-node-lease"])("leaves %s alone, whatever its labels", (namespace) => {
    expect(left(pod(), policy, namespace)).toBe("system namespace");
  });
});
