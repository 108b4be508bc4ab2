import { closeSync, openSync } from "node:fs";
import { toError } from "../../../src/provider/kit/index.ts";
import { CommandError, findTool, run } from "./command.ts";
import { HostError } from "./host-error.ts";

/**
 * Takes the lock of a file, which is made when it is absent. It holds against processes in any namespace, and the
 * kernel gives it back when the holder ends in any way. Node cannot ask for it, but it belongs to the open file, not to
 * who asked.
 * @returns the descriptor that holds the lock; closing it gives the lock back
 * @throws Error `inUse` when another process has the lock
 */
export async function lockFile(path: string, inUse: string): Promise<number> {
  const file = openSync(path, "a", 0o600);
  try {
    await run(findTool("flock") ?? "flock", ["-n", "3"], { fd3: file });
    return file;
  } catch (thrown) {
    closeSync(file);
    const message =
      thrown instanceof CommandError && thrown.exitCode === 1
        ? inUse
        : `cannot lock ${path}: ${toError(thrown).message} (flock is in the package util-linux)`;
    throw new HostError(message, { cause: thrown });
  }
}
