/** Planted bugs around a cloud's volumes: what the provider believes of its cloud, and what it writes of volumes. */
import type { Entry } from "../../../providers/cloud/cloud.ts";
import { absent, absentIfSilent, hasNoSilentVms, withEntries, withVms } from "../../support/altered-clouds.ts";
import type { CloudVolumeMutant } from "./simulate.ts";

const isVolumes = (name: string): boolean => name.startsWith("_volume.");

/** Volumes' entries are written without this word. */
const withoutWord = (word: string) =>
  withEntries((real) => ({
    async swap(name, words, version, options) {
      if (!isVolumes(name)) return await real.swap(name, words, version, options);
      const { [word]: _, ...rest } = words;
      return await real.swap(name, rest, version, options);
    },
  }));

const stateOf = ({ volume = "{}" }: Entry["words"]) => (JSON.parse(volume) as { state?: string }).state;

export const MUTANTS: readonly CloudVolumeMutant[] = [
  {
    name: "a cloud that does not answer has no such VM",
    caughtAs: "V5",
    cloud: hasNoSilentVms,
  },
  {
    name: "a VM whose host is out of sight is gone",
    caughtAs: "V5",
    cloud: withVms((real) => ({
      async getVm(name, options) {
        const vm = await real.getVm(name, options);
        if (!vm.isSeen) throw absent();
        return vm;
      },
    })),
  },
  {
    name: "a VM that is told to go is gone",
    caughtAs: "V5",
    cloud: withVms((real) => ({
      async getVm(name, options) {
        const vm = await real.getVm(name, options);
        if (vm.state === "deleting") throw absent();
        return vm;
      },
    })),
  },
  {
    name: "a machine that is told to end is over",
    caughtAs: "V2",
    machine: (real) => (real.state === "stopping" || real.state === "deleting" ? { ...real, state: "stopped" } : real),
  },
  { name: "which machines have a volume is not written down", caughtAs: "V1", cloud: withoutWord("claims") },
  { name: "which copies are being made is not written down", caughtAs: "V8", cloud: withoutWord("copies") },
  {
    name: "a cloud that does not answer has no such volume",
    caughtAs: "V6",
    cloud: (real) => ({
      ...real,
      volumes: {
        ...real.volumes!,
        get: (volume, options) => real.volumes!.get(volume, options).catch(absentIfSilent),
      },
    }),
  },
  {
    name: "a volume that is deleted leaves no tombstone",
    caughtAs: "V6",
    cloud: withEntries((real) => ({
      async swap(name, words, version, options) {
        if (!isVolumes(name) || stateOf(words) !== "deleted") return await real.swap(name, words, version, options);
        await real.remove(name, version, options);
        return { name, words, version };
      },
    })),
  },
];
