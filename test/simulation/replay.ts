/** Plays one schedule and tells what happened: `node test/simulation/replay.ts SCENARIO SEED [MUTANT]`. */
import { MUTANTS } from "./mutants/all.ts";
import { scenarioNamed } from "./scenarios.ts";
import { simulate } from "./simulate.ts";

const [scenario = "everyday", seed = "1", name] = process.argv.slice(2);
const mutant = name === undefined ? undefined : MUTANTS.find((each) => each.name.includes(name));
if (name !== undefined && mutant === undefined) throw new Error(`There is no mutant "${name}"`);
const trace = (line: string) => console.log(line);
const violation = await simulate({ seed: Number(seed), scenario: scenarioNamed(scenario), mutant, trace });
console.log(violation === undefined ? "Every invariant holds" : violation.message);
process.exitCode = violation === undefined ? 0 : 1;
