/**
 * The files of volumes that are disks: VOLUME/disk.img, of the volume's size, all of which is reserved, so that a disk
 * never runs out of the host's room in the middle of a write. With a file system, or empty.
 */
import { constants, existsSync, renameSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { copyFile, open, statfs } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Logger, ProviderError, type VolumeRecord } from "../../../src/provider/kit/index.ts";
import { CommandError, findTool, run } from "../host/command.ts";
import { flushFile, flushFolder } from "../host/files.ts";
import { HostError } from "../host/host-error.ts";

const MIB = 2 ** 20;
/** Less than that has no room for a journal. */
const MINIMUM_BYTES = 16 * MIB;
/** mkfs.xfs makes none that is smaller. */
const XFS_MINIMUM_BYTES = 300 * MIB;
/** What a new XFS begins with: a folder that containers of any user write to, as an emptyDir. */
const XFS_PROTOTYPE = "/dev/null\n0 0\nd--777 0 0\n$\n";
/** The share of the host's disk that volumes leave: less of it, and machines are evicted. */
const KEPT_FREE = 0.1;
/** Errors of a file system that has no blocks to share, or no room to say that it does. */
const NOT_SHARED = ["ENOTSUP", "EOPNOTSUPP", "EINVAL", "ENOTTY", "ENOSYS", "EXDEV", "ENOSPC", "EDQUOT"];
/** kubelet's formatting, and blocks that stay reserved. */
const MKFS_OPTIONS = ["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"];
/** Features of ext4 that its superblock names. */
const NEEDS_RECOVERY = 0x04;
const HAS_64_BITS = 0x80;
/** e2fsck: nothing was wrong; what was wrong is mended. */
const SOUND = [0, 1, 2];

export const imageOf = (volumeDir: string): string => join(volumeDir, "disk.img");

/** What was taken of another's file. */
const takenOf = (volumeDir: string): string => `${imageOf(volumeDir)}.new.taken`;

/** @throws HostError for a volume of another kind, or one whose file is gone: none is made in its place */
export function existingImage(volumeDir: string, id: string, logger: Logger): string {
  const image = imageOf(volumeDir);
  if (existsSync(image)) return image;
  const what = existsSync(join(volumeDir, "data")) ? "is a folder, of engine process" : "has lost its file";
  logger.error({ volume: id, image }, "There is no such file");
  throw new HostError(`volume ${id} ${what}: there is no ${image}`);
}

/** What of the tools and rights for this is missing, by name. */
export const IMAGE_TOOLS = ["dd", "fallocate", "mkfs.ext4", "debugfs", "e2fsck", "resize2fs"] as const;
/** The same of the file system xfs, which a host need not have. */
export const XFS_TOOLS = ["mkfs.xfs", "xfs_growfs"] as const;

const tool = (name: (typeof IMAGE_TOOLS)[number] | (typeof XFS_TOOLS)[number]): string => findTool(name) ?? name;

/**
 * Takes what is on another's file at this instant, though it is written to meanwhile: a file that shares its blocks,
 * until `makeImage` has copied it into one that shares none. The file has a disk's writes in the order of its flushes,
 * so what is taken is what a loss of power would leave.
 * @returns false where blocks cannot be shared, or there is no room for those that are written to both meanwhile
 */
export async function takeImage(dir: string, from: string): Promise<boolean> {
  const taken = takenOf(dir);
  rmSync(taken, { force: true });
  if (existsSync(imageOf(dir)) || (await roomFor(dir)) < 2 * statSync(from).size) return false;
  try {
    await copyFile(from, taken, constants.COPYFILE_FICLONE_FORCE);
    return true;
  } catch (thrown) {
    rmSync(taken, { force: true });
    if (NOT_SHARED.includes((thrown as NodeJS.ErrnoException).code ?? "")) return false;
    throw thrown;
  }
}

export const isTaken = (dir: string): boolean => existsSync(takenOf(dir));

/**
 * What is there is not touched.
 * @param options.from the file of another to which nobody writes, if nothing was taken of it; absent: it begins empty
 * @param options.isForeign not this host's kernel has written that: its file system is not looked into
 * @returns the size in bytes @throws ProviderError quota
 */
export async function makeImage(
  dir: string,
  { volume }: VolumeRecord,
  { from, isForeign = false }: { from?: string | undefined; isForeign?: boolean } = {},
): Promise<number> {
  const image = imageOf(dir);
  if (existsSync(image)) return statSync(image).size;
  const fresh = `${image}.new`;
  rmSync(fresh, { force: true });
  const { mode, fs_type = "ext4" } = volume;
  const size = wholeSize(volume.size_bytes, fs_type);
  await (await open(fresh, "w", 0o600)).close();
  await reserve(fresh, size);
  const source = isTaken(dir) ? takenOf(dir) : from;
  const isMended = mode === "filesystem" && !isForeign;
  if (source !== undefined) await copyInto(fresh, source, { size, isMended, fs_type });
  else if (mode === "filesystem") await (fs_type === "xfs" ? makeXfs(fresh) : makeExt4(fresh));
  await flushFile(fresh);
  rmSync(takenOf(dir), { force: true });
  renameSync(fresh, image);
  flushFolder(dir);
  return size;
}

async function makeExt4(file: string): Promise<void> {
  await run(tool("mkfs.ext4"), [...MKFS_OPTIONS, file]);
  // As an emptyDir: containers of any user write to it.
  await run(tool("debugfs"), ["-w", "-R", "set_inode_field <2> mode 040777", file]);
}

async function makeXfs(file: string): Promise<void> {
  const prototype = `${file}.proto`;
  writeFileSync(prototype, XFS_PROTOTYPE);
  // Not discarded: its blocks are reserved.
  await run(tool("mkfs.xfs"), ["-q", "-f", "-K", "-p", prototype, file]);
  rmSync(prototype);
}

/** Only what is not zero is written: the rest is so already, and reserved. */
async function copyInto(
  fresh: string,
  from: string,
  { size, isMended, fs_type }: { size: number; isMended: boolean; fs_type: string },
): Promise<void> {
  await run(tool("dd"), [`if=${from}`, `of=${fresh}`, "bs=1M", "conv=notrunc,sparse", "status=none"]);
  // One of XFS grows when it is mounted, and is mended then.
  if (isMended && fs_type !== "xfs") await mendFileSystem(fresh, size);
}

/** Nobody has it attached. @throws ProviderError quota */
export async function extendImage(image: string, sizeBytes: number, fsType: string | undefined): Promise<number> {
  const size = wholeSize(sizeBytes, fsType);
  const before = statSync(image).size;
  if (before >= size) return before;
  try {
    await reserve(image, size);
  } catch (thrown) {
    // It may have grown by a part of that, which is of use to nobody.
    if (statSync(image).size > before) truncateSync(image, before);
    throw thrown;
  }
  await flushFile(image);
  return size;
}

/** All of its blocks are the file's again, also those that were given back. @throws ProviderError quota */
export async function keepReserved(image: string): Promise<void> {
  const { size, blocks } = statSync(image);
  if (blocks * 512 < size) await reserve(image, size);
}

async function reserve(file: string, size: number): Promise<void> {
  const fallocate = (options: readonly string[]) =>
    run(tool("fallocate"), [...options, "--length", String(size), file]);
  try {
    try {
      await fallocate([]);
    } catch (thrown) {
      if (!(thrown instanceof CommandError) || !/not supported/i.test(thrown.stderr)) throw thrown;
      // By writing, where the file system cannot reserve. Up to util-linux 2.40 it says nothing of a disk that is full.
      await fallocate(["--posix"]);
      if (statSync(file).size < size) throw fullDisk(size);
    }
  } catch (thrown) {
    if (!(thrown instanceof CommandError) || !/No space left|File too large|quota exceeded/i.test(thrown.stderr))
      throw thrown;
    throw fullDisk(size, thrown);
  }
}

const fullDisk = (size: number, cause?: Error): ProviderError =>
  new ProviderError("quota", `the host's disk has no room for a volume of ${size} bytes`, {
    field: "size_bytes",
    retryAfterMs: 30_000,
    cause,
  });

export async function roomFor(dir: string): Promise<number> {
  const { bavail, blocks, bsize } = await statfs(dir);
  return (bavail - blocks * KEPT_FREE) * bsize;
}

/**
 * Has the file system on a device, or in a file, mended as far as that is safe, and grown to all of its room. For one
 * that nobody has mounted.
 * @throws Error for one that only a person can mend
 */
export async function mendFileSystem(path: string, room: number): Promise<void> {
  await check(path, []);
  const { bytes, blockBytes } = await fileSystemState(path);
  if (bytes + blockBytes > room) return;
  await check(path, ["-f"]);
  await run(tool("resize2fs"), [path]);
}

async function check(path: string, options: readonly string[]): Promise<void> {
  try {
    await run(tool("e2fsck"), ["-p", ...options, path], { exitCodes: SOUND });
  } catch (thrown) {
    if (!(thrown instanceof CommandError) || thrown.exitCode !== 4) throw thrown;
    throw new Error(
      `the file system of volume ${volumeAt(path)} is damaged, and is not mounted: run e2fsck -f on it by hand (${thrown.stderr.trim().slice(-300)})`,
      { cause: thrown },
    );
  }
}

const volumeAt = (path: string): string => (path.startsWith("/dev/") ? path : dirname(path));

/** Of a file system that is mounted. @throws CommandError */
export async function growMounted(device: string): Promise<void> {
  await run(tool("resize2fs"), [device]);
}

/** Of XFS, which grows only where it is mounted, to all of its device; what has that size already stays as it is. */
export async function growXfs(mountPoint: string): Promise<void> {
  await run(tool("xfs_growfs"), ["-d", mountPoint]);
}

/** Of ext4, by its superblock, which may be of anybody's making. */
export async function fileSystemState(
  path: string,
): Promise<{ bytes: number; blockBytes: number; needsRecovery: boolean }> {
  const file = await open(path, "r");
  try {
    const superblock = Buffer.alloc(1024);
    await file.read(superblock, 0, 1024, 1024);
    const blockBytes = 1024 << superblock.readUInt32LE(0x18);
    const features = superblock.readUInt32LE(0x60);
    const has64 = (features & HAS_64_BITS) !== 0;
    const count = superblock.readUInt32LE(0x04) + (has64 ? superblock.readUInt32LE(0x150) * 2 ** 32 : 0);
    return { bytes: count * blockBytes, blockBytes, needsRecovery: (features & NEEDS_RECOVERY) !== 0 };
  } finally {
    await file.close();
  }
}

/** Of the file of a disk that is to have so many bytes. */
export const wholeSize = (bytes: number, fsType: string | undefined): number =>
  Math.max(fsType === "xfs" ? XFS_MINIMUM_BYTES : MINIMUM_BYTES, Math.ceil(bytes / MIB) * MIB);
