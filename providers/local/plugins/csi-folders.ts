/** The folders of CSI volumes, and what is written down beside each: as a kubelet's (pkg/volume/csi). */
import { existsSync, lstatSync, readdirSync, readFileSync, realpathSync, rmdirSync, rmSync, unlinkSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { isDevice, noteFolder, type PublishedVolume } from "../csi-volumes.ts";
import { isMissing } from "../host/files.ts";
import { parseMounts } from "../host/mounts.ts";

export const DATA = "vol_data.json";

/** What of it is text; empty for what is not there, or torn: then its driver was not asked yet. */
export function readData(folder: string): Readonly<Record<string, string | undefined>> {
  try {
    return textsOf(readFileSync(join(folder, DATA), "utf8"));
  } catch {
    return {};
  }
}

/** The fields of an object in JSON that are text; none of what is something else. */
export function textsOf(json: string): Record<string, string> {
  try {
    const data: unknown = JSON.parse(json);
    const entries = typeof data === "object" && data !== null ? Object.entries(data as Record<string, unknown>) : [];
    return Object.fromEntries(entries.filter((entry): entry is [string, string] => typeof entry[1] === "string"));
  } catch {
    return {};
  }
}

export function foldersIn(path: string): string[] {
  try {
    return readdirSync(path, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? entry.name : []));
  } catch (thrown) {
    if (isMissing(thrown)) return [];
    throw thrown;
  }
}

export function removeEmpty(folder: string): void {
  try {
    rmdirSync(folder);
  } catch (thrown) {
    if (!isMissing(thrown)) throw thrown;
  }
}

/**
 * What the driver has left of a target: an empty folder, or of a device its empty file or its node.
 * @throws what the system says when it is more, or is still mounted
 */
export function removeTarget(target: string): void {
  const stats = lstatSync(target, { throwIfNoEntry: false });
  if (stats === undefined) return;
  if (stats.isFile() && stats.size > 0)
    throw new Error(`${target} is a file in which something is, and no device: look what it is, and remove it`);
  // Of what something is mounted on, the kernel removes nothing.
  if (stats.isDirectory()) removeEmpty(target);
  else unlinkSync(target);
}

/** Where the volume was, and what was written down of it. @throws as `removeTarget` */
export function clearTarget(root: string, at: Pick<PublishedVolume, "path">): void {
  const target = join(root, at.path);
  const note = join(root, noteFolder(at));
  removeTarget(target);
  // Another pod may have the volume, and its other volumes may be there.
  if (isDevice(at)) removeWhileEmpty(dirname(target), 1);
  rmSync(join(note, DATA), { force: true });
  removeEmpty(note);
  removeWhileEmpty(dirname(note), 3);
}

/** The folder, and so many in all with those that it is in. */
function removeWhileEmpty(folder: string, levels: number): void {
  for (let [path, left] = [folder, levels]; left > 0; path = dirname(path), left--) {
    try {
      removeEmpty(path);
    } catch {
      return;
    }
  }
}

/**
 * A driver whose container does not let its mounts out (mountPropagation) says that it has mounted, and nobody else
 * sees anything: the machine would run with an empty folder.
 * @throws Error that says so
 */
export function assertMounted(target: string, root: string): void {
  if (isMountPoint(target)) return;
  const stats = lstatSync(target, { throwIfNoEntry: false });
  if (stats?.isDirectory() === true && readdirSync(target).length > 0) return;
  throw new Error(
    `the driver says that it has mounted ${target}, and this host sees nothing there: does its container mount ${join(root, "pods")} with mountPropagation: Bidirectional?`,
  );
}

/** Whether a driver has put something there, or begun to. */
export const isThere = (target: string): boolean => isMountPoint(target) || existsSync(target);

/** By the mount table alone: a look at a mount waits for its server, which may be gone for good. */
function isMountPoint(target: string): boolean {
  if (!existsSync(dirname(target))) return false;
  const real = join(realpathSync(dirname(target)), basename(target));
  return parseMounts(readFileSync("/proc/self/mountinfo", "utf8")).some(({ path }) => path === real);
}
