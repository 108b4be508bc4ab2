/**
 * What `npm run package` puts into the package, from sources alone and with whatever an earlier build left behind; and
 * that it runs as it is packed, with the packages that it asks for and no others: the build puts the code of most into it.
 */
import { execFile } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";

/** Raised on purpose only. Of the sources and packages, unpacked, it would be some 400. */
const MOST_MODULES = 64;

/** The same: package.json of the repository has more than a hundred, with those that its dependencies want. */
const MOST_PACKAGES = 12;

const run = promisify(execFile);
const root = join(import.meta.dirname, "../..");
let dir: string;
let files: string[];
/** Where it is installed. */
let home: string;

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-package-"));
  for (const each of [
    "src",
    "providers",
    "examples",
    "helm/bundle.ts",
    "helm/package.ts",
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
  const { stdout } = await run("npm", ["run", "-s", "package", "--", "--json"], { cwd: dir, maxBuffer: 2 ** 24 });
  const [{ filename, files: packed }] = JSON.parse(stdout.slice(stdout.indexOf("[\n"))) as [Packed];
  files = packed.map(({ path }) => path);
  home = join(dir, "installed/node_modules/vmlet");
  mkdirSync(home, { recursive: true });
  await run("tar", ["-xzf", join(dir, filename), "-C", home, "--strip-components=1"]);
  for (const place of wanted()) cpSync(join(root, place), join(dir, "installed", place), { recursive: true });
}, 480_000);

interface Packed {
  filename: string;
  files: { path: string }[];
}

const json = (file: string): unknown => JSON.parse(readFileSync(file, "utf8"));

/** Places of the packages that npm would install along, but for Node itself and what is for another platform. */
function wanted(): Set<string> {
  interface Locked {
    dependencies?: Record<string, string>;
    optionalDependencies?: Record<string, string>;
  }
  const { packages } = json(join(root, "package-lock.json")) as { packages: Record<string, Locked> };
  const places = new Set<string>();
  const visit = (asked: Record<string, string>) => {
    for (const place of Object.keys(asked).map((name) => `node_modules/${name}`)) {
      if (places.has(place) || !existsSync(join(root, place))) continue;
      places.add(place);
      const { dependencies, optionalDependencies } = packages[place]!;
      visit({ ...dependencies, ...optionalDependencies });
    }
  };
  visit((json(join(home, "package.json")) as { dependencies: Record<string, string> }).dependencies);
  return places;
}

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

test("has no link to a file that is not packed", () => {
  const texts = files.filter((file) => file.endsWith(".md"));
  expect(texts).toContain("providers/README.md");
  const dead = texts.flatMap((file) =>
    [...readFileSync(join(home, file), "utf8").matchAll(/\]\((?!\w+:|#)([^)#\s]+)/g)].flatMap(([, link]) =>
      existsSync(join(home, dirname(file), link!)) ? [] : [`${file}: ${link}`],
    ),
  );
  expect(dead).toEqual([]);
});

test("has nothing that its sources do not have", () => {
  expect(files).not.toContain("dist/src/forgotten.js");
});

test("asks for few packages, by the versions that were tested, and for Node", () => {
  expect([...wanted()].length).toBeLessThanOrEqual(MOST_PACKAGES);
  interface Manifest {
    dependencies: Record<string, string>;
    devDependencies: Record<string, string>;
    optionalDependencies: Record<string, string>;
  }
  const [packed, ours] = [home, root].map((folder) => json(join(folder, "package.json")) as Manifest) as [
    Manifest,
    Manifest,
  ];
  expect({ ...ours.devDependencies, ...ours.dependencies }).toMatchObject(packed.dependencies);
  expect(packed.optionalDependencies).toEqual(ours.optionalDependencies);
});

test("has the terms of each package whose code it has", () => {
  const terms = readFileSync(join(home, "dist/packages/LICENSES.txt"), "utf8");
  const packages = files.flatMap((file) => /^dist\/packages\/(.+)-[\w-]{8}\.js$/.exec(file)?.[1] ?? []);
  expect(packages.length).toBeGreaterThan(50);
  const scoped = (name: string) => name.replace(/^(@(?:kubernetes|opentelemetry|pinojs))-/, "$1/");
  const inGuest = ["@bufbuild/protobuf", "@connectrpc/connect"];
  expect([...packages.map(scoped), ...inGuest].filter((name) => !terms.includes(`\n${name} `))).toEqual([]);
});

test("has declarations of all that it exports, whole and for the strictest compiler", async () => {
  const project = join(dir, "installed");
  // A project of its own: the one around it is called as the package is.
  writeFileSync(join(project, "package.json"), JSON.stringify({ type: "module" }));
  cpSync(join(home, "examples/custom-provider.ts"), join(project, "provider.ts"));
  const exported = Object.keys((json(join(home, "package.json")) as { exports: Record<string, unknown> }).exports);
  const imports = exported.map((path, i) => `import * as part${i} from "${path.replace(".", "vmlet")}";`);
  const uses = `export const all = [${exported.map((_path, i) => `part${i}`).join(", ")}];`;
  // What is missing would be of any type, and anything would do.
  const isKnown = `import type { AgentConfig } from "vmlet";\n// @ts-expect-error\nexport const wrong: AgentConfig = 1;`;
  writeFileSync(join(project, "all.ts"), [...imports, uses, isKnown, ""].join("\n"));
  const strictest = [
    "--ignoreConfig",
    "--strict",
    "--skipLibCheck",
    "false",
    "--noEmit",
    "--module",
    "nodenext",
    "--target",
    "es2024",
  ];
  const lib = ["--types", "node", "--lib", "es2024,esnext.disposable,esnext.iterator,esnext.array"];
  const compiler = join(root, "node_modules/typescript/bin/tsc");
  const args = [compiler, ...strictest, ...lib, "all.ts", "provider.ts"];
  const { stdout } = await run(process.execPath, args, { cwd: project }).catch((thrown: { stdout: string }) => thrown);
  expect(stdout).toBe("");
}, 60_000);

const main = () => join(home, "dist/src/cli/main.js");

test.each(["run", "check", "dev", "ui", "machines", "why", "backend", "conformance", "webhook"])(
  "loads the command %s",
  async (command) => {
    const { stdout, stderr } = await run(process.execPath, [main(), command, "--help"]);
    expect(stderr).toBe("");
    expect(stdout).toContain(`vmlet ${command}`);
  },
);

test("has the program of a cloud's guests in one file, which is whole", async () => {
  const guest = join(home, "dist/src/cli/guest-main.js");
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
  const { version } = json(join(root, "package.json")) as { version: string };
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
