/**
 * Volumes of a cloud over many seeds, and each planted bug until it is found. By environment: VMLET_CLOUD_SCHEDULES, how many
 * schedules; VMLET_SIMULATION_SEED, where to begin.
 */
import { describe, expect, test } from "vitest";
import { sliced } from "../../support/slice.ts";
import { MUTANTS } from "./mutants.ts";
import { simulate } from "./simulate.ts";

const SCHEDULES = Number(process.env["VMLET_CLOUD_SCHEDULES"] ?? 150);
const FIRST = Number(process.env["VMLET_SIMULATION_SEED"] ?? 1);
/** In how many schedules a planted bug must be found. */
const LIMIT = 3_000;

test(`no schedule breaks an invariant of a cloud's volumes: ${SCHEDULES} from seed ${FIRST} on`, async () => {
  const violations: string[] = [];
  for (let seed = FIRST; seed < FIRST + SCHEDULES && violations.length < 5; seed++) {
    const violation = await simulate({ seed });
    if (violation !== undefined)
      violations.push(`${violation.message}: node test/simulation/cloud-volumes/replay.ts ${seed}`);
  }
  expect(violations).toEqual([]);
});

describe("a planted bug of a cloud's volumes is found", () => {
  for (const mutant of sliced(MUTANTS))
    test(mutant.name, async () => {
      let caught: string | undefined;
      for (let seed = 1; caught === undefined && seed <= LIMIT; seed++) {
        const violation = await simulate({ seed, mutant });
        if (violation?.message.startsWith(mutant.caughtAs)) caught = violation.message;
      }
      expect(caught, `${LIMIT} schedules did not find "${mutant.caughtAs}"`).toBeDefined();
    });
});
