/** Files that are disks of VMs. */
import { existsSync, truncateSync, writeFileSync } from "node:fs";
import { mkdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { findTool, run } from "../../host/command.ts";
import { flushFile } from "../../host/files.ts";

/** @returns its path; the name says the size, so another size is another file */
export async function makeBlankDisk(dir: string, bytes: number): Promise<string> {
  const file = join(dir, `blank-${bytes}.img`);
  if (existsSync(file)) return file;
  await mkdir(dir, { recursive: true, mode: 0o700 });
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, "", { mode: 0o600 });
  truncateSync(temporary, bytes);
  // No journal: without the machine, its disk is useless anyway.
  const features = "^has_journal,^resize_inode,^metadata_csum";
  const extended = "lazy_itable_init=1,nodiscard";
  await run(findTool("mke2fs")!, ["-q", "-F", "-t", "ext4", "-O", features, "-m", "0", "-E", extended, temporary]);
  await flushFile(temporary);
  await rename(temporary, file);
  return file;
}

/** Only what is written in it: such a disk is mostly holes. */
export async function copyDisk(from: string, to: string, signal: AbortSignal): Promise<void> {
  await rm(to, { force: true });
  await run(findTool("cp")!, ["--sparse=always", "--reflink=auto", from, to], { signal });
}
