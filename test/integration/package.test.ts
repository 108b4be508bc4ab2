/**
 * What `npm run package` puts into the package, from sources alone and with whatever an earlier build left behind; and
 * that it runs as it is packed: the build puts modules together.
 */
import { execFile } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";

/** Raised on purpose only. Of the sources and packages, unpacked, it would be some 400. */
const MOST_MODULES = 64;

const run = promisify(execFile);
const root = join(import.meta.dirname, "../..");
let dir: string;
let files: string[];

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-package-"));
  for (const each of [
    "src",
    "providers",
    "examples",
    "helm/bundle.ts",
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
  const { stdout } = await run("npm", ["run", "-s", "package", "--", "--dry-run", "--json"], {
    cwd: dir,
  });
  const [{ files: packed }] = JSON.parse(stdout.slice(stdout.indexOf("[\n"))) as [{ files: { path: string }[] }];
  files = packed.map(({ path }) => path);
}, 120_000);
afterAll(() => rmSync(dir, { recursive: true }));

test("has no maps to sources: those are not packed, and the paths would be of where it was made", () => {
  expect(files.filter((file) => file.endsWith(".map"))).toEqual([]);
});

test("has everything that its own manifest and its guest need", () => {
  const sources = ["guest", "jail"].map((name) => `providers/local/engines/vm/${name}`);
  const needed = sources.flatMap((folder) => readdirSync(join(root, folder)).map((file) => `dist/${folder}/${file}`));
  expect(needed.some((file) => file.endsWith(".c"))).toBe(true);
  expect(files).toEqual(expect.arrayContaining(needed));
  expect(files).toEqual(
    expect.arrayContaining([
      "dist/src/cli/main.js",
      "dist/src/cli/guest-main.js",
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

const main = () => join(dir, "dist/src/cli/main.js");

test.each(["run", "check", "dev", "ui", "machines", "why", "backend", "conformance", "webhook"])(
  "loads the command %s",
  async (command) => {
    const { stdout, stderr } = await run(process.execPath, [main(), command, "--help"]);
    expect(stderr).toBe("");
    expect(stdout).toContain(`vmlet ${command}`);
  },
);

test("has the program of a cloud's guests in one file, which is whole", async () => {
  const guest = join(dir, "dist/src/cli/guest-main.js");
  const imported = [...readFileSync(guest, "utf8").matchAll(/^import\s[^;"]*?"([^"]+)"/gm)].map(([, name]) => name);
  expect(imported.filter((name) => !name!.startsWith("node:"))).toEqual([]);
  const config = join(dir, "guest.yaml");
  writeFileSync(config, "kind: BackendConfig\napiVersion: vmlet.dev/v1\n");
  await expect(run(process.execPath, [guest, "--config", config])).rejects.toMatchObject({
    stderr: expect.stringContaining(`${config}: stateDir`),
  });
});

test("names the program, its version and its files as the sources do", async () => {
  const { stdout } = await run(process.execPath, [main(), "version"]);
  const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { version: string };
  expect(stdout).toContain(`vmlet ${version} (`);
});

test("gives a provider module the kit that the agent itself runs with", async () => {
  const module = join(dir, "provider.mjs");
  writeFileSync(
    module,
    `import { ProviderError } from "vmlet/provider-kit";
     const getInfo = async () => { throw new ProviderError("unauthorized", "this is the module"); };
     export const createProvider = () => ({ getInfo, close: async () => {} });`,
  );
  const nodes = [{ name: "packed", provider: { type: "module", module } }];
  const config = join(dir, "vmlet.yaml");
  writeFileSync(config, JSON.stringify({ apiVersion: "vmlet.dev/v1", kind: "AgentConfig", kubeconfig: "none", nodes }));
  const failed = run(process.execPath, [main(), "check", "--config", config]);
  const { stdout } = (await failed.catch((thrown: unknown) => thrown)) as { stdout: string };
  expect(stdout).toContain("answers, but not as it should: this is the module");
});

test("an agent loads few modules, and of Node no HTTP client beside its own", async () => {
  const told = `process.on("exit", () => console.log(JSON.stringify(process.moduleLoadList)))`;
  const args = ["--import", `data:text/javascript,${encodeURIComponent(told)}`, main(), "run", "--help"];
  const { stdout } = await run(process.execPath, args, { maxBuffer: 2 ** 24 });
  const builtIn = JSON.parse(stdout.slice(stdout.lastIndexOf("\n["))) as string[];
  expect(builtIn.some((name) => name.endsWith("internal/deps/undici/undici"))).toBe(false);
  const program = readFileSync(main(), "utf8");
  const [, agent] = /await import\("([^"]+)"\)\)\.runCommand/.exec(program)!;
  const modules = loadedBy(main());
  for (const each of loadedBy(join(dirname(main()), agent!))) modules.add(each);
  expect(modules.size).toBeLessThanOrEqual(MOST_MODULES);
});

/** A module and all that it and they import at once. */
function loadedBy(file: string, seen = new Set<string>()): Set<string> {
  if (seen.has(file)) return seen;
  seen.add(file);
  for (const [, target] of readFileSync(file, "utf8").matchAll(/^(?:import|export)\s[^;"]*?"(\.[^"]+)"/gm))
    loadedBy(join(dirname(file), target!), seen);
  return seen;
}
