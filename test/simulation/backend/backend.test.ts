/**
 * The unchanged backend over many seeds, and each planted bug until it is found. By environment:
 * VMLET_BACKEND_SCHEDULES, how many schedules in all; VMLET_SIMULATION_SEED, where to begin.
 */
import { describe, expect, test } from "vitest";
import { sliced } from "../../support/slice.ts";
import { MUTANTS } from "./mutants.ts";
import { scenarioNamed, SCENARIOS, simulate } from "./simulate.ts";

const SCHEDULES = Number(process.env["VMLET_BACKEND_SCHEDULES"] ?? 600);
const FIRST = Number(process.env["VMLET_SIMULATION_SEED"] ?? 1);
/** In how many schedules a planted bug must be found. */
const LIMIT = 3_000;

describe("no schedule breaks an invariant of the backend", () => {
  const shares = SCENARIOS.reduce((sum, { share }) => sum + share, 0);
  for (const scenario of SCENARIOS) {
    const count = Math.ceil((SCHEDULES * scenario.share) / shares);
    test(`${scenario.name}: ${count} schedules from seed ${FIRST} on`, async () => {
      const violations: string[] = [];
      for (let seed = FIRST; seed < FIRST + count && violations.length < 5; seed++) {
        const violation = await simulate({ seed, scenario });
        if (violation !== undefined)
          violations.push(`${violation.message}: node test/simulation/backend/replay.ts ${scenario.name} ${seed}`);
      }
      expect(violations).toEqual([]);
    });
  }
});

describe("a schedule that has found a fault holds since", () => {
  test.for([
    ["power-cuts", 2269, "a number of restarts that had been told fell"],
    ["power-cuts-memory", 2117, "a number of restarts that had been told fell"],
    ["power-cuts", 2335, "what the engine had said of an end was lost"],
    ["power-cuts", 2314, "what had been kept of an end was lost when the rest was cleared"],
    ["power-cuts-memory", 2471, "what the engine had said of an end was lost"],
  ] as const)("%s %i: %s", async ([name, seed]) => {
    expect((await simulate({ seed, scenario: scenarioNamed(name) }))?.message).toBeUndefined();
  });
});

describe("a planted bug of the backend is found", () => {
  for (const mutant of sliced(MUTANTS)) {
    const scenario = scenarioNamed(mutant.scenario ?? "kills");
    test(mutant.name, async () => {
      let caught: string | undefined;
      for (let seed = 1; caught === undefined && seed <= LIMIT; seed++) {
        const violation = await simulate({ seed, scenario, mutant });
        if (violation?.message.startsWith(mutant.caughtAs)) caught = violation.message;
      }
      expect(caught, `${LIMIT} schedules of ${scenario.name} did not find "${mutant.caughtAs}"`).toBeDefined();
    });
  }
});
