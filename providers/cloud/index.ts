/**
 * For the author of a VM cloud: what it must do (`VmCloud`), and the provider that makes machines of it.
 *
 * @example
 *   import { CloudProvider, type VmCloud } from "vmlet/cloud";
 *
 *   export const createProvider = () => new CloudProvider({ cloud: new MyCloud(), scope: "burst", types: [...] });
 */
export type { Entry, EntryStore, InstanceType, Vm, VmCloud, VmRequest, VmState } from "./cloud.ts";
export { CloudProvider, type CloudProviderOptions } from "./provider.ts";
