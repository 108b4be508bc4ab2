/** What a process may be given as its rank for the kernel's out-of-memory killer. */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";

const SCORE = "/proc/self/oom_score_adj";

/** Of the backend and its shims, as it is read: a container without the right to it gives none below its own. */
export function lowestOomScore(): string {
  try {
    return execFileSync("sh", ["-c", `echo -999 > ${SCORE} && cat ${SCORE}`], { encoding: "utf8", stdio: "pipe" });
  } catch {
    return readFileSync(SCORE, "utf8");
  }
}
