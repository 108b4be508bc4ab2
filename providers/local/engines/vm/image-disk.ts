/** Images as read-only disks for VMs: one squashfs file beside the unpacked image, made at the first use. */
import { existsSync } from "node:fs";
import { chmod, link, mkdir, readdir, rename, rm } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { randomBytes } from "node:crypto";
import { findTool, run } from "../../host/command.ts";
import { flushFile } from "../../host/files.ts";

const making = new Map<string, Promise<string>>();

/** Path of the disk of the image that is unpacked at `location`. */
export function imageDisk(location: string): Promise<string> {
  const disk = join(dirname(location), "disk.squashfs");
  if (existsSync(disk)) return Promise.resolve(disk);
  let made = making.get(disk);
  if (made === undefined) {
    made = make(location, disk).finally(() => making.delete(disk));
    making.set(disk, made);
  }
  return made;
}

/**
 * Shows a VM a disk: in a folder of which it sees all and can change nothing.
 * @returns path of the file there
 */
export async function linkDisk(disk: string, dir: string, name: string): Promise<string> {
  const path = join(dir, name);
  await mkdir(dir, { recursive: true, mode: 0o755 });
  await rm(path, { force: true });
  try {
    await link(disk, path);
  } catch (thrown) {
    // Images are on a file system of their own.
    if ((thrown as NodeJS.ErrnoException).code !== "EXDEV") throw thrown;
    await run(findTool("cp")!, ["--reflink=auto", disk, path]);
  }
  await chmod(path, 0o444);
  return path;
}

async function make(location: string, disk: string): Promise<string> {
  // What a backend that was killed meanwhile has left may be as large as the image.
  for (const name of await readdir(dirname(disk)))
    if (name.startsWith(`${basename(disk)}.`)) await rm(join(dirname(disk), name), { force: true });
  const temporary = `${disk}.${randomBytes(4).toString("hex")}`;
  try {
    // Weak compression: reading it back in an emulated processor costs more than the disk that it saves.
    await run(findTool("mksquashfs")!, [
      location,
      temporary,
      "-comp",
      "zstd",
      "-Xcompression-level",
      "1",
      "-noappend",
      "-quiet",
      "-no-progress",
    ]);
    await flushFile(temporary);
    await rename(temporary, disk);
    return disk;
  } finally {
    await rm(temporary, { force: true });
  }
}
