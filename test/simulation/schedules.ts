/**
 * The unchanged agent over many seeds, in two files so that two processor cores share the work.
 * VMLET_SIMULATION_SCHEDULES says how many schedules in all; VMLET_SIMULATION_SEED where to begin (a failure prints it).
 */
import { expect, test } from "vitest";
import { simulate } from "./simulate.ts";

export function holdsFor({ half }: { half: 0 | 1 }): void {
  const total = Number(process.env["VMLET_SIMULATION_SCHEDULES"] ?? 100_000);
  const first = Number(process.env["VMLET_SIMULATION_SEED"] ?? 1);
  const from = first + half * Math.ceil(total / 2);
  const to = half === 0 ? first + Math.ceil(total / 2) : first + total;
  test(`${to - from} schedules from seed ${from} on keep every invariant`, async () => {
    const violations: string[] = [];
    for (let seed = from; seed < to && violations.length < 5; seed++) {
      const violation = await simulate(seed);
      if (violation !== undefined) violations.push(`seed ${seed}: ${violation}`);
    }
    expect(violations).toEqual([]);
  });
}
