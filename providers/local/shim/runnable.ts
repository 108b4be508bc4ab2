/**
 * Whether a command can be run on this host, with the reasons that a kubelet's users know. Part of the shim's program.
 */
import { accessSync, constants, statSync } from "node:fs";
import { delimiter, join } from "node:path";
import type { HostPlan } from "../engine.ts";

/** What exec(2) would say, but before anything is forked, so that the reason reaches the container's status. */
export function cannotRun({ argv, cwd, env }: HostPlan): string | undefined {
  const command = argv[0]!;
  try {
    if (!statSync(cwd).isDirectory()) return `chdir to "${cwd}": not a directory`;
  } catch {
    return `chdir to "${cwd}": no such file or directory`;
  }
  const candidates = command.includes("/")
    ? [command.startsWith("/") ? command : join(cwd, command)]
    : (env["PATH"] ?? "").split(delimiter).map((folder) => join(folder, command));
  let denied = false;
  for (const candidate of candidates) {
    try {
      if (statSync(candidate).isDirectory()) {
        denied = true;
        continue;
      }
      accessSync(candidate, constants.X_OK);
      return undefined;
    } catch (thrown) {
      if ((thrown as NodeJS.ErrnoException).code === "EACCES") denied = true;
    }
  }
  if (denied) return `exec: "${command}": permission denied`;
  return command.includes("/")
    ? `exec: "${command}": no such file or directory`
    : `exec: "${command}": executable file not found in $PATH`;
}
