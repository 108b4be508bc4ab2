/** Plays schedules of the backend: `node test/simulation/backend/replay.ts SCENARIO SEED [MUTANT]`, or `SCENARIO FROM-TO`. */
import { MUTANTS } from "./mutants.ts";
import { scenarioNamed, simulate } from "./simulate.ts";

const [name = "kills", seeds = "1", planted] = process.argv.slice(2);
const mutant = planted === undefined ? undefined : MUTANTS.find((each) => each.name.includes(planted));
if (planted !== undefined && mutant === undefined) throw new Error(`There is no mutant "${planted}"`);
const scenario = scenarioNamed(name);
const [from, to] = seeds.split("-").map(Number);
const trace = to === undefined ? (line: string) => console.log(line) : undefined;
const found = new Map<string, number[]>();
for (let seed = from!; seed <= (to ?? from!); seed++) {
  const violation = await simulate({ seed, scenario, mutant, trace });
  if (violation === undefined) continue;
  const kind = violation.message.replaceAll(/\b(m\d|[a-z]+-\d+-[0-9a-f]+|\d+)\b/g, "*").slice(0, 100);
  found.set(kind, [...(found.get(kind) ?? []), seed]);
  if (to === undefined) console.log(violation.message);
}
for (const [kind, seeds] of [...found].toSorted((a, b) => b[1].length - a[1].length))
  console.log(`${seeds.length} x ${kind}: seeds ${seeds.slice(0, 5).join(", ")}`);
if (found.size === 0) console.log("Every invariant holds");
process.exitCode = found.size === 0 ? 0 : 1;
