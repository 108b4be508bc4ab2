/**
 * Volumes of a CSI driver's node plugin with real containers on engine cri: what a container sees of its mount, and the
 * backend killed at each step.
 */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { mountsBelow, unmountBelow } from "../../../providers/local/host/mounts.ts";
import { loopOf } from "../../../providers/local/volumes/loop-devices.ts";
import { NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import { LABEL_UID } from "../../../src/provider/owner.ts";
import type { MachineSpec, Volume } from "../../../src/provider/machine.ts";
import type { MachineStats, ProviderCapacity } from "../../../src/provider/provider.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import { TestCsiDriver } from "../../support/csi-driver.ts";
import { engineOnThisHost, removeEngine } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../../support/registry.ts";
import { KillableBackend, PATIENCE } from "../backend/killable.ts";

const DRIVER = "csi.example.com";
const lacks = [(await engineOnThisHost("cri")).missing, missingForImages() ?? []].flat();
const { dir: _dir, ...network } = testNetwork("");

if (lacks.length > 0) leaveOut("volumes of CSI drivers on engine cri", lacks);
else
  describe("volumes of CSI drivers on engine cri", () => {
    let registry: TestRegistry;
    let image: string;
    let dir: string;
    let backend: KillableBackend;
    let driver: TestCsiDriver;
    const root = () => join(dir, "kubelet");
    const pods = () => join(root(), "pods");

    beforeAll(async () => {
      registry = await startRegistry();
      await registry.push("t/busybox:1", await busyboxImage());
      image = `${registry.host}/t/busybox:1`;
    });
    beforeEach(async () => {
      dir = mkdtempSync(join(tmpdir(), "vmlet-csi-"));
      const images = { insecureRegistries: [registry.host] };
      backend = new KillableBackend(dir, { engine: { type: "cri", network, images, plugins: { directory: root() } } });
      await backend.start();
      driver = newDriver();
      mkdirSync(join(root(), "plugins_registry"), { recursive: true });
      await driver.listen(join(root(), "plugins_registry/csi-reg.sock"));
      await isTold();
    });
    afterEach(async () => {
      driver.die();
      await backend.kill();
      await removeEngine("cri", { stateDir: backend.stateDir, network });
      await unmountBelow(dir);
      rmSync(dir, { recursive: true, force: true });
    });
    afterAll(() => registry.stop());

    const newDriver = () => Object.assign(new TestCsiDriver(), { disks: dir });
    const isTold = async () =>
      await vi.waitFor(async () => {
        const { csi_drivers } = (await backend.call("GET", "/v1/capacity")).body as ProviderCapacity;
        expect(csi_drivers).toMatchObject([{ name: DRIVER, node_id: "host-1" }]);
      }, PATIENCE);
    const mounting = (
      script: string,
      volume: Partial<Extract<Volume, { type: "csi" }>> = {},
      more: Partial<MachineSpec> = {},
    ): MachineSpec => ({
      labels: {},
      restart_policy: "always",
      volumes: [{ name: "data", type: "csi", driver: DRIVER, ...volume }],
      containers: [
        {
          name: "a",
          image,
          command: ["sh", "-c", `${script}; sleep 1000`],
          mounts: [{ volume: "data", path: "/data" }],
        },
      ],
      ...more,
    });
    const put = (spec: MachineSpec, id = "m1") =>
      backend.call("PUT", `/v1/machines/${id}`, { ...spec, labels: { [LABEL_UID]: `pod-${id}` } });
    const log = async (id = "m1") => (await backend.call("GET", `/v1/machines/${id}/containers/a/logs`)).text;
    const says = async (id: string, ...parts: string[]) =>
      await vi.waitFor(async () => {
        const said = await log(id);
        for (const part of parts) expect(said).toContain(part);
      }, PATIENCE);
    const stop = async (id: string) => {
      await backend.call("POST", `/v1/machines/${id}/stop`, { grace_seconds: 0 });
      await backend.reaches(id, "stopped");
    };
    const isClear = async () => expect([await mountsBelow(pods()), readdirSync(pods())]).toEqual([[], []]);

    test("a container sees what the driver has mounted, and nothing of it is left at the end", async () => {
      const script = "cat /data/told.json; echo mine > /data/mine; cat /data/mine; grep ' /data tmpfs ' /proc/mounts";
      await put(mounting(script, { attributes: { share: "s" }, secrets: { key: "k" } }), "m1");
      await says("m1", '"share":"s"', '"key":"k"', "mine\n", "/data tmpfs rw");
      const target = join(pods(), "pod-m1/volumes/kubernetes.io~csi/data/mount");
      expect([await mountsBelow(pods()), readFileSync(join(target, "mine"), "utf8")]).toEqual([[target], "mine\n"]);

      // Files are for the machine's group, by the backend where the driver cannot do so.
      const security = { fs_group: 2000 };
      await put(mounting("stat -c '%g %a' /data /data/told.json", { apply_group: true }, { security }), "m2");
      await says("m2", "F 2000 2775\n", "F 2000 664\n");
      driver.capabilities = [Rpc.VOLUME_MOUNT_GROUP];
      await put(mounting("touch /data/x", { read_only: true }, { security }), "m3");
      await says("m3", "Read-only file system");
      expect([...driver.published.values()].at(-1)).toMatchObject({
        readonly: true,
        volumeCapability: { accessType: { value: { volumeMountGroup: "2000" } } },
      });

      // One that lies about its mount is not believed.
      driver.isLying = true;
      await put(mounting("ls /data"), "m4");
      await vi.waitFor(async () => {
        const { message } = (await backend.call("GET", "/v1/machines/m4")).body as { message?: string };
        expect(message).toContain("mountPropagation: Bidirectional");
      }, PATIENCE);
      driver.isLying = false;
      await backend.reaches("m4", "running");

      for (const id of ["m1", "m2", "m3", "m4"]) await stop(id);
      await isClear();
    });

    test("the backend is killed while the driver mounts, and while it takes back: nothing is left, nothing runs without", async () => {
      driver.isHanging = true;
      await put(mounting("cat /data/told.json; echo"));
      await vi.waitFor(() => expect(driver.asked).toHaveLength(1), PATIENCE);
      await backend.kill();
      driver.isHanging = false;
      await backend.start();
      await backend.reaches("m1", "running");
      await says("m1", "volumeContext");

      driver.refuses.set("unpublish", "not yet");
      await backend.call("POST", "/v1/machines/m1/stop", { grace_seconds: 0 });
      await vi.waitFor(() => expect(driver.asked.some((each) => each.startsWith("unpublish"))).toBe(true), PATIENCE);
      await backend.kill();
      expect(await mountsBelow(pods())).toHaveLength(1);
      driver.refuses.clear();
      await backend.start();
      await backend.reaches("m1", "stopped");
      await isClear();
    });

    const outliving = {
      persistent: { volume: "disk-1", pv: "pv-1", access_mode: "read_write_many", publish_context: { dev: "sdb" } },
    } as const;
    const staged = () => mountsBelow(join(root(), "plugins"));

    test("a volume that outlives machines is staged once, seen by all that have it, measured, and undone by the last", async () => {
      driver.capabilities = [Rpc.STAGE_UNSTAGE_VOLUME, Rpc.GET_VOLUME_STATS];
      await put(mounting("cat /data/staged.json; echo from-m1 > /data/m1; echo; echo written", outliving), "m1");
      await says("m1", '"publishContext":{"dev":"sdb"}', "written");
      await put(mounting("cat /data/m1", outliving), "m2");
      await says("m2", "from-m1");
      expect([(await staged()).length, (await mountsBelow(pods())).length]).toEqual([1, 2]);
      await vi.waitFor(async () => {
        const { items } = (await backend.call("GET", "/v1/stats")).body as { items: MachineStats[] };
        const volumes = items.map((each) => each.volumes?.find(({ name }) => name === "data"));
        for (const each of volumes) expect(each).toMatchObject({ capacity_bytes: 1024 * 1024 });
      }, PATIENCE);
      await stop("m1");
      expect([(await staged()).length, (await mountsBelow(pods())).length]).toEqual([1, 1]);
      await stop("m2");
      await isClear();
      expect([await staged(), driver.asked.filter((each) => each === "stage disk-1")]).toEqual([[], ["stage disk-1"]]);
    });

    test("the backend is killed while a volume is staged and while it is unstaged: it is once there, and undone before its machine is over", async () => {
      driver.capabilities = [Rpc.STAGE_UNSTAGE_VOLUME];
      driver.isHanging = true;
      await put(mounting("cat /data/told.json; echo", outliving));
      await vi.waitFor(() => expect(driver.asked).toEqual(["stage disk-1"]), PATIENCE);
      await backend.kill();
      driver.isHanging = false;
      await backend.start();
      await backend.reaches("m1", "running");
      await says("m1", "volumeContext");
      expect([(await staged()).length, (await mountsBelow(pods())).length]).toEqual([1, 1]);

      driver.refuses.set("unstage", "not yet");
      await backend.call("POST", "/v1/machines/m1/stop", { grace_seconds: 0 });
      await vi.waitFor(() => expect(driver.asked.at(-1)).toBe("unstage disk-1"), PATIENCE);
      const told = async () => (await backend.call("GET", "/v1/machines/m1")).body;
      const inUse = { state: "stopping", csi_volumes: [{ driver: DRIVER, volume: "disk-1" }] };
      expect(await told()).toMatchObject(inUse);
      await backend.kill();
      await backend.start();
      expect(await told()).toMatchObject(inUse);
      driver.refuses.clear();
      await backend.reaches("m1", "stopped");
      expect([await staged(), "csi_volumes" in ((await told()) as object)]).toEqual([[], false]);
      await isClear();
    });

    const asDevice = (script: string, more: Partial<MachineSpec> = {}): MachineSpec => ({
      ...mounting(script, { persistent: { ...outliving.persistent, mode: "block" } }),
      containers: [
        {
          ...{ name: "a", image, command: ["sh", "-c", `${script}; sleep 1000`] },
          devices: [{ volume: "data", path: "/dev/xvda" }],
        },
      ],
      ...more,
    });
    const messageOf = async (id: string) =>
      ((await backend.call("GET", `/v1/machines/${id}`)).body as { message?: string }).message;
    const disk = () => join(dir, "disk-1");
    /** What the driver and the backend have made of the disk goes: its loop device, and the one that has that open. */
    const isDetached = async () => {
      expect([await loopOf(disk()), await staged()]).toEqual([undefined, []]);
      await isClear();
    };

    test("a container has a driver's block device, and keeps it though a program detaches its file; two share it", async () => {
      driver.capabilities = [Rpc.STAGE_UNSTAGE_VOLUME];
      const write =
        "echo written-by-m1 | dd of=/dev/xvda conv=notrunc 2>/dev/null; sync; test -b /dev/xvda && echo done";
      await put(asDevice(write), "m1");
      await says("m1", "done");
      expect(readFileSync(disk()).subarray(0, 13).toString()).toBe("written-by-m1");
      const { path } = (await loopOf(disk()))!;
      expect(await loopOf(path)).toMatchObject({ readOnly: true });
      // Any program that may open it may ask for that.
      await runCommand("losetup", ["--detach", path]);
      expect((await loopOf(disk()))?.path).toBe(path);

      await put(asDevice("head -c 13 /dev/xvda; echo; stat -c '%t:%T' /dev/xvda"), "m2");
      await says("m2", "written-by-m1", (statSync(path).rdev & 0xff).toString(16));
      await stop("m1");
      expect(await loopOf(path)).toBeDefined();
      await stop("m2");
      expect(driver.asked.filter((each) => each.endsWith("stage disk-1"))).toEqual(["stage disk-1", "unstage disk-1"]);
      await isDetached();
    });

    test("a block device grows while a container has it, also for a backend that was killed meanwhile", async () => {
      driver.capabilities = [Rpc.STAGE_UNSTAGE_VOLUME, Rpc.EXPAND_VOLUME];
      await put(asDevice("while sleep 1; do blockdev --getsize64 /dev/xvda; done"));
      await says("m1", "1048576\n");
      const growth = { driver: DRIVER, volume: "disk-1", size_bytes: 2 * 1024 * 1024 };
      const grow = () => backend.call("PATCH", "/v1/machines/m1", { csi_volumes: [growth] });
      driver.isHanging = true;
      const cut = grow().catch(() => undefined);
      await vi.waitFor(() => expect(driver.asked.at(-1)).toBe("expand disk-1"), PATIENCE);
      await backend.kill();
      await cut;
      driver.isHanging = false;
      await backend.start();
      await vi.waitFor(async () => expect(await grow()).toMatchObject({ body: { csi_volumes: [growth] } }), PATIENCE);
      await says("m1", "2097152\n");
      await stop("m1");
      await isDetached();
    });

    test("a container that may only read a block device cannot write to it", async () => {
      await put(
        {
          ...asDevice("head -c 4 /dev/xvda | wc -c; dd if=/dev/zero of=/dev/xvda bs=1 count=1"),
          volumes: [
            {
              name: "data",
              type: "csi",
              driver: DRIVER,
              read_only: true,
              persistent: { ...outliving.persistent, mode: "block" },
            },
          ],
        },
        "m1",
      );
      await says("m1", "4\n", "can't open '/dev/xvda': Operation not permitted");
      await stop("m1");
      await isDetached();
    });

    test("nothing runs with what is no block device", async () => {
      driver.publishesInstead = "/dev/null";
      await put(asDevice("echo ran"), "m1");
      await vi.waitFor(
        async () => expect(await messageOf("m1")).toContain("is a character device, and no block device"),
        PATIENCE,
      );
      expect(await log("m1")).not.toContain("ran");
      await stop("m1");
      await isDetached();
    });

    test("the backend is killed while a block device is published and while it is taken back: it is there once, and undone", async () => {
      driver.capabilities = [Rpc.STAGE_UNSTAGE_VOLUME];
      driver.isHanging = true;
      await put(asDevice("test -b /dev/xvda && echo there"));
      await vi.waitFor(() => expect(driver.asked).toEqual(["stage disk-1"]), PATIENCE);
      await backend.kill();
      driver.isHanging = false;
      await backend.start();
      await says("m1", "there");

      for (const step of ["unpublish", "unstage"] as const) {
        driver.refuses.clear();
        driver.refuses.set(step, "not yet");
        await backend.call("POST", "/v1/machines/m1/stop", { grace_seconds: 0 });
        await vi.waitFor(() => expect(driver.asked.at(-1)).toBe(`${step} disk-1`), PATIENCE);
        await backend.kill();
        await backend.start();
        expect((await backend.call("GET", "/v1/machines/m1")).body).toMatchObject({
          ...{ state: "stopping", csi_volumes: [{ driver: DRIVER, volume: "disk-1" }] },
        });
      }
      driver.refuses.clear();
      await backend.reaches("m1", "stopped");
      await isDetached();
    });

    test("a running machine keeps its mount while backend and driver are killed, and what a lost machine had is taken back", async () => {
      await put(mounting("echo first > /data/first"));
      await backend.reaches("m1", "running");
      driver.die();
      await backend.kill();
      await backend.start();
      expect(await backend.reaches("m1", "running")).toMatchObject({ containers: [{ restart_count: 0 }] });
      expect(await mountsBelow(pods())).toHaveLength(1);
      await backend.kill();
      for (const name of ["state.json", "state.next.json", "spec.json"])
        rmSync(join(backend.stateDir, "machines/m1", name), { force: true });
      rmSync(join(root(), "plugins_registry/csi-reg.sock"), { force: true });
      await backend.start();
      driver = await newDriver().listen(join(root(), "plugins_registry/csi-reg.sock"));
      await vi.waitFor(isClear, PATIENCE);
    });
  });
