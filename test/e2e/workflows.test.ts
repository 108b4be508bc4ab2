/** The workflows cannot run here: GitHub's own rules of them are checked by actionlint, which knows the common actions' inputs too. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { buildActionlint } from "./harness/build.ts";

const workflows = join(import.meta.dirname, "../../.github/workflows");
let actionlint: string;
let folder: string;

beforeAll(async () => {
  actionlint = await buildActionlint();
  folder = mkdtempSync(join(tmpdir(), "vmlet-workflows-"));
}, 300_000);
afterAll(() => rmSync(folder, { recursive: true, force: true }));

// Without those linters of scripts that a host may or may not have.
function lint(file: string): { status: number | null; stdout: string } {
  const options = ["-shellcheck=", "-pyflakes=", "-no-color", file];
  const { status, stdout } = spawnSync(actionlint, options, { encoding: "utf8", timeout: 60_000 });
  return { status, stdout };
}

test.each(["ci.yaml", "release.yaml", "site.yaml"])("%s is a workflow that GitHub takes", (file) => {
  expect(lint(join(workflows, file))).toEqual({ status: 0, stdout: "" });
});

test("a workflow that needs a job which is not there is found", () => {
  const broken = readFileSync(join(workflows, "release.yaml"), "utf8").replace("needs: [images]", "needs: [pictures]");
  const file = join(folder, "broken.yaml");
  writeFileSync(file, broken);
  expect(lint(file).stdout).toContain('"pictures" which does not exist');
});
