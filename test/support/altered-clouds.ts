/** Clouds that are another than they are: for planted bugs. */
import type { EntryStore, VmCloud } from "../../providers/cloud/cloud.ts";
import { isProviderError, ProviderError } from "../../src/provider/errors.ts";

export const absent = () => new ProviderError("not_found", "mutant");

/** @throws absent in place of what says that nobody answers */
export const absentIfSilent = (thrown: unknown): never => {
  throw isProviderError(thrown, "unavailable") ? absent() : thrown;
};

export const withEntries =
  (change: (real: EntryStore) => Partial<EntryStore>) =>
  (real: VmCloud): VmCloud => ({ ...real, entries: { ...real.entries, ...change(real.entries) } });

export const withVms =
  (change: (real: VmCloud) => Partial<VmCloud>) =>
  (real: VmCloud): VmCloud => ({ ...real, ...change(real) });

export const hasNoSilentVms = withVms((real) => ({
  getVm: (name, options) => real.getVm(name, options).catch(absentIfSilent),
}));

export const stopsUnseenVms = withVms((real) => ({
  async getVm(name, options) {
    const vm = await real.getVm(name, options);
    return vm.isSeen ? vm : { ...vm, isSeen: true, state: "stopped" };
  },
}));
