/** What documents say that is written from the code: `npm run docs` writes it again. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { supportTable } from "../../src/podspec/admission/capability-gate.ts";
import { MUTANTS } from "../simulation/mutants/all.ts";
import { HELD_BY_UNITS } from "../simulation/mutants/held-by-units.ts";
import { SCENARIOS } from "../simulation/scenarios.ts";
import {
  CRI_CAPABILITIES,
  OCI_CAPABILITIES,
  PROCESS_CAPABILITIES,
  VM_CAPABILITIES,
} from "../../providers/local/engines/capabilities.ts";
import { MEMORY_CAPABILITIES } from "../../providers/memory/provider.ts";
import { ALL_CAPABILITIES, CAPABILITIES } from "../../src/provider/capabilities.ts";
import { PROVIDER_CODES } from "../../src/provider/errors.ts";
import { rulesRows } from "./contract-rules.ts";
import { versionRows } from "./versions.ts";
import { ERROR_CODES } from "../../src/util/error-codes.ts";

const root = join(import.meta.dirname, "../..");

interface WrittenPart {
  path: string;
  begin: string;
  end: string;
  /** What stands between the marks, as of now. */
  content: () => string;
}

export const WRITTEN_PARTS: readonly WrittenPart[] = [
  {
    path: join(root, "README.md"),
    begin: "<!-- features:begin (npm run docs) -->",
    end: "<!-- features:end -->",
    content: () => `\n\n${supportTable()}\n\n`,
  },
  {
    path: join(root, "src/provider/contract/openapi.yaml"),
    begin: "# capabilities:begin (npm run docs)",
    end: "# capabilities:end",
    content: () => `\n${indented(capabilitiesSchema(), 10)}\n${" ".repeat(10)}`,
  },
  {
    path: join(root, "providers/README.md"),
    begin: "<!-- capabilities:begin (npm run docs) -->",
    end: "<!-- capabilities:end -->",
    content: () =>
      table(
        ["Capability", ...Object.keys(DECLARED)],
        ALL_CAPABILITIES.map((name) => [
          `\`${name}\``,
          ...Object.values(DECLARED).map((declared) => (declared.includes(name) ? "yes" : "")),
        ]),
      ),
  },
  {
    path: join(root, "ERRORS.md"),
    begin: "<!-- codes:begin (npm run docs) -->",
    end: "<!-- codes:end -->",
    content: () =>
      table(
        ["Code", "What it means", "What to do"],
        Object.entries(ERROR_CODES).map(([code, { meaning, cure }]) => [`\`${code}\``, meaning, cure]),
      ),
  },
  {
    path: join(root, "ERRORS.md"),
    begin: "<!-- provider-codes:begin (npm run docs) -->",
    end: "<!-- provider-codes:end -->",
    content: () =>
      table(
        ["Code", "What it means", "What the agent does", "What to do"],
        Object.entries(PROVIDER_CODES).map(([code, { meaning, reaction, cure }]) => [
          `\`${code}\``,
          meaning,
          reaction,
          cure,
        ]),
      ),
  },
  {
    path: join(root, "docs/versions.md"),
    begin: "<!-- versions:begin (npm run docs) -->",
    end: "<!-- versions:end -->",
    content: () => table(["What", "Version", "Run in"], versionRows()),
  },
  {
    path: join(root, "docs/machine-api-rules.md"),
    begin: "<!-- rules:begin (npm run docs) -->",
    end: "<!-- rules:end -->",
    content: () => table(["Where", "Rule", "Held by"], rulesRows()),
  },
  {
    path: join(root, "test/SIMULATION.md"),
    begin: "<!-- scenarios:begin (npm run docs) -->",
    end: "<!-- scenarios:end -->",
    content: () =>
      table(
        ["Scenario", "What is played", "Of 100 schedules"],
        SCENARIOS.map(({ name, what, share }) => [`\`${name}\``, what, String(share)]),
      ),
  },
  {
    path: join(root, "test/SIMULATION.md"),
    begin: "<!-- mutants:begin (npm run docs) -->",
    end: "<!-- mutants:end -->",
    content: () => table(["Rule", "Planted bug", "Caught by"], mutants()),
  },
];

const DECLARED = {
  "`process`": PROCESS_CAPABILITIES,
  "`oci`": OCI_CAPABILITIES,
  "`cri`": CRI_CAPABILITIES,
  "`vm`": VM_CAPABILITIES,
  "`memory`": MEMORY_CAPABILITIES,
};

/** The text with the part as of now between its marks. @throws Error when a mark is missing */
export function withPart(text: string, { path, begin, end, content }: WrittenPart): string {
  const [before, rest] = text.split(begin);
  const [, after] = rest?.split(end) ?? [];
  if (before === undefined || after === undefined)
    throw new Error(`${path}: the marks ${begin} and ${end} must be there, in this order`);
  return `${before}${begin}${content()}${end}${after}`;
}

/** Every planted bug by the rule that it breaks, with the invariant or the unit test that must find it. */
function mutants(): string[][] {
  const simulated = MUTANTS.map(({ rule, name, caughtAs, scenario = "everyday" }) => ({
    rule,
    row: [String(rule), name, `"${caughtAs}" in \`${scenario}\``],
  }));
  const held = HELD_BY_UNITS.map(({ rule, name, caughtBy: { file, test } }) => ({
    rule,
    row: [String(rule), name, `\`unit/${file}\` "${test}"`],
  }));
  return [...simulated, ...held].toSorted((a, b) => a.rule - b.rule).map(({ row }) => row);
}

/** As the formatter would have it. */
function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = head.map((title, column) => Math.max(title.length, ...rows.map((row) => row[column]!.length)));
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell, column) => cell.padEnd(widths[column]!)).join(" | ")} |`;
  const rule = `| ${widths.map((width) => "-".repeat(width)).join(" | ")} |`;
  return `\n\n${[line(head), rule, ...rows.map(line)].join("\n")}\n\n`;
}

function capabilitiesSchema(): string {
  const rows = Object.entries(CAPABILITIES).map(([name, meaning]) => `| \`${name}\` | ${meaning} |`);
  const text = ["Names that a client does not know are ignored.", "", "| Name | Meaning |", "|---|---|", ...rows];
  return `description: |-\n${indented(text.join("\n"), 2)}`;
}

function indented(text: string, by: number): string {
  return text.replaceAll(/^(?=.)/gm, " ".repeat(by));
}

if (process.argv[1] === import.meta.filename)
  for (const part of WRITTEN_PARTS) writeFileSync(part.path, withPart(readFileSync(part.path, "utf8"), part));
