/** Plays schedules: `node test/simulation/cloud-volumes/replay.ts SEED [MUTANT]`, or `FROM-TO`. */
import { MUTANTS } from "./mutants.ts";
import { simulate } from "./simulate.ts";

const [seeds = "1", planted] = process.argv.slice(2);
const mutant = planted === undefined ? undefined : MUTANTS.find((each) => each.name.includes(planted));
if (planted !== undefined && mutant === undefined) throw new Error(`There is no mutant "${planted}"`);
const [from, to] = seeds.split("-").map(Number);
const trace = to === undefined ? (line: string) => console.log(line) : undefined;
const found = new Map<string, number[]>();
for (let seed = from!; seed <= (to ?? from!); seed++) {
  const violation = await simulate({ seed, mutant, trace });
  if (violation === undefined) continue;
  const kind = violation.message.replaceAll(/\b(m\d+|v\d|copy\d)\b/g, "*").slice(0, 120);
  found.set(kind, [...(found.get(kind) ?? []), seed]);
}
for (const [kind, each] of found) console.log(`${each.length} x ${kind}: seeds ${each.slice(0, 5).join(", ")}`);
if (found.size === 0) console.log("Every invariant holds");
process.exitCode = found.size === 0 ? 0 : 1;
