/** Folders of NFS servers: a pod names one itself, or a PersistentVolume does. */
import type { Volume } from "../provider/machine.ts";
import type { PodVolume } from "./pod-volumes.ts";

/** As a machine has it. */
export type NfsVolume = Omit<Extract<Volume, { type: "nfs" }>, "name">;

/**
 * @param how.isReadOnly by the claim, besides what the source says
 * @param how.mountOptions of a PersistentVolume
 */
export function nfsVolume(
  { server, path, readOnly }: NonNullable<PodVolume["nfs"]>,
  { isReadOnly = false, mountOptions = [] }: { isReadOnly?: boolean; mountOptions?: readonly string[] } = {},
): NfsVolume {
  return {
    ...{ type: "nfs", server, path },
    ...((readOnly === true || isReadOnly) && { read_only: true }),
    ...(mountOptions.length > 0 && { mount_options: [...mountOptions] }),
  };
}
