/** Runs unit tests against sources with one planted bug: see `held-by-units.test.ts`. */
import { join } from "node:path";
import { defineConfig } from "vitest/config";
import { HELD_BY_UNITS } from "./mutants/held-by-units.ts";

const root = join(import.meta.dirname, "../..");
const mutant = HELD_BY_UNITS.find(({ name }) => name === process.env["VMLET_MUTANT"]);
if (mutant === undefined)
  throw new Error("VMLET_MUTANT names none of the mutants in test/simulation/mutants/held-by-units.ts");
const { file, find, replace } = mutant;

export default defineConfig({
  root,
  plugins: [
    {
      name: "planted bug",
      enforce: "pre",
      transform: (code, id) => (id === join(root, file) ? code.replace(find, () => replace) : undefined),
    },
  ],
  // Modules of other bugs, and those without any, must not be taken from a cache.
  test: { include: ["test/unit/**/*.test.ts"], fsModuleCache: false },
});
