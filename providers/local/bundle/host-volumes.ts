/**
 * A machine's volumes as folders of this host: made, filled, found for a mount, and measured.
 */
import { chmodSync, chownSync, closeSync, existsSync, fstatSync, readlinkSync, statSync } from "node:fs";
import { mkdir, rename, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import {
  type ContainerSpec,
  type MachineSpec,
  type MachineStats,
  type Mount,
  ProviderError,
  toError,
  type Volume,
} from "../../../src/provider/kit/index.ts";
import type { DeviceGrant } from "../devices.ts";
import { ContainerError, type MachineHome } from "../engine.ts";
import { blockNumbers } from "../host/block-device.ts";
import { isMissing } from "../host/files.ts";
import { bindDescriptor, mountTmpfs, propagationOf } from "../host/mounts.ts";
import type { TreeMeter } from "../host/tree-use.ts";
import { ownTree } from "../host/own-tree.ts";
import { growDevice, isDevice, isMounted, mountDevice } from "./device-files.ts";
import { hostPath } from "./host-access.ts";
import { writeFilesVolume } from "./volume-files.ts";
import { openInRoot, readFileInRoot } from "./root-path.ts";

type HostVolume = Extract<Volume, { type: "host" }>;
type Home = Pick<MachineHome, "dir" | "secretDir" | "spec" | "volumes" | "csiPath">;

/** Makes the empty ones. Those on disk that an earlier sandbox has left are the containers' as they left them. */
export async function makeVolumes({ dir, spec }: Pick<Home, "dir" | "spec">): Promise<void> {
  await mkdir(join(dir, "volumes"), { recursive: true, mode: 0o755 });
  for (const volume of spec.volumes ?? []) {
    if (volume.type === "host") await prepareHostPath({ dir, spec }, volume);
    if (volume.type !== "empty_dir") continue;
    const path = join(dir, "volumes", volume.name);
    const inMemory = volume.medium === "memory";
    if (!inMemory && existsSync(path)) continue;
    // No volume has this name.
    const fresh = inMemory ? path : join(dir, "volumes", ".new");
    await mkdir(fresh, { recursive: true });
    if (inMemory) await mountTmpfs(fresh, { sizeBytes: volume.size_bytes, mode: "1777" });
    const group = spec.security?.fs_group;
    if (group !== undefined) chownSync(fresh, 0, group);
    // As in a kubelet, a tmpfs keeps the sticky bit with which it is mounted, and a folder on disk has none.
    chmodSync(fresh, 0o777 | (inMemory ? 0o1000 : 0) | (group === undefined ? 0 : 0o2000));
    if (!inMemory) await rename(fresh, path);
  }
}

/** @throws Error where a device's file system cannot be mounted */
async function prepareHostPath({ dir, spec }: Pick<Home, "dir" | "spec">, volume: HostVolume): Promise<void> {
  const { name, path, fs_type: fsType, fs_group: isGiven } = volume;
  const isFileSystem = fsType !== undefined && isDevice(path);
  const folder = isFileSystem ? join(dir, "volumes", name) : path;
  if (isFileSystem)
    await mountDevice(path, folder, fsType).catch((thrown: unknown) => {
      throw new Error(`volume ${name}: ${toError(thrown).message}`, { cause: thrown });
    });
  if (isGiven === true) await giveToGroup(folder, spec);
}

/**
 * The file system on the volume's device takes all of it. A folder is as large as it is (kubelet: local, NodeExpand).
 * @throws ProviderError conflict where the machine has no such volume, and Error of the system
 */
export async function growHostVolume({ dir, spec }: Pick<Home, "dir" | "spec">, name: string): Promise<void> {
  const volume = spec.volumes?.find((each) => each.type === "host" && each.name === name) as HostVolume | undefined;
  if (volume?.fs_type === undefined)
    throw new ProviderError("conflict", `the machine has no volume ${name} whose file system may grow`, {
      field: "host_volumes.name",
    });
  if (isDevice(volume.path)) await growDevice(volume.path, join(dir, "volumes", name), volume.fs_type);
}

/** What is no folder, the container that mounts it is told of. */
async function giveToGroup(path: string, { security }: MachineSpec): Promise<void> {
  const { fs_group: group, fs_group_change_policy: policy } = security ?? {};
  if (group === undefined || statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) return;
  await ownTree(path, group, { onMismatchOnly: policy === "on_root_mismatch" });
}

export function applyFiles(home: Home, volume: Extract<Volume, { type: "files" }>): void {
  const group = home.spec.security?.fs_group;
  writeFilesVolume(volumeDir(home, volume), volume.files, group === undefined ? {} : { group });
}

/** @throws Error as `readFileInRoot`, in words for the pod's author */
export function readVolumeFile({ dir }: Pick<Home, "dir">, volume: string, path: string, maxBytes: number): Buffer {
  try {
    return readFileInRoot(join(dir, "volumes", volume), path, maxBytes);
  } catch (thrown) {
    // The message of a system call has the host's paths.
    const { code } = thrown as NodeJS.ErrnoException;
    if (code === undefined) throw thrown;
    throw new Error(isMissing(thrown) ? "it does not exist" : `it cannot be read: ${code}`, { cause: thrown });
  }
}

/** Where the containers have it from: files are secrets. */
function volumeDir(home: Home, volume: Volume): string {
  const { dir, secretDir } = home;
  const { type, name } = volume;
  if (volume.type === "persistent") return home.volumes!.path(volume.volume);
  if (volume.type === "csi") {
    if (volume.persistent?.mode !== "block") return mountedBy(home, volume);
    throw new ContainerError("CreateContainerConfigError", `volume ${name} is a block device, which cannot be mounted`);
  }
  const onDisk = join(dir, "volumes", name);
  // Containers have the folder of an earlier version mounted.
  return type === "files" && !existsSync(onDisk) ? join(secretDir, "files", name) : onDisk;
}

/**
 * The path, or where the file system of the device is that is there. A folder that lost its mount is no place for what
 * a container means for the device: then the path is refused, for it is no folder.
 */
async function onHost({ dir }: Pick<Home, "dir">, volume: HostVolume): Promise<string> {
  const folder = join(dir, "volumes", volume.name);
  return volume.fs_type !== undefined && (await isMounted(folder)) ? folder : hostPath(volume);
}

/** @throws ContainerError when nobody has mounted it */
function mountedBy(home: Pick<Home, "csiPath">, { name, driver }: Extract<Volume, { type: "csi" }>): string {
  const path = home.csiPath?.(name);
  if (path !== undefined) return path;
  throw new ContainerError("CreateContainerConfigError", `volume ${name}: CSI driver ${driver} has not mounted it`);
}

/**
 * What a mount of a container shows.
 * @param options.image folder of the volume's image, if it is one
 * @param options.at where a part of a volume is bound, so that it stays the same one whatever is at its path later;
 *   absent: the part is known by its path
 * @throws ContainerError when there is no such volume, or no such part of it
 */
export async function volumeSource(
  home: Home,
  container: string,
  mount: Mount,
  { image, at }: { image?: string | undefined; at?: string | undefined },
): Promise<{ source: string; writable: boolean; propagation: Mount["propagation"] }> {
  const volume = (home.spec.volumes ?? []).find(({ name }) => name === mount.volume);
  if (volume === undefined)
    throw new ContainerError(
      "CreateContainerConfigError",
      `container ${container}: there is no volume ${JSON.stringify(mount.volume)}`,
    );
  const source =
    volume.type === "image" ? image : volume.type === "host" ? await onHost(home, volume) : volumeDir(home, volume);
  if (source === undefined)
    throw new ContainerError("ImageVolumeMountFailed", `volume ${volume.name}: its image is not there`);
  const mayBeWritable = volume.type === "persistent" || volume.type === "csi" || volume.type === "host";
  const isOwn = volume.type === "empty_dir" || (mayBeWritable && volume.read_only !== true);
  const writable = isOwn && mount.read_only !== true;
  const propagation = mount.propagation ?? (await ownPropagation(home, volume));
  if (mount.sub_path === undefined || mount.sub_path === "") return { source, writable, propagation };

  const fd = openPart(source, container, mount.sub_path, { mount, create: isOwn, isRoot: volume.type === "image" });
  if (at === undefined) {
    const path = readlinkSync(`/proc/self/fd/${fd}`);
    closeSync(fd);
    return { source: path, writable, propagation };
  }
  try {
    await mkdir(join(at, ".."), { recursive: true });
    if (fstatSync(fd).isDirectory()) await mkdir(at);
    else await writeFile(at, "");
    await bindDescriptor(fd, at);
  } finally {
    closeSync(fd);
  }
  return { source: at, writable, propagation };
}

/**
 * A folder of the host in which other machines' volumes are mounted: what is unmounted there goes here, too. A copy
 * that stayed would keep each of them on this host as long as the container runs.
 */
async function ownPropagation({ volumes }: Home, volume: Volume): Promise<Mount["propagation"]> {
  if (volume.type !== "host" || volumes?.areBelow(volume.path) !== true) return undefined;
  const { isShared, isSlave } = await propagationOf(volume.path);
  return isShared || isSlave ? "host_to_container" : undefined;
}

/**
 * The volumes that a container has as block devices.
 * @throws ContainerError when one is not attached, or its CSI driver has published something else
 */
export async function volumeDevices(
  home: Pick<MachineHome, "spec" | "volumes" | "csiPath">,
  { name, devices = [] }: Pick<ContainerSpec, "name" | "devices">,
): Promise<DeviceGrant["nodes"]> {
  return await Promise.all(
    devices.map(async ({ volume, path }) => {
      const claim = (home.spec.volumes ?? []).find((each) => each.name === volume);
      if (claim?.type === "csi" && claim.persistent?.mode === "block")
        return publishedDevice(home, claim, { name, path });
      if (claim?.type === "host" && claim.path_type === "BlockDevice")
        return { path, hostPath: hostPath(claim), permissions: permissionsOf(claim) };
      if (claim?.type !== "persistent")
        throw new ContainerError(
          "CreateContainerConfigError",
          `container ${name}: volume ${JSON.stringify(volume)} is no block device`,
        );
      return { path, hostPath: await home.volumes!.device(claim.volume), permissions: permissionsOf(claim) };
    }),
  );
}

const permissionsOf = ({ read_only }: { read_only?: boolean }) => (read_only === true ? "r" : "rw");

/** It is looked at again for each container: its driver may have put something else there since. */
function publishedDevice(
  home: Pick<MachineHome, "csiPath">,
  volume: Extract<Volume, { type: "csi" }>,
  { name, path }: { name: string; path: string },
): DeviceGrant["nodes"][number] {
  const hostPath = mountedBy(home, volume);
  try {
    blockNumbers(hostPath);
  } catch (thrown) {
    throw new ContainerError(
      "CreateContainerConfigError",
      `container ${name}: volume ${JSON.stringify(volume.name)} of CSI driver ${volume.driver}: ${toError(thrown).message}`,
      { cause: thrown },
    );
  }
  return { path, hostPath, permissions: permissionsOf(volume) };
}

/** @throws ContainerError when it is not there */
function openPart(
  source: string,
  container: string,
  subPath: string,
  { mount, create, isRoot }: { mount: Mount; create: boolean; isRoot: boolean },
): number {
  try {
    // A kubelet follows a volume's links as its host does, and refuses what leaves it. An image is a root of its own.
    return openInRoot(source, subPath, { create, refuseEscapes: !isRoot });
  } catch (thrown) {
    const message = isMissing(thrown) ? "no such file or directory" : String(thrown);
    throw new ContainerError(
      "CreateContainerConfigError",
      `failed to prepare subPath for volumeMount "${mount.volume}" of container "${container}": ${subPath}: ${message}`,
      { cause: thrown },
    );
  }
}

export async function volumeStats(home: Home, meter: TreeMeter): Promise<NonNullable<MachineStats["volumes"]>> {
  const [own, disks] = await Promise.all([emptyDirStats(home, meter), diskStats(home)]);
  return [...own, ...disks];
}

/** Of the host's disks, as their file systems say it (kubelet: local, MetricsStatFS). One that is gone has none. */
async function diskStats(home: Home): Promise<NonNullable<MachineStats["volumes"]>> {
  const disks = (home.spec.volumes ?? []).filter((each) => each.type === "host" && each.fs_type !== undefined);
  const stats = await Promise.all(
    disks.map(async (disk) => {
      try {
        const { blocks, bfree, bavail, bsize, files, ffree } = await statfs(await onHost(home, disk as HostVolume));
        return [
          {
            ...{ name: disk.name, used_bytes: (blocks - bfree) * bsize, capacity_bytes: blocks * bsize },
            ...{ available_bytes: bavail * bsize, inodes: files, inodes_used: files - ffree, inodes_free: ffree },
          },
        ];
      } catch {
        return [];
      }
    }),
  );
  return stats.flat();
}

async function emptyDirStats(home: Home, meter: TreeMeter): Promise<NonNullable<MachineStats["volumes"]>> {
  return await Promise.all(
    emptyDirs(home).map(async ({ name, medium, size_bytes }) => {
      const path = join(home.dir, "volumes", name);
      if (medium === "memory") {
        const { blocks, bfree, bsize } = await statfs(path);
        return { name, used_bytes: (blocks - bfree) * bsize, capacity_bytes: blocks * bsize };
      }
      const used_bytes = await meter.bytes(path);
      return { name, used_bytes, ...(size_bytes === undefined ? {} : { capacity_bytes: size_bytes }) };
    }),
  );
}

/** Of the volumes on disk, by name. */
export async function volumeInodes(home: Home, meter: TreeMeter): Promise<Map<string, number>> {
  const onDisk = emptyDirs(home).filter(({ medium }) => medium === "disk");
  const counts = onDisk.map(async ({ name }) => [name, await meter.inodes(join(home.dir, "volumes", name))] as const);
  return new Map(await Promise.all(counts));
}

function emptyDirs({ spec }: Home): Extract<Volume, { type: "empty_dir" }>[] {
  return (spec.volumes ?? []).filter((volume) => volume.type === "empty_dir");
}
