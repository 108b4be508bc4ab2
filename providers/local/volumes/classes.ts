/** The classes of this host's volumes. Its machines share a kernel: several may have one mounted file system. */
import type { VolumeClass } from "../../../src/provider/kit/index.ts";

/** The first is that of volumes which name none. */
export const LOCAL_CLASSES: readonly VolumeClass[] = [
  { name: "local", sharing: "one", modes: ["filesystem"] },
  { name: "shared", sharing: "writers", modes: ["filesystem"] },
];

/** Of those that are disks. */
export const DISK_CLASSES: readonly VolumeClass[] = LOCAL_CLASSES.map((each) => ({
  ...each,
  modes: ["filesystem", "block"],
}));
