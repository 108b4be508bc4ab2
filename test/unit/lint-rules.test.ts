/** The lint rules that tests are held to. Those about patterns are tried in linear-patterns.test.ts. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";

const ROOT = join(import.meta.dirname, "../..");
const folder = mkdtempSync(join(tmpdir(), "vmlet-lint-"));
afterAll(() => rmSync(folder, { recursive: true }));

/** How many complaints each of these programs causes. */
function complaints(programs: readonly string[]): number[] {
  const files = programs.map((_, index) => join(folder, `${index}.ts`));
  for (const [index, program] of programs.entries()) writeFileSync(files[index]!, program);
  const config = join(folder, "oxlint.json");
  writeFileSync(
    config,
    JSON.stringify({
      jsPlugins: [join(ROOT, "test/support/lint-rules.ts")],
      categories: { correctness: "off" },
      rules: { "vmlet/no-sleep": "error", "vmlet/test-not-it": "error" },
    }),
  );
  const args = [join(ROOT, "node_modules/oxlint/bin/oxlint"), "-c", config, "-f", "json", ...files];
  const { stdout, stderr } = spawnSync(process.execPath, args, { encoding: "utf8" });
  expect(stdout, stderr).toContain("diagnostics");
  const { diagnostics } = JSON.parse(stdout) as { diagnostics: { filename: string }[] };
  return files.map((file) => diagnostics.filter(({ filename }) => file.endsWith(filename.replace(/^.*\//, ""))).length);
}

test("a pause in a test is refused, a timer that waits for nothing is not", () => {
  expect(
    complaints([
      'import { setTimeout as sleep } from "node:timers/promises"; await sleep(10);',
      "await new Promise((resolve) => setTimeout(resolve, 50));",
      'await Promise.race([work(), new Promise((stop) => setTimeout(stop, 50, "late"))]);',
      "await systemClock.sleep(5);",
      "const timer = setTimeout(() => child.kill(), 50);",
      'import { setInterval } from "node:timers/promises"; for await (const _ of setInterval(5)) look();',
      "await new Promise((resolve) => child.once('exit', resolve)); setTimeout(resolve, 5);",
    ]),
  ).toEqual([1, 1, 1, 1, 0, 0, 0]);
});

test("a test that is written with it is refused", () => {
  expect(complaints(['import { it } from "vitest";', 'import { test } from "vitest";'])).toEqual([1, 0]);
});
