/** `vmlet csi` in front of several backends, each of a zone of its own: which of them is asked, and what becomes of the others' failures. */
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { MemoryProvider, type MemoryProviderOptions } from "../../../providers/memory/index.ts";
import {
  CreateSnapshotRequestSchema,
  CreateVolumeRequestSchema,
  ControllerPublishVolumeRequestSchema,
  ControllerUnpublishVolumeRequestSchema,
  DeleteVolumeRequestSchema,
  GetCapacityRequestSchema,
  ListSnapshotsRequestSchema,
  ListVolumesRequestSchema,
  VolumeCapability_AccessMode_Mode as Mode,
} from "../../../src/csi/api.gen.js";
import { Backends } from "../../../src/csi/backends.ts";
import { ControllerService } from "../../../src/csi/controller.ts";
import { csiError } from "../../../src/csi/errors.ts";
import { csiNodeId, ZONE_KEY } from "../../../src/provider/csi-names.ts";

const CLUSTER = "cluster-a";
const NODE = csiNodeId(CLUSTER, "node-a");
const { signal } = new AbortController();
const call = { signal };
const mounted = { accessMode: { mode: Mode.SINGLE_NODE_WRITER }, accessType: { case: "mount" as const, value: {} } };
const segments = (zone: string) => ({ segments: { [ZONE_KEY]: zone } });

class Host extends MemoryProvider {
  readonly zone: string | undefined;
  readonly asked: string[];
  readonly state: { isDown: boolean };

  constructor(zone: string | undefined, more: MemoryProviderOptions = {}) {
    const asked: string[] = [];
    const state = { isDown: false };
    super({
      ...more,
      zone,
      faults: (operation) => {
        asked.push(operation);
        return state.isDown ? { kind: "fail", code: "unavailable" } : undefined;
      },
    });
    this.zone = zone;
    this.asked = asked;
    this.state = state;
  }

  async ids(): Promise<string[]> {
    return (await this.volumes.list({ signal, labels: {} })).items.map(({ id }) => id);
  }
}

function setup(hosts: readonly [Host, ...Host[]] = [new Host("one"), new Host("two")]) {
  const open = () => new ControllerService({ backends: new Backends(hosts), clusterId: CLUSTER });
  const controller = open();
  const make = async (name: string, zones: string[], more: object = {}, by = controller) => {
    const accessibilityRequirements = { requisite: zones.map(segments), preferred: zones.map(segments) };
    const request = create(CreateVolumeRequestSchema, {
      ...{ name, volumeCapabilities: [mounted], accessibilityRequirements, ...more },
    });
    return (await by.createVolume(request, call)).volume;
  };
  const publish = (volumeId: string) =>
    controller.controllerPublishVolume(
      create(ControllerPublishVolumeRequestSchema, { volumeId, nodeId: NODE, volumeCapability: mounted }),
      call,
    );
  const remove = (volumeId: string) => controller.deleteVolume(create(DeleteVolumeRequestSchema, { volumeId }), call);
  const snapshot = async (sourceVolumeId: string) => {
    const request = create(CreateSnapshotRequestSchema, { name: "snap", sourceVolumeId });
    return (await controller.createSnapshot(request, call)).snapshot;
  };
  return { hosts, open, controller, make, publish, remove, snapshot };
}

const codeOf = (work: Promise<unknown>) =>
  work.then(
    () => "ok",
    (thrown: unknown) => Code[csiError(thrown).code],
  );

describe("a new volume", () => {
  test("is made in the first zone that is preferred, and says so", async () => {
    const { hosts, make } = setup();
    const volume = await make("pvc-1", ["two", "one"]);
    expect(volume.accessibleTopology).toEqual([segments("two")]);
    expect(await hosts[0].ids()).toEqual([]);
    expect(await hosts[1]!.ids()).toEqual([volume.volumeId]);
  });

  test("has a zone that no backend is, and is refused with the zone's name", async () => {
    const { make } = setup();
    await expect(make("pvc-1", ["three"])).rejects.toThrow("no backend is in zone three");
  });

  test("is refused where nothing says in which zone it is to be", async () => {
    const { make } = setup();
    expect(await codeOf(make("pvc-1", []))).toBe("ResourceExhausted");
  });

  test("goes to no other zone when the backend of the first does not answer: it may have made it", async () => {
    const { hosts, make } = setup();
    await make("pvc-0", ["two"]);
    hosts[1]!.state.isDown = true;
    expect(await codeOf(make("pvc-1", ["two", "one"]))).toBe("Unavailable");
    expect(await hosts[0].ids()).toEqual([]);
  });

  test("is made though another zone's backend is down, also by a driver that has just started", async () => {
    const { hosts, make, open } = setup();
    hosts[0].state.isDown = true;
    expect((await make("pvc-1", ["two"], {}, open())).accessibleTopology).toEqual([segments("two")]);
  });

  test("of a zone that may be that of a backend which does not answer is asked for again", async () => {
    const { hosts, make, open } = setup();
    hosts[0].state.isDown = true;
    expect(await codeOf(make("pvc-1", ["one"], {}, open()))).toBe("Unavailable");
  });

  test("has the same id in another copy of the driver, and another in another zone", async () => {
    const { make, open } = setup();
    const { volumeId } = await make("pvc-1", ["one"]);
    expect((await make("pvc-1", ["one"], {}, open())).volumeId).toBe(volumeId);
    expect((await make("pvc-1", ["two"])).volumeId).not.toBe(volumeId);
  });

  test("is a copy in the zone of its source, and nowhere else", async () => {
    const { hosts, make } = setup();
    const { volumeId } = await make("pvc-1", ["two"]);
    const volumeContentSource = { type: { case: "volume" as const, value: { volumeId } } };
    const copy = await make("pvc-2", ["one", "two"], { volumeContentSource });
    expect(await hosts[1]!.ids()).toContain(copy.volumeId);
    expect(await codeOf(make("pvc-3", ["one"], { volumeContentSource }))).toBe("ResourceExhausted");
  });

  test("keeps its id when its name is long, and fits what backends take", async () => {
    const { make } = setup();
    const { volumeId } = await make(`pvc-${"x".repeat(200)}`, ["one"]);
    expect(volumeId.length).toBeLessThan(128);
    expect((await make(`pvc-${"x".repeat(200)}`, ["one"])).volumeId).toBe(volumeId);
  });
});

describe("a volume of several backends", () => {
  test("is looked for at its own backend alone, whether the others answer or not", async () => {
    const { hosts, make, publish, remove } = setup();
    const { volumeId } = await make("pvc-1", ["two"]);
    hosts[0].state.isDown = true;
    hosts[0].asked.length = 0;
    await publish(volumeId);
    expect((await hosts[1]!.volumes.get(volumeId, { signal })).reservations).toMatchObject([{ name: NODE }]);
    await setup(hosts).controller.controllerUnpublishVolume(
      create(ControllerUnpublishVolumeRequestSchema, { volumeId, nodeId: NODE }),
      call,
    );
    await remove(volumeId);
    expect(await hosts[1]!.ids()).toEqual([]);
    expect(hosts[0].asked.filter((each) => each !== "getInfo")).toEqual([]);
  });

  test("is not gone while its backend does not answer", async () => {
    const { hosts, make, remove, publish } = setup();
    const { volumeId } = await make("pvc-1", ["two"]);
    hosts[1]!.state.isDown = true;
    expect(await codeOf(remove(volumeId))).toBe("Unavailable");
    expect(await codeOf(publish(volumeId))).toBe("Unavailable");
  });

  test("is not gone when its backend was taken out of the configuration", async () => {
    const { make, hosts } = setup();
    const { volumeId } = await make("pvc-1", ["two"]);
    for (const left of [setup([hosts[0]]), setup([hosts[0], new Host("three")])])
      expect(await codeOf(left.remove(volumeId))).toBe("Unavailable");
  });

  test("that was made while there was one backend is found, and is not gone while one does not answer", async () => {
    const [first, second] = [new Host("one"), new Host("two")];
    const { volumeId } = await setup([first]).make("pvc-1", ["one"]);
    const { publish, remove } = setup([second, first]);
    await publish(volumeId);
    first.state.isDown = true;
    expect(await codeOf(remove(volumeId))).toBe("Unavailable");
    expect(await codeOf(remove(`${volumeId}-of-nobody`))).toBe("Unavailable");
    first.state.isDown = false;
    expect(await codeOf(remove(`${volumeId}-of-nobody`))).toBe("ok");
  });

  test("has its snapshots where it is", async () => {
    const { hosts, make, snapshot, controller } = setup();
    const { volumeId } = await make("pvc-1", ["two"]);
    hosts[0].state.isDown = true;
    const { snapshotId } = await snapshot(volumeId);
    expect(await hosts[1]!.ids()).toContain(snapshotId);
    hosts[0].state.isDown = false;
    const { entries } = await controller.listSnapshots(create(ListSnapshotsRequestSchema, {}), call);
    expect(entries.map((each) => each.snapshot.snapshotId)).toEqual([snapshotId]);
  });
});

describe("what is asked of all backends", () => {
  test("is the list of all volumes, which is not told in part", async () => {
    const { hosts, make, controller } = setup();
    const made = [await make("pvc-1", ["one"]), await make("pvc-2", ["two"])].map(({ volumeId }) => volumeId);
    const list = () => controller.listVolumes(create(ListVolumesRequestSchema, {}), call);
    expect((await list()).entries.map(({ volume }) => volume.volumeId).toSorted()).toEqual(made.toSorted());
    hosts[1]!.state.isDown = true;
    expect(await codeOf(list())).toBe("Unavailable");
  });

  test("is the room of one zone, and none of places that are nowhere", async () => {
    const { make, controller } = setup();
    await make("pvc-1", ["two"], { capacityRange: { requiredBytes: 2n ** 30n } });
    const roomOf = async (zone?: string) =>
      (
        await controller.getCapacity(
          create(GetCapacityRequestSchema, zone === undefined ? {} : { accessibleTopology: segments(zone) }),
          call,
        )
      ).availableCapacity;
    expect((await roomOf("one")) - (await roomOf("two"))).toBe(2n ** 30n);
    expect(await roomOf("three")).toBe(0n);
    expect(await roomOf()).toBe(0n);
  });
});

describe("several backends", () => {
  const notReady = (...hosts: [Host, ...Host[]]) => new Backends(hosts).whyNotReady(signal);

  test("are ready while one of them answers", async () => {
    const [up, down] = [new Host("one"), new Host("two")];
    down.state.isDown = true;
    expect(await notReady(down, up)).toBeUndefined();
    up.state.isDown = true;
    await expect(notReady(down, up)).rejects.toMatchObject({ code: "unavailable" });
  });

  test("of which one has no zone are not ready, and say what to do", async () => {
    const hosts = [new Host("one"), new Host(undefined)] as const;
    const backends = new Backends(hosts);
    await backends.capabilities(signal);
    expect(await backends.whyNotReady(signal)).toMatch(/has no zone: .*configuration/);
  });

  test("that say the same zone are not ready, and get no volume: one may be lying", async () => {
    const hosts: [Host, Host] = [new Host("one"), new Host("one")];
    expect(await new Backends(hosts).whyNotReady(signal)).toMatch(/two backends say that they are zone one/);
    const { controller, make } = setup(hosts);
    await controller.listVolumes(create(ListVolumesRequestSchema, {}), call);
    await controller.controllerGetCapabilities({}, call);
    expect(await codeOf(make("pvc-1", ["one"]))).toBe("Unavailable");
  });
});
