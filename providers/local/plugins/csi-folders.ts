/** The folders of CSI volumes, and what is written down beside each: as a kubelet's (pkg/volume/csi). */
import { lstatSync, readdirSync, readFileSync, realpathSync, rmdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { isMissing } from "../host/files.ts";
import { mountPoints } from "../host/mounts.ts";

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

/** What the driver has left of a target: an empty folder at most. @throws what the system says when it is more */
export function clearTarget(target: string): void {
  const folder = dirname(target);
  removeEmpty(target);
  rmSync(join(folder, DATA), { force: true });
  removeEmpty(folder);
  // The pod's other volumes may be there.
  let parent = dirname(folder);
  for (let depth = 0; depth < 3; depth++, parent = dirname(parent)) {
    try {
      removeEmpty(parent);
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
export async function assertMounted(target: string, root: string): Promise<void> {
  const stats = lstatSync(target, { throwIfNoEntry: false });
  if (stats?.isDirectory() === true) {
    const real = realpathSync(target);
    if (readdirSync(real).length > 0 || (await mountPoints()).some(({ path }) => path === real)) return;
  }
  throw new Error(
    `the driver says that it has mounted ${target}, and this host sees nothing there: does its container mount ${join(root, "pods")} with mountPropagation: Bidirectional?`,
  );
}
