/** Volumes of CSI drivers that outlive machines: staged once for a host, mounted for each machine, and undone in the end. */
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { dirname, join } from "node:path";
import { Code, ConnectError } from "@connectrpc/connect";
import { beforeEach, describe, expect, test } from "vitest";
import { judgeUsage } from "../../../providers/local/plugins/csi-stats.ts";
import {
  type NodeGetVolumeStatsResponse,
  NodeServiceCapability_RPC_Type as Rpc,
  VolumeCapability_AccessMode_Mode as Mode,
} from "../../../src/csi/api.gen.js";
import { specIdentity } from "../../../src/provider/fingerprint.ts";
import type { MachineSpec, Volume } from "../../../src/provider/machine.ts";
import { LABEL_NODE, LABEL_UID } from "../../../src/provider/owner.ts";
import { DRIVER, type FakeDriver, worldWith } from "./fake-csi.ts";
import type { World } from "./world.ts";

type CsiVolume = Extract<Volume, { type: "csi" }>;
type Persistent = NonNullable<CsiVolume["persistent"]>;

const { signal } = new AbortController();
const STAGES = new Set([Rpc.STAGE_UNSTAGE_VOLUME]);
const HASH = createHash("sha256").update("disk-1").digest("hex");
const STAGING = `plugins/kubernetes.io/csi/${DRIVER}/${HASH}/globalmount`;

const disk = (persistent: Partial<Persistent> = {}, more: Partial<CsiVolume> = {}): Volume => ({
  name: "data",
  type: "csi",
  driver: DRIVER,
  ...more,
  persistent: { volume: "disk-1", pv: "pv-1", access_mode: "read_write_once", ...persistent },
});

const mounting = (uid = "u1", volumes: Volume[] = [disk()], more: Partial<MachineSpec> = {}): Partial<MachineSpec> => ({
  labels: { [LABEL_UID]: uid },
  volumes,
  containers: [{ name: "a", image: "i", mounts: [{ volume: "data", path: "/data" }] }],
  ...more,
});

describe("a machine with a volume of a CSI driver that outlives it", () => {
  let world: World;
  let driver: FakeDriver;
  let root: () => string;
  let register: (name?: string) => Promise<() => void>;

  beforeEach(async () => {
    ({ world, driver, root, register } = await worldWith(DRIVER));
    driver.can = STAGES;
  });

  const told = async (id = "m1") => (await world.machine(id)).csi_volumes;

  test("has it staged and mounted where a kubelet would have it, and undone before it is over", async () => {
    await world.create(mounting());
    expect(driver.asked).toEqual(["stage disk-1", "publish pv-1"]);
    expect(world.journal).toContain("start a");
    const target = join(root(), "pods/u1/volumes/kubernetes.io~csi/pv-1/mount");
    expect(driver.requests[0]).toMatchObject({
      ...{ volumeId: "disk-1", targetPath: target, stagingTargetPath: join(root(), STAGING) },
    });
    expect(JSON.parse(readFileSync(join(dirname(target), "vol_data.json"), "utf8"))).toMatchObject({
      ...{ driverName: DRIVER, volumeHandle: "disk-1", specVolID: "pv-1", volumeLifecycleMode: "Persistent" },
    });
    expect(await told()).toEqual([{ driver: DRIVER, volume: "disk-1" }]);
    await world.stop(0);
    expect(driver.asked.slice(2)).toEqual(["unpublish pv-1", "unstage disk-1"]);
    expect([(await world.machine()).state, await told()]).toEqual(["stopped", undefined]);
    expect([
      readdirSync(join(root(), "pods")),
      readdirSync(join(root(), `plugins/kubernetes.io/csi/${DRIVER}`)),
    ]).toEqual([[], []]);
  });

  test("tells the driver what each call is to know, and nothing more", async () => {
    driver.can = new Set([...STAGES, Rpc.VOLUME_MOUNT_GROUP, Rpc.SINGLE_NODE_MULTI_WRITER]);
    const persistent: Partial<Persistent> = {
      ...{ access_mode: "read_write_once_pod", mount_options: ["noatime"] },
      ...{ publish_context: { dev: "sdb" }, publish_attributes: { pod: "p" }, stage_secrets: { s: "1" } },
    };
    const more = { attributes: { a: "1" }, secret_attributes: { t: "2" }, secrets: { p: "3" }, fs_type: "xfs" };
    await world.create(mounting("u1", [disk(persistent, more)], { security: { fs_group: 2000 } }));
    const volumeCapability = {
      accessType: { case: "mount", value: { fsType: "xfs", mountFlags: ["noatime"], volumeMountGroup: "2000" } },
      accessMode: { mode: Mode.SINGLE_NODE_SINGLE_WRITER },
    };
    const publishContext = { dev: "sdb" };
    expect(driver.staged).toEqual([
      {
        ...{ volumeId: "disk-1", stagingTargetPath: join(root(), STAGING), publishContext, volumeCapability },
        ...{ volumeContext: { a: "1" }, secrets: { s: "1" } },
      },
    ]);
    expect(driver.requests[0]).toMatchObject({
      ...{ publishContext, volumeCapability, volumeContext: { a: "1", pod: "p", t: "2" }, secrets: { p: "3" } },
    });
  });

  test.each([
    ["read_write_once", Mode.SINGLE_NODE_WRITER],
    ["read_write_once_pod", Mode.SINGLE_NODE_WRITER],
    ["read_only_many", Mode.MULTI_NODE_READER_ONLY],
    ["read_write_many", Mode.MULTI_NODE_MULTI_WRITER],
  ] as const)("says %s as a kubelet does", async (access_mode, mode) => {
    await world.create(mounting("u1", [disk({ access_mode })]));
    expect(driver.requests[0]?.volumeCapability?.accessMode).toEqual({ mode });
  });

  test("of a driver that stages none has it mounted alone", async () => {
    driver.can = new Set();
    await world.create(mounting());
    await world.stop(0);
    expect(driver.asked).toEqual(["publish pv-1", "unpublish pv-1"]);
    expect(driver.requests[0]).toMatchObject({ stagingTargetPath: "" });
  });

  test("shares what is staged with the others of this host; the last of them has it unstaged", async () => {
    await world.create(mounting("u1"));
    await world.create(mounting("u2"), "m2");
    await world.stop(0);
    expect(driver.asked).toEqual(["stage disk-1", "publish pv-1", "publish pv-1", "unpublish pv-1"]);
    expect([(await world.machine()).state, await told("m2")]).toEqual([
      "stopped",
      [{ driver: DRIVER, volume: "disk-1" }],
    ]);
    await world.stop(0, "m2");
    expect(driver.asked.slice(4)).toEqual(["unpublish pv-1", "unstage disk-1"]);
  });

  test("that comes while the last one gives it back has it staged anew", async () => {
    await world.create(mounting("u1"));
    const answer = Promise.withResolvers<void>();
    driver.unstaging = answer.promise;
    await world.stop(0);
    expect(driver.asked.at(-1)).toBe("unstage disk-1");
    await world.create(mounting("u2"), "m2");
    answer.resolve();
    await world.advance(0);
    expect(driver.asked.slice(3)).toEqual(["unstage disk-1", "stage disk-1", "publish pv-1"]);
    expect((await world.machine()).state).toBe("stopped");
  });

  test("waits in a kubelet's words while it cannot be staged, which quote no secret", async () => {
    driver.stageError = new ConnectError("no login with hunter2-hunter2", Code.Unauthenticated);
    await world.create(mounting("u1", [disk({ stage_secrets: { password: "hunter2-hunter2" } })]));
    const words =
      'MountVolume.MountDevice failed for volume "pv-1" : rpc error: code = Unauthenticated desc = no login with [redacted]';
    expect([(await world.machine()).message, world.journal]).toEqual([words, []]);
    expect(await world.notices()).toContain(`FailedMount: ${words}`);
    driver.stageError = undefined;
    await world.advance(30_000);
    expect(world.journal).toContain("start a");
  });

  test("is not over before its driver has taken it back, however long that takes", async () => {
    await world.create(mounting());
    driver.unstageError = new ConnectError("busy", Code.Internal);
    await world.stop(0);
    await world.advance(3_600_000);
    expect(await world.machine()).toMatchObject({
      state: "stopping",
      message: 'UnmountDevice failed for volume "data" : rpc error: code = Internal desc = busy',
      csi_volumes: [{ driver: DRIVER, volume: "disk-1" }],
    });
    driver.unstageError = undefined;
    await world.advance(31_000);
    expect([(await world.machine()).state, await told()]).toEqual(["stopped", undefined]);
  });

  test("gives back its other volumes while one driver takes nothing back", async () => {
    await register("other.example.com");
    await world.create(
      mounting("u1", [disk(), disk({ volume: "disk-2", pv: "pv-2" }, { name: "b", driver: "other.example.com" })]),
    );
    driver.unpublishError = new ConnectError("busy", Code.Internal);
    await world.stop(0);
    expect(driver.asked).toContain("unpublish pv-2");
  });

  test("has a claim that it names twice mounted once", async () => {
    const twice = mounting("u1", [disk(), disk({}, { name: "again" })]);
    await world.create(twice);
    await world.stop(0);
    expect(driver.asked.filter((each) => each.startsWith("stage"))).toHaveLength(1);
    expect([driver.asked.at(-1), (await world.machine()).state]).toEqual(["unstage disk-1", "stopped"]);
  });

  test("gives two volumes no common place", async () => {
    await world.create(mounting("u1", [disk(), disk({ volume: "disk-2" }, { name: "b" })]));
    expect((await world.machine()).message).toContain("another volume of the machine has");
    expect(driver.asked).toEqual([]);
  });

  test("tells of it from the first, and until it is over, also when nobody was asked for it", async () => {
    await world.create(mounting("u1", [disk({}, { driver: "away.example.com" })]));
    expect(await told()).toEqual([{ driver: "away.example.com", volume: "disk-1" }]);
    await world.stop(0);
    expect([(await world.machine()).state, await told(), driver.asked]).toEqual(["stopped", undefined, []]);
  });

  test.each(["staging", "publishing"] as const)(
    "has it once, and undone in the end, when the backend is killed while the driver is %s",
    async (step) => {
      driver[step] = new Promise(() => {});
      await world.create(mounting());
      driver[step] = Promise.resolve();
      await world.restart();
      await register();
      await world.advance(30_000);
      expect(world.journal).toContain("start a");
      await world.stop(0);
      expect(driver.asked.slice(-2)).toEqual(["unpublish pv-1", "unstage disk-1"]);
      expect(readdirSync(join(root(), "pods"))).toEqual([]);
    },
  );

  test.each(["unpublishing", "unstaging"] as const)(
    "is not over, and gives it back, when the backend is killed while the driver is %s",
    async (step) => {
      await world.create(mounting());
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
    },
  );

  test("that runs keeps it over a restart of the backend, and others share it then", async () => {
    await world.create(mounting("u1"));
    await world.restart();
    await register();
    await world.create(mounting("u2"), "m2");
    await world.stop(0, "m2");
    expect(driver.asked).not.toContain("unstage disk-1");
    await world.stop(0);
    expect(driver.asked.at(-1)).toBe("unstage disk-1");
  });

  test("whose record is lost has it taken back, and unstaged after that", async () => {
    await world.create(mounting());
    await world.restart(() => rmSync(join(world.stateDir, "machines"), { recursive: true, force: true }));
    driver.unpublishError = new ConnectError("not yet", Code.Internal);
    await register();
    await world.advance(31_000);
    expect(driver.asked).not.toContain("unstage disk-1");
    driver.unpublishError = undefined;
    await world.advance(31_000);
    expect(driver.asked.slice(-2)).toEqual(["unpublish pv-1", "unstage disk-1"]);
    expect(existsSync(dirname(join(root(), STAGING)))).toBe(false);
  });

  test.each(["staging", "publishing", "unstaging"] as const)(
    "of which all else is lost while the driver is %s tells of it to its node until it is unstaged",
    async (step) => {
      const labels = { [LABEL_UID]: "u1", [LABEL_NODE]: "burst-0" };
      driver[step] = new Promise(() => {});
      await world.create(mounting("u1", [disk()], { labels }));
      if (step === "unstaging") await world.stop(0);
      driver[step] = Promise.resolve();
      await world.restart(() => {
        world.loseSpec();
        writeFileSync(join(world.stateDir, "machines/m1/state.json"), "torn");
        rmSync(join(world.stateDir, "machines/m1/state.next.json"), { force: true });
      });
      const { items } = await world.provider.getPods({ labels: { [LABEL_NODE]: "burst-0" }, signal });
      expect(items.map(({ id, csi_volumes }) => [id, csi_volumes])).toEqual([
        ["m1", [{ driver: DRIVER, volume: "disk-1" }]],
      ]);
      await register();
      await world.advance(31_000);
      expect(driver.asked.slice(-2)).toEqual(["unpublish pv-1", "unstage disk-1"]);
      expect(await world.machine()).toMatchObject({ state: "failed", reason: "MachineLost" });
      expect(await told()).toBeUndefined();
    },
  );

  test("has its file system grown before it has it, and tells of the size", async () => {
    driver.can = new Set([...STAGES, Rpc.EXPAND_VOLUME]);
    await world.create(mounting("u1", [disk({ size_bytes: 2048, expand_secrets: { k: "1" } })]));
    expect(driver.asked).toEqual(["stage disk-1", "publish pv-1", "expand disk-1"]);
    expect(driver.expanded[0]).toMatchObject({
      ...{ volumePath: driver.requests[0]!.targetPath, stagingTargetPath: join(root(), STAGING) },
      ...{ capacityRange: { requiredBytes: 2048n }, secrets: { k: "1" } },
    });
    expect(await told()).toEqual([{ driver: DRIVER, volume: "disk-1", size_bytes: 2048 }]);
  });

  test("waits while its file system does not grow, and has it as it is where that cannot be in use", async () => {
    driver.can = new Set([Rpc.EXPAND_VOLUME]);
    driver.expandError = new ConnectError("no room", Code.Internal);
    await world.create(mounting("u1", [disk({ size_bytes: 2048 })]));
    expect((await world.machine()).message).toBe(
      'MountVolume.Setup failed while expanding volume for volume "pv-1" : rpc error: code = Internal desc = no room',
    );
    driver.expandError = new ConnectError("in use", Code.FailedPrecondition);
    await world.advance(30_000);
    expect([world.journal.includes("start a"), await told()]).toEqual([true, [{ driver: DRIVER, volume: "disk-1" }]]);
  });

  test("tells how full it is, as its driver said last, and waits for no driver", async () => {
    driver.can = new Set([...STAGES, Rpc.GET_VOLUME_STATS]);
    driver.usage = [{ unit: 1, used: 5n, total: 10n, available: 5n }] as NodeGetVolumeStatsResponse["usage"];
    await world.create(mounting());
    const volumes = async () => {
      const [sample] = await world.provider.getStats({ labels: {}, signal: world.signal });
      return sample?.volumes ?? [];
    };
    expect(await volumes()).toEqual([]);
    await world.advance(0);
    for (let look = 0; look < 3; look++)
      expect(await volumes()).toEqual([{ name: "data", used_bytes: 5, capacity_bytes: 10, available_bytes: 5 }]);
    expect(driver.asked.filter((each) => each.startsWith("stats"))).toHaveLength(1);
  });

  test("is the same machine when what came of its being attached and its secrets are read again", () => {
    const spec = (persistent: Partial<Persistent>): MachineSpec => ({
      ...{ labels: {}, restart_policy: "never", containers: [], volumes: [disk(persistent)] },
    });
    const again = { publish_context: { a: "2" }, stage_secrets: { s: "2" }, expand_secrets: { s: "3" }, size_bytes: 1 };
    expect(specIdentity(spec(again))).toBe(specIdentity(spec({})));
    expect(specIdentity(spec({ volume: "disk-2" }))).not.toBe(specIdentity(spec({})));
  });
});

test("what a driver says of use that cannot be is not told", () => {
  const usage = (each: object[]) => ({ usage: each }) as unknown as NodeGetVolumeStatsResponse;
  expect(judgeUsage(usage([]))).toBeUndefined();
  expect(judgeUsage(usage([{ unit: 1, used: -1n, total: 2n, available: 3n }]))).toBeUndefined();
  expect(
    judgeUsage(
      usage([
        { unit: 1, used: 1n, total: 2n ** 60n, available: -3n },
        { unit: 2, used: 7n },
      ]),
    ),
  ).toEqual({
    ...{ used_bytes: 1, inodes_used: 7 },
  });
});
