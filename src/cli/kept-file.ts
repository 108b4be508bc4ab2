/** Files that take long to make, and are kept for the next run by what they were made of. */
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";

interface KeptFileOptions {
  /** Default: `~/.cache/vmlet`. */
  folder?: string | undefined;
  /** Make it again. */
  isFresh?: boolean | undefined;
  /** How many of this name there may be; those that were made first go. Absent: all are kept. */
  atMost?: number | undefined;
}

/** What follows a name: of drafts it is longer. */
const KEY = /^[0-9a-f]{16}\.tar$/;

/** @param of what it is made of. @param make writes it to the path that it is told. @returns its path */
export async function keptFile(
  name: string,
  of: readonly unknown[],
  { folder = join(homedir(), ".cache/vmlet"), isFresh = false, atMost }: KeptFileOptions,
  make: (draft: string) => Promise<void>,
): Promise<string> {
  const key = createHash("sha256").update(JSON.stringify(of)).digest("hex").slice(0, 16);
  const file = join(folder, `${name}-${key}.tar`);
  if (existsSync(file) && !isFresh) return file;
  await mkdir(folder, { recursive: true });
  const draft = `${file}.${process.pid}.tar`;
  try {
    await make(draft);
    await rename(draft, file);
  } finally {
    await rm(draft, { force: true });
  }
  if (atMost !== undefined) await removeOldest(folder, `${name}-`, atMost);
  return file;
}

/** What another run still reads stays readable to it. */
async function removeOldest(folder: string, start: string, atMost: number): Promise<void> {
  const names = (await readdir(folder)).filter((name) => name.startsWith(start) && KEY.test(name.slice(start.length)));
  const files = await Promise.all(
    names.map(async (name) => ({ path: join(folder, name), madeAt: (await stat(join(folder, name))).mtimeMs })),
  );
  const old = files.toSorted((a, b) => b.madeAt - a.madeAt).slice(atMost);
  for (const { path } of old) await rm(path, { force: true });
}
