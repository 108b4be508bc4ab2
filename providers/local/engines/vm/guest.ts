/** The guest image (kernel and initramfs of every VM): where it is, and how it is made by guest-image.sh. */
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { HostProblem } from "../../engine.ts";
import { findTool, run } from "../../host/command.ts";
import { HostError } from "../../host/host-error.ts";

const SCRIPT = fileURLToPath(new URL("./guest-image.sh", import.meta.url));
const SOURCES = fileURLToPath(new URL("./guest", import.meta.url));
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
/** A download of 30 MB, and seconds of work. */
const BUILD_MS = 300_000;

/** In the user's cache, named by what it is made of: another release of this program makes another. */
export function defaultGuestDir(): string {
  const hash = createHash("sha256").update(readFileSync(SCRIPT));
  for (const name of readdirSync(SOURCES).toSorted())
    hash.update(`${name}\0`).update(readFileSync(join(SOURCES, name)));
  return join(homedir(), ".cache/vmlet", `vm-guest-${hash.digest("hex").slice(0, 16)}`);
}

export function hasGuest(dir: string): boolean {
  return existsSync(join(dir, "version"));
}

/** Nothing when the image is there; what will happen, or what is missing for it, when not. */
export function checkGuest(dir: string): HostProblem[] {
  if (hasGuest(dir)) return [];
  const missing = TOOLS.filter(([tool]) => findTool(tool) === undefined);
  if (missing.length === 0)
    return [
      {
        fatal: false,
        problem: `there is no guest image in ${dir} yet: the backend makes it from Debian packages when it starts`,
        cure: `to make it now: bash ${SCRIPT} ${dir}`,
      },
    ];
  const packages = [...new Set(missing.map(([, debian]) => debian))].join(" ");
  return [
    {
      fatal: true,
      problem: `there is no guest image in ${dir}, and to make it ${missing.map(([tool]) => tool).join(", ")} is missing`,
      cure: `apt-get install ${packages}; or make it on another Debian host (bash ${SCRIPT} FOLDER) and set engine.guestDir`,
    },
  ];
}

/** Makes the image. Several processes may do it at once. @throws Error with what the script said */
export async function makeGuest(dir: string): Promise<void> {
  try {
    await run(findTool("bash")!, [SCRIPT, dir], { signal: AbortSignal.timeout(BUILD_MS) });
  } catch (thrown) {
    throw new HostError(
      `the guest image cannot be made in ${dir}: ${thrown instanceof Error ? thrown.message : String(thrown)} (try: apt-get update; bash ${SCRIPT} ${dir})`,
      { cause: thrown },
    );
  }
}
