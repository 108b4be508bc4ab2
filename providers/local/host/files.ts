/** Files that are written whole or not at all, and read when they are there. */
import { randomBytes } from "node:crypto";
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { open, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { findTool, run } from "./command.ts";

/**
 * Writes a file so that a reader, and this process after a crash or a loss of power, sees the old content or the new,
 * never a part. What was written when this resolves is there after a loss of power.
 */
export async function writeFileAtomic(path: string, content: string | Buffer, mode = 0o644): Promise<void> {
  const temporary = `${path}.${randomBytes(4).toString("hex")}.tmp`;
  try {
    await writeFile(temporary, content, { mode, flush: true });
    await rename(temporary, path);
  } catch (thrown) {
    await rm(temporary, { force: true }).catch(() => undefined);
    throw thrown;
  }
  await flushFile(dirname(path));
}

/**
 * The same, at once and as JSON. Only with `flush` does it outlive a loss of power; without, the old content may be
 * lost with the new one then.
 */
export function writeJson(path: string, value: unknown, { flush = false } = {}): void {
  const temporary = `${path}.tmp`;
  try {
    writeFileSync(temporary, JSON.stringify(value), { mode: 0o600, flush });
    renameSync(temporary, path);
  } catch (thrown) {
    removeFileQuietly(temporary);
    throw thrown;
  }
  if (flush) flushFolder(dirname(path));
}

/** A half-written file takes room that a full disk has not. */
function removeFileQuietly(path: string): void {
  try {
    rmSync(path, { force: true });
  } catch {
    // The next write takes its place.
  }
}

/** What the folder lists is on the disk: names that were made or changed in it outlive a loss of power. */
export function flushFolder(path: string): void {
  const folder = openSync(path, "r");
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}

/**
 * What the file has, or the folder lists, is on the disk: a rename may outlive a power cut that the content would not.
 */
export async function flushFile(path: string): Promise<void> {
  const file = await open(path);
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/**
 * All of the file system that the path is on is on the disk: for a tree of many files, before it gets its name.
 * @throws CommandError what the disk says
 */
export async function flushTree(path: string, signal?: AbortSignal): Promise<void> {
  await run(findTool("sync") ?? "sync", ["-f", path], { signal });
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

/** Names of what the folder lists; none when there is no such folder. */
export async function readdirIfExists(dir: string): Promise<string[]> {
  try {
    return await readdir(dir);
  } catch (thrown) {
    if (isMissing(thrown)) return [];
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

/**
 * Makes a folder and those above it. Node's own `recursive` tries for ever below /proc, where a folder cannot be made
 * though the one above it is there.
 *
 * @param path absolute
 * @throws what the system says
 */
export function makeFolder(path: string, mode = 0o777): void {
  if (existsSync(path)) return;
  if (!existsSync(dirname(path))) makeFolder(dirname(path), mode);
  try {
    mkdirSync(path, { mode });
  } catch (thrown) {
    // Somebody else has made it just now.
    if ((thrown as NodeJS.ErrnoException).code !== "EEXIST") throw thrown;
  }
}
