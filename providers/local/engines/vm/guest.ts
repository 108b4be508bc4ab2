/** The guest image (kernel and initramfs of every VM): where it is, and how it is made by guest-image.sh. */
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { toError } from "../../../../src/provider/kit/index.ts";
import type { HostProblem } from "../../engine.ts";
import { findTool, run } from "../../host/command.ts";
import { readFileIfExists } from "../../host/files.ts";
import { HostError } from "../../host/host-error.ts";

const SCRIPT = fileURLToPath(new URL("./guest-image.sh", import.meta.url));
const SOURCES = ["guest", "jail"].map((name) => fileURLToPath(new URL(`./${name}`, import.meta.url)));
/** What the script needs, and the Debian package of each. */
const TOOLS = [
  ["bash", "bash"],
  ["apt-get", "apt"],
  ["dpkg-deb", "dpkg"],
  ["lz4", "lz4"],
  ["cpio", "cpio"],
  ["as", "binutils"],
  ["ldd", "libc-bin"],
] as const;
/** Of the launcher (jail/jail.c), without arguments. */
const USAGE_EXIT = 2;
const DAY_MS = 86_400_000;
/** Debian mends its kernels more often. */
const OLD_DAYS = 60;
const APT_MS = 30_000;
/** A download of 30 MB, and seconds of work. */
const BUILD_MS = 300_000;

/** In the user's cache, named by what it is made of: another release of this program makes another. */
export function defaultGuestDir(): string {
  const hash = createHash("sha256").update(readFileSync(SCRIPT));
  for (const folder of SOURCES)
    for (const name of readdirSync(folder).toSorted())
      hash.update(`${name}\0`).update(readFileSync(join(folder, name)));
  return join(homedir(), ".cache/vmlet", `vm-guest-${hash.digest("hex").slice(0, 16)}`);
}

export function hasGuest(dir: string): boolean {
  return existsSync(join(dir, "version"));
}

/**
 * Nothing when the image is there; what will happen, or what is missing for it, when not.
 * @param torn its files that are not as they were made
 */
export async function checkGuest(dir: string, torn: readonly string[], nowMs: number): Promise<HostProblem[]> {
  const isThere = hasGuest(dir);
  if (isThere && torn.length === 0) return [...(await checkPrograms(dir)), ...(await checkAge(dir, nowMs))];
  const problem = isThere
    ? `the guest image in ${dir} is torn or was changed (${torn.join(", ")})`
    : `there is no guest image in ${dir}`;
  const missing = TOOLS.filter(([tool]) => findTool(tool) === undefined);
  if (missing.length === 0)
    return [
      {
        fatal: false,
        problem: `${problem}: the backend makes it from Debian packages when it starts`,
        cure: `to make it now: bash ${SCRIPT} ${dir}`,
      },
    ];
  const packages = [...new Set(missing.map(([, debian]) => debian))].join(" ");
  return [
    {
      fatal: true,
      problem: `${problem}, and to make it ${missing.map(([tool]) => tool).join(", ")} is missing`,
      cure: `apt-get install ${packages}; or make it on another Debian host (bash ${SCRIPT} FOLDER) and set engine.guestDir`,
    },
  ];
}

/**
 * Packages of which this host's package lists have another version than the image: their fixes do not arrive in guests.
 * None where the lists, or what the image was made of, are not known.
 * @param policy what apt says of packages; they are the arguments
 */
export async function outdatedPackages(dir: string, policy = aptPolicy): Promise<string[]> {
  const made = ((await readFileIfExists(join(dir, "packages"))) ?? "")
    .split("\n")
    .map((line) => line.split(" ") as [string, string | undefined])
    .filter(([, version]) => version !== undefined);
  if (made.length === 0) return [];
  const text = await policy(made.map(([name]) => name)).catch(() => "");
  const known = new Map(
    [...text.matchAll(/^(\S+):\n(?: .*\n)*? {2}Candidate: (\S+)$/gm)].map(([, name, version]) => [name!, version!]),
  );
  return made.flatMap(([name, version]) => {
    const candidate = known.get(name);
    return candidate === undefined || candidate === "(none)" || candidate === version ? [] : [name];
  });
}

async function aptPolicy(names: readonly string[]): Promise<string> {
  const options = { env: { LC_ALL: "C" }, signal: AbortSignal.timeout(APT_MS) };
  return (await run(findTool("apt-cache") ?? "apt-cache", ["policy", ...names], options)).stdout.toString();
}

async function checkAge(dir: string, nowMs: number): Promise<HostProblem[]> {
  const days = Math.floor((nowMs - statSync(join(dir, "version")).mtimeMs) / DAY_MS);
  const outdated = await outdatedPackages(dir);
  if (outdated.length === 0 && days < OLD_DAYS) return [];
  const newer = outdated.length === 0 ? "" : `, and there are newer versions of ${outdated.join(", ")}`;
  return [
    {
      fatal: false,
      problem: `the guest image in ${dir} was made ${days} days ago${newer}`,
      cure: `apt-get update, then start the backend anew, which makes its own image anew when packages have changed; to make it now: bash ${SCRIPT} ${dir}`,
    },
  ];
}

/** Every QEMU is started by them. */
async function checkPrograms(dir: string): Promise<HostProblem[]> {
  const missing = ["jail", "give", "read-only.so"].filter((name) => !existsSync(join(dir, name)));
  if (missing.length > 0)
    return [
      {
        fatal: true,
        problem: `the guest image in ${dir} was made by an older version: it has no ${missing.join(" and no ")}`,
        cure: `bash ${SCRIPT} ${dir}`,
      },
    ];
  try {
    await run(join(dir, "jail"), [], { exitCodes: [USAGE_EXIT] });
    return [];
  } catch (thrown) {
    return [
      {
        fatal: true,
        problem: `no program can be run from ${dir}: ${toError(thrown).message}`,
        cure: "set engine.guestDir to a folder on a file system that is not mounted noexec",
      },
    ];
  }
}

/** Makes the image. Several processes may do it at once. @throws Error with what the script said */
export async function makeGuest(dir: string): Promise<void> {
  try {
    await run(findTool("bash")!, [SCRIPT, dir], { signal: AbortSignal.timeout(BUILD_MS) });
  } catch (thrown) {
    throw new HostError(
      `the guest image cannot be made in ${dir}: ${toError(thrown).message} (try: apt-get update; bash ${SCRIPT} ${dir})`,
      { cause: thrown },
    );
  }
}
