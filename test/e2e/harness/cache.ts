/**
 * A folder outside the checkout for things that are expensive to make: the control plane's binary, kubectl, helm, the
 * peers. Every entry is named after a hash of what it was made from, so it is never stale and never needs to be
 * cleared.
 */
import { createHash, randomUUID } from "node:crypto";
import { mkdir, rename, rm, stat } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";

/** `$VMLET_TEST_CACHE`, else `$XDG_CACHE_HOME/vmlet`, else `~/.cache/vmlet`. */
export function cacheDir(env: NodeJS.ProcessEnv = process.env): string {
  return env["VMLET_TEST_CACHE"] ?? join(env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "vmlet");
}

/** Sixteen hex digits of the SHA-256 over the parts, each with its length, so that no two lists of parts look alike. */
export function cacheKey(parts: readonly (string | Buffer)[]): string {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(`${Buffer.byteLength(part)}:`).update(part);
  return hash.digest("hex").slice(0, 16);
}

/**
 * The path of the cached file `name`; `make` writes it first when it is absent. It is written under a temporary name
 * and renamed, so that a run that is killed, or two runs at once, never leave half a file.
 */
export async function cached(name: string, make: (temporaryPath: string) => Promise<void>): Promise<string> {
  const path = join(cacheDir(), name);
  if (await exists(path)) return path;
  await mkdir(cacheDir(), { recursive: true });
  const temporary = `${path}.${randomUUID()}.tmp`;
  try {
    await make(temporary);
    await rename(temporary, path);
  } finally {
    await rm(temporary, { force: true });
  }
  return path;
}

async function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}
