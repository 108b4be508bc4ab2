import { CLOUD } from "./cloud.ts";
import { DECISIONS } from "./decisions.ts";
import type { Mutant } from "./mutant.ts";
import { REQUESTS } from "./requests.ts";

export const MUTANTS: readonly Mutant[] = [...REQUESTS, ...DECISIONS, ...CLOUD].sort((a, b) => a.rule - b.rule);
