/** What /proc says about the processes of this host. Linux only, as the engines are. */
import { readdir, readFile } from "node:fs/promises";
import { readFileSync } from "node:fs";
import { isMissing } from "./files.ts";

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
  threads: number;
}

/** Linux fixes USER_HZ at 100 for all user-space interfaces. */
export const TICKS_PER_SECOND = 100;

/** A process whose first thread has ended goes on with the others, though it is shown as a zombie. @internal */
export function hasEnded({ state, threads }: Pick<ProcessStat, "state" | "threads">): boolean {
  return state === "X" || (state === "Z" && threads <= 1);
}

/** @internal */
export function parseStat(pid: number, text: string): ProcessStat {
  // The command's name is in parentheses and may hold anything: fields are counted from the last one.
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  return {
    pid,
    state: fields[0]!,
    ppid: Number(fields[1]),
    pgid: Number(fields[2]),
    session: Number(fields[3]),
    cpuTicks: Number(fields[11]) + Number(fields[12]),
    threads: Number(fields[17]),
    startTime: fields[19]!,
    rssPages: Number(fields[21]),
  };
}

/**
 * Undefined when there is no such process; zombies count as gone.
 * @throws what the system says when that cannot be known just now
 */
export function processStat(pid: number): ProcessStat | undefined {
  try {
    const stat = parseStat(pid, readFileSync(`/proc/${pid}/stat`, "latin1"));
    return hasEnded(stat) ? undefined : stat;
  } catch (thrown) {
    if (isGone(thrown)) return undefined;
    throw thrown;
  }
}

/**
 * False when the process that had this pid at `startTime` is proven to be gone; a later process with the same pid is
 * another one. While that cannot be known (this process or the host is out of descriptors or memory) it is not gone:
 * ask again.
 */
export function isAlive(pid: number, startTime: string): boolean {
  try {
    return processStat(pid)?.startTime === startTime;
  } catch {
    return true;
  }
}

/** Another one after each boot of this host: with it a pid and its start time name a process for good. */
export function bootId(): string {
  return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
}

/** Whether this process is inside a user namespace, by its map of user ids: the first one has them all, as they are. */
export function runsInUserNamespace(map: string = readFileSync("/proc/self/uid_map", "latin1")): boolean {
  return map.trim().split(/\s+/).join(" ") !== "0 0 4294967295";
}

/** The process that was asked about is no more. */
export function isGone(thrown: unknown): boolean {
  return isMissing(thrown) || (thrown as NodeJS.ErrnoException).code === "ESRCH";
}

/** All processes that live, zombies left out. @throws what the system says when one of them cannot be looked at */
export async function allProcesses(): Promise<ProcessStat[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const stats = await Promise.all(
    pids.map(async (name) => {
      try {
        return parseStat(Number(name), await readFile(`/proc/${name}/stat`, "latin1"));
      } catch (thrown) {
        if (isGone(thrown)) return undefined;
        throw thrown;
      }
    }),
  );
  return stats.filter((stat) => stat !== undefined && !hasEnded(stat)) as ProcessStat[];
}

/**
 * One variable of the environment that a process was started with; undefined when it is unset, the process is gone or
 * another user's.
 * @throws what the system says when that cannot be known just now
 */
export async function processEnv(pid: number, name: string): Promise<string | undefined> {
  const text = await readOf(pid, "environ");
  const entry = text?.split("\0").find((line) => line.startsWith(`${name}=`));
  return entry?.slice(name.length + 1);
}

/** What a process was started with, each argument followed by a zero byte; undefined and throws as `processEnv`. */
export async function processArguments(pid: number): Promise<string | undefined> {
  return await readOf(pid, "cmdline");
}

async function readOf(pid: number, file: string): Promise<string | undefined> {
  try {
    return await readFile(`/proc/${pid}/${file}`, "utf8");
  } catch (thrown) {
    if (isGone(thrown) || ["EACCES", "EPERM"].includes((thrown as NodeJS.ErrnoException).code!)) return undefined;
    throw thrown;
  }
}
