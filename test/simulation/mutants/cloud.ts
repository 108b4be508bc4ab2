/** Planted bugs of the provider whose machines are VMs: what it believes of its cloud, and how it writes entries. */
import { isProviderError } from "../../../src/provider/errors.ts";
import { absent, hasNoSilentVms, stopsUnseenVms, withEntries, withVms } from "../../support/altered-clouds.ts";
import type { Mutant } from "./mutant.ts";

const scenario = "cloud";
let agents = 0;

export const CLOUD: readonly Mutant[] = [
  {
    name: "an agent goes on with a VM of its own, whichever its machine's entry names",
    rule: 1,
    scenario,
    caughtAs: "S3 stopped or deleted the machine of a live pod",
    cloud: (real) => {
      const own = `own-${++agents}`;
      return withEntries(({ get }) => ({
        async get(name, options) {
          const entry = await get(name, options);
          const { vm, phase } = entry.words;
          if (vm === undefined || phase === "buried") return entry;
          return { ...entry, words: { ...entry.words, vm: own + vm.slice(-10) } };
        },
      }))(real);
    },
  },
  {
    name: "a cloud that does not answer has no such VM",
    rule: 2,
    scenario,
    caughtAs: "S3 stopped or deleted the machine of a live pod",
    cloud: hasNoSilentVms,
  },
  {
    name: "a VM whose host is out of sight counts as stopped",
    rule: 2,
    scenario,
    caughtAs: "S3 stopped or deleted the machine of a live pod",
    cloud: stopsUnseenVms,
  },
  {
    name: "a VM that is told to go counts as gone",
    rule: 5,
    scenario,
    caughtAs: "S6 terminal phase while the machine runs",
    cloud: withVms((real) => {
      const told = new Set<string>();
      return {
        async deleteVm(name, options) {
          told.add(name);
          await real.deleteVm(name, options);
        },
        async getVm(name, options) {
          const vm = await real.getVm(name, options);
          if (told.has(name) || vm.state === "deleting") throw absent();
          return vm;
        },
      };
    }),
  },
  {
    name: "an entry is removed with its VM, so that nothing is left to stop a late create",
    rule: 6,
    scenario,
    caughtAs: "S4 pod object removed before its machine has a tombstone",
    cloud: withEntries((real) => ({
      async swap(name, words, version, options) {
        if (words["phase"] !== "buried") return await real.swap(name, words, version, options);
        await real.remove(name, version, options);
        return { name, words, version };
      },
      async get(name, options) {
        try {
          return await real.get(name, options);
        } catch (thrown) {
          if (!isProviderError(thrown, "not_found")) throw thrown;
          const words = { phase: "buried", labels: "{}", created: "2026-01-01T00:00:00.000Z" };
          return { name, words, version: "" };
        }
      },
    })),
  },
  {
    name: "an entry that a list lacks is not asked for before its VM is removed",
    rule: 7,
    scenario,
    caughtAs: "S8 touched another node's machine",
    cloud: (real) => {
      const listed = new Set<string>();
      let isCollecting = false;
      return {
        ...real,
        async listVms(label, options) {
          const vms = await real.listVms(label, options);
          isCollecting = true;
          return vms;
        },
        entries: {
          ...real.entries,
          async list(word, options) {
            isCollecting = false;
            const entries = await real.entries.list(word, options);
            listed.clear();
            for (const { name } of entries) listed.add(name);
            return entries;
          },
          async get(name, options) {
            if (isCollecting && !listed.has(name)) throw absent();
            return await real.entries.get(name, options);
          },
        },
      };
    },
  },
  {
    name: "that a guest may have been told of a machine is not written before",
    rule: 9,
    scenario,
    caughtAs: "S6 a machine that was in one VM is made in another",
    cloud: withEntries((real) => {
      const told = new Map<string, string>();
      return {
        async swap(name, words, version, options) {
          if (words["phase"] !== "told") return await real.swap(name, words, version, options);
          told.set(name, version);
          return { name, words, version };
        },
        async get(name, options) {
          const entry = await real.get(name, options);
          const isTold = told.get(name) === entry.version;
          return isTold ? { ...entry, words: { ...entry.words, phase: "told" } } : entry;
        },
      };
    }),
  },
  {
    name: "entries are written whatever they have become",
    rule: 10,
    scenario,
    caughtAs: "S4 pod object removed before its machine has a tombstone",
    cloud: withEntries((real) => ({
      async swap(name, words, _version, options) {
        const { version } = await real.get(name, options);
        return await real.swap(name, words, version, options);
      },
    })),
  },
  {
    name: "a VM of the pool that another has claimed is claimed once more",
    rule: 10,
    scenario: "pool",
    caughtAs: "S6 two machines are put into one VM",
    cloud: withEntries((real) => ({
      async get(name, options) {
        const entry = await real.get(name, options);
        return entry.words["phase"] === "claimed" ? { ...entry, words: { ...entry.words, phase: "warm" } } : entry;
      },
    })),
  },
];
