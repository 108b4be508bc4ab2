/**
 * The image of which a cloud's VMs are: a root file system of the distribution's packages, with this very program and
 * the Node.js that runs it, packed in Incus's own form. The same packages and the same program give the same bytes, so
 * an image is known by its hash, and uploaded once.
 */
import { existsSync } from "node:fs";
import { chmod, copyFile, cp, mkdir, mkdtemp, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { GUEST_CONFIG, GUEST_FOLDER, GUEST_PACKAGES, guestFiles } from "../../providers/cloud/guest-files.ts";
import { findTool, run } from "../../providers/local/host/command.ts";
import { ConfigError } from "../config/load.ts";
import { goArchitecture } from "../util/platform.ts";
import { PROGRAM_FOLDER } from "./faults.ts";
import { fingerprintOf } from "./file-hash.ts";
import { ATTRIBUTE_HEADERS, type Prewarmed, prewarmedFolder, SAME_BYTES, WITH_ATTRIBUTES } from "./prewarmed-folder.ts";
import { keptFile } from "./kept-file.ts";

interface GuestImageOptions {
  /** Of Debian. */
  readonly suite: string;
  /** Where packages that were unpacked once are kept. */
  readonly cacheFolder?: string | undefined;
  /** Take the packages of today, not those of last time. */
  readonly isFresh?: boolean | undefined;
  /** The guest's configuration, in place of the usual one. */
  readonly guestConfig?: string | undefined;
  /** Containers' images that every VM has from the start. */
  readonly prewarm?: Prewarmed | undefined;
  readonly signal: AbortSignal;
}

/** Debian's own containerd is older than 2.0, so these are the host's. */
const FROM_HOST = ["containerd", "containerd-shim-runc-v2", "runc"];
const TOOLS: Readonly<Record<string, string>> = {
  mmdebstrap: "install the package mmdebstrap",
  tar: "install the package tar",
  containerd: "install containerd 2.0 or newer",
  "containerd-shim-runc-v2": "it is part of containerd's release",
  runc: "install the package runc",
};

/** Of the packages, what nothing in a guest reads. */
const UNREAD = [
  ...[
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/perl",
    "usr/share/bash-completion",
  ],
  ...["var/cache", "var/lib/apt", "var/log"],
  ...["x86_64", "aarch64"].flatMap((each) => ["perl", "gconv"].map((name) => `usr/lib/${each}-linux-gnu/${name}`)),
];
/** Files of packages of npm that nothing reads at run time, and packages that serve the page of `vmlet ui`. */
const IDLE = /\.(d\.[mc]?ts|map|md|markdown|flow)$/;
const FOR_A_DESK = ["@xterm/xterm", "@xterm/addon-fit"];

/**
 * What this host lacks to make an image, with the cure.
 * @internal
 */
export function imageProblems(): { problem: string; cure: string }[] {
  const missing = Object.entries(TOOLS).filter(([tool]) => findTool(tool) === undefined);
  const problems = missing.map(([tool, cure]) => ({ problem: `${tool} is not on the PATH`, cure }));
  if (process.getuid?.() !== 0)
    problems.push({ problem: "files of an image belong to root", cure: "run it as root, or with sudo" });
  return problems;
}

/** @returns the file's SHA-256, which is Incus's fingerprint of the image. @throws ConfigError, CommandError */
export async function buildGuestImage(output: string, options: GuestImageOptions): Promise<string> {
  const [first] = imageProblems();
  if (first !== undefined) throw new ConfigError(`no image can be made here: ${first.problem}; ${first.cure}`);
  const folder = await mkdtemp(join(tmpdir(), "vmlet-image-"));
  const draft = `${output}.${process.pid}`;
  // Modes are a part of it.
  const umask = process.umask(0o022);
  try {
    const root = join(folder, "rootfs");
    await mkdir(root);
    await run("tar", ["-xf", await packages(options), "-C", root], { signal: options.signal });
    for (const each of UNREAD) await rm(join(root, each), { recursive: true, force: true });
    const main = await copyProgram(join(root, GUEST_FOLDER), options.signal);
    for (const name of FROM_HOST) await copyTool(findTool(name)!, join(root, "usr/local/bin", name));
    const { prewarm, guestConfig = GUEST_CONFIG, signal } = options;
    if (prewarm !== undefined) {
      const kept = await prewarmedFolder(prewarm, { ...options, guestConfig });
      await run("tar", [...WITH_ATTRIBUTES, "-xf", kept, "-C", root], { signal });
    }
    const files = guestFiles(join(GUEST_FOLDER, main), guestConfig);
    for (const { path, mode, text } of files) {
      const target = join(root, path);
      await rm(target, { force: true });
      await mkdir(dirname(target), { recursive: true });
      await writeFile(target, text, { mode });
      await chmod(target, mode);
    }
    await mkdir(join(root, "var/log"), { recursive: true });
    await writeFile(join(folder, "metadata.yaml"), metadata());
    await archive(draft, folder, ["metadata.yaml", "rootfs"], options);
    await rename(draft, output);
  } finally {
    process.umask(umask);
    await rm(draft, { force: true });
    await rm(folder, { recursive: true, force: true });
  }
  return await fingerprintOf(output);
}

/** Without attributes unless images need them: others have the same bytes as ever. */
async function archive(file: string, folder: string, what: string[], { prewarm, signal }: GuestImageOptions) {
  const attributes = prewarm === undefined ? [] : [...WITH_ATTRIBUTES, ...ATTRIBUTE_HEADERS];
  await run("tar", [...SAME_BYTES, ...attributes, "-cf", file, "-C", folder, ...what], { signal });
}

/** @returns a tar of the packages */
async function packages({ suite, cacheFolder, isFresh, signal }: GuestImageOptions): Promise<string> {
  const what = ["--variant=essential", `--include=${GUEST_PACKAGES.join(",")}`];
  return await keptFile("cloud-image", [suite, GUEST_PACKAGES], { folder: cacheFolder, isFresh }, async (draft) => {
    await run("mmdebstrap", ["--quiet", ...what, suite, draft], { env: { SOURCE_DATE_EPOCH: "0" }, signal });
  });
}

async function copyTool(from: string, to: string): Promise<void> {
  await mkdir(dirname(to), { recursive: true });
  await copyFile(from, to);
  await chmod(to, 0o755);
}

interface PackageJson {
  readonly dependencies?: Readonly<Record<string, string>>;
}

/** The program, from its sources or from what was built of them, and what it depends on. @returns its main file */
async function copyProgram(target: string, signal: AbortSignal): Promise<string> {
  const isBuilt = import.meta.filename.endsWith(".js");
  const home = isBuilt ? dirname(PROGRAM_FOLDER) : PROGRAM_FOLDER;
  const parts = isBuilt ? ["dist", "src/provider/contract/openapi.yaml"] : ["src", "providers"];
  for (const part of ["package.json", ...parts]) await copyTree(join(home, part), join(target, part));
  const seen = new Set<string>();
  const visit = async (folder: string): Promise<void> => {
    const { dependencies = {} } = JSON.parse(await readFile(join(folder, "package.json"), "utf8")) as PackageJson;
    for (const name of Object.keys(dependencies)) {
      signal.throwIfAborted();
      const found = packageFolder(name, folder);
      if (found === undefined || seen.has(found) || FOR_A_DESK.includes(name)) continue;
      seen.add(found);
      const place = relative(home, found);
      // Beside this package, where it was installed as one.
      await copyTree(found, join(target, place.startsWith("..") ? join("node_modules", name) : place));
      await visit(found);
    }
  };
  await visit(home);
  await copyTool(process.execPath, join(target, "bin/node"));
  if (isBuilt) return "dist/src/cli/guest-main.js";
  const main = "src/cli/guest-main.js";
  // Of sources alone: what was built has been through it.
  await run(process.execPath, [join(home, "helm/bundle.ts"), "--guest", join(target, main)], { signal });
  return main;
}

/** Without what another package has inside of it: that is visited by itself. */
async function copyTree(from: string, to: string): Promise<void> {
  const filter = (path: string) => !IDLE.test(path) && !relative(from, path).split("/").includes("node_modules");
  await cp(from, to, { recursive: true, dereference: true, filter });
}

function packageFolder(name: string, from: string): string | undefined {
  for (let folder = from; ; folder = dirname(folder)) {
    const found = join(folder, "node_modules", name);
    if (existsSync(join(found, "package.json"))) return found;
    if (folder === dirname(folder)) return undefined;
  }
}

function metadata(): string {
  const architecture = { amd64: "x86_64", arm64: "aarch64" }[goArchitecture(process.arch)] ?? process.arch;
  return `architecture: ${architecture}
creation_date: 1
properties:
  os: vmlet
  description: A machine of vmlet
`;
}
