/** Whether this process is stopped for itself, or with its host. */
import { execFile } from "node:child_process";

const ANSWER_MS = 5_000;

/** True while systemd takes the host down; false where there is no systemd, or it does not answer. */
export function isHostStopping(systemctl = "systemctl"): Promise<boolean> {
  return new Promise((resolve) => {
    // It ends with 1 for every state but "running".
    execFile(systemctl, ["is-system-running"], { timeout: ANSWER_MS }, (_error, stdout) =>
      resolve(stdout.trim() === "stopping"),
    );
  });
}
