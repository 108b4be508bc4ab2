/** What documents say that is written from the code: `npm run docs` writes it again. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { supportTable } from "../../src/podspec/admission/capability-gate.ts";
import { CAPABILITIES } from "../../src/provider/capabilities.ts";

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
    path: join(root, "providers/http-vm/openapi.yaml"),
    begin: "# capabilities:begin (npm run docs)",
    end: "# capabilities:end",
    content: () => `\n${indented(capabilitiesSchema(), 10)}\n${" ".repeat(10)}`,
  },
];

/** The text with the part as of now between its marks. @throws Error when a mark is missing */
export function withPart(text: string, { path, begin, end, content }: WrittenPart): string {
  const [before, rest] = text.split(begin);
  const [, after] = rest?.split(end) ?? [];
  if (before === undefined || after === undefined)
    throw new Error(`${path}: the marks ${begin} and ${end} must be there, in this order`);
  return `${before}${begin}${content()}${end}${after}`;
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
