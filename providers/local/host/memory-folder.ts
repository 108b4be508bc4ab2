/**
 * A folder in this host's memory for what must not lie on its disk: on a tmpfs that is there already, named by the
 * state directory that it belongs to. It outlives the backend, and not the host.
 */
import { createHash } from "node:crypto";
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { ConfigError } from "../../../src/provider/kit/index.ts";

const PLACES = ["/dev/shm", "/run"];
const PREFIX = "vmlet-";
/** In each folder: the state directory that it belongs to. */
const OWNER = "state-dir";
const FILE_SYSTEMS_IN_MEMORY = [0x01021994, 0x858458f6];

/**
 * A tmpfs for it that is there already.
 * @param needsExec programs are started from files in it: not every tmpfs permits that
 * @param chosen by the owner of this host: no other one will do
 */
export function memoryPlace(needsExec: boolean, chosen?: string): string | undefined {
  const places = chosen === undefined ? PLACES : [chosen];
  return places.find((each) => isInMemory(each) && (!needsExec || mayExecute(each)) && isWritable(each));
}

/**
 * Makes the folder, for this user alone, or finds it again. Those of state directories that are gone are removed.
 * @param stateDir absolute, without links
 * @throws ConfigError where another user has taken its name
 */
export function memoryFolder(place: string, stateDir: string): string {
  removeForgotten(place);
  const folder = join(place, PREFIX + createHash("sha256").update(stateDir).digest("hex").slice(0, 16));
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  if (!isOwn(folder) || (lstatSync(folder).mode & 0o077) !== 0)
    throw new ConfigError(`${folder}, for what machines are told in confidence, is not this user's alone: remove it`);
  writeFileSync(join(folder, OWNER), stateDir, { mode: 0o600 });
  return folder;
}

/** Of the file system that the folder is on. */
export function memoryFolderSize(folder: string): number {
  const { blocks, bsize } = statfsSync(folder);
  return blocks * bsize;
}

function isInMemory(place: string): boolean {
  return existsSync(place) && FILE_SYSTEMS_IN_MEMORY.includes(statfsSync(place).type);
}

function mayExecute(place: string): boolean {
  const around = readFileSync("/proc/self/mountinfo", "utf8")
    .trim()
    .split("\n")
    .map((line) => line.split(" "))
    .map(([, , , , point, options]) => ({ point: point!, options: options!.split(",") }))
    .filter(({ point }) => point === "/" || place === point || place.startsWith(`${point}/`));
  // The longest is the nearest, and of several at one place the last one counts.
  const nearest = around.toSorted((a, b) => a.point.length - b.point.length).at(-1);
  return nearest?.options.includes("noexec") === false;
}

function isWritable(place: string): boolean {
  const probe = join(place, `${PREFIX}probe-${process.pid}`);
  try {
    mkdirSync(probe, { mode: 0o700 });
    rmSync(probe, { recursive: true });
    return true;
  } catch {
    return false;
  }
}

function isOwn(folder: string): boolean {
  const stats = lstatSync(folder, { throwIfNoEntry: false });
  return stats?.isDirectory() === true && stats.uid === process.getuid!();
}

function removeForgotten(place: string): void {
  for (const name of readdirSync(place).filter((entry) => entry.startsWith(PREFIX))) {
    const folder = join(place, name);
    if (!isOwn(folder) || !existsSync(join(folder, OWNER))) continue;
    const stateDir = readFileSync(join(folder, OWNER), "utf8");
    if (stateDir !== "" && !existsSync(stateDir)) rmSync(folder, { recursive: true, force: true });
  }
}
