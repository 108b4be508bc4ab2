/** What `npm run package` puts into the package, from sources alone and with whatever an earlier build left behind. */
import { execFile } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";

const root = join(import.meta.dirname, "../..");
let dir: string;
let files: string[];

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-package-"));
  for (const each of [
    "src",
    "providers",
    "examples",
    "package.json",
    "tsconfig.json",
    "tsconfig.build.json",
    ".npmrc",
    "LICENSE",
  ])
    cpSync(join(root, each), join(dir, each), { recursive: true });
  symlinkSync(join(root, "node_modules"), join(dir, "node_modules"));
  mkdirSync(join(dir, "dist/src"), { recursive: true });
  writeFileSync(join(dir, "dist/src/forgotten.js"), "");
  const { stdout } = await promisify(execFile)("npm", ["run", "-s", "package", "--", "--dry-run", "--json"], {
    cwd: dir,
  });
  const [{ files: packed }] = JSON.parse(stdout.slice(stdout.indexOf("[\n"))) as [{ files: { path: string }[] }];
  files = packed.map(({ path }) => path);
}, 120_000);
afterAll(() => rmSync(dir, { recursive: true }));

test("has everything that its own manifest and its guest need", () => {
  const sources = ["guest", "jail"].map((name) => `providers/local/engines/vm/${name}`);
  const needed = sources.flatMap((folder) => readdirSync(join(root, folder)).map((file) => `dist/${folder}/${file}`));
  expect(needed.some((file) => file.endsWith(".c"))).toBe(true);
  expect(files).toEqual(expect.arrayContaining(needed));
  expect(files).toEqual(
    expect.arrayContaining([
      "dist/src/cli/main.js",
      "dist/src/provider/kit/index.d.ts",
      "dist/providers/http-vm/index.js",
      "dist/providers/local/engines/vm/guest-image.sh",
      "src/provider/contract/openapi.yaml",
    ]),
  );
});

test("has nothing that its sources do not have", () => {
  expect(files).not.toContain("dist/src/forgotten.js");
});
