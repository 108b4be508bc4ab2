/** The CSI driver by gRPC on its socket, in front of a backend: what Kubernetes' sidecars are told, and what the backend then has. */
import { mkdtemp, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { afterEach, describe, expect, test, vi } from "vitest";
import { MemoryProvider, type MemoryProviderOptions } from "../../../providers/memory/index.ts";
import {
  Controller,
  type CreateVolumeRequest,
  Identity,
  type VolumeCapability,
  VolumeCapability_AccessMode_Mode as Mode,
} from "../../../src/csi/api.gen.js";
import { Backends } from "../../../src/csi/backends.ts";
import { csiNodeId } from "../../../src/provider/csi-names.ts";
import { CsiServer } from "../../../src/csi/server.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";

const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const signal = new AbortController().signal;
const GIB = 2 ** 30;
const NODE_A = csiNodeId("cluster-a", "node-a");
const NODE_B = csiNodeId("cluster-a", "node-b");

const mounted = (mode = Mode.SINGLE_NODE_WRITER) =>
  ({ accessMode: { mode }, accessType: { case: "mount", value: {} } }) as VolumeCapability;

async function setup({ outOfService = [], ...options }: MemoryProviderOptions & { outOfService?: string[] } = {}) {
  const memory = new MemoryProvider(options);
  const folder = await mkdtemp(join(tmpdir(), "vmlet-csi-"));
  cleanups.push(
    () => rm(folder, { recursive: true, force: true }),
    () => memory.close(),
  );
  const socket = join(folder, "csi.sock");
  const open = async (clusterId = "cluster-a", path = socket) => {
    const server = new CsiServer({
      ...{ backends: new Backends([memory]), clusterId, version: "1.2.3", logger: silentLogger },
      isOutOfService: (node) => Promise.resolve(outOfService.includes(node)),
    });
    await server.listen(path);
    const sessionManager = new Http2SessionManager("http://localhost", {}, { createConnection: () => connect(path) });
    const transport = createGrpcTransport({ baseUrl: "http://localhost", sessionManager });
    const close = async () => {
      sessionManager.abort();
      await server.close();
    };
    cleanups.push(() => close().catch(() => {}));
    return { controller: createClient(Controller, transport), identity: createClient(Identity, transport), close };
  };
  const { controller, identity, close } = await open();
  const make = async (name = "pvc-1", more: object = {}) => {
    const { volume } = await controller.createVolume({ name, volumeCapabilities: [mounted()], ...more });
    return volume!.volumeId;
  };
  const publish = (volumeId: string, nodeId: string, more: object = {}) =>
    controller.controllerPublishVolume({ volumeId, nodeId, volumeCapability: mounted(), ...more });
  return { memory, socket, folder, open, close, controller, identity, make, publish };
}

const codeOf = (call: Promise<unknown>) =>
  call.then(
    () => "ok",
    ({ code }: { code: Code }) => Code[code],
  );

const machineWith = (volume: string, reservation: string): MachineSpec => ({
  labels: {},
  restart_policy: "never",
  containers: [{ name: "c", image: "i", command: ["sleep", "3600"] }],
  volumes: [{ name: "data", type: "persistent", volume, reservation }],
});

describe("a volume", () => {
  test("is the same one for a create that is repeated, also by another copy of the driver", async () => {
    const { make, open, folder, memory } = await setup();
    const id = await make();
    expect(await make()).toBe(id);
    const other = await open("cluster-a", join(folder, "other.sock"));
    const { volume } = await other.controller.createVolume({ name: "pvc-1", volumeCapabilities: [mounted()] });
    expect(volume!.volumeId).toBe(id);
    expect((await memory.volumes.list({ signal, labels: {} })).items).toHaveLength(1);
  });

  test("of another cluster with the same name is another one, out of reach", async () => {
    const { make, open, folder, memory } = await setup();
    const id = await make();
    const other = await open("cluster-b", join(folder, "other.sock"));
    const { volume } = await other.controller.createVolume({ name: "pvc-1", volumeCapabilities: [mounted()] });
    expect(volume!.volumeId).not.toBe(id);
    expect((await other.controller.listVolumes({})).entries.map((each) => each.volume?.volumeId)).toEqual([
      volume!.volumeId,
    ]);
    await other.controller.deleteVolume({ volumeId: id });
    expect(await codeOf(other.controller.controllerExpandVolume({ volumeId: id, capacityRange: {} }))).toBe("NotFound");
    expect(await memory.volumes.get(id, { signal })).toMatchObject({ state: "available" });
  });

  test("tells whose claim it is, where the provisioner says so", async () => {
    const { make, memory } = await setup();
    const parameters = { "csi.storage.k8s.io/pvc/name": "data-0", "csi.storage.k8s.io/pvc/namespace": "team" };
    expect((await memory.volumes.get(await make("pvc-1", { parameters }), { signal })).labels).toMatchObject({
      "vmlet.dev/claim": "data-0",
      "vmlet.dev/namespace": "team",
    });
  });

  test.each<[string, object, string]>([
    ["without a name", { name: "" }, "InvalidArgument"],
    ["without capabilities", { volumeCapabilities: [] }, "InvalidArgument"],
    ["that several nodes write", { volumeCapabilities: [mounted(Mode.MULTI_NODE_MULTI_WRITER)] }, "InvalidArgument"],
    ["of a class that is not there", { parameters: { class: "gold" } }, "InvalidArgument"],
    ["with a parameter that nobody knows", { parameters: { iops: "7" } }, "InvalidArgument"],
    ["larger than its limit", { capacityRange: { requiredBytes: 2n, limitBytes: 1n } }, "OutOfRange"],
    ["for which there is no room", { capacityRange: { requiredBytes: 2n ** 52n } }, "ResourceExhausted"],
    ["in a zone that is not there", { accessibilityRequirements: { requisite: [zone("north")] } }, "ResourceExhausted"],
  ])("%s is refused", async (_what, more, code) => {
    const { controller } = await setup();
    const request = { name: "pvc-1", volumeCapabilities: [mounted()], ...more };
    expect(await codeOf(controller.createVolume(request))).toBe(code);
  });

  test("of which the backend says nothing is asked for again", async () => {
    const { controller } = await setup({ faults: () => ({ kind: "fail", code: "unavailable" }) });
    const request = { name: "pvc-1", volumeCapabilities: [mounted()] };
    expect(await codeOf(controller.createVolume(request))).toBe("Unavailable");
  });

  test("grows, and never shrinks", async () => {
    const { make, controller } = await setup();
    const volumeId = await make();
    const grow = (bytes: number) =>
      controller.controllerExpandVolume({ volumeId, capacityRange: { requiredBytes: BigInt(bytes) } });
    expect(await grow(2 * GIB)).toMatchObject({ capacityBytes: BigInt(2 * GIB), nodeExpansionRequired: false });
    expect(await grow(GIB)).toMatchObject({ capacityBytes: BigInt(2 * GIB) });
  });
});

describe("publishing", () => {
  const SHARED = { parameters: { class: "shared" } };

  test("gives a volume of a shared class to several nodes, where all of them are meant to have it", async () => {
    const { make, publish, memory } = await setup();
    const volumeCapability = mounted(Mode.MULTI_NODE_MULTI_WRITER);
    const volumeId = await make("pvc-1", { ...SHARED, volumeCapabilities: [volumeCapability] });
    for (const node of [NODE_A, NODE_B]) await publish(volumeId, node, { volumeCapability });
    const { reservations } = await memory.volumes.get(volumeId, { signal });
    expect(reservations.map(({ name }) => name)).toEqual([NODE_A, NODE_B]);
  });

  test.each([Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_MULTI_WRITER, Mode.SINGLE_NODE_SINGLE_WRITER])(
    "keeps what one node alone is to have from a second one, also where its class is shared: mode %i",
    async (mode) => {
      const { make, publish, memory, controller } = await setup();
      const more = { volumeCapability: mounted(mode) };
      const volumeId = await make("pvc-1", { ...SHARED, volumeCapabilities: [mounted(mode)] });
      await publish(volumeId, NODE_A, more);
      expect(await codeOf(publish(volumeId, NODE_B, more))).toBe("FailedPrecondition");
      const { reservations } = await memory.volumes.get(volumeId, { signal });
      expect(reservations.map(({ name }) => name)).toEqual([NODE_A]);
      await controller.controllerUnpublishVolume({ volumeId, nodeId: NODE_A });
      await publish(volumeId, NODE_B, more);
    },
  );

  test("to one node that a kill breaks off leaves nothing that keeps a second node out for longer", async () => {
    const kill = { isDue: false };
    const { make, publish, controller, memory } = await setup({
      // The reply to what the backend has done is lost, and the driver that waited for it does nothing more.
      faults: (operation) => {
        if (!kill.isDue) return undefined;
        return operation === "reserveVolume" ? { kind: "lost" } : { kind: "fail", code: "unavailable" };
      },
    });
    const volumeId = await make("pvc-1", SHARED);
    const killed = async (node: string) => {
      const reserve = memory.volumes.reserve.bind(memory.volumes);
      const spy = vi.spyOn(memory.volumes, "reserve").mockImplementationOnce((...call) => {
        kill.isDue = true;
        return reserve(...call);
      });
      expect(await codeOf(publish(volumeId, node))).not.toBe("ok");
      kill.isDue = false;
      spy.mockRestore();
    };
    await killed(NODE_A);
    await killed(NODE_B);
    await publish(volumeId, NODE_A);
    const { reservations } = await memory.volumes.get(volumeId, { signal });
    expect(reservations).toEqual([{ name: NODE_A, read_only: false, exclusive: true }]);
    await controller.controllerUnpublishVolume({ volumeId, nodeId: NODE_A });
    await publish(volumeId, NODE_B);
  });

  test("to one node is refused where the backend shares the class, and keeps no volume of it for one", async () => {
    const { publish, controller, memory } = await setup({ capabilities: ["volumes.persistent"] });
    const request = { name: "pvc-1", ...SHARED, volumeCapabilities: [mounted()] };
    await expect(controller.createVolume(request)).rejects.toMatchObject({ code: Code.InvalidArgument });
    const many = mounted(Mode.MULTI_NODE_MULTI_WRITER);
    const { volume } = await controller.createVolume({ ...request, volumeCapabilities: [many] });
    const { volumeId } = volume!;
    await expect(publish(volumeId, NODE_A)).rejects.toThrow("volumes.exclusive");
    expect((await memory.volumes.get(volumeId, { signal })).reservations).toEqual([]);
    await publish(volumeId, NODE_A, { volumeCapability: many });
  });

  test("keeps a volume for one node, and another node is refused until it is given back", async () => {
    const { make, publish, controller } = await setup();
    const volumeId = await make();
    await publish(volumeId, NODE_A);
    await publish(volumeId, NODE_A);
    expect(await codeOf(publish(volumeId, NODE_B))).toBe("FailedPrecondition");
    const { entries } = await controller.listVolumes({});
    expect(entries[0]?.status?.publishedNodeIds).toEqual([NODE_A]);
    await controller.controllerUnpublishVolume({ volumeId, nodeId: NODE_A });
    await publish(volumeId, NODE_B);
  });

  test("is not taken back while a machine of the node may still write", async () => {
    const { make, publish, controller, memory } = await setup();
    const volumeId = await make();
    await publish(volumeId, NODE_A);
    await memory.createPod("m", machineWith(volumeId, NODE_A), { signal });
    memory.setReachability("m", "unknown");
    const unpublish = () => codeOf(controller.controllerUnpublishVolume({ volumeId, nodeId: NODE_A }));
    expect(await unpublish()).toBe("FailedPrecondition");
    expect(await codeOf(controller.deleteVolume({ volumeId }))).toBe("FailedPrecondition");
    await memory.stopPod("m", { signal, graceSeconds: 0 });
    expect(await unpublish()).toBe("ok");
    await expect(memory.createPod("late", machineWith(volumeId, NODE_A), { signal })).rejects.toMatchObject({
      code: "in_use",
    });
  });

  test("is taken back from a node that is out of service when its machine is over, which is stopped for it", async () => {
    const { make, publish, controller, memory } = await setup({ outOfService: ["node-a"] });
    const volumeId = await make();
    await publish(volumeId, NODE_A);
    await memory.createPod("m", machineWith(volumeId, NODE_A), { signal });
    // As csi-attacher does, until it is done.
    await vi.waitFor(() => controller.controllerUnpublishVolume({ volumeId, nodeId: NODE_A }));
    expect(await memory.getPod("m", { signal })).toMatchObject({ state: "stopped" });
  });

  test("stops nothing of a node that is in service, or where the backend takes no volume by force", async () => {
    const lacking: MemoryProviderOptions = { capabilities: ["volumes.persistent"] };
    for (const options of [{ outOfService: ["node-b"] }, { ...lacking, outOfService: ["node-a"] }]) {
      const { make, publish, controller, memory } = await setup(options);
      const volumeId = await make();
      await publish(volumeId, NODE_A);
      await memory.createPod("m", machineWith(volumeId, NODE_A), { signal });
      expect(await codeOf(controller.controllerUnpublishVolume({ volumeId, nodeId: NODE_A }))).toBe(
        "FailedPrecondition",
      );
      expect((await memory.getPod("m", { signal })).state).not.toMatch(/^stop/);
    }
  });

  test("is for nodes of this cluster alone", async () => {
    const { make, publish } = await setup();
    const volumeId = await make();
    for (const nodeId of [csiNodeId("cluster-b", "node-a"), "node-a", `${NODE_A}/..`])
      expect(await codeOf(publish(volumeId, nodeId))).toBe("NotFound");
  });

  test("read-only is another thing than to write", async () => {
    const { make, publish } = await setup();
    const volumeId = await make();
    await publish(volumeId, NODE_A, { readonly: true });
    expect(await codeOf(publish(volumeId, NODE_A))).toBe("AlreadyExists");
  });

  test("is taken back from all nodes by who names none, and of what is gone", async () => {
    const { make, publish, controller } = await setup();
    const volumeId = await make();
    await publish(volumeId, NODE_A);
    await controller.controllerUnpublishVolume({ volumeId });
    await controller.deleteVolume({ volumeId });
    await controller.deleteVolume({ volumeId });
    await controller.controllerUnpublishVolume({ volumeId, nodeId: NODE_A });
  });
});

describe("a snapshot", () => {
  const content = (snapshotId: string) =>
    ({ type: { case: "snapshot", value: { snapshotId } } }) as CreateVolumeRequest["volumeContentSource"];

  test("is the same one for a create that is repeated, also when its source has grown, and another's is refused", async () => {
    const { controller, make } = await setup();
    const source = await make();
    const other = await make("pvc-2");
    const asked = { name: "snapshot-1", sourceVolumeId: source };
    const first = (await controller.createSnapshot(asked)).snapshot!;
    expect(first).toMatchObject({ sourceVolumeId: source, readyToUse: true, sizeBytes: BigInt(GIB) });
    await controller.controllerExpandVolume({ volumeId: source, capacityRange: { requiredBytes: BigInt(2 * GIB) } });
    expect((await controller.createSnapshot(asked)).snapshot).toEqual(first);
    await expect(controller.createSnapshot({ ...asked, sourceVolumeId: other })).rejects.toMatchObject({
      code: Code.AlreadyExists,
    });
  });

  test("is no volume, and is listed as what it is", async () => {
    const { controller, make } = await setup();
    const source = await make();
    const { snapshotId } = (await controller.createSnapshot({ name: "s", sourceVolumeId: source })).snapshot!;
    expect((await controller.listVolumes({})).entries.map(({ volume }) => volume!.volumeId)).toEqual([source]);
    const listed = await controller.listSnapshots({ sourceVolumeId: source });
    expect(listed.entries.map(({ snapshot }) => snapshot!.snapshotId)).toEqual([snapshotId]);
    expect((await controller.listSnapshots({ sourceVolumeId: "another" })).entries).toEqual([]);
    await controller.deleteVolume({ volumeId: snapshotId });
    await expect(
      controller.controllerPublishVolume({ volumeId: snapshotId, nodeId: NODE_A, volumeCapability: mounted() }),
    ).rejects.toMatchObject({ code: Code.NotFound });
    expect((await controller.listSnapshots({})).entries).toHaveLength(1);
    await controller.deleteSnapshot({ snapshotId });
    expect((await controller.listSnapshots({})).entries).toEqual([]);
  });

  test("is what a volume begins with, also when its own source is gone; and what never was, is none", async () => {
    const { controller, make } = await setup();
    const source = await make();
    const { snapshotId } = (await controller.createSnapshot({ name: "s", sourceVolumeId: source })).snapshot!;
    await controller.deleteVolume({ volumeId: source });
    const restore = (id: string) =>
      controller.createVolume({ name: "back", volumeCapabilities: [mounted()], volumeContentSource: content(id) });
    expect((await restore(snapshotId)).volume).toMatchObject({ contentSource: content(snapshotId) });
    await expect(
      controller.createVolume({ name: "b2", volumeCapabilities: [mounted()], volumeContentSource: content("none") }),
    ).rejects.toMatchObject({ code: Code.NotFound });
  });
});

describe("a copy", () => {
  const content = (id: string) => ({ type: { case: "volume" as const, value: { volumeId: id } } });
  const range = (requiredBytes: number, limitBytes = 0) => ({
    capacityRange: { requiredBytes: BigInt(requiredBytes), limitBytes: BigInt(limitBytes) },
  });

  test("has the size of its source where less is asked for: the backend may have made that larger than its claim", async () => {
    const { memory, make } = await setup();
    const source = await make("pvc-1", range(2 * GIB));
    const copy = await make("pvc-2", { volumeContentSource: content(source), ...range(GIB) });
    expect(await memory.volumes.get(copy, { signal })).toMatchObject({ size_bytes: 2 * GIB });
  });

  test("is refused where it may not be as large as its source", async () => {
    const { make } = await setup();
    const source = await make("pvc-1", range(2 * GIB));
    expect(await codeOf(make("pvc-2", { volumeContentSource: content(source), ...range(GIB, GIB) }))).toBe(
      "OutOfRange",
    );
  });

  test("is found when the answer was lost and its source is gone since, and is no larger for being asked for", async () => {
    const { controller, make } = await setup();
    const source = await make("pvc-1", range(2 * GIB));
    const again = (bytes: number) => make("pvc-2", { volumeContentSource: content(source), ...range(bytes) });
    const copy = await again(GIB);
    await controller.deleteVolume({ volumeId: source });
    expect(await again(GIB)).toBe(copy);
    expect(await codeOf(again(3 * GIB))).toBe("AlreadyExists");
  });
});

test("a list comes in pages, and strange tokens are refused", async () => {
  const { make, controller } = await setup();
  const ids = [await make("a"), await make("b"), await make("c")];
  const seen: (string | undefined)[] = [];
  let startingToken = "";
  do {
    const { entries, nextToken } = await controller.listVolumes({ maxEntries: 2, startingToken });
    seen.push(...entries.map(({ volume }) => volume?.volumeId));
    startingToken = nextToken;
  } while (startingToken !== "");
  expect(seen).toEqual(ids);
  expect(await codeOf(controller.listVolumes({ startingToken: "7" }))).toBe("Aborted");
});

test("the driver says who it is, and that it is not ready in front of a backend without volumes", async () => {
  const { identity } = await setup();
  expect(await identity.getPluginInfo({})).toMatchObject({ name: "volumes.vmlet.dev", vendorVersion: "1.2.3" });
  expect(await identity.probe({})).toMatchObject({ ready: true });
  const without = await setup({ capabilities: [] });
  expect(await codeOf(without.identity.probe({}))).toBe("FailedPrecondition");
});

test("a driver takes over the socket of one that was killed, and of none that lives", async () => {
  const { open, close, socket } = await setup();
  await expect(open("cluster-a", socket)).rejects.toThrow(/another driver listens/);
  await close();
  await open("cluster-a", socket);
});

function zone(name: string) {
  return { segments: { "topology.volumes.vmlet.dev/zone": name } };
}
