import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { shimEverStarted } from "../../../providers/local/shim/client.ts";

let dir: string;
beforeEach(() => (dir = mkdtempSync(join(tmpdir(), "vmlet-claim-"))));
afterEach(() => rmSync(dir, { recursive: true, force: true }));

test("an instance that a shim has claimed was started, also when the shim is gone", () => {
  writeFileSync(join(dir, "shim-claim"), "4711 99");
  expect(shimEverStarted(dir)).toBe(true);
});

test("an instance that no shim has claimed is taken, so that a late shim cannot begin it", () => {
  expect(shimEverStarted(dir)).toBe(false);
  expect(existsSync(join(dir, "shim-claim"))).toBe(true);
  expect(readdirSync(dir)).toEqual(["shim-claim"]);
});

test("a backend that was killed after it had taken the instance has not started it", () => {
  shimEverStarted(dir);
  expect(shimEverStarted(dir)).toBe(false);
});

test("an instance without a folder was never started", () => {
  rmSync(dir, { recursive: true });
  expect(shimEverStarted(dir)).toBe(false);
});
