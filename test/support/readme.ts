/** The README's part that is written from the code. `npm run docs` writes it anew. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { supportTable } from "../../src/podspec/capability-gate.ts";

const BEGIN = "<!-- features:begin (npm run docs) -->";
const END = "<!-- features:end -->";

export const readmePath = join(import.meta.dirname, "../../README.md");

/** The text with the table of the moment between its markers. @throws Error when a marker is missing */
export function withFeatures(readme: string): string {
  const [before, rest] = readme.split(BEGIN);
  const [, after] = rest?.split(END) ?? [];
  if (before === undefined || after === undefined)
    throw new Error(`README.md: the markers ${BEGIN} and ${END} must be there, in this order`);
  return `${before}${BEGIN}\n\n${supportTable()}\n\n${END}${after}`;
}

if (process.argv[1] === import.meta.filename) writeFileSync(readmePath, withFeatures(readFileSync(readmePath, "utf8")));
