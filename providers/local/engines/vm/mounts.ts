/** What a container in a VM sees of its machine's volumes and of images, by the paths that these have in the guest. */
import { basename, dirname } from "node:path";
import type { Mount } from "../../../../src/provider/kit/index.ts";
import { bind, effectiveMounts, type OciMount } from "../../bundle/bundle.ts";
import { ContainerError, type ContainerLaunch, type MachineHome } from "../../engine.ts";
import type { GuestCommand } from "./control.ts";

export const CONTAINERS = "/scratch/containers";
const VOLUMES = "/scratch/volumes";

/** @returns the mounts, and what prepares those of a path of the machine or of a part of a volume */
export function containerMounts(
  home: MachineHome,
  launch: ContainerLaunch,
): { mounts: OciMount[]; prepare: GuestCommand[] } {
  const { spec } = launch;
  const readOnly = spec.security?.read_only_root === true;
  const prepare: GuestCommand[] = [];
  const mounts: OciMount[] = [
    { ...bind("/run/shm", "/dev/shm", false), options: ["rbind", "nosuid", "nodev", "noexec", "rw"] },
    ...["hosts", "hostname", "resolv.conf"].map((name) => bind(`/run/etc/${name}`, `/etc/${name}`, readOnly)),
    bind(`${CONTAINERS}/${launch.id}/termination-log`, spec.termination_message?.path || "/dev/termination-log", false),
    ...(spec.mounts ?? []).map((mount) => volumeMount(home, launch, mount, prepare)),
  ];
  return { mounts: effectiveMounts(mounts), prepare };
}

function volumeMount({ spec }: MachineHome, launch: ContainerLaunch, mount: Mount, prepare: GuestCommand[]): OciMount {
  const volume = (spec.volumes ?? []).find(({ name }) => name === mount.volume);
  if (volume === undefined)
    throw new ContainerError(
      "CreateContainerConfigError",
      `container ${launch.name}: there is no volume ${JSON.stringify(mount.volume)}`,
    );
  const location = launch.imageVolumes[volume.name]?.location;
  if (volume.type === "image" && location === undefined)
    throw new ContainerError("ImageVolumeMountFailed", `volume ${volume.name}: its image is not there`);
  const name = String(prepare.length);
  let root = volume.type === "image" ? `/images/${imageName(location!)}` : `${VOLUMES}/${volume.name}`;
  if (volume.type === "host_path") {
    prepare.push(["host_path", launch.id, name, volume.path, volume.path_type ?? ""]);
    root = `${CONTAINERS}/${launch.id}/path-${name}`;
  }
  const isWritable =
    volume.type === "empty_dir" ||
    volume.type === "host_path" ||
    ((volume.type === "persistent" || volume.type === "nfs") && volume.read_only !== true);
  const readOnly = !isWritable || mount.read_only === true;
  if (mount.sub_path === undefined || mount.sub_path === "") return bind(root, mount.path, readOnly);
  const missing = isWritable ? "make" : "-";
  // A kubelet refuses what leaves a volume. An image is a root of its own.
  const outside = volume.type === "image" ? "-" : "refused";
  prepare.push(["sub_path", launch.id, name, root, mount.sub_path, missing, outside]);
  return bind(`${CONTAINERS}/${launch.id}/sub-${name}`, mount.path, readOnly);
}

/** The guest's name for an image: a part of its digest, which names its folder on the host. */
export function imageName(location: string): string {
  return basename(dirname(location)).slice(0, 16);
}

/** Of the disk that it is on. */
export function imageSerial(location: string): string {
  return `i${imageName(location)}`;
}
