/** What `npm run image` asks for before it begins: images take minutes to make. */
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "vmlet-no-tools-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
});

/** On a host without a single tool. */
function make(...options: string[]): string {
  const program = join(import.meta.dirname, "../../../helm/image.ts");
  const made = join(folder, "layout");
  const env = { ...process.env, PATH: folder };
  const { status, stderr } = spawnSync(process.execPath, [program, made, ...options], { env, encoding: "utf8" });
  expect(status).toBe(1);
  expect(existsSync(made)).toBe(false);
  return stderr;
}

test("every tool that is missing is told at once, with its package and what can be left out", () => {
  const told = make("--images", "vmlet-backend", "--platforms", "arm64");
  expect(told).toContain("mmdebstrap is not on the PATH: apt-get install mmdebstrap");
  expect(told).toContain("go is not on the PATH: install Go 1.21 or newer, or leave out the backend's image");
  expect(told).toMatch(/aarch64-linux-gnu-gcc is not on the PATH: apt-get install gcc.*--platforms/);
  expect(told).not.toContain("x86_64-linux-gnu-gcc");
});

test("the agent's image needs no compiler", () => {
  const told = make("--images", "vmlet");
  expect(told).toContain("mmdebstrap is not on the PATH");
  expect(told).not.toMatch(/go is not on|gcc/);
});

test("an image that there is none of is named, with those that there are", () => {
  expect(make("--images", "vmlet,nobody")).toContain("--images: nobody is none of vmlet, vmlet-backend");
});
