/** Files that are written whole or not at all, and read when they are there. */
import { randomBytes } from "node:crypto";
import { renameSync, writeFileSync } from "node:fs";
import { open, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

/** Writes a file so that a reader, and this process after a crash, sees the old content or the new, never a part. */
export async function writeFileAtomic(path: string, content: string | Buffer, mode = 0o644): Promise<void> {
  const temporary = `${path}.${randomBytes(4).toString("hex")}.tmp`;
  try {
    await writeFile(temporary, content, { mode, flush: true });
    await rename(temporary, path);
  } catch (thrown) {
    await rm(temporary, { force: true });
    throw thrown;
  }
}

/**
 * The same, at once and as JSON. With `flush`, the content is on the disk before it takes the old one's place, also
 * when the host loses power.
 */
export function writeJson(path: string, value: unknown, { flush = false } = {}): void {
  const temporary = `${path}.tmp`;
  writeFileSync(temporary, JSON.stringify(value), { mode: 0o600, flush });
  renameSync(temporary, path);
}

/** What the file has is on the disk: a rename may outlive a power cut that the content would not. */
export async function flushFile(path: string): Promise<void> {
  const file = await open(path);
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/** The file's text; undefined when there is no such file. */
export async function readFileIfExists(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, "utf8");
  } catch (thrown) {
    if (isMissing(thrown)) return undefined;
    throw thrown;
  }
}

/**
 * Names of the files that `writeFileAtomic` has put into a folder. What a kill has left of one half-written is removed.
 */
export async function readdirAtomic(dir: string): Promise<string[]> {
  const names = await readdir(dir);
  const unfinished = names.filter((name) => /\.[0-9a-f]{8}\.tmp$/.test(name));
  for (const name of unfinished) await rm(join(dir, name), { force: true });
  return names.filter((name) => !unfinished.includes(name));
}

export function isMissing(thrown: unknown): boolean {
  const code = (thrown as NodeJS.ErrnoException | undefined)?.code;
  return code === "ENOENT" || code === "ENOTDIR";
}
