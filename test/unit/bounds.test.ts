/**
 * How long and how tangled a piece of code may be: the bounds stand in .oxlintrc.json, and its overrides that turn one of
 * them off, each for files by name, are the one list of exceptions. It only shrinks.
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test } from "vitest";
import plugin from "../support/lint-rules.ts";
import { exportedNames } from "../support/exports.ts";

const ROOT = join(import.meta.dirname, "../..");
const BOUNDS = [
  "complexity",
  "max-depth",
  "max-lines",
  "max-lines-per-function",
  "max-params",
  "vmlet/max-class-lines",
];
/** Lower it with each exception that goes. */
const EXCEPTIONS = 0;

interface Override {
  files: string[];
  rules: Record<string, unknown>;
}

const config = JSON.parse(readFileSync(join(ROOT, ".oxlintrc.json"), "utf8")) as {
  rules: Record<string, unknown>;
  overrides: Override[];
};

/** By name alone: a pattern may only set another bound, as for tests. */
const isException = ({ files, rules }: Override): boolean =>
  files.every((file) => !file.includes("*")) && Object.keys(rules).every((rule) => BOUNDS.includes(rule));

const exceptions = config.overrides
  .filter(isException)
  .flatMap(({ files, rules }) => files.flatMap((file) => Object.keys(rules).map((rule) => `${file} ${rule}`)));

const scratch = mkdtempSync(join(tmpdir(), "vmlet-bounds-"));
afterAll(() => rmSync(scratch, { recursive: true }));

/** What is beyond a bound when no file is excepted: `FILE RULE`. */
function beyond(): string[] {
  const bare = {
    jsPlugins: [join(ROOT, "test/support/lint-rules.ts")],
    categories: { correctness: "off" },
    rules: Object.fromEntries(BOUNDS.map((rule) => [rule, config.rules[rule]])),
    overrides: config.overrides
      .filter((override) => !isException(override))
      .map(({ files, rules }) => ({
        files: files.map((pattern) => `**/${pattern}`), // this configuration lies elsewhere
        rules: Object.fromEntries(Object.entries(rules).filter(([rule]) => BOUNDS.includes(rule))),
      })),
  };
  const file = join(scratch, "oxlint.json");
  writeFileSync(file, JSON.stringify(bare));
  const oxlint = join(ROOT, "node_modules/oxlint/bin/oxlint");
  const args = [
    oxlint,
    "-c",
    file,
    "--ignore-pattern",
    "**/*.gen.ts",
    "-f",
    "json",
    "src",
    "providers",
    "helm",
    "examples",
    "test",
  ];
  const { stdout } = spawnSync(process.execPath, args, { cwd: ROOT, encoding: "utf8", maxBuffer: 64 * 1024 * 1024 });
  const { diagnostics } = JSON.parse(stdout) as { diagnostics: { code: string; filename: string }[] };
  const rules = diagnostics.map(({ code, filename }) => {
    const [, namespace, rule] = /^(\w+)\((.+)\)$/.exec(code)!;
    return `${filename} ${namespace === "eslint" ? rule : `${namespace}/${rule}`}`;
  });
  return [...new Set(rules)].toSorted();
}

describe("the bounds on length and complexity", () => {
  // The linter reads all sources: on a machine with other work that takes its time.
  test("hold for every file but the exceptions, and each exception needs to be one", { timeout: 120_000 }, () => {
    expect(beyond()).toEqual(exceptions.toSorted());
  });

  test("have no more exceptions than before", () => {
    expect(exceptions).toHaveLength(EXCEPTIONS);
  });

  test("are nowhere turned off by a comment", () => {
    const rules = [...BOUNDS, "max-class-lines"].join("|");
    const comment = new RegExp(`(?:ox|es)lint-disable.*(?:${rules})`);
    const files = [...new Set(exportedNames([]).map(({ file }) => file))];
    expect(files.filter((file) => comment.test(readFileSync(join(ROOT, file), "utf8")))).toEqual([]);
  });

  test("count the lines of a class from its first to its last", () => {
    const found: string[] = [];
    const report = ({ message }: { message: string }) => found.push(message);
    const rule = plugin.rules["max-class-lines"].create({ options: [{ max: 10 }], report });
    const lines = (last: number) => ({ type: "ClassDeclaration", loc: { start: { line: 1 }, end: { line: last } } });
    rule.ClassDeclaration(lines(10));
    expect(found).toEqual([]);
    rule.ClassDeclaration(lines(11));
    expect(found).toHaveLength(1);
  });
});
