/** Volumes that CSI drivers mount for machines, from the driver to what a container sees; the drivers do what the test says. */
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { Code, ConnectError } from "@connectrpc/connect";
import { describe, expect, onTestFinished, test } from "vitest";
import { volumeSource } from "../../../providers/local/bundle/host-volumes.ts";
import { capabilitiesOf } from "../../../providers/local/capabilities.ts";
import {
  type NodeGetVolumeStatsResponse,
  NodeServiceCapability_RPC_Type as Rpc,
  VolumeCapability_AccessMode_Mode as Mode,
} from "../../../src/csi/api.gen.js";
import { LABEL_UID } from "../../../src/provider/owner.ts";
import { specIdentity } from "../../../src/provider/fingerprint.ts";
import type { MachineSpec, Volume } from "../../../src/provider/machine.ts";
import { DRIVER, worldWith } from "./fake-csi.ts";
import type { World } from "./world.ts";

const csi = (more: Partial<Extract<Volume, { type: "csi" }>> = {}): Volume => ({
  name: "data",
  type: "csi",
  driver: DRIVER,
  ...more,
});

const mounting = (volumes: Volume[] = [csi()], more: Partial<MachineSpec> = {}): Partial<MachineSpec> => ({
  labels: { [LABEL_UID]: "pod-uid" },
  volumes,
  containers: [{ name: "a", image: "i", mounts: [{ volume: "data", path: "/data" }] }],
  ...more,
});

const AT = "pods/pod-uid/volumes/kubernetes.io~csi/data/mount";
const supervisor = (world: World, id = "m1") =>
  JSON.parse(readFileSync(join(world.stateDir, "machines", id, "state.json"), "utf8")) as { published?: object };

describe("a machine with a volume of a CSI driver", () => {
  test("has it mounted before anything of it is made, where a kubelet would have it, and taken back at its end", async () => {
    const { world, driver, root } = await worldWith(DRIVER);
    await world.create(mounting());
    expect(driver.asked).toEqual(["publish data"]);
    expect(world.journal).toContain("start a");
    const target = join(root(), AT);
    expect(driver.requests[0]).toMatchObject({
      targetPath: target,
      volumeId: expect.stringMatching(/^csi-[0-9a-f]{64}$/),
    });
    expect(JSON.parse(readFileSync(join(dirname(target), "vol_data.json"), "utf8"))).toMatchObject({
      driverName: DRIVER,
      volumeLifecycleMode: "Ephemeral",
      vmletMachine: "m1",
    });
    await world.stop(0);
    expect(driver.asked).toEqual(["publish data", "unpublish data"]);
    expect(await world.machine()).toMatchObject({ state: "stopped" });
    expect([readdirSync(join(root(), "pods")), supervisor(world).published]).toEqual([[], undefined]);
  });

  test("tells the driver all that it is to know, and the group where it can give files to one", async () => {
    const { world, driver } = await worldWith(DRIVER);
    driver.can = new Set([Rpc.VOLUME_MOUNT_GROUP, Rpc.SINGLE_NODE_MULTI_WRITER]);
    const attributes = { attributes: { a: "1" }, secret_attributes: { t: "2" }, secrets: { s: "3" } };
    const security = { fs_group: 2000 };
    await world.create(
      mounting([csi({ ...attributes, fs_type: "ext4", read_only: true, apply_group: true })], { security }),
    );
    expect(driver.requests[0]).toMatchObject({
      readonly: true,
      secrets: { s: "3" },
      volumeContext: { a: "1", t: "2" },
      volumeCapability: {
        accessType: { case: "mount", value: { fsType: "ext4", volumeMountGroup: "2000" } },
        accessMode: { mode: Mode.SINGLE_NODE_MULTI_WRITER },
      },
    });
  });

  test("waits while the driver is away, and nobody is asked to take back what nobody mounted", async () => {
    const { world, driver, register } = await worldWith();
    await world.create(mounting());
    const told = `MountVolume.SetUp failed for volume "data" : driver name ${DRIVER} not found in the list of registered CSI drivers`;
    expect([(await world.machine()).message, world.journal]).toEqual([told, []]);
    expect(await world.notices()).toContain(`FailedMount: ${told}`);
    await register();
    await world.advance(30_000);
    expect(world.journal).toContain("start a");
    const other = await worldWith();
    await other.world.create(mounting());
    await other.world.stop(0);
    expect([(await other.world.machine()).state, other.driver.asked]).toEqual(["stopped", []]);
    expect(driver.asked).toEqual(["publish data"]);
  });

  test("waits while the driver fails, is told its words, and tries again later and later", async () => {
    const { world, driver } = await worldWith(DRIVER);
    driver.publishError = new ConnectError("no such share", Code.NotFound);
    await world.create(mounting());
    expect((await world.machine()).message).toBe(
      'MountVolume.SetUp failed for volume "data" : rpc error: code = NotFound desc = no such share',
    );
    await world.advance(10_000);
    const tries = driver.asked.length;
    expect(tries).toBeLessThan(6);
    driver.publishError = undefined;
    await world.advance(30_000);
    expect(world.journal).toContain("start a");
    expect(driver.asked).toHaveLength(tries + 1);
  });

  test("does not run with an empty folder where the driver's mounts do not come out of its container", async () => {
    const { world, driver } = await worldWith(DRIVER);
    driver.lies = true;
    await world.create(mounting());
    expect((await world.machine()).message).toContain("mountPropagation: Bidirectional");
    expect(world.journal).toEqual([]);
    await world.stop(0);
    expect(driver.asked.at(-1)).toBe("unpublish data");
  });

  test("of a place that another machine has waits for that one's end", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(mounting());
    await world.create(mounting(), "m2");
    expect((await world.machine("m2")).message).toContain(`another machine has ${AT}`);
    await world.stop(0);
    await world.advance(30_000);
    expect((await world.machine("m2")).message).toBeUndefined();
    expect(driver.asked).toEqual(["publish data", "unpublish data", "publish data"]);
  });

  test("ends at once while its driver hangs, which is asked to take back only after it has answered", async () => {
    const { world, driver } = await worldWith(DRIVER);
    const answer = Promise.withResolvers<void>();
    driver.publishing = answer.promise;
    await world.create(mounting());
    await world.stop(0);
    expect(driver.asked).toEqual(["publish data"]);
    answer.resolve();
    await world.advance(0);
    expect(driver.asked).toEqual(["publish data", "unpublish data"]);
    expect((await world.machine()).state).toBe("stopped");
  });

  test("is over after two minutes though its driver takes nothing back, which is asked on", async () => {
    const { world, driver, root } = await worldWith(DRIVER);
    await world.create(mounting());
    driver.unpublishError = new ConnectError("busy", Code.Internal);
    await world.stop(0);
    expect(await world.machine()).toMatchObject({
      state: "stopping",
      message: 'UnmountVolume.TearDown failed for volume "data" : rpc error: code = Internal desc = busy',
    });
    await world.advance(121_000);
    expect((await world.machine()).state).toBe("stopped");
    expect(existsSync(join(root(), AT))).toBe(true);
    driver.unpublishError = undefined;
    await world.advance(31_000);
    expect(readdirSync(join(root(), "pods"))).toEqual([]);
  });

  test("is over though its driver hangs without end when it is to take back", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(mounting());
    driver.unpublishing = new Promise(() => {});
    await world.stop(0);
    await world.advance(121_000);
    expect((await world.machine()).state).toBe("stopped");
  });

  test("leaves nothing mounted when the backend is killed before the driver has answered", async () => {
    const { world, driver, root, register } = await worldWith(DRIVER);
    driver.publishing = new Promise(() => {});
    await world.create(mounting());
    expect(supervisor(world).published).toMatchObject({ data: { driver: DRIVER, path: AT, root: root() } });
    driver.publishing = Promise.resolve();
    await world.restart();
    await register();
    await world.advance(30_000);
    expect(world.journal).toContain("start a");
    await world.stop(0);
    expect([driver.asked, readdirSync(join(root(), "pods"))]).toEqual([
      ["publish data", "publish data", "unpublish data"],
      [],
    ]);
  });

  test("keeps it over a restart of the backend, and has it taken back by the next one", async () => {
    const { world, driver, register } = await worldWith(DRIVER);
    await world.create(mounting());
    await world.restart();
    expect(driver.asked).toEqual(["publish data"]);
    await register();
    await world.stop(0);
    expect(driver.asked).toEqual(["publish data", "unpublish data"]);
  });

  test("whose record is lost has what was mounted for it taken back", async () => {
    const { world, driver, register, root } = await worldWith(DRIVER);
    await world.create(mounting());
    await world.restart(() => {
      rmSync(join(world.stateDir, "machines"), { recursive: true, force: true });
    });
    await register();
    await world.advance(31_000);
    expect([driver.asked.at(-1), readdirSync(join(root(), "pods"))]).toEqual(["unpublish data", []]);
  });

  test("is the same machine when it is asked for again with newer tokens", () => {
    const spec = (token: string, a = "1"): MachineSpec => ({
      labels: {},
      restart_policy: "never",
      containers: [],
      volumes: [csi({ attributes: { a }, secret_attributes: { token }, secrets: { token } })],
    });
    expect(specIdentity(spec("x"))).toBe(specIdentity(spec("y")));
    expect(specIdentity(spec("x"))).not.toBe(specIdentity(spec("x", "2")));
  });
});

test("what a kubelet of this host has left in the folder is left alone", async () => {
  const { world, driver, register, root } = await worldWith();
  const folder = join(root(), "pods/old/volumes/kubernetes.io~csi/x");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "vol_data.json"), JSON.stringify({ driverName: DRIVER, volumeHandle: "v" }));
  await register();
  await world.advance(31_000);
  expect(driver.asked).toEqual([]);
});

test("volumes of CSI drivers are offered where there are plugins and the engine can give machines their mounts", () => {
  const has = (hasCsi: boolean, plugins?: object) =>
    capabilitiesOf({ engine: { capabilities: [], hasCsi }, plugins }, { tellsCapacity: false }).includes("volumes.csi");
  expect([has(true, {}), has(false, {}), has(true)]).toEqual([true, false, false]);
});

test("an inline volume is measured by the id that its driver was given, and one whose driver cannot is not", async () => {
  const { world, driver } = await worldWith(DRIVER);
  driver.usage = [{ unit: 1, used: 5n, total: 10n, available: 5n }] as NodeGetVolumeStatsResponse["usage"];
  const look = async () => (await world.provider.getStats({ labels: {}, signal: world.signal }))[0]?.volumes ?? [];
  const volumes = async () => {
    await world.advance(60_000);
    await look();
    await world.advance(0);
    return await look();
  };
  await world.create(mounting());
  expect([await volumes(), driver.measured]).toEqual([[], []]);
  driver.can = new Set([Rpc.GET_VOLUME_STATS]);
  expect(await volumes()).toEqual([{ name: "data", used_bytes: 5, capacity_bytes: 10, available_bytes: 5 }]);
  expect(driver.asked.at(-1)).toBe(`stats ${driver.requests[0]?.volumeId}`);
  expect(driver.measured[0]).toBe(driver.requests[0]?.targetPath);
});

test.each([
  [{}, {}, true],
  [{ read_only: true }, {}, false],
  [{}, { read_only: true }, false],
])("a container mounts what the driver has mounted: volume %j, mount %j", async (volume, mount, writable) => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-csi-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const spec = { labels: {}, restart_policy: "never" as const, containers: [], volumes: [csi(volume)] };
  const home = { dir, secretDir: dir, spec, csiPath: () => dir };
  const at = { volume: "data", path: "/data", ...mount };
  expect(await volumeSource(home, "a", at, {})).toEqual({ source: dir, writable, propagation: undefined });
  const unmounted = volumeSource({ ...home, csiPath: () => undefined }, "a", at, {});
  await expect(unmounted).rejects.toThrow(`volume data: CSI driver ${DRIVER} has not mounted it`);
});
