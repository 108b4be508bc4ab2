/** Volumes of CSI drivers as block devices: published, looked at, held open while a machine has them, and undone. */
import { createHash } from "node:crypto";
import { mkdtempSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Code, ConnectError } from "@connectrpc/connect";
import { beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { blockNumbers } from "../../../providers/local/host/block-device.ts";
import { volumeDevices, volumeSource } from "../../../providers/local/bundle/host-volumes.ts";
import { capabilitiesOf } from "../../../providers/local/capabilities.ts";
import { validateSpec } from "../../../providers/local/machine/valid-spec.ts";
import { type NodeGetVolumeStatsResponse, NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import { specIdentity } from "../../../src/provider/fingerprint.ts";
import type { MachineSpec, Volume } from "../../../src/provider/machine.ts";
import { LABEL_NODE, LABEL_UID } from "../../../src/provider/owner.ts";
import { requiredCapabilities } from "../../../src/provider/requirements.ts";
import { DRIVER, type FakeDevices, type FakeDriver, worldWith } from "./fake-csi.ts";
import type { World } from "./world.ts";

type CsiVolume = Extract<Volume, { type: "csi" }>;
type Persistent = NonNullable<CsiVolume["persistent"]>;

const { signal } = new AbortController();
const STAGES = new Set([Rpc.STAGE_UNSTAGE_VOLUME]);
const DEVICES = "plugins/kubernetes.io/csi/volumeDevices";
const STAGED = createHash("sha256").update(`${DRIVER}^disk-1`).digest("hex");

const disk = (persistent: Partial<Persistent> = {}, more: Partial<CsiVolume> = {}): CsiVolume => ({
  name: "data",
  type: "csi",
  driver: DRIVER,
  ...more,
  persistent: { volume: "disk-1", pv: "pv-1", access_mode: "read_write_many", mode: "block", ...persistent },
});

const having = (
  uid = "u1",
  volumes: CsiVolume[] = [disk()],
  more: Partial<MachineSpec> = {},
): Partial<MachineSpec> => ({
  labels: { [LABEL_UID]: uid },
  volumes,
  containers: [
    {
      ...{ name: "a", image: "i" },
      ...(volumes[0]?.persistent?.mode === "block"
        ? { devices: [{ volume: "data", path: "/dev/xvda" }] }
        : { mounts: [{ volume: "data", path: "/data" }] }),
    },
  ],
  ...more,
});

describe("a machine with a volume of a CSI driver as a block device", () => {
  let world: World;
  let driver: FakeDriver;
  let devices: FakeDevices;
  let root: () => string;
  let register: (name?: string) => Promise<() => void>;

  beforeEach(async () => {
    ({ world, driver, blockDevices: devices, root, register } = await worldWith(DRIVER));
    driver.can = STAGES;
  });

  const told = async (id = "m1") => (await world.machine(id)).csi_volumes;
  const message = async (id = "m1") => (await world.machine(id)).message;
  const target = (pod = "u1", pv = "pv-1") => join(root(), DEVICES, "publish", pv, pod);
  const isClear = () => {
    expect([readdirSync(join(root(), "pods")), [...devices.held]]).toEqual([[], []]);
    for (const folder of ["publish", "staging"]) expect(readdirSync(join(root(), DEVICES, folder))).toEqual([]);
    expect(readdirSync(join(root(), DEVICES)).toSorted()).toEqual(["publish", "staging"]);
  };

  test("has it staged and published where a kubelet would have it, held open, and undone before it is over", async () => {
    await world.create(having());
    expect([driver.asked, devices.journal]).toEqual([["stage disk-1", "publish pv-1"], ["hold"]]);
    expect([world.journal.includes("start a"), [...devices.held]]).toEqual([true, [target()]]);
    const stagingTargetPath = join(root(), DEVICES, "staging", STAGED);
    const accessType = { case: "block", value: {} };
    expect(driver.staged[0]).toMatchObject({ stagingTargetPath, volumeCapability: { accessType } });
    expect(driver.requests[0]).toMatchObject({
      ...{ volumeId: "disk-1", targetPath: target(), stagingTargetPath, volumeCapability: { accessType } },
    });
    const note = join(root(), "pods/u1/volumeDevices/kubernetes.io~csi/pv-1/vol_data.json");
    expect(JSON.parse(readFileSync(note, "utf8"))).toMatchObject({ driverName: DRIVER, volumeHandle: "disk-1" });
    await world.stop(0);
    expect([driver.asked.slice(2), devices.journal]).toEqual([
      ["unpublish pv-1", "unstage disk-1"],
      ["hold", "let go"],
    ]);
    expect([(await world.machine()).state, await told()]).toEqual(["stopped", undefined]);
    isClear();
  });

  test("of a driver that stages none has it published alone", async () => {
    driver.can = new Set();
    await world.create(having());
    await world.stop(0);
    expect(driver.asked).toEqual(["publish pv-1", "unpublish pv-1"]);
    expect(driver.requests[0]).toMatchObject({ stagingTargetPath: "" });
  });

  test("is given no group, neither by its driver nor by the backend", async () => {
    driver.can = new Set([...STAGES, Rpc.VOLUME_MOUNT_GROUP]);
    await world.create(having("u1", [disk({}, { apply_group: true })], { security: { fs_group: 2000 } }));
    expect([world.journal.includes("start a"), driver.requests[0]?.volumeCapability?.accessType]).toEqual([
      true,
      { case: "block", value: {} },
    ]);
  });

  test("does not run with what is no block device, and says what is there", async () => {
    driver.lies = true;
    mkdirSync(target(), { recursive: true });
    await world.create(having());
    expect([world.journal, [...devices.held]]).toEqual([[], []]);
    expect(await message()).toBe(
      `MapVolume.MapPodDevice failed for volume "pv-1" : ${target()} is a folder, and no block device`,
    );
  });

  test("does not run with the device of another volume of this host", async () => {
    driver.numbers.set("disk-1", "7:1").set("disk-2", "7:1");
    await world.create(having("u1"));
    await world.create(having("u2", [disk({ volume: "disk-2", pv: "pv-2" })]), "m2");
    expect(await message("m2")).toBe(
      `MapVolume.MapPodDevice failed for volume "pv-2" : the driver has published device 7:1, which is volume disk-1 of the driver ${DRIVER} on this host`,
    );
    await world.stop(0);
    await world.advance(31_000);
    expect((await world.machine("m2")).state).toBe("running");
  });

  test("does not run while its device cannot be held open", async () => {
    devices.holdError = new Error("no loop device is free");
    await world.create(having());
    expect([await message(), world.journal]).toEqual([
      'MapVolume.MapBlockVolume failed for volume "pv-1" : no loop device is free',
      [],
    ]);
  });

  test("shares what is staged with the others of this host; the last of them has it unstaged", async () => {
    await world.create(having("u1"));
    await world.create(having("u2"), "m2");
    await world.stop(0);
    expect(driver.asked).toEqual(["stage disk-1", "publish pv-1", "publish pv-1", "unpublish pv-1"]);
    expect([...devices.held]).toEqual([target("u2")]);
    await world.stop(0, "m2");
    expect(driver.asked.slice(4)).toEqual(["unpublish pv-1", "unstage disk-1"]);
    isClear();
  });

  test.each(["block", "filesystem"] as const)(
    "that has it as %s keeps others from having it otherwise",
    async (mode) => {
      await world.create(having("u1", [disk({ mode })]));
      await world.create(having("u2", [disk({ mode: mode === "block" ? "filesystem" : "block", pv: "pv-2" })]), "m2");
      const [now, wanted] = mode === "block" ? ["block device", "file system"] : ["file system", "block device"];
      expect(await message("m2")).toContain(
        `volume disk-1 of the driver is in use as a ${now}, and would be a ${wanted} now`,
      );
      expect(driver.asked.filter((each) => each.startsWith("stage"))).toHaveLength(1);
      await world.stop(0);
      await world.advance(31_000);
      expect([(await world.machine("m2")).state, driver.asked.slice(-2)]).toEqual([
        "running",
        ["stage disk-1", "publish pv-2"],
      ]);
    },
  );

  test("waits for what its driver has left of the other mode, whose record is lost", async () => {
    await world.create(having("u1", [disk({ mode: "filesystem" })]));
    await world.restart(() => rmSync(join(world.stateDir, "machines"), { recursive: true, force: true }));
    driver.unstageError = new ConnectError("busy", Code.Internal);
    await register();
    await world.create(having("u2"), "m2");
    await world.advance(31_000);
    expect(await message("m2")).toContain("its driver is yet to take it back as a file system");
    driver.unstageError = undefined;
    await world.advance(62_000);
    expect([(await world.machine("m2")).state, driver.asked.slice(-3)]).toEqual([
      "running",
      ["unstage disk-1", "stage disk-1", "publish pv-1"],
    ]);
  });

  test.each(["staging", "publishing"] as const)(
    "has it once, and undone in the end, when the backend is killed while the driver is %s",
    async (step) => {
      driver[step] = new Promise(() => {});
      await world.create(having());
      driver[step] = Promise.resolve();
      await world.restart();
      await register();
      await world.advance(30_000);
      expect([world.journal.includes("start a"), [...devices.held]]).toEqual([true, [target()]]);
      await world.stop(0);
      expect(driver.asked.slice(-2)).toEqual(["unpublish pv-1", "unstage disk-1"]);
      isClear();
    },
  );

  test.each(["unpublishing", "unstaging"] as const)(
    "is not over, and gives it back, when the backend is killed while the driver is %s",
    async (step) => {
      await world.create(having());
      driver[step] = new Promise(() => {});
      await world.stop(0);
      driver[step] = Promise.resolve();
      await world.restart();
      expect([(await world.machine()).state, await told()]).toEqual([
        "stopping",
        [{ driver: DRIVER, volume: "disk-1" }],
      ]);
      await register();
      await world.advance(31_000);
      expect([(await world.machine()).state, driver.asked.at(-1)]).toEqual(["stopped", "unstage disk-1"]);
      isClear();
    },
  );

  test("is not over while a program has its device open, and says so", async () => {
    await world.create(having());
    devices.letGoError = new Error("it is in use");
    await world.stop(0);
    await world.advance(3_600_000);
    expect([driver.asked.includes("unpublish pv-1"), await world.machine()]).toEqual([
      false,
      expect.objectContaining({
        state: "stopping",
        message: 'UnmapVolume.UnmapBlockVolume failed for volume "data" : it is in use',
      }),
    ]);
    devices.letGoError = undefined;
    await world.advance(31_000);
    expect((await world.machine()).state).toBe("stopped");
  });

  test.each([
    ["unpublishError", "UnmapVolume.UnmapPodDevice"],
    ["unstageError", "UnmapDevice.TearDownDevice"],
  ] as const)("says in a kubelet's words what is not undone: %s", async (which, words) => {
    await world.create(having());
    driver[which] = new ConnectError("busy", Code.Internal);
    await world.stop(0);
    expect(await message()).toBe(`${words} failed for volume "data" : rpc error: code = Internal desc = busy`);
  });

  test("whose record is lost has it let go, taken back, and unstaged after that", async () => {
    await world.create(having());
    await world.restart(() => rmSync(join(world.stateDir, "machines"), { recursive: true, force: true }));
    await register();
    await world.advance(31_000);
    expect(driver.asked.slice(-2)).toEqual(["unpublish pv-1", "unstage disk-1"]);
    isClear();
  });

  test.each(["staging", "publishing", "unstaging"] as const)(
    "of which all else is lost while the driver is %s tells of it to its node until it is unstaged",
    async (step) => {
      const labels = { [LABEL_UID]: "u1", [LABEL_NODE]: "burst-0" };
      driver[step] = new Promise(() => {});
      await world.create(having("u1", [disk()], { labels }));
      if (step === "unstaging") await world.stop(0);
      driver[step] = Promise.resolve();
      await world.restart(() => {
        world.loseSpec();
        writeFileSync(join(world.stateDir, "machines/m1/state.json"), "torn");
        rmSync(join(world.stateDir, "machines/m1/state.next.json"), { force: true });
      });
      const { items } = await world.provider.getPods({ labels: { [LABEL_NODE]: "burst-0" }, signal });
      expect(items.map(({ csi_volumes }) => csi_volumes)).toEqual([[{ driver: DRIVER, volume: "disk-1" }]]);
      await register();
      await world.advance(31_000);
      expect([driver.asked.slice(-2), await told()]).toEqual([["unpublish pv-1", "unstage disk-1"], undefined]);
      isClear();
    },
  );

  test("tells how large it is, as its driver says of the device", async () => {
    driver.can = new Set([...STAGES, Rpc.GET_VOLUME_STATS]);
    driver.usage = [{ unit: 1, used: 0n, total: 4096n, available: 0n }] as NodeGetVolumeStatsResponse["usage"];
    await world.create(having());
    const volumes = async () => (await world.provider.getStats({ labels: {}, signal }))[0]?.volumes ?? [];
    await volumes();
    await world.advance(0);
    expect([await volumes(), driver.measured]).toEqual([
      [{ name: "data", used_bytes: 0, capacity_bytes: 4096, available_bytes: 0 }],
      [target()],
    ]);
  });

  test("leaves what is no empty file where its device was, and is not over before it is gone", async () => {
    await world.create(having());
    driver.unpublish = async ({ targetPath }) => {
      if (readdirSync(join(targetPath, "..")).length > 0 && readFileSync(targetPath, "utf8") === "")
        writeFileSync(targetPath, "somebody's");
      await Promise.resolve();
    };
    await world.stop(0);
    expect([await message(), readFileSync(target(), "utf8")]).toEqual([
      expect.stringContaining("is a file in which something is, and no device"),
      "somebody's",
    ]);
    rmSync(target());
    await world.advance(31_000);
    expect((await world.machine()).state).toBe("stopped");
  });
});

test("what is at a path itself is judged, and never where a link leads", () => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-block-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  writeFileSync(join(dir, "file"), "");
  symlinkSync("/dev/null", join(dir, "link"));
  const why = (name: string) => {
    try {
      return blockNumbers(join(dir, name));
    } catch (thrown) {
      return (thrown as Error).message.replaceAll(dir, "");
    }
  };
  expect([why("file"), why("link"), why("none"), why("file/x"), why(".")]).toEqual([
    "/file is a file, and no block device",
    "/link is a symbolic link, and no block device",
    "there is nothing at /none, where a block device should be",
    "there is nothing at /file/x, where a block device should be",
    " is a folder, and no block device",
  ]);
  expect(() => blockNumbers("/dev/null")).toThrow("/dev/null is a character device, and no block device");
});

test("is offered where the host's own volumes may be block devices, and CSI drivers are served", () => {
  const offers = (engine: object, plugins?: object, persistentVolumes = true) =>
    capabilitiesOf(
      { engine: { capabilities: ["volumes.persistent", "volumes.block"], ...engine }, plugins, persistentVolumes },
      { tellsCapacity: false },
    ).includes("volumes.csi_block");
  expect(offers({ hasCsi: true }, {})).toBe(true);
  expect([
    offers({ hasCsi: true }),
    offers({ hasCsi: false }, {}),
    offers({ hasCsi: true, capabilities: [] }, {}),
    offers({ hasCsi: true }, {}, false),
  ]).toEqual([false, false, false, false]);
});

describe("a specification with a block device of a CSI driver", () => {
  const spec = (container: object, volume: CsiVolume = disk()): MachineSpec => ({
    ...{ labels: {}, restart_policy: "never", volumes: [volume] },
    containers: [{ name: "a", image: "i", ...container }],
  });
  const mounts = { mounts: [{ volume: "data", path: "/data" }] };
  const devices = { devices: [{ volume: "data", path: "/dev/x" }] };

  test("names it as a device, and mounts it not", () => {
    expect(() => validateSpec(spec(devices))).not.toThrow();
    expect(() => validateSpec(spec(mounts))).toThrow(
      'container "a" mounts volume "data", which is a block device: name it in devices',
    );
    expect(() => validateSpec(spec(devices, disk({ mode: "filesystem" })))).toThrow(
      'container "a" has volume "data" as a block device, which is none',
    );
  });

  test("needs a capability of its own, and is another machine than one with a file system", () => {
    expect(requiredCapabilities(spec(devices)).map(({ capability }) => capability)).toEqual([
      ...["volumes.block", "volumes.csi_persistent", "volumes.csi_block"],
    ]);
    const identity = (mode: Persistent["mode"] | undefined) => {
      const { mode: _mode, ...persistent } = disk().persistent!;
      return specIdentity(spec({}, { ...disk(), persistent: { ...persistent, ...(mode && { mode }) } }));
    };
    expect([identity("filesystem"), identity("block") === identity(undefined)]).toEqual([identity(undefined), false]);
  });

  test("gives a container nothing that is no device", async () => {
    const home = { dir: "/", secretDir: "/", spec: spec(devices), csiPath: () => "/dev/null" };
    await expect(volumeDevices(home, home.spec.containers[0]!)).rejects.toThrow(
      `container a: volume "data" of CSI driver ${DRIVER}: /dev/null is a character device, and no block device`,
    );
    await expect(volumeSource(home, "a", mounts.mounts[0]!, {})).rejects.toThrow("volume data is a block device");
  });
});
