/**
 * A file system of Debian's packages for any architecture, without running a program of it: packages are downloaded
 * (by mmdebstrap, which has apt check their signatures) and unpacked, and what their scripts would have made of the
 * rest is made here. The same packages give the same files.
 */
import { execFileSync } from "node:child_process";
import { copyFile, glob, mkdir, mkdtemp, readFile, readdir, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";

export type Architecture = "amd64" | "arm64";

export interface DebianOptions {
  /** Must be there, and empty. */
  folder: string;
  architecture: Architecture;
  packages: readonly string[];
  /**
   * `alone`: those packages and no other, as what they hold is only read. `with dependencies`: to be compiled against.
   * `system`: with all that they depend on and what the smallest Debian has, to be run.
   */
  kind: "alone" | "with dependencies" | "system";
}

const SUITE = "bookworm";
/** By apt's patterns: what debian:bookworm-slim is made of. */
const SMALLEST = ["?essential", "~prequired"];
/** Read by people only, who do not read them in a container. Copyrights stay. */
const FOR_PEOPLE = ["bash-completion", "bug", "doc-base", "info", "lintian", "locale", "man", "menu"];
/** As every system of Debian 12 has them: what is in `/bin` is in `/usr/bin`. */
const MERGED: Record<Architecture, string[]> = {
  amd64: ["bin", "sbin", "lib", "lib64"],
  arm64: ["bin", "sbin", "lib"],
};
/** Made by the scripts of base-files, which are not run. */
const FOLDERS = [
  ...["media", "mnt", "opt", "srv", "run/lock", "var/opt", "usr/local/share/ca-certificates"],
  ...["bin", "etc", "games", "include", "lib", "sbin", "src"].map((each) => `usr/local/${each}`),
];
const LINKS = { "var/run": "/run", "var/lock": "/run/lock" };
/** Which program has this name, where packages have several for it: what update-alternatives chooses. */
const ALTERNATIVES: Record<string, string> = {
  ...{ "usr/bin/awk": "/usr/bin/mawk", "usr/bin/nawk": "/usr/bin/mawk", "usr/bin/pager": "/bin/more" },
  ...{ "usr/bin/which": "/usr/bin/which.debianutils", "usr/sbin/rmt": "/usr/sbin/rmt-tar" },
  ...Object.fromEntries(
    ["arptables", "ebtables", "iptables", "ip6tables"].flatMap((name) =>
      ["", "-save", "-restore"].map((verb) => [`usr/sbin/${name}${verb}`, `/usr/sbin/${name}-nft${verb}`]),
    ),
  ),
};
const ROOT = "root:x:0:0:root:/root:/sbin/nologin\n";
const USERS = `${ROOT}nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n`;
const GROUPS = "root:x:0:\ntty:x:5:\nstaff:x:50:\nnobody:x:65534:\nnonroot:x:65532:\n";

/** @throws Error that says which tool is missing, or that a package is not to be had */
export async function debianTree({ folder, architecture, packages, kind }: DebianOptions): Promise<void> {
  const debs = await mkdtemp(join(tmpdir(), "vmlet-packages-"));
  try {
    download(debs, { architecture, wanted: kind === "system" ? [...packages, ...SMALLEST] : packages });
    for (const link of MERGED[architecture]) {
      await mkdir(join(folder, "usr", link), { recursive: true });
      await symlink(`usr/${link}`, join(folder, link));
    }
    for (const file of (await readdir(debs)).toSorted())
      if (kind !== "alone" || packages.includes(file.split("_")[0]!)) await unpack(join(debs, file), folder);
  } finally {
    await rm(debs, { recursive: true });
  }
  await configure(folder);
  for (const name of FOR_PEOPLE) await rm(join(folder, "usr/share", name), { recursive: true, force: true });
  for (const file of await filesIn(join(folder, "usr/share/doc"))) if (basename(file) !== "copyright") await rm(file);
  if (kind === "system") await configureSystem(folder);
  // Its groups are not kept, and everything there runs as root: a program that makes others root is of no use.
  run("find", [folder, "-perm", "/6000", "-exec", "chmod", "a-s", "{}", "+"]);
  if (kind !== "alone") return;
  // What is alone has no program: scripts of what is left out are of no use.
  for (const programs of ["usr/bin", "usr/sbin"]) {
    await rm(join(folder, programs), { recursive: true, force: true });
    await mkdir(join(folder, programs));
  }
}

function download(
  debs: string,
  { architecture, wanted }: { architecture: Architecture; wanted: readonly string[] },
): void {
  const take = `--extract-hook=cp "$1"/var/cache/apt/archives/*.deb '${debs}'`;
  const what = [`--architectures=${architecture}`, `--include=${wanted.join(",")}`, take, "--format=null"];
  run("mmdebstrap", ["--quiet", "--variant=extract", ...what, SUITE, "/dev/null"]);
}

async function unpack(deb: string, folder: string): Promise<void> {
  const name = basename(deb).split("_")[0]!;
  unpackArchive(deb, folder);
  // Where scanners look for what there is when there is no package manager.
  const status = join(folder, "var/lib/dpkg/status.d", name);
  await mkdir(dirname(status), { recursive: true });
  await writeFile(status, run("dpkg-deb", ["--field", deb]));
}

/**
 * @throws Error where either side of the pipe failed: of an archive that ends too early tar would unpack what there is
 * @internal
 */
export function unpackArchive(deb: string, folder: string): void {
  const pipe = 'set -o pipefail; dpkg-deb --fsys-tarfile "$1" | tar -x -p --keep-directory-symlink -C "$2"';
  run("bash", ["-c", pipe, "bash", deb, folder]);
}

/** What those scripts do that make a system of packages. */
async function configureSystem(folder: string): Promise<void> {
  for (const each of FOLDERS) await mkdir(join(folder, each), { recursive: true });
  for (const [link, target] of Object.entries(LINKS)) {
    // Of a package that was made for the link. Not before: what is unpacked would go through it, to this host's /run.
    await rm(join(folder, link), { recursive: true, force: true });
    await symlink(target, join(folder, link));
  }
  await mkdir(join(folder, "etc/alternatives"), { recursive: true });
  for (const [link, target] of Object.entries(ALTERNATIVES)) {
    if (!(await isThere(join(folder, target)))) continue;
    const chosen = `/etc/alternatives/${basename(link)}`;
    await symlink(target, join(folder, chosen));
    await symlink(chosen, join(folder, link));
  }
}

/** What scripts of packages do of which anything here is used. */
async function configure(folder: string): Promise<void> {
  const authorities = (await Array.fromAsync(glob(join(folder, "usr/share/ca-certificates/**/*.crt")))).toSorted();
  const certificates = await Promise.all(authorities.map((file) => readFile(file, "utf8")));
  if (certificates.length > 0) {
    await mkdir(join(folder, "etc/ssl/certs"), { recursive: true });
    await writeFile(join(folder, "etc/ssl/certs/ca-certificates.crt"), certificates.join(""));
  }
  for (const each of ["etc", "home/nonroot", "tmp", "var"]) await mkdir(join(folder, each), { recursive: true });
  const templates = [
    { file: "etc/passwd", template: "usr/share/base-passwd/passwd.master", otherwise: USERS },
    { file: "etc/group", template: "usr/share/base-passwd/group.master", otherwise: GROUPS },
    { file: "etc/nsswitch.conf", template: "usr/share/libc-bin/nsswitch.conf", otherwise: "hosts: files dns\n" },
  ];
  for (const { file, template, otherwise } of templates)
    if (await isThere(join(folder, template))) await copyFile(join(folder, template), join(folder, file));
    else await writeFile(join(folder, file), otherwise);
}

async function filesIn(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => !entry.isDirectory()).map((entry) => join(entry.parentPath, entry.name));
}

const isThere = (path: string) =>
  stat(path).then(
    () => true,
    () => false,
  );

function run(command: string, args: readonly string[]): Buffer {
  const env = { ...process.env, SOURCE_DATE_EPOCH: process.env["SOURCE_DATE_EPOCH"] ?? "0" };
  try {
    return execFileSync(command, args, { env, stdio: ["ignore", "pipe", "inherit"] });
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code !== "ENOENT") throw thrown;
    throw new Error(`not on the PATH: ${command}; apt-get install ${command === "dpkg-deb" ? "dpkg" : command}`, {
      cause: thrown,
    });
  }
}
