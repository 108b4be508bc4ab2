/** Who the kernel kills first when this host is out of memory. */
import { writeFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";

/** Of a kubelet's, and of its runtime's: only what must not be killed at all is lower. */
const KEEPER = -999;

/**
 * Puts this process and all that it starts, shims above all, behind what runs in machines: a shim that goes takes the
 * end of its container with it. Does nothing where the right to it is missing; of containers the engine says its own.
 */
export function keepUntilLast(): void {
  try {
    writeFileSync("/proc/self/oom_score_adj", String(KEEPER));
  } catch {
    // Without CAP_SYS_RESOURCE, or not on Linux.
  }
}

/** @param score from -1000 (never) to 1000 (first); not below what may be had here */
export async function setOomScore(pid: number, score: number): Promise<void> {
  await writeFile(`/proc/${pid}/oom_score_adj`, String(score));
}
