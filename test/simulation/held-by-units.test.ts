/** Bugs that the simulation cannot show are caught by the unit test that is named beside each, which is run with the bug in place. */
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { HELD_BY_UNITS } from "./mutants/held-by-units.ts";

const root = join(import.meta.dirname, "../..");

interface Report {
  testResults: { assertionResults: { title: string; status: string }[] }[];
}

const folder = mkdtempSync(join(tmpdir(), "vmlet-spoilt-"));
afterAll(() => rmSync(folder, { recursive: true }));

/** Results of the tests of this title, with the bug in place. */
async function runSpoilt(name: string, file: string, title: string): Promise<string[]> {
  const report = join(folder, `${name.replaceAll(" ", "-")}.json`);
  const escaped = title.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`);
  const config = ["--config", "test/simulation/spoilt.config.ts", "--reporter=json", `--outputFile=${report}`];
  const args = ["node_modules/vitest/vitest.mjs", "run", ...config, join("test/unit", file), "-t", escaped];
  // It fails, as it should; what failed, the report says.
  await new Promise((resolve) =>
    execFile(process.execPath, args, { cwd: root, env: { ...process.env, VMLET_MUTANT: name } }, resolve),
  );
  const { testResults } = JSON.parse(readFileSync(report, "utf8")) as Report;
  const results = testResults.flatMap(({ assertionResults }) => assertionResults);
  return results.filter((result) => result.title === title).map(({ status }) => status);
}

test.each(HELD_BY_UNITS)("rule $rule is guarded: $name", async ({ name, file, find, caughtBy }) => {
  const source = readFileSync(join(root, file), "utf8");
  expect(
    source.split(find),
    `${file} has no longer what this mutant changes: say how the rule would be broken now`,
  ).toHaveLength(2);
  expect(await runSpoilt(name, caughtBy.file, caughtBy.test)).toContain("failed");
});
