/** The folder of one `vmlet dev`, which no other one uses meanwhile. */
import { closeSync, fstatSync, statSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { makeFolder } from "../../providers/local/host/files.ts";
import { configuredBy } from "../config/load.ts";
import type { Logger } from "../telemetry/logger.ts";

/**
 * Taken before anything is written there: a second run would make the first one's token and kubeconfig its own, and
 * remove its machines.
 *
 * @param options `isShared`: its machines are on a backend that others use as well
 * @returns what gives the folder back
 * @throws ConfigError when another one has it
 */
export async function claimFolder(
  stateDir: string,
  { isShared, logger }: { isShared: boolean; logger: Logger },
): Promise<AsyncDisposable | undefined> {
  await configuredBy("--state-dir", async () => makeFolder(stateDir));
  // Not loaded for everybody: it is of this host alone.
  const [{ lockFile }, { findTool }] = await Promise.all([
    import("../../providers/local/host/lock.ts"),
    import("../../providers/local/host/command.ts"),
  ]);
  if (findTool("flock") === undefined) {
    if (isShared)
      logger.warn({ stateDir }, "This host has no flock: see to it that no second run uses the same folder");
    return undefined;
  }
  const path = join(stateDir, "lock");
  const inUse = `another vmlet dev uses ${stateDir}: end it, or give this one a folder of its own (--state-dir FOLDER --port 0)`;
  for (;;) {
    const file = await configuredBy("--state-dir", () => lockFile(path, inUse));
    if (isStill(file, path))
      return {
        async [Symbol.asyncDispose]() {
          await rm(path, { force: true });
          closeSync(file);
        },
      };
    // The one that had it has just removed it: a third one may have made another since.
    closeSync(file);
  }
}

function isStill(file: number, path: string): boolean {
  return fstatSync(file).ino === statSync(path, { throwIfNoEntry: false })?.ino;
}
