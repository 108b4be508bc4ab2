/** Loop devices of this host: files as block devices, through losetup(8). At most one for a file. */
import { closeSync, constants, existsSync, openSync, readFileSync, realpathSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { findTool, run } from "../host/command.ts";

const losetup = (args: readonly string[]) => run(findTool("losetup") ?? "losetup", args);

interface LoopDevice {
  /** `/dev/loop0` */
  path: string;
  file: string;
  readOnly: boolean;
}

export async function loopDevices(): Promise<LoopDevice[]> {
  const { stdout } = await losetup(["--list", "--json", "--output", "NAME,BACK-FILE,RO"]);
  const text = stdout.toString();
  if (text.trim() === "") return [];
  const { loopdevices } = JSON.parse(text) as {
    loopdevices: { name: string; "back-file": string | null; ro: boolean }[];
  };
  return loopdevices.map((each) => ({ path: each.name, file: each["back-file"] ?? "", readOnly: each.ro }));
}

/** By the file itself, whatever its name was when it was attached. */
export async function loopOf(file: string): Promise<LoopDevice | undefined> {
  if (!existsSync(file)) return undefined;
  const { stdout } = await losetup(["--list", "--noheadings", "--raw", "--output", "NAME,RO", "--associated", file]);
  const [path = "", readOnly] = stdout.toString().trim().split("\n")[0]!.split(" ");
  return path === "" ? undefined : { path, file, readOnly: readOnly === "1" };
}

/** The one that the file has already, or a new one. */
export async function attachLoop(file: string, { readOnly }: { readOnly: boolean }): Promise<LoopDevice> {
  const before = await loopOf(file);
  if (before !== undefined && before.readOnly !== readOnly) await detachLoop(before);
  const how = readOnly ? ["--read-only"] : [];
  await losetup(["--find", "--nooverlap", ...how, file]);
  const device = await loopOf(file);
  if (device === undefined) throw new Error(`${file} has no loop device, though losetup has made one`);
  keepBlocks(device);
  return device;
}

/** Blocks that a program gives back stay the file's: they were reserved for it. */
function keepBlocks({ path }: LoopDevice): void {
  for (const limit of ["discard_max_bytes", "write_zeroes_unmap_max_bytes"]) {
    const file = join("/sys/block", basename(path), "queue", limit);
    try {
      if (existsSync(file)) writeFileSync(file, "0");
    } catch {
      // A kernel that has no such limit, or a container that may not set it: each attachment reserves them again.
    }
  }
}

/**
 * Of a device that is mounted: it goes when its last mount goes, in whatever mount namespace that is, by whatever takes
 * it away, so that a backend whose namespace ends with it (a container) leaves none behind.
 */
export async function leaveToMounts({ path }: Pick<LoopDevice, "path">): Promise<void> {
  // Of one in use the kernel only notes that it is to go (LO_FLAGS_AUTOCLEAR).
  if (isHeld(path) && !goesByItself(path)) await losetup(["--detach", path]);
}

/** @throws Error while something of this host uses it */
export async function detachLoop({ path, file }: Pick<LoopDevice, "path" | "file">): Promise<void> {
  if (isHeld(path)) throw new Error(`${path}, which is ${file}, is in use`);
  // What goes with its last user has just gone, and its number may be another file's already.
  if (backingFile(path) !== file) return;
  if (!goesByItself(path)) await losetup(["--detach", path]);
  // One that somebody has open goes when it is closed.
  if (backingFile(path) === file) throw new Error(`${path}, which is ${file}, is in use`);
}

/**
 * Has the file open by a loop device of its own, whatever other names of the file have. Again for one that has it
 * changes nothing.
 */
export async function holdOpen(file: string): Promise<void> {
  const known = await openersOf(file);
  if (!known.some(({ name }) => name === kernelName(file))) await losetup(["--find", "--read-only", file]);
}

/**
 * No loop device has the file open by this name any more; with `all`, by none.
 * @throws Error while a program has the loop device open
 */
export async function letGo(file: string, { all }: { all: boolean }): Promise<void> {
  const mine = async () => (await openersOf(file)).filter(({ name }) => all || name === kernelName(file));
  for (const { path } of await mine()) await losetup(["--detach", path]);
  // One that somebody has open goes when it is closed.
  const [left] = await mine();
  if (left !== undefined) throw new Error(`${left.path}, which has ${file} open, is in use`);
}

/** The kernel's name of what is open has no links in it. The file itself is not followed: it is what it is. */
const kernelName = (file: string): string =>
  existsSync(dirname(file)) ? join(realpathSync(dirname(file)), basename(file)) : file;

/** The loop devices that have the file open, and by which name of it. */
async function openersOf(file: string): Promise<{ path: string; name: string }[]> {
  if (!existsSync(file)) return [];
  const { stdout } = await losetup(["--list", "--json", "--output", "NAME,BACK-FILE", "--associated", file]);
  const text = stdout.toString();
  if (text.trim() === "") return [];
  const { loopdevices } = JSON.parse(text) as { loopdevices: { name: string; "back-file": string | null }[] };
  return loopdevices.map((each) => ({ path: each.name, name: each["back-file"] ?? "" }));
}

/** It takes the size that its file has now. */
export async function resizeLoop({ path }: LoopDevice): Promise<void> {
  await losetup(["--set-capacity", path]);
}

/** It is mounted, wherever, or another program has it for itself. */
export function isHeld(path: string): boolean {
  try {
    closeSync(openSync(path, constants.O_RDONLY | constants.O_EXCL));
    return false;
  } catch (thrown) {
    const { code } = thrown as NodeJS.ErrnoException;
    if (code === "EBUSY") return true;
    if (code === "ENXIO" || code === "ENOENT") return false;
    throw thrown;
  }
}

const goesByItself = (path: string): boolean => attribute(path, "autoclear") === "1";

const backingFile = (path: string): string | undefined => attribute(path, "backing_file");

function attribute(path: string, name: string): string | undefined {
  try {
    return readFileSync(join("/sys/block", basename(path), "loop", name), "utf8").trim();
  } catch {
    return undefined;
  }
}
