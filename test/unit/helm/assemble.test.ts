/** What `npm run assemble` may replace: an older tree, and nothing else that somebody names by mistake. */
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { emptyFolder } from "../../../helm/assemble.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "vmlet-tree-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
});

function write(path: string): void {
  mkdirSync(dirname(join(folder, path)), { recursive: true });
  writeFileSync(join(folder, path), "");
}

test.each([
  ["somebody's checkout", "package.json"],
  ["an application of the same form", "app/package.json"],
])("%s is left as it is", async (_what, path) => {
  write(path);
  await expect(emptyFolder(folder)).rejects.toThrow("holds something else");
  expect(existsSync(join(folder, path))).toBe(true);
});

test("an older tree is replaced, also one that was not finished", async () => {
  await emptyFolder(folder);
  write("app/bin/node");
  await emptyFolder(folder);
  expect(existsSync(join(folder, "app"))).toBe(false);
});

test("a folder that is absent is made", async () => {
  await emptyFolder(join(folder, "new"));
  expect(existsSync(join(folder, "new"))).toBe(true);
});
