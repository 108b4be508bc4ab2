/** What /proc says about the processes of this host. Linux only, as the engines are. */
import { readdir, readFile } from "node:fs/promises";
import { readFileSync } from "node:fs";

export interface ProcessStat {
  pid: number;
  state: string;
  ppid: number;
  pgid: number;
  session: number;
  /** User and system time, clock ticks. */
  cpuTicks: number;
  /** Since boot, clock ticks: with the pid it names a process for good. */
  startTime: string;
  rssPages: number;
}

/** Linux fixes USER_HZ at 100 for all user-space interfaces. */
export const TICKS_PER_SECOND = 100;

function parseStat(pid: number, text: string): ProcessStat {
  // The command's name is in parentheses and may hold anything: fields are counted from the last one.
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  return {
    pid,
    state: fields[0]!,
    ppid: Number(fields[1]),
    pgid: Number(fields[2]),
    session: Number(fields[3]),
    cpuTicks: Number(fields[11]) + Number(fields[12]),
    startTime: fields[19]!,
    rssPages: Number(fields[21]),
  };
}

/** Undefined when there is no such process; zombies count as gone. */
export function processStat(pid: number): ProcessStat | undefined {
  try {
    const stat = parseStat(pid, readFileSync(`/proc/${pid}/stat`, "latin1"));
    return stat.state === "Z" || stat.state === "X" ? undefined : stat;
  } catch {
    return undefined;
  }
}

/** True while the process that had this pid at `startTime` lives; a later process with the same pid is another one. */
export function isAlive(pid: number, startTime: string): boolean {
  return processStat(pid)?.startTime === startTime;
}

/** All processes that live, zombies left out. */
export async function allProcesses(): Promise<ProcessStat[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const stats = await Promise.all(
    pids.map(async (name) => {
      try {
        return parseStat(Number(name), await readFile(`/proc/${name}/stat`, "latin1"));
      } catch {
        return undefined;
      }
    }),
  );
  return stats.filter((stat) => stat !== undefined && stat.state !== "Z" && stat.state !== "X") as ProcessStat[];
}

/** One variable of the environment that a process was started with; undefined when unset or not readable. */
export async function processEnv(pid: number, name: string): Promise<string | undefined> {
  try {
    const text = await readFile(`/proc/${pid}/environ`, "utf8");
    const entry = text.split("\0").find((line) => line.startsWith(`${name}=`));
    return entry?.slice(name.length + 1);
  } catch {
    return undefined;
  }
}
