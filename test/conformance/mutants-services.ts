/** Backends that break a rule of the cluster's Services. */
import { isProviderError } from "../../src/provider/errors.ts";
import type { ServicesProvider } from "../../src/provider/services.ts";
import type { Mutant } from "./mutant-kinds.ts";

/** @param code in place of that refusal, it says that all is well */
const believing = (code: "conflict" | "invalid"): Mutant => ({
  provider: ({ services }) => {
    const put: ServicesProvider["put"] = (spec, options) =>
      services.put(spec, options).catch((thrown: unknown) => {
        if (isProviderError(thrown, code)) return { revision: spec.revision, services: spec.services.length };
        throw thrown;
      });
    return { services: { put } };
  },
});

export const SERVICE_MUTANTS: Record<string, Mutant> = {
  "services/changes-want-their-base": believing("conflict"),
  "services/harmful-are-refused": believing("invalid"),
};
