/** Volumes as disks in files of this host: what becomes of them without any machine around them. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import {
  closeSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  rmSync,
  statfsSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { mountPoints } from "../../../providers/local/host/mounts.ts";
import type { VolumeUse } from "../../../providers/local/volume-contents.ts";
import { checkLoopVolumes, hasLoopVolumes, LoopVolumes } from "../../../providers/local/volumes/loop-files.ts";
import { hostBlockDevices } from "../../../providers/local/plugins/csi-devices.ts";
import { attachLoop, loopOf } from "../../../providers/local/volumes/loop-devices.ts";
import type { VolumeRecord } from "../../../src/provider/volume-book.ts";
import { SharedPlaces } from "../../../src/queue/shared-places.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { PATIENCE } from "../backend/killable.ts";
import { leaveOut } from "../../support/left-out.ts";

const MIB = 2 ** 20;
const HAS_XFS = checkLoopVolumes().every(({ problem }) => !problem.includes("xfs"));
const USE: VolumeUse = { readOnly: false, mountOptions: [] };

function setup(mode: "filesystem" | "block" = "filesystem", size_bytes = 32 * MIB, fs_type?: string) {
  const dir = realpathSync(mkdtempSync(join(tmpdir(), "vmlet-disks-")));
  const open = () => new LoopVolumes({ dir, clock: systemClock, logger: silentLogger, walks: new SharedPlaces(1) });
  const volumes = open();
  const created_at = new Date(0).toISOString();
  const record = {
    fingerprint: "",
    volume: {
      ...{ id: "d", version: 1, labels: {}, state: "available", size_bytes, mode, created_at, reservations: [] },
      ...(fs_type !== undefined && { fs_type }),
    },
  } satisfies VolumeRecord;
  mkdirSync(join(dir, "d"));
  onTestFinished(async () => {
    await detached(volumes);
    rmSync(dir, { recursive: true, force: true });
  });
  return { dir, volumes, open, record, image: join(dir, "d", "disk.img"), data: join(dir, "d", "data") };
}

/** Whatever is started on this host meanwhile has a copy of its mounts for a moment, and the volumes with them. */
const detached = (volumes: LoopVolumes, id = "d") => vi.waitFor(() => volumes.detach(id), PATIENCE);

const mounted = async (path: string) => (await mountPoints()).find((each) => each.path === path);

const mountsOf = (process: number | string) => readlinkSync(`/proc/${process}/ns/mnt`);

/** A program with mounts of its own, as containers have them. */
function otherNamespace(command: string[]) {
  const program = spawn("unshare", ["--mount", "--propagation", "private", ...command], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  onTestFinished(() => void program.kill("SIGKILL"));
  return program;
}

async function killed(program: ChildProcess): Promise<void> {
  const end = once(program, "exit");
  program.kill("SIGKILL");
  await end;
}

if (!hasLoopVolumes())
  leaveOut(
    "volumes in files",
    checkLoopVolumes().map(({ problem }) => problem),
  );
else {
  test("a volume has its size, all of it reserved, and no more can be written to it", async () => {
    const { volumes, record, image, data } = setup();
    expect(await volumes.make(record, undefined)).toEqual({ size_bytes: 32 * MIB, fs_type: "ext4" });
    expect(statSync(image).blocks * 512).toBeGreaterThanOrEqual(32 * MIB);
    await volumes.attach(record, USE);
    const write = () => writeFileSync(join(data, "big"), Buffer.alloc(40 * MIB));
    expect(write).toThrow(/ENOSPC/);
    const sample = (await volumes.sample(record))!;
    expect(sample.capacity_bytes).toBeLessThanOrEqual(32 * MIB);
    expect(sample.available_bytes).toBeLessThan(MIB);
  });

  test("what was written is there after it was detached, and its folder is no place to write to meanwhile", async () => {
    const { volumes, open, record, data, image } = setup();
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    writeFileSync(join(volumes.path("d"), "said"), "kept");
    expect(await open().attached()).toEqual(["d"]);
    await detached(volumes);
    expect(await volumes.attached()).toEqual([]);
    expect(await loopOf(image)).toBeUndefined();
    expect(() => volumes.path("d")).toThrow(/not mounted/);
    expect(statSync(data).mode & 0o777).toBe(0);
    await volumes.attach(record, USE);
    expect(readFileSync(join(volumes.path("d"), "said"), "utf8")).toBe("kept");
  });

  test("attached once, however often that is asked for, also by the next backend", async () => {
    const { volumes, open, record, data } = setup();
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    await volumes.attach(record, USE);
    await open().attach(record, USE);
    const points = (await mountPoints()).filter(({ path }) => path === data);
    expect(points).toHaveLength(1);
    await detached(open());
    await detached(volumes);
    expect(await mounted(data)).toBeUndefined();
  });

  test("a backend that was killed between the device and the mount is gone on from", async () => {
    const { volumes, open, record, image } = setup();
    await volumes.make(record, undefined);
    execFileSync("losetup", ["--find", image]);
    expect(await open().attached()).toEqual(["d"]);
    await open().attach(record, USE);
    writeFileSync(join(volumes.path("d"), "said"), "kept");
    await detached(open());
    expect(await loopOf(image)).toBeUndefined();
  });

  test("a volume that another mount namespace still has is not given back, and leaves no device when that ends", async () => {
    const { volumes, record, image } = setup();
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    const other = otherNamespace(["sleep", "1000"]);
    await vi.waitFor(() => expect(mountsOf(other.pid!)).not.toBe(mountsOf("self")), PATIENCE);
    await expect(volumes.detach("d")).rejects.toThrow(/still mounted by another program/);
    expect(await volumes.attached()).toEqual(["d"]);
    await killed(other);
    // Nobody asks again: a backend that was killed meanwhile would not.
    await vi.waitFor(async () => expect(await loopOf(image)).toBeUndefined(), PATIENCE);
  });

  test("a backend that is killed with its mount namespace, as in a container, leaves no device behind", async () => {
    const { volumes, record, dir, image } = setup();
    await volumes.make(record, undefined);
    const backend = otherNamespace([process.execPath, join(import.meta.dirname, "loop-attacher.ts"), dir]);
    await once(backend.stdout, "data");
    expect(await mounted(join(dir, "d/data"))).toBeUndefined();
    expect(await loopOf(image)).toBeDefined();
    await killed(backend);
    await vi.waitFor(async () => expect(await loopOf(image)).toBeUndefined(), PATIENCE);
  });

  test("a full disk keeps nobody from a volume that is mounted, and one whose room is gone from being mounted", async () => {
    const { volumes, open, record, dir, image } = setup();
    const folder = join(dir, "d");
    const host = join(dir, "host");
    writeFileSync(host, "");
    truncateSync(host, 40 * MIB);
    execFileSync("mkfs.ext4", ["-q", "-O", "^has_journal", "-m", "0", host]);
    execFileSync("mount", ["-o", "loop", host, folder]);
    onTestFinished(async () => {
      await detached(volumes);
      execFileSync("umount", [folder]);
    });
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    // As what a tenant's discards had given back.
    execFileSync("fallocate", ["--punch-hole", "--offset", String(28 * MIB), "--length", String(2 * MIB), image]);
    expect(() => writeFileSync(join(folder, "full"), Buffer.alloc(40 * MIB))).toThrow(/ENOSPC/);
    await open().attach(record, USE);
    writeFileSync(join(volumes.path("d"), "said"), "kept");
    await detached(volumes);
    await expect(volumes.attach(record, USE)).rejects.toMatchObject({ code: "quota" });
    await expect(volumes.grow(record, 64 * MIB)).rejects.toMatchObject({ code: "quota" });
    expect(statSync(image).size).toBe(32 * MIB);
  });

  test("half a disk that a kill has left is made anew", async () => {
    const { volumes, record, image } = setup();
    writeFileSync(`${image}.new`, "half");
    await volumes.make(record, undefined);
    expect([existsSync(`${image}.new`), statSync(image).size]).toEqual([false, 32 * MIB]);
  });

  test("nothing of it gives the rights of this host's root or its devices, whatever its mount options say", async () => {
    const { volumes, record, data } = setup();
    await volumes.make(record, undefined);
    await volumes.attach(record, { ...USE, mountOptions: ["noatime", "suid", "dev", "context=x"] });
    expect((await mounted(data))!.options).toEqual(expect.arrayContaining(["nosuid", "nodev", "noatime"]));
  });

  test("read-only it is for whoever reaches its file system, by whatever mount", async () => {
    const { volumes, record, data } = setup();
    await volumes.make(record, undefined);
    await volumes.attach(record, { ...USE, readOnly: true });
    expect((await mounted(data))!.superOptions).toContain("ro");
    expect(() => writeFileSync(join(data, "x"), "")).toThrow(/EROFS/);
    expect(await volumes.damaged()).toEqual([]);
  });

  test("it grows while nobody has it, with what is on it", async () => {
    const { volumes, record, data } = setup();
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    writeFileSync(join(data, "said"), "kept");
    await detached(volumes);
    expect(await volumes.grow(record, 64 * MIB)).toBe(64 * MIB);
    await volumes.attach(record, USE);
    const { blocks, bsize } = statfsSync(data);
    expect(blocks * bsize).toBeGreaterThan(48 * MIB);
    expect(readFileSync(join(data, "said"), "utf8")).toBe("kept");
  });

  test("growth that a kill has broken off is finished when it is attached", async () => {
    const { volumes, record, image, data } = setup();
    await volumes.make(record, undefined);
    truncateSync(image, 64 * MIB);
    await volumes.attach(record, USE);
    const { blocks, bsize } = statfsSync(data);
    expect(blocks * bsize).toBeGreaterThan(48 * MIB);
    expect(statSync(image).blocks * 512).toBeGreaterThanOrEqual(64 * MIB);
  });

  test("a damaged file system is mended before it is mounted, and one that only a person can mend is not mounted", async () => {
    const { volumes, record, image, data } = setup();
    await volumes.make(record, undefined);
    execFileSync("debugfs", ["-w", "-R", "set_super_value state 0", image], { stdio: "ignore" });
    await volumes.attach(record, USE);
    expect(await mounted(data)).toBeDefined();
    await detached(volumes);
    execFileSync("debugfs", ["-w", "-R", "set_super_value state 2", image], { stdio: "ignore" });
    const file = openSync(image, "r+");
    writeSync(file, Buffer.alloc(256 * 1024, 0xff), 0, 256 * 1024, 4096);
    closeSync(file);
    await expect(volumes.attach(record, USE)).rejects.toThrow(/damaged, and is not mounted: run e2fsck/);
    expect(await mounted(data)).toBeUndefined();
  });

  test("a file system that its kernel has made read-only is told of", async () => {
    const { volumes, record, data } = setup();
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    expect(await volumes.damaged()).toEqual([]);
    execFileSync("mount", ["-o", "remount,abort", data]);
    expect(() => writeFileSync(join(data, "x"), "x")).toThrow();
    expect(await volumes.damaged()).toEqual([{ id: "d", message: expect.stringContaining("read-only") as string }]);
  });

  test("a copy has what its source had, all of its own room, and goes its own way", async () => {
    const { volumes, record, dir, data } = setup();
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    writeFileSync(join(data, "said"), "kept");
    const copy = { ...record, volume: { ...record.volume, id: "copy", size_bytes: 64 * MIB } };
    mkdirSync(join(dir, "copy"));
    await expect(volumes.make(copy, record)).rejects.toMatchObject({ code: "in_use" });
    await detached(volumes);
    expect(await volumes.make(copy, record)).toEqual({ size_bytes: 64 * MIB, fs_type: "ext4" });
    onTestFinished(() => detached(volumes, "copy"));
    await volumes.attach(copy, USE);
    await volumes.attach(record, USE);
    expect(readFileSync(join(dir, "copy/data/said"), "utf8")).toBe("kept");
    writeFileSync(join(data, "said"), "changed");
    expect(readFileSync(join(dir, "copy/data/said"), "utf8")).toBe("kept");
    const { blocks, bsize } = statfsSync(join(dir, "copy/data"));
    expect(blocks * bsize).toBeGreaterThan(48 * MIB);
    expect(statSync(join(dir, "copy/disk.img")).blocks * 512).toBeGreaterThanOrEqual(64 * MIB);
  });

  /** As a program in a container may do, without any capability. */
  const clear = (device: string) =>
    execFileSync("setpriv", ["--bounding-set=-all", "--inh-caps=-all", "losetup", "--detach", device]);

  test("a block device stays its machine's though a program in a container detaches it, and is free after that", async () => {
    const { volumes, record, image } = setup("block");
    await volumes.make(record, undefined);
    await expect(volumes.device("d")).rejects.toThrow("volume d is not attached");
    await volumes.attach(record, USE);
    const device = await volumes.device("d");
    clear(device);
    clear(device);
    expect(await volumes.device("d")).toBe(device);
    expect((await loopOf(image))?.path).toBe(device);
    expect(await volumes.attached()).toEqual(["d"]);
    await volumes.detach("d");
    expect(await loopOf(image)).toBeUndefined();
    expect(await loopOf(device)).toBeUndefined();
    expect(await volumes.attached()).toEqual([]);
  });

  test("a block device is not detached while a program has it open", async () => {
    const { volumes, record, image } = setup("block");
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    const fd = openSync(await volumes.device("d"), "r+");
    // Each time, whatever the one before has done of it.
    for (let time = 0; time < 3; time++) await expect(volumes.detach("d")).rejects.toThrow("in use");
    expect(await loopOf(image)).toBeDefined();
    closeSync(fd);
    await volumes.detach("d");
    expect(await loopOf(image)).toBeUndefined();
  });

  test("what an earlier backend has left of a block device is finished, and taken away, by the next", async () => {
    const { volumes, record, image } = setup("block");
    await volumes.make(record, undefined);
    await attachLoop(image, { readOnly: false });
    await volumes.attach(record, USE);
    await volumes.attach(record, USE);
    expect(await loopOf(await volumes.device("d"))).toMatchObject({ readOnly: true });
    await volumes.remove(record);
    expect(existsSync(image)).toBe(false);
    expect(await volumes.attached()).toEqual([]);
  });

  test("a block device of others is held open for each node of it, and let go by the last that has it", async () => {
    const { dir, image } = setup();
    writeFileSync(image, Buffer.alloc(MIB));
    const { path } = await attachLoop(image, { readOnly: false });
    const numbers = hostBlockDevices.numbers(path);
    const nodes = ["own", "others"].map((name) => join(dir, name));
    for (const node of nodes) execFileSync("mknod", [node, "b", ...numbers.split(":")]);
    for (const node of [...nodes, ...nodes]) await hostBlockDevices.hold(node);
    expect(nodes.map((node) => hostBlockDevices.numbers(node))).toEqual([numbers, numbers]);
    clear(path);
    expect((await loopOf(image))?.path).toBe(path);
    await hostBlockDevices.letGo(nodes[0]!, [nodes[1]!]);
    // Another name of the same node, as of a driver that binds it: each has it open for itself.
    const again = join(dir, "again");
    linkSync(nodes[1]!, again);
    await hostBlockDevices.hold(again);
    await hostBlockDevices.letGo(nodes[1]!, [again]);
    expect([await loopOf(nodes[0]!), (await loopOf(again)) !== undefined, (await loopOf(image))?.path]).toEqual([
      ...[undefined, true, path],
    ]);
    for (let time = 0; time < 2; time++) await hostBlockDevices.letGo(again, [join(dir, "none")]);
    // What was detached while it was held open is free now.
    expect([await loopOf(nodes[1]!), await loopOf(image)]).toEqual([undefined, undefined]);
  });

  test("a block device of others in a folder that a link leads to is held open once, and let go by its own name", async () => {
    const { dir, image } = setup();
    writeFileSync(image, Buffer.alloc(MIB));
    const { path } = await attachLoop(image, { readOnly: false });
    const link = join(dir, "link");
    symlinkSync(dir, link);
    const [own, others] = [join(link, "own"), join(link, "others")];
    execFileSync("mknod", [own, "b", ...hostBlockDevices.numbers(path).split(":")]);
    linkSync(own, others);
    onTestFinished(async () => {
      await hostBlockDevices.letGo(own, []);
      clear(path);
    });
    const names = () => execFileSync("losetup", ["--noheadings", "--output", "BACK-FILE", "--associated", own]);
    for (const each of [own, own, others]) await hostBlockDevices.hold(each);
    expect(names().toString().trim().split("\n").toSorted()).toEqual([join(dir, "others"), join(dir, "own")]);
    await hostBlockDevices.letGo(own, [others]);
    expect(names().toString().trim()).toBe(join(dir, "others"));
  });

  test("a block device grows while it is used", async () => {
    const { volumes, record } = setup("block");
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    const device = await volumes.device("d");
    expect(await volumes.grow(record, 48 * MIB)).toBe(48 * MIB);
    expect(execFileSync("blockdev", ["--getsize64", device]).toString().trim()).toBe(String(48 * MIB));
    await volumes.detach("d");
  });

  test("what is given back to a volume's device stays reserved", async () => {
    const { volumes, record, image } = setup();
    await volumes.make(record, undefined);
    const { path } = await attachLoop(image, { readOnly: false });
    execFileSync("blkdiscard", ["--zeroout", "--force", path], { stdio: "ignore" });
    expect(statSync(image).blocks * 512).toBeGreaterThanOrEqual(32 * MIB);
  });

  test("all files are a pod's group's, and no link leads that elsewhere", async () => {
    const { volumes, record, data, dir } = setup();
    const victim = join(dir, "victim");
    writeFileSync(victim, "", { mode: 0o600 });
    await volumes.make(record, undefined);
    await volumes.attach(record, USE);
    mkdirSync(join(data, "a/b"), { recursive: true, mode: 0o700 });
    writeFileSync(join(data, "a/b/file"), "", { mode: 0o600 });
    symlinkSync(victim, join(data, "a/link"));
    await volumes.attach(record, { ...USE, group: 4321 });
    const told = (path: string) => [lstatSync(path).gid, (lstatSync(path).mode & 0o7777).toString(8)];
    expect(told(data)).toEqual([4321, "2777"]);
    expect(told(join(data, "a/b"))).toEqual([4321, "2770"]);
    expect(told(join(data, "a/b/file"))).toEqual([4321, "660"]);
    expect(lstatSync(join(data, "a/link")).gid).toBe(4321);
    expect(told(victim)).toEqual([0, "600"]);
    writeFileSync(join(data, "later"), "", { mode: 0o600 });
    await volumes.attach(record, { ...USE, group: 4321, groupOnMismatchOnly: true });
    expect(lstatSync(join(data, "later")).mode & 0o777).toBe(0o600);
  });

  describe.skipIf(!HAS_XFS)("a volume with XFS", () => {
    const xfs = () => setup("filesystem", 32 * MIB, "xfs");

    test("is as large as XFS has to be, of which all is reserved, and anybody writes to it", async () => {
      const { volumes, record, image, data } = xfs();
      const size_bytes = volumes.taken(32 * MIB, "xfs");
      expect(await volumes.make(record, undefined)).toEqual({ size_bytes, fs_type: "xfs" });
      expect(statSync(image).blocks * 512).toBeGreaterThanOrEqual(size_bytes);
      await volumes.attach(record, { ...USE, mountOptions: ["noatime", "commit=5", "data=ordered", "noacl"] });
      expect(await mounted(data)).toMatchObject({ options: expect.arrayContaining(["noatime", "nosuid", "nodev"]) });
      expect(statSync(data).mode & 0o7777).toBe(0o777);
      expect(() => writeFileSync(join(data, "big"), Buffer.alloc(size_bytes))).toThrow(/ENOSPC/);
    });

    test("grows while it is mounted, and what grew while it was not has its room when it is", async () => {
      const { volumes, record, data } = xfs();
      await volumes.make(record, undefined);
      const room = () => statfsSync(data).blocks * statfsSync(data).bsize;
      await volumes.attach(record, USE);
      writeFileSync(join(data, "said"), "kept");
      await volumes.grow(record, 400 * MIB);
      expect(room()).toBeGreaterThan(320 * MIB);
      await detached(volumes);
      await volumes.grow(record, 500 * MIB);
      await volumes.attach(record, USE);
      expect(room()).toBeGreaterThan(420 * MIB);
      expect(readFileSync(join(data, "said"), "utf8")).toBe("kept");
    });

    test("grows for the first who writes to it, when it grew while it was read only or while nobody had it", async () => {
      const { volumes, record, data } = xfs();
      await volumes.make(record, undefined);
      const room = () => statfsSync(data).blocks * statfsSync(data).bsize;
      await volumes.attach(record, { ...USE, readOnly: true });
      await volumes.grow(record, 400 * MIB);
      await volumes.attach(record, USE);
      expect(room()).toBeGreaterThan(320 * MIB);
      await detached(volumes);
      await volumes.grow(record, 500 * MIB);
      await volumes.attach(record, { ...USE, readOnly: true });
      await volumes.attach(record, USE);
      expect(room()).toBeGreaterThan(420 * MIB);
    });

    test("grows when the backend was killed between its mount and its growth", async () => {
      const { volumes, open, record, image, data } = xfs();
      await volumes.make(record, undefined);
      await volumes.grow(record, 400 * MIB);
      const { path } = await attachLoop(image, { readOnly: false });
      mkdirSync(data);
      execFileSync("mount", ["-t", "xfs", "-o", "nouuid", path, data]);
      await open().attach(record, USE);
      expect(statfsSync(data).blocks * statfsSync(data).bsize).toBeGreaterThan(320 * MIB);
    });

    test("is copied, larger, and both are mounted at once", async () => {
      const { dir, volumes, record, data } = xfs();
      await volumes.make(record, undefined);
      await volumes.attach(record, USE);
      writeFileSync(join(data, "said"), "kept");
      await detached(volumes);
      mkdirSync(join(dir, "copy"));
      const copy = { ...record, volume: { ...record.volume, id: "copy", size_bytes: 400 * MIB } };
      await volumes.make(copy, record);
      onTestFinished(() => detached(volumes, "copy"));
      for (const each of [record, copy]) await volumes.attach(each, USE);
      writeFileSync(join(data, "said"), "changed");
      const there = join(dir, "copy", "data");
      expect(readFileSync(join(there, "said"), "utf8")).toBe("kept");
      expect(statfsSync(there).blocks * statfsSync(there).bsize).toBeGreaterThan(320 * MIB);
    });

    test("that its kernel has shut down is told of, and is whole for the next machine", async () => {
      const { volumes, record, data } = xfs();
      await volumes.make(record, undefined);
      await volumes.attach(record, USE);
      expect(await volumes.damaged()).toEqual([]);
      execFileSync("xfs_io", ["-x", "-c", "shutdown", data]);
      expect(await volumes.damaged()).toEqual([{ id: "d", message: expect.stringContaining("shut down") as string }]);
      await detached(volumes);
      await volumes.attach(record, USE);
      expect(await volumes.damaged()).toEqual([]);
      writeFileSync(join(data, "x"), "x");
    });

    test("that is damaged is not mounted, and it is said what mends it", async () => {
      const { volumes, record, image, data } = xfs();
      await volumes.make(record, undefined);
      const file = openSync(image, "r+");
      writeSync(file, Buffer.alloc(4096, 0xff), 0, 4096, 0);
      closeSync(file);
      await expect(volumes.attach(record, USE)).rejects.toThrow(/damaged, and is not mounted: run xfs_repair/);
      expect(await mounted(data)).toBeUndefined();
    });
  });
}
