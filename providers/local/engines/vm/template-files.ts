/** A template gets its name when all of it is on the disk: whatever has the name is copied without another look. */
import { rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { flushFile } from "../../host/files.ts";

const FILES = ["ram.img", "disk.img", "state.bin"] as const;

/** @param work folder in which it was made, beside its own */
export async function nameTemplate(work: string, dir: string): Promise<void> {
  for (const name of FILES) await flushFile(join(work, name));
  await flushFile(work);
  await rm(dir, { recursive: true, force: true });
  await rename(work, dir);
  await flushFile(dirname(dir));
}
