/** Backends that break a rule of the ranges of machines' addresses. */
import { isProviderError } from "../../src/provider/errors.ts";
import type { PodRangesProvider, PodRangesSpec } from "../../src/provider/pod-ranges.ts";
import { isCase, type Mutant, type World } from "./mutant-kinds.ts";

const telling = (change: (ranges: PodRangesProvider, world: World) => Partial<PodRangesProvider>): Mutant => ({
  provider: (sound, world) => ({ podRanges: { ...sound.podRanges, ...change(sound.podRanges, world) } }),
});

export const POD_RANGE_MUTANTS: Record<string, Mutant> = {
  "pod-ranges/harmful-are-refused": telling((ranges) => ({
    put: (spec, options) =>
      ranges.put(spec, options).catch((thrown: unknown) => {
        if (isCase(spec, "harmful") && isProviderError(thrown, "invalid")) return ranges.get(options);
        throw thrown;
      }),
  })),
  // Whoever comes later has them.
  "pod-ranges/are-one-nodes": telling((ranges) => ({
    put: (spec, options) =>
      ranges.put(spec, options).catch((thrown: unknown) => {
        if (isCase(spec, "other") && isProviderError(thrown, "conflict")) return ranges.get(options);
        throw thrown;
      }),
  })),
  "pod-ranges/end-with-others-that-are-refused": telling((ranges) => {
    let former: PodRangesSpec | undefined;
    return {
      put: async (spec, options) => {
        try {
          const told = await ranges.put(spec, options);
          if (isCase(spec, "former")) former = spec;
          return told;
        } catch (thrown) {
          if (former !== undefined && isCase(spec, "former")) await ranges.put(former, options);
          throw thrown;
        }
      },
    };
  }),
  "pod-ranges/survive-a-restart": telling((ranges, world) => ({
    get: async (options) => {
      const told = await ranges.get(options);
      return world.isRestarted ? { ...told, labels: {}, ranges: [], state: "none" } : told;
    },
  })),
};
