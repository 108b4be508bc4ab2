import { CLOUD } from "./cloud.ts";
import { DECISIONS } from "./decisions.ts";
import type { Mutant } from "./mutant.ts";
import { REQUESTS } from "./requests.ts";
import { VOLUMES } from "./volumes.ts";

export const MUTANTS: readonly Mutant[] = [...REQUESTS, ...DECISIONS, ...CLOUD, ...VOLUMES].sort(
  (a, b) => a.rule - b.rule,
);
