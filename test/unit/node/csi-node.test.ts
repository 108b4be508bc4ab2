import { describe, expect, test } from "vitest";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import type { CsiNode, Node } from "../../../src/kube/wire.ts";
import { CsiNodeWriter } from "../../../src/node/csi-node.ts";
import type { CsiDriverInfo } from "../../../src/node/capacity.ts";
import type { NodeDescription } from "../../../src/node/settings.ts";
import { csiNodeId } from "../../../src/provider/csi-names.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { apiError, ScriptedKube } from "../../support/scripted-kube.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const { signal } = new AbortController();
const node: Node = { metadata: { name: "burst-1", uid: "node-uid" } };
const OWNER = { apiVersion: "v1", kind: "Node", name: "burst-1", uid: "node-uid" };
const OTHER = { name: "other.example", nodeID: "x", topologyKeys: [] };

const describedBy = (volumes?: NodeDescription["volumes"]): NodeDescription => ({
  name: "burst-1",
  clusterId: "c1",
  version: "0.1.0",
  addresses: [],
  kubeletPort: 10250,
  runtime: { name: "memory", version: "1" },
  capabilities: [],
  volumes,
});
const OURS = { name: "volumes.vmlet.dev", nodeID: csiNodeId("c1", "burst-1"), topologyKeys: [] };

/** An API server with one CSINode, whose drivers it lets nobody change, as the real one. */
function setup(current?: CsiNode) {
  const kube = new ScriptedKube();
  const clock = new VirtualClock();
  const warnings: string[] = [];
  const labels: Record<string, string> = {};
  const api = { current, labels, fault: undefined as Error | undefined, labelFault: undefined as Error | undefined };
  kube.answer = ({ method, path, body }: KubeRequest) => {
    if (api.fault) throw api.fault;
    if (method === "POST" && path === "/apis/storage.k8s.io/v1/csinodes") return (api.current = body as CsiNode);
    if (method === "PATCH" && path === "/api/v1/nodes/burst-1/status") {
      if (api.labelFault) throw api.labelFault;
      Object.assign(api.labels, (body as Node).metadata?.labels);
      return {};
    }
    if (path !== "/apis/storage.k8s.io/v1/csinodes/burst-1") throw new Error(`unexpected ${method} ${path}`);
    if (api.current === undefined) throw apiError(404, "NotFound");
    if (method === "GET") return api.current;
    const patch = body as CsiNode;
    for (const driver of patch.spec.drivers) {
      const before = api.current.spec.drivers.find(({ name }) => name === driver.name);
      if (before && JSON.stringify(before) !== JSON.stringify(driver)) throw apiError(422, "Invalid");
    }
    return (api.current = {
      ...api.current,
      metadata: { ...api.current.metadata, ...patch.metadata },
      spec: patch.spec,
    });
  };
  const writer = new CsiNodeWriter({ kube, clock, logger: silentLogger, warn: (reason) => void warnings.push(reason) });
  const write = (by: NodeDescription, of = node, others?: readonly CsiDriverInfo[]) =>
    writer.write(of, by, others, signal);
  return {
    kube,
    clock,
    api,
    warnings,
    write,
    tell: (...others: CsiDriverInfo[]) => write(describedBy(), node, others),
  };
}

const csiNode = (...drivers: CsiNode["spec"]["drivers"][number][]): CsiNode => ({
  metadata: { name: "burst-1", ownerReferences: [OWNER] },
  spec: { drivers },
});

describe("the CSINode of a node", () => {
  test("names the driver, by which id it knows the node, where that is, and how many volumes it may have", async () => {
    const s = setup();
    await s.write(describedBy({ zone: "z1", count: 16 }));
    expect(s.api.current).toMatchObject({
      metadata: { name: "burst-1", ownerReferences: [OWNER] },
      spec: {
        drivers: [{ ...OURS, topologyKeys: ["topology.volumes.vmlet.dev/zone"], allocatable: { count: 16 } }],
      },
    });
  });

  test("keeps other drivers", async () => {
    const s = setup(csiNode(OTHER));
    await s.write(describedBy({}));
    expect(s.api.current?.spec.drivers).toEqual([OTHER, OURS]);
  });

  test("says something else when the backend does, though an entry cannot be changed", async () => {
    const s = setup(csiNode(OTHER, OURS));
    await s.write(describedBy({ zone: "z1" }));
    expect(s.api.current?.spec.drivers).toEqual([
      OTHER,
      { ...OURS, topologyKeys: ["topology.volumes.vmlet.dev/zone"] },
    ]);
  });

  test("lacks the driver when the backend has no volumes any more", async () => {
    const s = setup(csiNode(OTHER, OURS));
    await s.write(describedBy());
    expect(s.api.current?.spec.drivers).toEqual([OTHER]);
  });

  test("is left alone before the backend has said what it can do", async () => {
    const s = setup(csiNode(OURS));
    await s.write({ ...describedBy(), capabilities: undefined });
    expect(s.kube.requests).toEqual([]);
  });

  test("belongs to the Node that is there now", async () => {
    const s = setup(csiNode(OURS));
    await s.write(describedBy({}), { metadata: { name: "burst-1", uid: "new-uid" } });
    expect(s.api.current?.metadata?.ownerReferences).toEqual([{ ...OWNER, uid: "new-uid" }]);
  });

  test("is looked at once a minute, and comes back when somebody has deleted it", async () => {
    const s = setup();
    await s.write(describedBy({}));
    const sent = s.kube.requests.length;
    await s.write(describedBy({}));
    expect(s.kube.requests).toHaveLength(sent);
    s.api.current = undefined;
    await s.clock.advance(60_001);
    await s.write(describedBy({}));
    expect(s.api.current).toMatchObject({ spec: { drivers: [OURS] } });
  });

  test("that the agent may not write is told of once", async () => {
    const s = setup();
    s.api.fault = apiError(403, "Forbidden");
    await s.write(describedBy({}));
    await s.clock.advance(60_001);
    await s.write(describedBy({}));
    expect(s.warnings).toEqual(["CannotWriteCSINode"]);
  });

  test("of which the API server says nothing certain is tried again", async () => {
    const s = setup();
    s.api.fault = apiError(500, "InternalError");
    await s.write(describedBy({}));
    s.api.fault = undefined;
    await s.write(describedBy({}));
    expect(s.api.current).toMatchObject({ spec: { drivers: [OURS] } });
    expect(s.warnings).toEqual([]);
  });
});

describe("drivers of others whose node plugins run on the backend's host", () => {
  const RACK = { "example.com/rack": "r1" };
  const NFS: CsiDriverInfo = { name: "nfs.example.com", node_id: "host-1", topology: RACK, max_volumes: 8 };
  const ENTRY = {
    name: "nfs.example.com",
    nodeID: "host-1",
    topologyKeys: ["example.com/rack"],
    allocatable: { count: 8 },
  };

  test("are in the CSINode, and their topology in the Node's labels", async () => {
    const s = setup();
    await s.tell(NFS, { name: "plain.example.com", node_id: "host-1" });
    expect(s.api.labels).toEqual(RACK);
    expect(s.api.current?.spec.drivers).toEqual([
      ENTRY,
      { name: "plain.example.com", nodeID: "host-1", topologyKeys: [] },
    ]);
  });

  test("go when the backend tells of them no more, also by an agent that has just started", async () => {
    const s = setup();
    await s.tell(NFS);
    const next = setup({ ...s.api.current!, spec: { drivers: [OTHER, ...s.api.current!.spec.drivers] } });
    await next.tell();
    expect(next.api.current?.spec.drivers).toEqual([OTHER]);
    const before = next.kube.requests.length;
    await next.tell();
    expect(next.kube.requests).toHaveLength(before);
  });

  test("stay while the backend has not told of any yet", async () => {
    const s = setup();
    await s.tell(NFS);
    const next = setup(s.api.current);
    await next.write(describedBy({}));
    expect(next.api.current?.spec.drivers).toEqual([ENTRY, OURS]);
  });

  test("know the node by another id, though an entry cannot be changed", async () => {
    const s = setup(csiNode(OTHER));
    await s.tell(NFS);
    await s.tell({ ...NFS, node_id: "host-2" });
    expect(s.api.current?.spec.drivers).toEqual([OTHER, { ...ENTRY, nodeID: "host-2" }]);
  });

  test("are not added where the Node says that it is elsewhere, and that is told once", async () => {
    const s = setup();
    const placed: Node = { metadata: { ...node.metadata, labels: { "example.com/rack": "r2" } } };
    await s.write(describedBy({}), placed, [NFS, { name: "plain.example.com", node_id: "h" }]);
    await s.clock.advance(60_001);
    await s.write(describedBy({}), placed, [NFS, { name: "plain.example.com", node_id: "h" }]);
    expect(s.api.current?.spec.drivers.map(({ name }) => name)).toEqual(["volumes.vmlet.dev", "plain.example.com"]);
    expect([s.api.labels, s.warnings]).toEqual([{}, ["CannotWriteCSINode"]]);
  });

  test.each([
    ["node-role.kubernetes.io/control-plane", false],
    ["node-restriction.kubernetes.io/tenant", false],
    ["kubernetes.io/hostname", false],
    ["topology.kubernetes.io/zone", true],
    ["topology.example.com/zone", true],
  ])("may say %s of the Node: %s", async (key, may) => {
    const s = setup();
    await s.tell({ ...NFS, topology: { [key]: "x" } });
    expect([s.api.labels, s.api.current?.spec.drivers.length ?? 0]).toEqual(may ? [{ [key]: "x" }, 1] : [{}, 0]);
  });

  test("are left out when the API server refuses their labels, and tried again when it only fails", async () => {
    const s = setup();
    s.api.labelFault = apiError(500, "InternalError");
    await s.tell(NFS);
    expect([s.api.current, s.warnings]).toEqual([undefined, []]);
    s.api.labelFault = apiError(403, "Forbidden");
    await s.tell(NFS, { name: "plain.example.com", node_id: "h" });
    expect(s.api.current?.spec.drivers.map(({ name }) => name)).toEqual(["plain.example.com"]);
    expect(s.warnings).toEqual(["CannotWriteCSINode"]);
  });
});
