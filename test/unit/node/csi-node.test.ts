import { describe, expect, test } from "vitest";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import type { CsiNode, Node } from "../../../src/kube/wire.ts";
import { CsiNodeWriter } from "../../../src/node/csi-node.ts";
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
  const api = { current, fault: undefined as Error | undefined };
  kube.answer = ({ method, path, body }: KubeRequest) => {
    if (api.fault) throw api.fault;
    if (method === "POST" && path === "/apis/storage.k8s.io/v1/csinodes") return (api.current = body as CsiNode);
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
  return { kube, clock, api, warnings, write: (by: NodeDescription, of = node) => writer.write(of, by, signal) };
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
