/** When the command of a terminal has begun. */
import { readFileSync } from "node:fs";
import type { IPty } from "@lydell/node-pty";

const POLL_MS = 1;
/** Linux, include/linux/sched.h PF_FORKNOEXEC: forked, and did not exec yet. */
const FORKED_ONLY = 0x40;

/**
 * Resolves when the command itself runs, or is over. node-pty returns when it has forked: until the child has made its
 * session and become the command, it is in this process's group and looks like this process, so a signal to the
 * command's group finds nobody, and neither does who looks for it by its environment.
 */
export async function commandBegun(terminal: IPty): Promise<void> {
  while (isForkedOnly(terminal.pid)) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
}

function isForkedOnly(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    // The name is in parentheses and may hold anything. After it: state, five numbers, flags.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return fields[0] !== "Z" && (Number(fields[6]) & FORKED_ONLY) !== 0;
  } catch {
    return false;
  }
}
