/**
 * Volumes as disks in files of this host, for engines whose containers share its kernel: a loop device each while a
 * machine has it, and a file system that is mounted on this host once, and bound into the containers.
 *
 *     VOLUME/disk.img   what is on it (image-files.ts)
 *     VOLUME/data/      where it is mounted; an empty folder of no rights while it is not
 *
 * What is attached is known by the kernel alone: a backend that was killed finds there what the one before has left.
 * A device goes with its file system's last mount; one that a kill has left without any, the next backend takes away.
 *
 * A volume of mode `block` is a loop device that containers get. A program that may open one may detach its file
 * (LOOP_CLR_FD asks for no capability), and the kernel would give the device to the next volume, while the first tenant
 * still has its node. But what is open stays: so a second loop device, which nobody gets, has the first one open for as
 * long as a machine may use it; no process is needed for that. What a container gets is never read-only by itself, for
 * it could give that another file (LOOP_CHANGE_FD): one that only reads may not open it otherwise.
 */
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, statSync } from "node:fs";
import { opendir, statfs } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { type Logger, ProviderError, type VolumeRecord } from "../../../src/provider/kit/index.ts";
import { ownCapabilities } from "../bundle/own-capabilities.ts";
import type { HostProblem } from "../engine.ts";
import { CommandError, findTool, run } from "../host/command.ts";
import { HostError } from "../host/host-error.ts";
import { type MountPoint, mountPoints } from "../host/mounts.ts";
import { removeTree } from "../host/remove-tree.ts";
import type { DamagedVolume, HostVolumes, VolumePlace, VolumeSample, VolumeUse } from "../volume-contents.ts";
import { DISK_CLASSES } from "./classes.ts";
import {
  existingImage,
  extendImage,
  growMounted,
  growXfs,
  IMAGE_TOOLS,
  imageOf,
  isTaken,
  keepReserved,
  makeImage,
  mendFileSystem,
  roomFor,
  takeImage,
  wholeSize,
  XFS_TOOLS,
} from "./image-files.ts";
import { attachLoop, detachLoop, isHeld, leaveToMounts, loopDevices, loopOf, resizeLoop } from "./loop-devices.ts";
import { hostOptions } from "./mount-options.ts";
import { ownTree } from "../host/own-tree.ts";

const DEFAULT_FS = "ext4";
const TOOLS = [...IMAGE_TOOLS, "losetup", "mount", "umount", "find", "chgrp", "chmod"] as const;
/** mount(8), of EUCLEAN and of a superblock that is none. */
const DAMAGED = /Structure needs cleaning|bad superblock/;
const LOOP_CONTROL = "/dev/loop-control";

export class LoopVolumes implements HostVolumes {
  readonly classes = DISK_CLASSES;
  readonly fsTypes = [DEFAULT_FS, ...(whyNoXfs() === undefined ? ["xfs"] : [])];
  readonly #dir: string;
  readonly #logger: Logger;

  constructor({ dir, logger }: VolumePlace) {
    this.#dir = dir;
    this.#logger = logger;
  }

  async take(record: VolumeRecord, source: VolumeRecord): Promise<boolean> {
    return await takeImage(this.#dirOf(record.volume.id), this.#image(source.volume.id));
  }

  async make(
    record: VolumeRecord,
    source: VolumeRecord | undefined,
  ): Promise<{ size_bytes: number; fs_type?: string }> {
    const dir = this.#dirOf(record.volume.id);
    const from = source === undefined || isTaken(dir) ? undefined : this.#image(source.volume.id);
    const device = from === undefined ? undefined : await loopOf(from);
    if (source !== undefined && device !== undefined && isHeld(device.path))
      throw new ProviderError("in_use", `volume ${source.volume.id} is mounted`, { field: "source.volume" });
    const size_bytes = await makeImage(dir, record, { from });
    return { size_bytes, ...(record.volume.mode === "filesystem" && { fs_type: fsTypeOf(record) }) };
  }

  async grow(record: VolumeRecord, sizeBytes: number): Promise<number> {
    const { id, mode } = record.volume;
    const fsType = fsTypeOf(record);
    const image = this.#image(id);
    const device = await loopOf(image);
    const isMounted = mode === "filesystem" && device !== undefined && isHeld(device.path);
    if (isMounted && fsType === DEFAULT_FS && !mayGrowMounted())
      throw new ProviderError("in_use", `volume ${id} can only grow while no machine has it: ${NO_GROWTH}`);
    const isDevice = mode === "block" && device !== undefined && (await loopOf(device.path)) !== undefined;
    const size = await extendImage(image, sizeBytes, mode === "block" ? undefined : fsType);
    if (isDevice) {
      await resizeLoop(device);
      return size;
    }
    if (isMounted) {
      await resizeLoop(device);
      // Of one that nobody writes to, it grows for the first who does.
      if (!(await this.#mounted(id))?.options.includes("ro")) await growToDisk(fsType, device.path, this.path(id));
      return size;
    }
    // What a killed backend has left: attached again, it has the size of its file.
    if (device !== undefined) await detachLoop(device);
    if (mode === "filesystem" && fsType === DEFAULT_FS) await mendFileSystem(image, size);
    return size;
  }

  async remove({ volume: { id } }: VolumeRecord): Promise<void> {
    await this.detach(id);
    for (const part of ["disk.img", "disk.img.new", "disk.img.new.proto", "disk.img.new.taken", "data"])
      await removeTree(join(this.#dirOf(id), part));
  }

  async room(): Promise<number> {
    return await roomFor(this.#dir);
  }

  taken(sizeBytes: number, fsType: string | undefined): number {
    return wholeSize(sizeBytes, fsType);
  }

  async attach(record: VolumeRecord, use: VolumeUse): Promise<void> {
    const { id, mode } = record.volume;
    const fsType = fsTypeOf(record);
    if (mode === "block") return await this.#attachDevice(id);
    const mounted = await this.#mounted(id);
    await this.#keepReserved(id, mounted !== undefined);
    const isOtherwise = mounted !== undefined && mounted.options.includes("ro") !== use.readOnly;
    if (mounted === undefined) await this.#mount(id, fsType, use);
    else if (isOtherwise) await this.#remount(id, fsType, use);
    // Also when an earlier backend has mounted it, which may have been killed before this.
    const device = await loopOf(this.#image(id));
    if (device !== undefined) {
      await leaveToMounts(device);
      // XFS grows only where it is mounted; ext4 has grown before it was, but for one that was mounted read-only then.
      const mayBeSmaller = fsType === "xfs" || (isOtherwise && mayGrowMounted());
      if (mayBeSmaller && !use.readOnly) await growToDisk(fsType, device.path, this.path(id));
    }
    if (use.group !== undefined && !use.readOnly)
      await ownTree(this.path(id), use.group, { onMismatchOnly: use.groupOnMismatchOnly === true });
  }

  async #attachDevice(id: string): Promise<void> {
    const image = this.#image(id);
    const before = await loopOf(image);
    await this.#keepReserved(id, before !== undefined && (await loopOf(before.path)) !== undefined);
    const { path } = await attachLoop(image, { readOnly: false });
    await attachLoop(path, { readOnly: true });
  }

  /** Who has it already goes on though the host's disk is full: what was given back is missed when it is written. */
  async #keepReserved(id: string, isMounted: boolean): Promise<void> {
    try {
      await keepReserved(this.#image(id));
    } catch (thrown) {
      if (!isMounted) throw thrown;
      this.#logger.error({ volume: id, err: thrown }, "Cannot reserve all of a volume that machines have mounted");
    }
  }

  async #mount(id: string, fsType: string, { mountOptions, readOnly }: VolumeUse): Promise<void> {
    const { path } = await attachLoop(this.#image(id), { readOnly: false });
    // In another mount namespace it may still be mounted: then it is sound, and growing is for later.
    if (fsType === DEFAULT_FS && !isHeld(path)) await mendFileSystem(path, statSync(this.#image(id)).size);
    const data = join(this.#dirOf(id), "data");
    mkdirSync(data, { recursive: true, mode: 0o000 });
    await mountDisk(path, data, { fsType, options: hostOptions(mountOptions, { readOnly, fsType }) });
  }

  async #remount(id: string, fsType: string, { mountOptions, readOnly }: VolumeUse): Promise<void> {
    const how = `remount,${readOnly ? "ro" : "rw"},${hostOptions(mountOptions, { readOnly, fsType })}`;
    await run(findTool("mount")!, ["-o", how, join(this.#dirOf(id), "data")]);
  }

  async detach(id: string): Promise<void> {
    const data = join(this.#dirOf(id), "data");
    while ((await this.#mounted(id)) !== undefined) await run(findTool("umount")!, ["--no-canonicalize", data]);
    const device = await loopOf(imageOf(this.#dirOf(id)));
    if (device === undefined) return;
    const keeper = await loopOf(device.path);
    if (keeper !== undefined) await detachLoop(keeper);
    if (isHeld(device.path))
      throw new HostError(
        `volume ${id} is still mounted by another program of this host: grep '${basename(device.path)} ' /proc/[0-9]*/mountinfo finds it`,
      );
    await detachLoop(device);
  }

  async attached(): Promise<string[]> {
    const folders = new Set(
      [...(await mountPoints()).map(({ path }) => path), ...(await loopDevices()).map(({ file }) => file)].map(dirname),
    );
    return [...folders].filter((folder) => dirname(folder) === this.#dir).map((folder) => basename(folder));
  }

  path(id: string): string {
    const data = join(this.#dirOf(id), "data");
    // What a container wrote beside the volume would be lost, and on the host's disk.
    if (statSync(data, { throwIfNoEntry: false })?.dev === statSync(this.#dirOf(id)).dev || !existsSync(data))
      throw new HostError(`volume ${id} is not mounted`);
    return data;
  }

  async device(id: string): Promise<string> {
    const device = await loopOf(this.#image(id));
    if (device === undefined || (await loopOf(device.path)) === undefined)
      throw new HostError(`volume ${id} is not attached`);
    return device.path;
  }

  async sample({ volume: { id, mode } }: VolumeRecord): Promise<VolumeSample | undefined> {
    if (mode === "block") return undefined;
    const { blocks, bfree, bavail, bsize, files, ffree } = await statfs(this.path(id));
    return {
      used_bytes: (blocks - bfree) * bsize,
      capacity_bytes: blocks * bsize,
      available_bytes: bavail * bsize,
      inodes: files,
      inodes_used: files - ffree,
      inodes_free: ffree,
    };
  }

  async damaged(): Promise<DamagedVolume[]> {
    const own = (await mountPoints()).filter(({ path }) => dirname(dirname(path)) === this.#dir);
    const broken = await Promise.all(own.map(isBroken));
    return own
      .filter(({ options }, index) => broken[index] === true && !options.includes("ro"))
      .map(({ path }) => ({
        id: basename(dirname(path)),
        message:
          "its file system is read-only or shut down since the kernel found it damaged, or its disk: it is checked when its next machine begins",
      }));
  }

  async #mounted(id: string): Promise<MountPoint | undefined> {
    const data = join(this.#dirOf(id), "data");
    return (await mountPoints()).find(({ path }) => path === data);
  }

  /** @throws HostError for a volume of another kind */
  #image(id: string): string {
    return existingImage(this.#dirOf(id), id, this.#logger);
  }

  #dirOf(id: string): string {
    return join(this.#dir, id);
  }
}

/** What XFS finds damaged it says only now: it has no check like that of ext4 before it is mounted. */
async function mountDisk(disk: string, target: string, how: { fsType: string; options: string }): Promise<void> {
  try {
    await run(findTool("mount")!, ["-t", how.fsType, "-o", how.options, disk, target], { env: { LC_ALL: "C" } });
  } catch (thrown) {
    if (how.fsType !== "xfs" || !(thrown instanceof CommandError) || !DAMAGED.test(thrown.stderr)) throw thrown;
    throw new Error(
      `the file system of volume ${disk} is damaged, and is not mounted: run xfs_repair on it by hand (${thrown.stderr.trim().slice(-300)})`,
      { cause: thrown },
    );
  }
}

/** All of a mounted file system's disk is its own. What has that size already stays as it is. */
async function growToDisk(fsType: string, device: string, mountPoint: string): Promise<void> {
  await (fsType === "xfs" ? growXfs(mountPoint) : growMounted(device));
}

const fsTypeOf = ({ volume: { fs_type = DEFAULT_FS } }: VolumeRecord): string => fs_type;

/** `errors=remount-ro`, in the words of kernels before 6.15 and since; XFS says nothing of its end in its options. */
async function isBroken({ path, type, superOptions }: MountPoint): Promise<boolean> {
  if (["ro", "emergency_ro", "shutdown"].some((each) => superOptions.includes(each))) return true;
  return type === "xfs" && isShutDown(path);
}

/** A few names are read, of a folder that may have millions. */
async function isShutDown(path: string): Promise<boolean> {
  try {
    await using folder = await opendir(path);
    await folder.read();
    return false;
  } catch (thrown) {
    return (thrown as NodeJS.ErrnoException).code === "EIO";
  }
}

const NO_GROWTH = "the backend runs without CAP_SYS_RESOURCE";

const mayGrowMounted = (): boolean => ownCapabilities().includes("CAP_SYS_RESOURCE");

/** Why this host's machines cannot have such volumes, or not all that they may be. */
export function checkLoopVolumes(): HostProblem[] {
  const problems = whyNoVolumes();
  if (problems.length > 0) return problems;
  if (!mayGrowMounted())
    problems.push({
      fatal: false,
      problem: `${NO_GROWTH}: volumes grow only while no machine has them`,
      cure: "give the backend this capability, as root of the host has it",
    });
  const noXfs = whyNoXfs();
  if (noXfs !== undefined)
    problems.push({
      fatal: false,
      problem: `no volume has the file system xfs: ${noXfs}`,
      cure: "where claims ask for it, install the package xfsprogs and load the module xfs",
    });
  return problems;
}

export const hasLoopVolumes = (): boolean => whyNoVolumes().length === 0;

/** Without any of this they have none. */
function whyNoVolumes(): HostProblem[] {
  const problems: HostProblem[] = [];
  const lacks = (problem: string, cure: string) =>
    problems.push({ fatal: false, problem: `volumes that outlive machines are not to be had: ${problem}`, cure });
  const missing = TOOLS.filter((name) => findTool(name) === undefined);
  if (missing.length > 0)
    lacks(
      `${missing.join(", ")} ${missing.length > 1 ? "are" : "is"} not on the PATH`,
      "install the packages e2fsprogs, util-linux, mount, coreutils and findutils",
    );
  const why = whyNoLoops();
  if (why !== undefined)
    lacks(
      `${LOOP_CONTROL} cannot be opened (${why})`,
      "load the module loop; in a container, give the backend the host's /dev",
    );
  if (!/\text4\n/.test(readFileSync("/proc/filesystems", "latin1")))
    lacks("this kernel has no file system ext4", "load the module ext4");
  return problems;
}

function whyNoXfs(): string | undefined {
  const missing = XFS_TOOLS.filter((name) => findTool(name) === undefined);
  if (missing.length > 0) return `${missing.join(", ")} ${missing.length > 1 ? "are" : "is"} not on the PATH`;
  return /\txfs\n/.test(readFileSync("/proc/filesystems", "latin1")) ? undefined : "this kernel has none";
}

function whyNoLoops(): string | undefined {
  try {
    closeSync(openSync(LOOP_CONTROL, "r+"));
    return undefined;
  } catch (thrown) {
    return (thrown as NodeJS.ErrnoException).code ?? "unknown";
  }
}
