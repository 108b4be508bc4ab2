/**
 * Logs that a runtime writes, as the segments that log-reader.ts reads: `log.0`, `log.1`, ... The runtime writes to
 * `log`, a link to the newest segment. To rotate, the link is turned to a hidden file, the runtime is told to open its
 * log again, and the file gets its number when nothing is written to the one before it any more.
 */
import { lstatSync, readdirSync } from "node:fs";
import { open, readdir, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { showLog } from "./pod-logs.ts";

/** What the runtime is told to write to. */
export const LOG_LINK = "log";
const NEXT = ".log.next";
const COPY_BYTES = 1 << 20;

export interface LogLimits {
  maxBytes: number;
  maxFiles: number;
}

/** Before the container is made. @param dir of the instance */
export async function prepareLog(dir: string): Promise<void> {
  await pointTo(dir, "log.0");
  // The runtime goes on with a file that is there.
  await writeFile(join(dir, "log.0"), "", { flag: "a", mode: 0o640 });
  await show(dir);
}

/** Rotates the log if it has outgrown its limit. @param reopen has the runtime open its log again */
export async function rotateLog(dir: string, limits: LogLimits, reopen: () => Promise<void>): Promise<void> {
  const unfinished = lstatSync(join(dir, NEXT), { throwIfNoEntry: false }) !== undefined;
  const newest = newestSegment(dir);
  const { size } = await stat(join(dir, `log.${newest}`)).catch(() => ({ size: 0 }));
  if (!unfinished && size < limits.maxBytes) return;
  await pointTo(dir, NEXT);
  await reopen();
  // From here on it grows under its number, also if the runtime was killed meanwhile and opens it by the link.
  await rename(join(dir, NEXT), join(dir, `log.${newest + 1}`));
  await pointTo(dir, `log.${newest + 1}`);
  await show(dir);
  await cut(dir, newest, limits);
  await removeOld(dir, limits);
}

/** After the container's end: what was written since the last look is held to the limits, too. */
export async function settleLog(dir: string, limits: LogLimits): Promise<void> {
  const newest = newestSegment(dir);
  if (lstatSync(join(dir, NEXT), { throwIfNoEntry: false }) !== undefined)
    await rename(join(dir, NEXT), join(dir, `log.${newest + 1}`));
  await cut(dir, newestSegment(dir), limits);
  await show(dir);
  await removeOld(dir, limits);
}

/** A log is kept and read whether or not it can be shown as well. */
async function show(dir: string): Promise<void> {
  await showLog(dir, join(dir, `log.${newestSegment(dir)}`)).catch(() => undefined);
}

/** Of a segment that grew faster than it was looked at, the end is kept: whole lines, as many as a log may have. */
async function cut(dir: string, segment: number, limits: LogLimits): Promise<void> {
  const path = join(dir, `log.${segment}`);
  const { size } = await stat(path).catch(() => ({ size: 0 }));
  const most = limits.maxBytes * limits.maxFiles;
  if (size <= most) return;
  const shorter = join(dir, ".log.cut");
  const from = await open(path, "r");
  const to = await open(shorter, "w", 0o640);
  try {
    let offset = size - most;
    let begun = false;
    const buffer = Buffer.allocUnsafe(COPY_BYTES);
    for (;;) {
      const { bytesRead } = await from.read(buffer, 0, COPY_BYTES, offset);
      if (bytesRead === 0) break;
      offset += bytesRead;
      const data = buffer.subarray(0, bytesRead);
      const start: number = begun ? 0 : data.indexOf(10) + 1;
      begun ||= start > 0;
      if (begun) await to.write(data.subarray(start));
    }
  } finally {
    await from.close();
    await to.close();
  }
  await rename(shorter, path);
}

async function removeOld(dir: string, { maxFiles }: LogLimits): Promise<void> {
  const segments = numbers(await readdir(dir));
  for (const segment of segments.slice(0, -maxFiles)) await rm(join(dir, `log.${segment}`), { force: true });
}

/** In one step: the runtime may open it at any time. */
async function pointTo(dir: string, target: string): Promise<void> {
  const fresh = join(dir, ".log.link");
  await rm(fresh, { force: true });
  await symlink(target, fresh);
  await rename(fresh, join(dir, LOG_LINK));
}

function newestSegment(dir: string): number {
  return numbers(readdirSync(dir)).at(-1) ?? 0;
}

function numbers(names: readonly string[]): number[] {
  return names
    .flatMap((name) => /^log\.(\d+)$/.exec(name)?.[1] ?? [])
    .map(Number)
    .toSorted((a, b) => a - b);
}
