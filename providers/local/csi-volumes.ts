/**
 * Volumes that CSI drivers of others mount on this host for one machine (plugins/): what stands of them in its record,
 * and who has them mounted. A volume lies where a kubelet would have it, below the folder that plugins know, for
 * drivers have that folder mounted; beside it lies what a kubelet writes down of it, by which one that outlived its
 * machine's record is found.
 *
 * One that outlives machines is staged once for all of them that have it. Who has it stands in the machines' records
 * and nowhere else: the last of them has it unstaged.
 */
import { createHash } from "node:crypto";
import { dirname, join } from "node:path";
import {
  LABEL_UID,
  type MachinePatch,
  type MachineSpec,
  type Volume,
  VmletError,
} from "../../src/provider/kit/index.ts";

export type CsiVolume = Extract<Volume, { type: "csi" }>;

/** One that its driver was asked to mount, and so may have. */
export interface PublishedVolume {
  driver: string;
  /** The driver's id of one that outlives machines; absent: it is made from the place, and the volume ends with it. */
  volume?: string;
  /** Where it is mounted, or is a device, below `root`: which of them, `isDevice` says. */
  path: string;
  /** The folder that plugins knew then. Absent: the record was lost, and it is the one that they know now. */
  root?: string;
}

/** By the volumes' names. */
export type PublishedVolumes = Readonly<Record<string, PublishedVolume>>;

/** A machine that has such volumes, or is to have them. */
export interface CsiHolder {
  readonly id: string;
  readonly spec: Pick<MachineSpec, "volumes" | "labels" | "security">;
  /** Undefined: none, and no driver was asked for any. */
  readonly published: PublishedVolumes | undefined;
  /** On the disk when it returns. @throws when it cannot be written */
  keep(volumes: PublishedVolumes | undefined): void;
  /** One that outlives it has grown to this. @throws when it cannot be written */
  showSize(volume: { driver: string; volume: string }, sizeBytes: number): void;
}

export type CsiGrowth = NonNullable<MachinePatch["csi_volumes"]>[number];

export interface CsiSource {
  /**
   * Has the drivers mount all of the machine's volumes; again for one that has them already, which changes nothing.
   * @throws VolumesNotReady when one is not; it is to be asked again
   */
  publish(holder: CsiHolder, signal: AbortSignal): Promise<void>;
  /**
   * Nothing of the machine runs: has the drivers take its volumes back.
   * @throws Error in which a driver says why not; to be asked again
   */
  unpublish(holder: CsiHolder, signal: AbortSignal): Promise<void>;
  /**
   * A volume that the machine has, and that outlives it, has become larger: its driver lets it grow.
   * @throws ProviderError in_use, invalid, unavailable or unsupported, as the driver says, and conflict when the
   *   machine has no such volume
   */
  grow(holder: CsiHolder, growth: CsiGrowth, signal: AbortSignal): Promise<void>;
  /**
   * The machine waits no longer for those that were its alone: it is done when the drivers can. One that outlives it is
   * waited for.
   * @throws when that cannot be written
   */
  leave(holder: CsiHolder): void;
}

/** A machine's volume is not there; it may be later. */
export class VolumesNotReady extends VmletError {
  readonly code = "CSI_VOLUME";
}

/** What is written down of a pod's mounts and devices, below its folder. */
export const MOUNT_NOTES = "volumes/kubernetes.io~csi";
export const DEVICE_NOTES = "volumeDevices/kubernetes.io~csi";
/** Block devices of all pods, below the folder that plugins know. */
export const DEVICES = "plugins/kubernetes.io/csi/volumeDevices";

/** Names that a folder may have. */
const PLAIN_NAME = /^[A-Za-z0-9][-A-Za-z0-9_.]{0,199}$/;

export const csiVolumes = ({ volumes = [] }: Pick<MachineSpec, "volumes">): CsiVolume[] =>
  volumes.filter((volume) => volume.type === "csi");

/** The machine's, when their drivers are about to be asked. As a kubelet, by the pod's UID where there is one. */
export function askedVolumes(id: string, spec: Pick<MachineSpec, "volumes" | "labels">): PublishedVolumes {
  const uid = spec.labels[LABEL_UID] ?? "";
  const folder = PLAIN_NAME.test(uid) ? uid : id;
  return Object.fromEntries(
    csiVolumes(spec).map(({ name, driver, persistent }) => [
      name,
      {
        driver,
        ...(persistent !== undefined && { volume: persistent.volume }),
        path: publishedAt(folder, { pv: persistent?.pv ?? name, isBlock: persistent?.mode === "block" }),
      },
    ]),
  );
}

/** A volume that outlives machines: its driver, the driver's id of it, and how machines have it. */
export interface VolumeKey {
  driver: string;
  volume: string;
  /** Machines have it as a block device. */
  isBlock: boolean;
}

/** kubelet: makeVolumeHandle. By the place, which no two have. */
export function volumeIdOf({ path, volume }: Pick<PublishedVolume, "path" | "volume">): string {
  if (volume !== undefined) return volume;
  const [, pod = "", , , name = ""] = path.split("/");
  return `csi-${createHash("sha256").update(`${pod}${name}`).digest("hex")}`;
}

/** Whether it is published as a block device (kubelet: csi_block, getPublishPath), and not mounted. */
export const isDevice = ({ path }: Pick<PublishedVolume, "path">): boolean => path.startsWith(`${DEVICES}/publish/`);

/**
 * The folder in which is written down whose it is, below the folder that plugins know. Of a mount it lies around it; a
 * device is a file among those of other pods, and a kubelet has a link of this name in the pod's own folder
 * (csi_block: GetPodDeviceMapPath).
 */
export function noteFolder({ path }: Pick<PublishedVolume, "path">): string {
  if (!isDevice({ path })) return dirname(path);
  const [pv = "", pod = ""] = path.slice(`${DEVICES}/publish/`.length).split("/");
  return join("pods", pod, DEVICE_NOTES, pv);
}

/** Of such a folder, as it is found: what was published. */
export const publishedAt = (pod: string, { pv, isBlock }: { pv: string; isBlock: boolean }): string =>
  isBlock ? join(DEVICES, "publish", pv, pod) : join("pods", pod, MOUNT_NOTES, pv, "mount");

/**
 * Where one is staged, and where it is written down that it is, below the folder that plugins know (kubelet:
 * makeDeviceMountPath, and csi_block, GetStagingPath). In place of the PersistentVolume's name a device has a digest,
 * for two of them may be one volume, which is staged once.
 */
export function stagingPlace({ driver, volume, isBlock }: VolumeKey): { path: string; note: string } {
  if (!isBlock) {
    const note = join("plugins/kubernetes.io/csi", driver, digestOf(volume));
    return { path: join(note, "globalmount"), note };
  }
  const name = digestOf(`${driver}^${volume}`);
  return { path: join(DEVICES, "staging", name), note: join(DEVICES, name, "data") };
}

const digestOf = (text: string): string => createHash("sha256").update(text).digest("hex");
