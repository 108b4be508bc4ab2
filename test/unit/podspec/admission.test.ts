import { describe, expect, test } from "vitest";
import type { Node, Pod } from "../../../src/kube/wire.ts";
import { admitPod, type AdmissionInput } from "../../../src/podspec/admission/admission.ts";
import { otherPods, podWith, podWithContainer, type PodSpec } from "./fixtures.ts";

const node: Node = {
  metadata: { name: "burst-0", labels: { zone: "a" } },
  spec: { taints: [{ key: "burst", value: "true", effect: "NoSchedule" }] },
  status: { allocatable: { cpu: "4", memory: "8Gi", "ephemeral-storage": "10Gi", pods: "3", "nvidia.com/gpu": "1" } },
};

const wanting = (requests: Record<string, string>, spec: Partial<PodSpec> = {}): Pod =>
  podWithContainer({ resources: { requests } }, spec);

const admit = (pod: Pod, input: Partial<AdmissionInput> = {}) =>
  admitPod({ pod, node, otherPods: otherPods(), daemonSets: "run", ...input });

describe("admitPod", () => {
  test("takes what fits", () => {
    expect(admit(wanting({ cpu: "4", memory: "8Gi" }))).toEqual({ kind: "admit" });
  });

  test.each([
    [{ cpu: "1" }, "OutOfcpu", "Node didn't have enough resource: cpu, requested: 1000, used: 3500, capacity: 4000"],
    [
      { memory: "8Gi" },
      "OutOfmemory",
      "Node didn't have enough resource: memory, requested: 8589934592, used: 1073741824, capacity: 8589934592",
    ],
    [
      { "ephemeral-storage": "11Gi" },
      "OutOfephemeral-storage",
      "Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: 10737418240",
    ],
    [
      { "nvidia.com/gpu": "1" },
      "OutOfnvidia.com/gpu",
      "Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 1, capacity: 1",
    ],
    [
      { "hugepages-2Mi": "2Mi" },
      "OutOfhugepages-2Mi",
      "Node didn't have enough resource: hugepages-2Mi, requested: 2097152, used: 0, capacity: 0",
    ],
  ])("has not enough for %j", (requests, reason, message) => {
    const other = wanting({ cpu: "3500m", memory: "1Gi", "nvidia.com/gpu": "1" });
    expect(admit(wanting(requests as Record<string, string>), { otherPods: otherPods(other) })).toEqual({
      kind: "reject",
      reason,
      message,
    });
  });

  test("takes no more pods than the node may have, and reports that first", () => {
    expect(admit(wanting({ cpu: "100" }), { otherPods: otherPods(podWith(), podWith(), podWith()) })).toEqual({
      kind: "reject",
      reason: "OutOfpods",
      message: "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
    });
  });

  test("counts overhead and init containers", () => {
    const pod = podWith({
      initContainers: [{ name: "i", resources: { requests: { cpu: "4" } } }],
      overhead: { cpu: "1m" },
    });
    expect(admit(pod)).toMatchObject({ reason: "OutOfcpu" });
  });

  test("runs no pod without an extended resource that it asks for and the node does not have", () => {
    const bare = { ...node, status: { allocatable: { cpu: "4", memory: "8Gi", pods: "3" } } };
    expect(admit(wanting({ "nvidia.com/gpu": "1" }), { node: bare })).toEqual({
      kind: "reject",
      reason: "OutOfnvidia.com/gpu",
      message: "Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 0, capacity: 0",
    });
    expect(admit(wanting({ "nvidia.com/gpu": "0" }), { node: bare })).toEqual({ kind: "admit" });
  });

  test.each([["example.com/licence"], ["example.com/*"]])(
    "leaves extended resources of the whole cluster to those that count them: %s",
    (name) => {
      const clusterResources = [name];
      expect(admit(wanting({ "example.com/licence": "5" }), { clusterResources })).toEqual({ kind: "admit" });
      expect(admit(wanting({ "example.org/licence": "5" }), { clusterResources })).toMatchObject({ kind: "reject" });
      // One that the node has after all is the node's.
      expect(admit(wanting({ "nvidia.com/gpu": "2" }), { clusterResources: ["nvidia.com/gpu"] })).toMatchObject({
        reason: "OutOfnvidia.com/gpu",
      });
    },
  );

  test.each([
    ["nodeSelector", { nodeSelector: { zone: "b" } }],
    [
      "required affinity",
      {
        affinity: {
          nodeAffinity: {
            requiredDuringSchedulingIgnoredDuringExecution: {
              nodeSelectorTerms: [{ matchExpressions: [{ key: "zone", operator: "In", values: ["b"] }] }],
            },
          },
        },
      },
    ],
  ])("refuses a pod whose %s does not match", (_name, spec) => {
    expect(admit(podWith(spec))).toEqual({
      kind: "reject",
      reason: "NodeAffinity",
      message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    });
  });

  test("reports a lack of resources before affinity", () => {
    expect(admit(wanting({ cpu: "5" }, { nodeSelector: { zone: "b" } }))).toMatchObject({ reason: "OutOfcpu" });
  });

  test("refuses a pod for another node", () => {
    expect(admit(podWith({ nodeName: "elsewhere" }))).toMatchObject({
      message: "Predicate NodeName failed: node(s) didn't match the requested node name",
    });
  });

  test("refuses a host port that is taken", () => {
    const withPort = (port: object) => podWithContainer({ ports: [{ containerPort: 1, hostPort: 80, ...port }] });
    const taken = { otherPods: otherPods(withPort({})) };
    expect(admit(withPort({ hostIP: "127.0.0.1" }), taken)).toMatchObject({
      reason: "NodePorts",
      message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
    });
    expect(admit(withPort({ protocol: "UDP" }), taken)).toEqual({ kind: "admit" });
    expect(admit(withPort({ hostIP: "10.0.0.2" }), { otherPods: otherPods(withPort({ hostIP: "10.0.0.1" })) })).toEqual(
      {
        kind: "admit",
      },
    );
  });

  test("minds NoExecute taints only", () => {
    const tainted = { ...node, spec: { taints: [{ key: "gone", effect: "NoExecute" }] } };
    expect(admit(podWith())).toEqual({ kind: "admit" });
    expect(admit(podWith(), { node: tainted })).toEqual({
      kind: "reject",
      reason: "TaintToleration",
      message: "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
    });
    expect(admit(podWith({ tolerations: [{ operator: "Exists" }] }), { node: tainted })).toEqual({ kind: "admit" });
  });

  test("refuses sysctls that are not safe, unless the node allows them", () => {
    const pod = podWith({
      securityContext: {
        sysctls: [
          { name: "net.ipv4.tcp_syncookies", value: "1" },
          { name: "kernel/msgmax", value: "1" },
        ],
      },
    });
    expect(admit(pod)).toEqual({
      kind: "reject",
      reason: "SysctlForbidden",
      message: 'forbidden sysctl: "kernel.msgmax" not allowlisted',
    });
    expect(admit(pod, { allowedUnsafeSysctls: ["kernel.msg*"] })).toEqual({ kind: "admit" });
  });

  test.each([
    [
      podWith({}, { labels: { "kubernetes.io/os": "windows" } }),
      "PodOSSelectorNodeLabelDoesNotMatch",
      "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    ],
    [
      podWith({ os: { name: "windows" } }),
      "PodOSNotSupported",
      "Failed to admit pod as the OS field doesn't match node OS",
    ],
  ])("refuses what this node's system is not", (pod, reason, message) => {
    expect(admit(pod)).toEqual({ kind: "reject", reason, message });
  });

  test("takes the machines' system for the node's, whatever the agent runs on", () => {
    const windows: Node = { ...node, status: { ...node.status, nodeInfo: { operatingSystem: "windows" } as never } };
    expect(admit(podWith({ os: { name: "windows" } }), { node: windows })).toEqual({ kind: "admit" });
    expect(admit(podWith({ os: { name: "linux" } }), { node: windows })).toMatchObject({ reason: "PodOSNotSupported" });
  });

  test("refuses nothing silently while the node is not known", () => {
    expect(admit(podWith(), { node: undefined })).toEqual({
      kind: "reject",
      reason: "InvalidNodeInfo",
      message: "Kubelet cannot get node info.",
    });
  });
});

describe("DaemonSet pods", () => {
  const owner = { apiVersion: "apps/v1", kind: "DaemonSet", name: "proxy", uid: "d", controller: true };
  const pod = podWith({}, { ownerReferences: [owner] });

  test("run when the node takes them", () => {
    expect(admit(pod)).toEqual({ kind: "admit" });
  });

  test("stay Pending when it does not: failing them would have them recreated for ever", () => {
    expect(admit(pod, { daemonSets: "ignore" })).toMatchObject({ kind: "hold", reason: "DaemonSetNotSupported" });
  });

  test("are those that a DaemonSet controls", () => {
    const owned = podWith({}, { ownerReferences: [{ ...owner, kind: "ReplicaSet" }] });
    expect(admit(owned, { daemonSets: "ignore" })).toEqual({ kind: "admit" });
  });
});
