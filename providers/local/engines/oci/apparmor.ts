/**
 * AppArmor, where the host has it: a profile for every container that is not privileged, beside seccomp and
 * capabilities. It is containerd's: files, network and capabilities as they are, but no mounts, no writing to what the
 * kernel shows in /proc and /sys, no tracing of and no signals to what is not a container.
 */
import { existsSync } from "node:fs";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Logger } from "../../../../src/provider/kit/index.ts";
import type { HostProblem } from "../../engine.ts";
import { findTool, run } from "../../host/command.ts";
import { writeFileAtomic } from "../../host/files.ts";

/** @internal */
export const PROFILE = "vmlet-default";
const PARSER = "apparmor_parser";
const LOAD_MS = 30_000;
/** Of Debian's, Ubuntu's and SUSE's package. */
const INCLUDES = ["tunables/global", "abstractions/base"];

const ownParser = () => findTool(PARSER);

/** @param root of the host's files @internal */
export async function hasAppArmor(root = "/"): Promise<boolean> {
  if (!existsSync(join(root, "sys/kernel/security/apparmor"))) return false;
  const enabled = await readFile(join(root, "sys/module/apparmor/parameters/enabled"), "latin1").catch(() => "");
  return enabled.trim() === "Y";
}

export async function checkAppArmor(root = "/", findParser = ownParser): Promise<HostProblem[]> {
  if (!(await hasAppArmor(root)) || findParser() !== undefined) return [];
  return [
    {
      fatal: false,
      problem: `this host has AppArmor, and containers have no profile of it: ${PARSER} is not on the PATH`,
      cure: "install the package apparmor, and start the backend anew",
    },
  ];
}

interface LoadOptions {
  /** Folder for the profile's text. */
  dir: string;
  logger: Logger;
  root?: string | undefined;
  findParser?: (() => string | undefined) | undefined;
}

/** @returns the name of the profile for containers; undefined where there is none */
export async function loadProfile({
  dir,
  logger,
  root = "/",
  findParser = ownParser,
}: LoadOptions): Promise<string | undefined> {
  const parser = findParser();
  if (!(await hasAppArmor(root)) || parser === undefined) return undefined;
  const file = join(dir, PROFILE);
  try {
    await mkdir(dir, { recursive: true, mode: 0o700 });
    const known = INCLUDES.filter((name) => existsSync(join(root, "etc/apparmor.d", name)));
    await writeFileAtomic(file, profileText(known), 0o600);
    await run(parser, ["-Kr", file], { signal: AbortSignal.timeout(LOAD_MS) });
    return PROFILE;
  } catch (thrown) {
    logger.error({ err: thrown }, "Containers have no AppArmor profile: it cannot be loaded");
    return undefined;
  }
}

/** @param includes those of the host's own files that are there @internal */
export function profileText(includes: readonly string[]): string {
  const [global, base] = INCLUDES.map((name) => (includes.includes(name) ? `#include <${name}>` : ""));
  return `${global === "" ? "@{PROC}=/proc/" : global}

profile ${PROFILE} flags=(attach_disconnected,mediate_deleted) {
  ${base}
  network,
  capability,
  file,
  umount,

  # The host's and the runtime's, and containers' among themselves.
  signal (receive) peer=unconfined,
  signal (receive) peer=runc,
  signal (receive) peer=crun,
  signal (send,receive) peer=${PROFILE},

  # Not /proc/PID, /proc/sys/kernel/shm*.
  deny @{PROC}/* w,
  deny @{PROC}/{[^1-9],[^1-9][^0-9],[^1-9s][^0-9y][^0-9s],[^1-9][^0-9][^0-9][^0-9]*}/** w,
  deny @{PROC}/sys/[^k]** w,
  deny @{PROC}/sys/kernel/{?,??,[^s][^h][^m]**} w,
  deny @{PROC}/sysrq-trigger rwklx,
  deny @{PROC}/mem rwklx,
  deny @{PROC}/kmem rwklx,
  deny @{PROC}/kcore rwklx,

  deny mount,

  # Of /sys, the container's own control groups.
  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/fs/cg[^r]*/** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,

  ptrace (trace,tracedby,read,readby) peer=${PROFILE},
}
`;
}
