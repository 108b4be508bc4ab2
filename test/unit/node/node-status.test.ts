import { describe, expect, test } from "vitest";
import { parseConfig } from "../../../src/config/load.ts";
import type { Node } from "../../../src/kube/wire.ts";
import { fixedCapacity, fromProvider, withConditions } from "../../../src/node/capacity.ts";
import type { NodeDescription } from "../../../src/node/settings.ts";
import {
  CAPABILITY_LABEL_PREFIX,
  newNode,
  nodeAnnotations,
  nodeLabels,
  nodeStatus,
  othersResources,
  statusPatch,
  type NodeObservation,
} from "../../../src/node/node-status.ts";
import { ALL_CAPABILITIES, type Capability } from "../../../src/provider/capabilities.ts";
import { strategicMergePatch } from "../../../src/devcluster/objects/patch.ts";

const T0 = Date.parse("2026-01-01T00:00:00Z");
const settings: NodeDescription = {
  name: "burst-1",
  clusterId: "c1",
  version: "0.1.0",
  addresses: ["10.0.0.5", "fd00::5"],
  kubeletPort: 10250,
  runtime: { name: "http-vm", version: "2.3" },
  labels: { team: "a" },
  taints: [{ key: "virtual-kubelet.io/provider", value: "vmlet", effect: "NoSchedule" }],
};
const well = (extra: Partial<NodeObservation> = {}): NodeObservation => ({
  kubeletVersion: "v1.36.0+vmlet.0.1.0",
  capacity: fixedCapacity({ cpu: "8", "nvidia.com/gpu": "2" }).current(),
  backend: { state: "answers" },
  retired: [],
  ...extra,
});
const failing = (graceOver: boolean) =>
  well({ backend: { state: "failing", error: "connect ECONNREFUSED", graceOver } });
const condition = (status: Node["status"], type: string) => {
  const found = status?.conditions?.find((c) => c.type === type);
  if (!found) throw new Error(`no condition ${type}`);
  return found;
};

/** The Node as the API server has it after it was created and then patched to `observation`. */
function applied(node: Node, observation: NodeObservation, at: number, by: NodeDescription = settings) {
  const { patch, changed } = statusPatch(node, {
    status: nodeStatus(by, node, observation, at),
    labels: nodeLabels(by, node),
    annotations: nodeAnnotations(by, observation.capacity),
  });
  const next = strategicMergePatch("V1Node", structuredClone(node), structuredClone(patch)) as unknown as Node;
  return { next, changed, patch: patch as { metadata?: object; status: Record<string, unknown> } };
}

const created = newNode(settings, well(), T0);
const withStatus = (node: Node, status: Partial<NonNullable<Node["status"]>>): Node => ({
  ...node,
  status: { ...node.status, ...status },
});

describe("a new Node", () => {
  test("has the kubelet's labels, the virtual node's and the user's", () => {
    expect(created.metadata?.labels).toEqual({
      "kubernetes.io/hostname": "burst-1",
      "kubernetes.io/os": "linux",
      "kubernetes.io/arch": "amd64",
      "beta.kubernetes.io/os": "linux",
      "beta.kubernetes.io/arch": "amd64",
      type: "virtual-kubelet",
      "node.kubernetes.io/exclude-from-external-load-balancers": "true",
      team: "a",
    });
  });

  test("has a provider ID that no cloud takes for its own, and its taints", () => {
    expect(created.spec).toEqual({
      providerID: "vmlet://c1/burst-1",
      taints: [{ key: "virtual-kubelet.io/provider", value: "vmlet", effect: "NoSchedule" }],
    });
  });

  test("says where its kubelet listens and what it is", () => {
    expect(created.status?.daemonEndpoints).toEqual({ kubeletEndpoint: { Port: 10250 } });
    expect(created.status?.nodeInfo).toMatchObject({
      kubeletVersion: "v1.36.0+vmlet.0.1.0",
      containerRuntimeVersion: "http-vm://2.3",
      kubeProxyVersion: "",
      operatingSystem: "linux",
      architecture: "amd64",
    });
  });

  test("publishes a Hostname only when one is configured", () => {
    const internal = [
      { type: "InternalIP", address: "10.0.0.5" },
      { type: "InternalIP", address: "fd00::5" },
    ];
    expect(created.status?.addresses).toEqual(internal);
    const named = newNode({ ...settings, hostname: "vm.example" }, well(), T0);
    expect(named.status?.addresses).toEqual([...internal, { type: "Hostname", address: "vm.example" }]);
    expect(named.metadata?.labels?.["kubernetes.io/hostname"]).toBe("vm.example");
  });

  test("keeps its machine and boot ids over restarts and differs in them from other nodes", () => {
    const again = newNode(settings, well(), T0 + 1e9).status?.nodeInfo;
    expect(again).toMatchObject({
      machineID: created.status?.nodeInfo?.machineID,
      bootID: created.status?.nodeInfo?.bootID,
    });
    const other = newNode({ ...settings, name: "burst-2" }, well(), T0).status?.nodeInfo;
    expect(other?.machineID).not.toBe(created.status?.nodeInfo?.machineID);
    expect(created.status?.nodeInfo?.machineID).toMatch(/^[0-9a-f]{32}$/);
  });

  test("has the kubelet's four conditions to the letter, Ready last", () => {
    const texts = created.status?.conditions?.map((c) => [c.type, c.status, c.reason, c.message]);
    expect(texts).toEqual([
      ["MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"],
      ["DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"],
      ["PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"],
      ["BackendReady", "True", "BackendAnswers", "the machine backend answers"],
      ["Ready", "True", "KubeletReady", "kubelet is posting ready status"],
    ]);
  });
});

describe("capacity", () => {
  test("comes from the configuration over the defaults, extended resources included", () => {
    expect(created.status?.capacity).toEqual({
      cpu: "8",
      memory: "64Gi",
      pods: "110",
      "ephemeral-storage": "256Gi",
      "nvidia.com/gpu": "2",
    });
    expect(created.status?.allocatable).toEqual(created.status?.capacity);
  });

  test("tells of each CSI driver once, and of none that the API server would refuse, or that is vmlet's own", () => {
    const driver = { name: "csi.example.com", node_id: "h1" };
    const bad = [
      { name: "Not a name", node_id: "h" },
      { name: "volumes.vmlet.dev", node_id: "h" },
      { name: "x.example.com", node_id: "h", topology: { "a b": "c" } },
    ];
    const last = { ...driver, node_id: "h2" };
    expect(fromProvider({ allocatable: {}, csi_drivers: [driver, ...bad, last] }).csiDrivers).toEqual([last]);
  });

  test("of the configuration tells of the backend's CSI drivers all the same", () => {
    const csiDrivers = [{ name: "csi.example.com", node_id: "h1" }];
    const told = { current: () => fromProvider({ allocatable: {}, csi_drivers: csiDrivers }) };
    for (const hasDevices of [true, false])
      expect(withConditions(fixedCapacity(), told, () => hasDevices).current()?.csiDrivers).toEqual(csiDrivers);
  });

  test("comes from the provider in Kubernetes' units", () => {
    const allocatable = {
      cpu_millis: 7500,
      memory_bytes: 2 ** 31,
      extended: [{ name: "vendor.example/license", count: 3 }],
    };
    expect(fromProvider({ allocatable }).resources).toEqual({
      cpu: "7500m",
      memory: "2Gi",
      pods: "110",
      "ephemeral-storage": "0",
      "vendor.example/license": "3",
    });
  });

  test("leaves out of the provider's report what the API server would refuse with the whole Node", () => {
    const condition = { status: "True" as const, reason: "R", message: "" };
    const report = fromProvider({
      allocatable: {
        cpu_millis: 1000,
        extended: ["cpu", "pods", "gpu", "a/b/c", "Vendor/x", "vendor.example/", "vendor.example/ok"].map((name) => ({
          name,
          count: 3,
        })),
      },
      conditions: [
        { type: "GpuHealthy", ...condition },
        { type: "not a type", ...condition },
      ],
      taints: [
        { key: "vendor.example/gpu", value: "a100", effect: "NoSchedule" },
        { key: "no key", effect: "NoSchedule" },
        { key: "key", value: "no value", effect: "NoSchedule" },
      ],
    });
    expect(report.resources).toEqual({
      cpu: "1",
      memory: "0",
      pods: "110",
      "ephemeral-storage": "0",
      "vendor.example/ok": "3",
    });
    expect(report.conditions.map(({ type }) => type)).toEqual(["GpuHealthy"]);
    expect(report.taints.map(({ key }) => key)).toEqual(["vendor.example/gpu"]);
  });

  test("leaves resources alone that somebody else put into the status, and mirrors them into allocatable", () => {
    const foreign = withStatus(created, { capacity: { ...created.status?.capacity, "scheduling.k8s.io/foo": "5" } });
    const { next } = applied(foreign, well(), T0);
    expect(next.status?.capacity?.["scheduling.k8s.io/foo"]).toBe("5");
    expect(next.status?.allocatable?.["scheduling.k8s.io/foo"]).toBe("5");
  });

  test("drops a foreign resource from allocatable when it left capacity", () => {
    const gone = withStatus(created, { allocatable: { ...created.status?.allocatable, "scheduling.k8s.io/foo": "5" } });
    expect(applied(gone, well(), T0).next.status?.allocatable).toEqual(created.status?.capacity);
  });

  test("sets an own resource that went away to zero", () => {
    const observation = well({ capacity: fixedCapacity({ cpu: "8" }).current(), retired: ["nvidia.com/gpu"] });
    const first = applied(created, observation, T0).next;
    expect(first.status?.capacity?.["nvidia.com/gpu"]).toBe("0");
    const second = applied(first, observation, T0);
    expect(second.next.status?.allocatable?.["nvidia.com/gpu"]).toBe("0");
    expect(second.changed).toBe(false);
  });

  test("removes an own resource that an earlier agent reported and this one does not know", () => {
    const { next } = applied(created, well({ capacity: fixedCapacity({ cpu: "8" }).current() }), T0);
    expect(next.status?.capacity).not.toHaveProperty(["nvidia.com/gpu"]);
    expect(next.status?.allocatable).not.toHaveProperty(["nvidia.com/gpu"]);
  });

  test("keeps what the status says while nobody can say", () => {
    const { next } = applied(created, well({ capacity: undefined }), T0);
    expect(next.status?.capacity).toEqual(created.status?.capacity);
    expect(condition(next.status, "Ready").status).toBe("True");
  });

  test("is zero, and the node not ready, when nobody could ever say", () => {
    const node = newNode(settings, well({ capacity: undefined }), T0);
    expect(node.status?.capacity).toEqual({ cpu: "0", memory: "0", pods: "0", "ephemeral-storage": "0" });
    expect(condition(node.status, "Ready")).toMatchObject({ status: "False", reason: "KubeletNotReady" });
  });
});

test("extended resources that somebody else has written are told from the agent's own, and from those that are no more", () => {
  const allocatable = { cpu: "8", "v.example/gpu": "2", "example.com/slots": "5", "example.com/gone": "0" };
  const metadata = { annotations: { "vmlet.dev/extended-resources": "v.example/gpu" } };
  expect([...othersResources({ metadata, status: { allocatable } } as Node)]).toEqual(["example.com/slots"]);
});

describe("conditions", () => {
  test("move their transition time only when their status changes", () => {
    const later = applied(created, well(), T0 + 60_000).next;
    expect(condition(later.status, "Ready")).toMatchObject({
      lastTransitionTime: "2026-01-01T00:00:00Z",
      lastHeartbeatTime: "2026-01-01T00:01:00Z",
    });
    const down = applied(later, failing(true), T0 + 120_000).next;
    expect(condition(down.status, "Ready").lastTransitionTime).toBe("2026-01-01T00:02:00Z");
  });

  test("doubt a backend that answers and lacks too many machines, which makes the node not unready", () => {
    const { next } = applied(created, well({ backend: { state: "doubtful", missing: 190 } }), T0 + 60_000);
    expect(condition(next.status, "BackendReady")).toMatchObject({ status: "False", reason: "MachinesMissing" });
    expect(condition(next.status, "BackendReady").message).toContain("the machines of 190 pods that ran");
    expect(condition(next.status, "Ready").status).toBe("True");
  });

  test("of others survive", () => {
    const foreign = { type: "NetworkUnavailable", status: "False", reason: "RouteCreated", message: "x" };
    const node = withStatus(created, { conditions: [...(created.status?.conditions ?? []), foreign] });
    const { next, patch } = applied(node, well(), T0 + 1000);
    expect(next.status?.conditions).toContainEqual(foreign);
    expect(JSON.stringify(patch)).not.toContain("NetworkUnavailable");
  });

  test("can come from the provider, but never Ready", () => {
    const capacity = {
      ...fixedCapacity().current()!,
      conditions: [
        { type: "MemoryPressure", status: "True" as const, reason: "Full", message: "hosts are full" },
        { type: "HostMaintenance", status: "True" as const, reason: "Planned", message: "tonight" },
        { type: "Ready", status: "False" as const, reason: "X", message: "x" },
      ],
    };
    const status = nodeStatus(settings, undefined, well({ capacity }), T0);
    expect(condition(status, "MemoryPressure")).toMatchObject({ status: "True", reason: "Full" });
    expect(condition(status, "HostMaintenance").status).toBe("True");
    expect(condition(status, "Ready").status).toBe("True");
  });
});

describe("a backend that does not answer", () => {
  test("leaves a ready node ready during the grace, and says so beside it", () => {
    const { next } = applied(created, failing(false), T0);
    expect(condition(next.status, "Ready").status).toBe("True");
    expect(condition(next.status, "BackendReady")).toMatchObject({
      status: "False",
      reason: "BackendUnavailable",
      message: "the machine backend does not answer: connect ECONNREFUSED",
    });
  });

  test("makes the node not ready after the grace", () => {
    const { next } = applied(created, failing(true), T0);
    expect(condition(next.status, "Ready")).toMatchObject({ status: "False", reason: "BackendUnavailable" });
  });

  test("keeps a node not ready that was so before the agent restarted", () => {
    const down = applied(created, failing(true), T0).next;
    expect(condition(applied(down, failing(false), T0).next.status, "Ready").status).toBe("False");
  });

  test("keeps a node ready that the control plane took for lost while the agent was away", () => {
    const lost = withStatus(created, {
      conditions: [
        {
          type: "Ready",
          status: "Unknown",
          reason: "NodeStatusUnknown",
          message: "Kubelet stopped posting node status.",
        },
      ],
    });
    expect(condition(applied(lost, failing(false), T0).next.status, "Ready").status).toBe("True");
  });

  test("keeps a new node from being ready", () => {
    const fresh = newNode(settings, failing(false), T0);
    expect(condition(fresh.status, "Ready").status).toBe("False");
    const unseen = newNode(settings, well({ backend: { state: "not_seen" } }), T0);
    expect(condition(unseen.status, "Ready")).toMatchObject({
      status: "False",
      reason: "KubeletNotReady",
      message: "the machine backend has not answered yet",
    });
  });

  test("is forgotten when it answers again", () => {
    const down = applied(created, failing(true), T0).next;
    const { next } = applied(down, well(), T0);
    expect(condition(next.status, "Ready")).toMatchObject({ status: "True", reason: "KubeletReady" });
    expect(condition(next.status, "BackendReady").status).toBe("True");
  });
});

describe("the status patch", () => {
  test("changes nothing but heartbeats when nothing changed", () => {
    const { changed, patch } = applied(created, well(), T0 + 10_000);
    expect(changed).toBe(false);
    expect(Object.keys(patch.status)).toEqual(["conditions"]);
    expect(patch.metadata).toBeUndefined();
  });

  test("takes the same amount in another spelling for no change", () => {
    const respelt = withStatus(created, {
      capacity: { ...created.status?.capacity, cpu: "8000m" },
      allocatable: { ...created.status?.allocatable, cpu: "8000m" },
    });
    expect(applied(respelt, well(), T0).changed).toBe(false);
  });

  test("replaces two addresses of one type as a whole", () => {
    const moved = { ...settings, addresses: ["10.0.0.6", "fd00::6"] };
    const { next, changed } = applied(created, well(), T0, moved);
    expect(changed).toBe(true);
    expect(next.status?.addresses).toEqual([
      { type: "InternalIP", address: "10.0.0.6" },
      { type: "InternalIP", address: "fd00::6" },
    ]);
  });

  test("repairs own labels and leaves foreign ones", () => {
    const labels = { ...created.metadata?.labels, "kubernetes.io/os": "plan9", zone: "z" };
    const { next, changed } = applied({ ...created, metadata: { ...created.metadata, labels } }, well(), T0);
    expect(changed).toBe(true);
    expect(next.metadata?.labels).toMatchObject({ "kubernetes.io/os": "linux", zone: "z" });
  });

  test("never touches taints or other parts of the spec", () => {
    const bare: Node = { metadata: { name: "burst-1" }, spec: { unschedulable: true } };
    expect(applied(bare, well(), T0).patch).not.toHaveProperty("spec");
  });

  test("keeps the runtime's version while the backend has not told it", () => {
    const by = { ...settings, runtime: { name: "http-vm", version: undefined } };
    expect(applied(created, well(), T0, by).next.status?.nodeInfo?.containerRuntimeVersion).toBe("http-vm://2.3");
    expect(newNode(by, well(), T0).status?.nodeInfo?.containerRuntimeVersion).toBe("http-vm://unknown");
  });

  test("leaves fields of nodeInfo alone that a newer API has added", () => {
    const nodeInfo = { ...created.status!.nodeInfo!, swap: { capacity: 5 } };
    expect(applied(withStatus(created, { nodeInfo }), well(), T0).changed).toBe(false);
  });
});

describe("declared features", () => {
  const drop = (status: NonNullable<Node["status"]>) =>
    Object.fromEntries(Object.entries(status).filter(([field]) => field !== "declaredFeatures"));

  test("tell API servers that WebSockets may be passed through", () => {
    expect(created.status?.declaredFeatures).toEqual(["ExtendWebSocketsToKubelet"]);
  });

  test("tell schedulers that containers are restarted together where the backend does that", () => {
    const able = newNode({ ...settings, capabilities: ["restart_rules"] }, well(), T0);
    expect(able.status?.declaredFeatures).toContain("RestartAllContainersOnContainerExits");
  });

  test("tell API servers which resources may change where the backend can change them", () => {
    const features = (capabilities: Capability[]) =>
      newNode({ ...settings, capabilities }, well(), T0).status?.declaredFeatures;
    expect(features(["resize"])).toEqual(["ExtendWebSocketsToKubelet", "InPlacePodVerticalScalingInitContainers"]);
    // Sorted, as the API server wants them.
    expect(features(["restart_rules", "resize", "resize_machine"])).toEqual([
      "ExtendWebSocketsToKubelet",
      "InPlacePodLevelResourcesVerticalScaling",
      "InPlacePodVerticalScalingInitContainers",
      "RestartAllContainersOnContainerExits",
    ]);
  });

  test("stand while the backend has not said what it can do", () => {
    const able = newNode({ ...settings, capabilities: ["restart_rules"] }, well(), T0);
    const { next } = applied(able, well(), T0 + 10_000, { ...settings, capabilities: undefined });
    expect(next.status?.declaredFeatures).toEqual(able.status?.declaredFeatures);
    const other = applied(able, well(), T0 + 10_000, { ...settings, capabilities: [] });
    expect(other.next.status?.declaredFeatures).toEqual(["ExtendWebSocketsToKubelet"]);
  });

  test("are no reason for a patch on an API server that drops them", () => {
    const { next } = applied(created, well(), T0);
    expect(applied({ ...next, status: drop(next.status!) }, well(), T0 + 10_000).changed).toBe(false);
  });

  test("reach a Node that was registered without them with the next report", () => {
    const { next } = applied({ ...created, status: drop(created.status!) }, well(), T0);
    expect(next.status?.declaredFeatures).toEqual(["ExtendWebSocketsToKubelet"]);
  });
});

describe("features of the runtime as a whole", () => {
  const having = (...capabilities: Capability[]) => newNode({ ...settings, capabilities }, well(), T0);

  test("say whether containers can be without the groups of their image", () => {
    expect(having("supplemental_groups_policy").status?.features).toEqual({ supplementalGroupsPolicy: true });
    expect(having().status?.features).toEqual({ supplementalGroupsPolicy: false });
  });

  test("stand while the backend has not said what it can do, and follow what it says then", () => {
    const able = having("supplemental_groups_policy");
    const { next } = applied(able, well(), T0 + 10_000, { ...settings, capabilities: undefined });
    expect(next.status?.features).toEqual({ supplementalGroupsPolicy: true });
    const other = applied(able, well(), T0 + 10_000, { ...settings, capabilities: [] });
    expect(other.next.status?.features).toEqual({ supplementalGroupsPolicy: false });
  });
});

describe("runtime handlers", () => {
  const having = (...names: string[]) => ({
    ...settings,
    capabilities: [],
    runtimeHandlers: names.map((name) => ({ name, user_namespaces: name === "runc" })),
  });

  test("are told as a kubelet does, with what each can do", () => {
    expect(newNode(having("", "runc"), well(), T0).status?.runtimeHandlers).toEqual([
      { name: "", features: { recursiveReadOnlyMounts: false, userNamespaces: false } },
      { name: "runc", features: { recursiveReadOnlyMounts: false, userNamespaces: true } },
    ]);
  });

  test("are not told of where the backend gives no choice", () => {
    expect(created.status).not.toHaveProperty("runtimeHandlers");
  });

  test("stand while the backend has not said what it has", () => {
    const node = newNode(having("", "runc"), well(), T0);
    const { next } = applied(node, well(), T0 + 10_000, { ...settings, capabilities: undefined });
    expect(next.status?.runtimeHandlers).toEqual(node.status?.runtimeHandlers);
  });

  test("that the backend has no longer are taken away with the next report", () => {
    const node = newNode(having("", "runc"), well(), T0);
    const { next } = applied(node, well(), T0 + 10_000, { ...settings, capabilities: [] });
    expect(next.status?.runtimeHandlers).toEqual([]);
  });
});

describe("whether the machines' host is inside a user namespace", () => {
  const newer = well({ kubeletVersion: "v1.37.0+vmlet.0.1.0" });
  const inside: NodeDescription = { ...settings, capabilities: [], runningInUserNamespace: true };

  test.each([true, false])("is told as the backend says it: %s", (runningInUserNamespace) => {
    const node = newNode({ ...inside, runningInUserNamespace }, newer, T0);
    expect(node.status?.nodeInfo?.runningInUserNamespace).toBe(runningInUserNamespace);
  });

  test("is not told by a kubelet of 1.36", () => {
    expect(newNode(inside, well(), T0).status?.nodeInfo).not.toHaveProperty("runningInUserNamespace");
  });

  test("is not told of where the backend does not say", () => {
    expect(newNode(settings, newer, T0).status?.nodeInfo).not.toHaveProperty("runningInUserNamespace");
  });

  test("stands while the backend has not answered to an agent that was restarted", () => {
    const { next, changed } = applied(newNode(inside, newer, T0), newer, T0 + 10_000, settings);
    expect(next.status?.nodeInfo?.runningInUserNamespace).toBe(true);
    expect(changed).toBe(false);
  });

  test("is no reason to write to an API server that drops it, because it has the feature off or did not tell its version", () => {
    const { changed, patch } = applied(newNode(settings, newer, T0), newer, T0 + 10_000, inside);
    expect(changed).toBe(false);
    expect(patch.status["nodeInfo"]).toMatchObject({ runningInUserNamespace: true });
  });

  test("is taken away with the next report when the backend does not say it any more", () => {
    const silent = { ...settings, capabilities: [] };
    const { next } = applied(newNode(inside, newer, T0), newer, T0 + 10_000, silent);
    expect(next.status?.nodeInfo?.runningInUserNamespace ?? undefined).toBeUndefined();
    expect(next.status?.nodeInfo?.kubeletVersion).toBe("v1.37.0+vmlet.0.1.0");
  });
});

describe("the platform of the machines", () => {
  const platformsOf = ({ metadata, status }: Node) => [
    [metadata?.labels?.["kubernetes.io/os"], metadata?.labels?.["kubernetes.io/arch"]],
    [metadata?.labels?.["beta.kubernetes.io/os"], metadata?.labels?.["beta.kubernetes.io/arch"]],
    [status?.nodeInfo?.operatingSystem, status?.nodeInfo?.architecture],
  ];
  const same = (os: string, architecture: string) => [0, 1, 2].map(() => [os, architecture]);
  const arm = { os: "linux", architecture: "arm64" };
  const assumed = { os: "linux", architecture: "amd64", assumed: true };

  test("is the same in every label and in nodeInfo", () => {
    expect(platformsOf(newNode({ ...settings, platform: arm }, well(), T0))).toEqual(same("linux", "arm64"));
  });

  test("follows the backend, when it says another than was assumed", () => {
    const fresh = newNode({ ...settings, platform: assumed }, well(), T0);
    const { next, changed } = applied(fresh, well(), T0, { ...settings, platform: arm });
    expect(changed).toBe(true);
    expect(platformsOf(next)).toEqual(same("linux", "arm64"));
  });

  test("stands while a backend has not answered to an agent that was restarted", () => {
    const known = newNode({ ...settings, platform: arm }, well(), T0);
    const { next, changed } = applied(known, well(), T0, { ...settings, platform: assumed });
    expect(changed).toBe(false);
    expect(platformsOf(next)).toEqual(same("linux", "arm64"));
  });

  test("is in all places what a label of the configuration says", () => {
    const labels = { "kubernetes.io/arch": "riscv64", "beta.kubernetes.io/arch": "riscv64" };
    expect(platformsOf(newNode({ ...settings, labels, platform: arm }, well(), T0))).toEqual(same("linux", "riscv64"));
  });
});

describe("labels that name the backend's capabilities", () => {
  const able = (...capabilities: Capability[]): NodeDescription => ({ ...settings, capabilities });
  const capabilitiesOf = (node: Node) =>
    Object.entries(node.metadata?.labels ?? {}).filter(([key]) => key.startsWith("capability.vmlet.dev/"));

  test("are one for each, with which a selector finds nodes that have it", () => {
    const node = newNode(able("exec", "volumes.empty_dir"), well(), T0);
    expect(capabilitiesOf(node)).toEqual([
      ["capability.vmlet.dev/exec", "true"],
      ["capability.vmlet.dev/volumes.empty_dir", "true"],
    ]);
  });

  test.each(ALL_CAPABILITIES)("is a legal key that no kubelet is forbidden: %s", (capability) => {
    expect(() => nodeConfigWith({ [CAPABILITY_LABEL_PREFIX + capability]: "true" })).not.toThrow();
  });

  test("go when the capability goes, and come with a new one", () => {
    const node = newNode(able("exec", "tty"), well(), T0);
    const { next, changed } = applied(node, well(), T0, able("tty", "probes"));
    expect(changed).toBe(true);
    expect(capabilitiesOf(next).map(([key]) => key)).toEqual([
      "capability.vmlet.dev/tty",
      "capability.vmlet.dev/probes",
    ]);
  });

  test("stand while the backend has not said what it can do", () => {
    const { next, changed } = applied(newNode(able("exec"), well(), T0), well(), T0, {
      ...settings,
      capabilities: undefined,
    });
    expect(changed).toBe(false);
    expect(capabilitiesOf(next)).toEqual([["capability.vmlet.dev/exec", "true"]]);
  });

  test("are those that vmlet knows, whatever a provider's module says", () => {
    const odd = ["exec", "no label's name!", "__proto__"] as Capability[];
    expect(capabilitiesOf(newNode(able(...odd), well(), T0))).toEqual([["capability.vmlet.dev/exec", "true"]]);
  });

  test("leave other labels of vmlet.dev alone", () => {
    const labels = { "vmlet.dev/pool": "a" };
    const node = { ...created, metadata: { ...created.metadata, labels: { ...created.metadata?.labels, ...labels } } };
    expect(applied(node, well(), T0, able()).next.metadata?.labels).toMatchObject(labels);
  });
});

/** @throws ConfigError when a node may not have one of the labels */
function nodeConfigWith(labels: Record<string, string>): void {
  const nodes = [{ name: "n", provider: { type: "memory" }, labels }];
  parseConfig(JSON.stringify({ apiVersion: "vmlet.dev/v1", kind: "AgentConfig", nodes }), "vmlet.yaml");
}

test("what the host keeps for itself is capacity, and not allocatable", () => {
  const capacity = fromProvider({
    allocatable: { cpu_millis: 3500, memory_bytes: 3 * 1024 ** 3, ephemeral_bytes: 9 * 1024 ** 3, pods: 20 },
    total: { cpu_millis: 4000, memory_bytes: 4 * 1024 ** 3, ephemeral_bytes: 10 * 1024 ** 3 },
  });
  const { status } = newNode(settings, well({ capacity }), T0);
  expect(status!.capacity).toMatchObject({ cpu: "4", memory: "4Gi", "ephemeral-storage": "10Gi", pods: "20" });
  expect(status!.allocatable).toMatchObject({ cpu: "3500m", memory: "3Gi", "ephemeral-storage": "9Gi", pods: "20" });
});

test("a capacity that the configuration states is the Node's, and the host's pressures are, too", () => {
  const condition = {
    type: "DiskPressure",
    status: "True",
    reason: "KubeletHasDiskPressure",
    message: "full",
  } as const;
  const reported = fromProvider({ allocatable: { cpu_millis: 1 }, conditions: [condition] });
  const source = withConditions(fixedCapacity({ cpu: "8" }), { current: () => reported });
  const { status } = newNode(settings, well({ capacity: source.current() }), T0);
  expect(status!.allocatable).toMatchObject({ cpu: "8" });
  expect(status!.conditions).toContainEqual(expect.objectContaining(condition));
});

describe("a backend that gives devices", () => {
  const count = (amount: number, name = "vendor.example/gpu") => ({ name, count: amount });
  const reported = {
    current: () => fromProvider({ allocatable: { extended: [count(1)] }, total: { extended: [count(3)] } }),
  };
  const amounts = (source: ReturnType<typeof withConditions>) => {
    const { status } = newNode(settings, well({ capacity: source.current() }), T0);
    return [status?.capacity?.["vendor.example/gpu"], status?.allocatable?.["vendor.example/gpu"]];
  };

  test("has all of them in the Node's capacity, and the healthy ones allocatable", () => {
    expect(amounts(reported)).toEqual(["3", "1"]);
  });

  test("has them counted beside a capacity that the configuration states", () => {
    expect(amounts(withConditions(fixedCapacity({ cpu: "8" }), reported, () => true))).toEqual(["3", "1"]);
  });

  test("has the configuration's word for those that it states", () => {
    const fixed = fixedCapacity({ "vendor.example/gpu": "7" });
    expect(amounts(withConditions(fixed, reported, () => true))).toEqual(["7", "7"]);
  });
});

describe("a Node whose backend has volumes", () => {
  test("has its volumes attached by the controller, and says where they are", () => {
    const node = newNode({ ...settings, volumes: { zone: "z1" } }, well(), T0);
    expect(node.metadata?.annotations).toMatchObject({
      "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    });
    expect(node.metadata?.labels).toMatchObject({ "topology.volumes.vmlet.dev/zone": "z1" });
  });

  test("has none attached where the backend has no volumes", () => {
    const annotations = Object.keys(newNode(settings, well(), T0).metadata?.annotations ?? {});
    expect(annotations).not.toContain("volumes.kubernetes.io/controller-managed-attach-detach");
  });
});
