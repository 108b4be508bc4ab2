import { expect, test } from "vitest";
import { MUTANTS } from "./mutants.ts";
import { simulate } from "./simulate.ts";

const LIMIT = 20_000;

for (const mutant of MUTANTS) {
  test(`catches: ${mutant.name}`, async () => {
    let caught: string | undefined;
    let seed = 0;
    while (caught === undefined && seed < LIMIT) caught = await simulate(++seed, mutant);
    console.log(`${mutant.name}: ${caught === undefined ? "NOT CAUGHT" : `schedule ${seed}: ${caught}`}`);
    expect(caught, `rule ${mutant.rule} is not guarded: ${LIMIT} schedules found nothing`).toBeDefined();
  });
}
