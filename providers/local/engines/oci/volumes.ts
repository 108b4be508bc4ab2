/** The volumes of one machine of the engine oci, and what its containers see of them. */
import { chmodSync, chownSync, closeSync, existsSync, fstatSync } from "node:fs";
import { mkdir, rename, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Mount, Volume } from "../../../../src/provider/kit/index.ts";
import { bind, effectiveMounts, type OciMount } from "../../bundle/bundle.ts";
import { etcMounts } from "../../bundle/etc.ts";
import { openInRoot } from "../../bundle/root-path.ts";
import { ContainerError, type ContainerLaunch, type MachineHome } from "../../engine.ts";
import { isMissing } from "../../host/files.ts";
import { bindDescriptor, mountTmpfs } from "../../host/mounts.ts";
import type { TreeMeter } from "../../host/tree-use.ts";

/** Those that are made with the machine; files volumes come with their files. */
export async function makeVolume({ dir, spec }: MachineHome, volume: Volume): Promise<void> {
  if (volume.type !== "empty_dir") return;
  const path = join(dir, "volumes", volume.name);
  const inMemory = volume.medium === "memory";
  // One on disk may have been kept from a sandbox that was lost: it is the containers' as they left it.
  if (!inMemory && existsSync(path)) return;
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

/** Where the containers have it from: files are secrets. */
export function volumeDir(
  { dir, secretDir }: Pick<MachineHome, "dir" | "secretDir">,
  { type, name }: Pick<Volume, "type" | "name">,
): string {
  const onDisk = join(dir, "volumes", name);
  // Containers have the folder of an earlier version mounted.
  return type === "files" && !existsSync(onDisk) ? join(secretDir, "files", name) : onDisk;
}

/** All that is mounted into a container. */
export async function containerMounts(home: MachineHome, launch: ContainerLaunch, bundle: string): Promise<OciMount[]> {
  const { dir } = home;
  const mounts: OciMount[] = [
    { ...bind(join(dir, "shm"), "/dev/shm", false), options: ["rbind", "nosuid", "nodev", "noexec", "rw"] },
    ...(await etcMounts(join(dir, "etc"), launch, launch.spec)),
  ];
  for (const [index, mount] of (launch.spec.mounts ?? []).entries())
    mounts.push(await volumeMount(home, launch, mount, join(bundle, "sub", String(index))));
  return effectiveMounts(mounts);
}

async function volumeMount(
  home: MachineHome,
  launch: ContainerLaunch,
  mount: Mount,
  subTarget: string,
): Promise<OciMount> {
  const volume = (home.spec.volumes ?? []).find(({ name }) => name === mount.volume);
  if (volume === undefined)
    throw new ContainerError(
      "CreateContainerConfigError",
      `container ${launch.name}: there is no volume ${JSON.stringify(mount.volume)}`,
    );
  const source = volume.type === "image" ? launch.imageVolumes[volume.name]?.location : volumeDir(home, volume);
  if (source === undefined)
    throw new ContainerError("ImageVolumeMountFailed", `volume ${volume.name}: its image is not there`);
  const writable = volume.type === "empty_dir" && mount.read_only !== true;
  if (mount.sub_path === undefined || mount.sub_path === "") return bind(source, mount.path, !writable);

  let fd: number;
  try {
    fd = openInRoot(source, mount.sub_path, { create: volume.type === "empty_dir" });
  } catch (thrown) {
    const message = isMissing(thrown) ? "no such file or directory" : String(thrown);
    throw new ContainerError(
      "CreateContainerConfigError",
      `failed to prepare subPath for volumeMount "${mount.volume}" of container "${launch.name}": ${mount.sub_path}: ${message}`,
      { cause: thrown },
    );
  }
  try {
    await mkdir(join(subTarget, ".."), { recursive: true });
    if (fstatSync(fd).isDirectory()) await mkdir(subTarget);
    else await writeFile(subTarget, "");
    await bindDescriptor(fd, subTarget);
  } finally {
    closeSync(fd);
  }
  return bind(subTarget, mount.path, !writable);
}

/** What a volume holds, and how much it may. */
export async function volumeStats(
  dir: string,
  meter: TreeMeter,
  volume: Extract<Volume, { type: "empty_dir" }>,
): Promise<{ name: string; used_bytes: number; capacity_bytes?: number }> {
  const path = join(dir, "volumes", volume.name);
  if (volume.medium === "memory") {
    const fs = await statfs(path);
    return { name: volume.name, used_bytes: (fs.blocks - fs.bfree) * fs.bsize, capacity_bytes: fs.blocks * fs.bsize };
  }
  const used_bytes = await meter.bytes(path);
  return {
    name: volume.name,
    used_bytes,
    ...(volume.size_bytes === undefined ? {} : { capacity_bytes: volume.size_bytes }),
  };
}
