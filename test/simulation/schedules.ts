/**
 * The unchanged agent over many seeds, in two files so that two processor cores share the work. By environment:
 * VMLET_SIMULATION_SCHEDULES, how many schedules in all; VMLET_SIMULATION_SEED, where to begin; VMLET_SIMULATION_SCENARIO, only
 * this scenario.
 */
import { describe, expect, test } from "vitest";
import { SCENARIOS, scenarioNamed, type Scenario } from "./scenarios.ts";
import { simulate } from "./simulate.ts";

const SCHEDULES = 60_000;

export function holdsFor({ half }: { half: 0 | 1 }): void {
  const total = Number(process.env["VMLET_SIMULATION_SCHEDULES"] ?? SCHEDULES);
  const first = Number(process.env["VMLET_SIMULATION_SEED"] ?? 1);
  const only = process.env["VMLET_SIMULATION_SCENARIO"];
  const scenarios = only === undefined ? SCENARIOS : [scenarioNamed(only)];
  const shares = scenarios.reduce((sum, { share }) => sum + share, 0);
  describe("no schedule breaks an invariant", () => {
    for (const scenario of scenarios) {
      const count = Math.ceil((total * scenario.share) / shares / 2);
      const from = first + half * count;
      test(`${scenario.name}: ${count} schedules from seed ${from} on`, () => holds(scenario, from, count));
    }
  });
}

async function holds(scenario: Scenario, from: number, count: number): Promise<void> {
  const violations: string[] = [];
  for (let seed = from; seed < from + count && violations.length < 5; seed++) {
    const violation = await simulate({ seed, scenario });
    if (violation !== undefined)
      violations.push(`${violation.message}: node test/simulation/replay.ts ${scenario.name} ${seed}`);
  }
  expect(violations).toEqual([]);
}
