import { expect, test } from "vitest";
import { sliced } from "../support/slice.ts";
import { MUTANTS } from "./mutants/all.ts";
import { scenarioNamed } from "./scenarios.ts";
import { simulate } from "./simulate.ts";

const LIMIT = 10_000;

for (const mutant of sliced(MUTANTS)) {
  const scenario = scenarioNamed(mutant.scenario ?? "everyday");
  test(`rule ${mutant.rule} is guarded: ${mutant.name}`, async () => {
    let caught: string | undefined;
    let seed = 0;
    while (caught === undefined && seed < LIMIT) {
      const violation = await simulate({ seed: ++seed, scenario, mutant });
      if (violation?.message.startsWith(mutant.caughtAs)) caught = violation.message;
    }
    expect(caught, `${LIMIT} schedules of ${scenario.name} did not find "${mutant.caughtAs}"`).toBeDefined();
  });
}
