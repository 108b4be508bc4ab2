/**
 * For the author of a VM cloud: what it must do (`VmCloud`), the provider that makes machines of it, and the checks
 * that tell whether it does (`checkVmCloud`).
 *
 * @example
 *   import { CloudProvider, type VmCloud } from "vmlet/cloud";
 *
 *   export const createProvider = () => new CloudProvider({ cloud: new MyCloud(), scope: "burst", types: [...] });
 */
export type { Entry, EntryStore, InstanceType, Vm, VmCloud, VmNotice, VmRequest, VmState } from "./cloud.ts";
export type { AttachedVolume, CloudVolume, CloudVolumeRequest, CloudVolumes, VolumeRef } from "./cloud.ts";
export { CloudProvider, type CloudProviderOptions } from "./provider.ts";
export { dialAddress } from "./dial-address.ts";
export { GUEST_KEYS, GUEST_PORT, GuestKeys, keyFilesOf } from "./guest-keys.ts";
export { checkVmCloud, type VmCloudCheckResult, type VmCloudKitOptions } from "./kit.ts";
