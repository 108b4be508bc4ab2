/**
 * AppArmor, where the host has it: a profile for every container that is not privileged, beside seccomp and
 * capabilities. It is containerd's: files, network and capabilities as they are, but no mounts, no writing to what the
 * kernel shows in /proc and /sys, no tracing of and no signals to what is not a container.
 */
import { existsSync, readFileSync } from "node:fs";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import type { ContainerSpec, Logger } from "../../../src/provider/kit/index.ts";
import { ContainerError, type HostProblem } from "../engine.ts";
import { findTool, run } from "../host/command.ts";
import { writeFileAtomic } from "../host/files.ts";

/** @internal */
export const PROFILE = "vmlet-default";
const PARSER = "apparmor_parser";
const KERNEL = "sys/kernel/security/apparmor";
const LOCALHOST = "localhost/";
const LOAD_MS = 30_000;
/** Of Debian's, Ubuntu's and SUSE's package. */
const INCLUDES = ["tunables/global", "abstractions/base"];

const ownParser = () => findTool(PARSER);

/** Whether the kernel enforces profiles, by which a kubelet goes. @param root of the host's files */
export function hasAppArmor(root = "/"): boolean {
  if (!existsSync(join(root, KERNEL))) return false;
  try {
    return readFileSync(join(root, "sys/module/apparmor/parameters/enabled"), "latin1").trim() === "Y";
  } catch {
    return false; // it has none
  }
}

/** Whether there is a profile for containers as well, which has to be loaded. */
export function canConfine(root = "/", findParser = ownParser): boolean {
  return hasAppArmor(root) && findParser() !== undefined;
}

export function checkAppArmor(root = "/", findParser = ownParser): HostProblem[] {
  if (!hasAppArmor(root) || findParser() !== undefined) return [];
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
  if (!hasAppArmor(root) || parser === undefined) return undefined;
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

/**
 * The profile that a container asks for, as containerd finds it: one that is privileged never has the usual one.
 * @param usual profile of containers; undefined where there is none
 * @throws ContainerError when there is no such profile
 */
export async function profileOf(
  { name, security = {} }: Pick<ContainerSpec, "name" | "security">,
  usual: string | undefined,
  root = "/",
): Promise<string | undefined> {
  const { apparmor, privileged } = security;
  if (apparmor === "unconfined") return undefined;
  if (apparmor?.startsWith(LOCALHOST)) {
    const wanted = apparmor.slice(LOCALHOST.length);
    const loaded = await readFile(join(root, KERNEL, "profiles"), "utf8").catch(() => "");
    if (loaded.split("\n").some((line) => line.startsWith(`${wanted} (`))) return wanted;
    throw createError(name, `apparmor profile not found ${wanted}`);
  }
  if (privileged === true) return undefined;
  if (usual === undefined && apparmor !== undefined) throw createError(name, "apparmor is not supported");
  return usual;
}

/** Whether a profile is there that only complains, or confines nothing: as good as none. */
export function isLoose(apparmor: string | undefined, root = "/"): boolean {
  if (apparmor?.startsWith(LOCALHOST) !== true) return false;
  const wanted = apparmor.slice(LOCALHOST.length);
  try {
    const loaded = readFileSync(join(root, KERNEL, "profiles"), "utf8").split("\n");
    return loaded.some((line) => line.startsWith(`${wanted} (`) && line !== `${wanted} (enforce)`);
  } catch {
    return false; // then none is loaded, which the container's start says
  }
}

/** In containerd's words. */
const createError = (container: string, message: string) =>
  new ContainerError(
    "CreateContainerError",
    `container ${container}: failed to generate apparmor spec opts: ${message}`,
  );

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
