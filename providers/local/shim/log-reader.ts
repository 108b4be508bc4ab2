/** Reads the log segments that a shim writes (`log.0`, `log.1`, ... in the CRI format). */
import { open, readdir, stat, type FileHandle } from "node:fs/promises";
import { join } from "node:path";
import type { Clock, LogLine } from "../../../src/provider/kit/index.ts";
import { decodeLogLine } from "../../http-vm/wire.ts";
import { type FollowedLog, LogWatches } from "./log-watch.ts";

const CHUNK_BYTES = 64 * 1024;
/** How many of them are read at a time for all who follow a log. */
const SHARED_CHUNKS = 16;

export interface ReadLogOptions {
  clock: Clock;
  signal: AbortSignal;
  follow: boolean;
  tail?: number | undefined;
  since?: string | undefined;
  stream?: "stdout" | "stderr" | undefined;
  /** Bytes of content, newlines counted; the last line is cut. */
  limitBytes?: number | undefined;
  /** True once nothing more will be written. Asked before the last look. */
  complete(): boolean;
  /** Resolves when `complete` may have changed. */
  changed(signal: AbortSignal): Promise<void>;
  /** Shared by all who follow logs of one machine. */
  watches?: LogWatches | undefined;
}

async function segments(dir: string): Promise<number[]> {
  const names = await readdir(dir).catch(() => []);
  return names
    .flatMap((name) => /^log\.(\d+)$/.exec(name)?.[1] ?? [])
    .map(Number)
    .toSorted((a, b) => a - b);
}

/** Size of all segments in bytes. */
export async function logBytes(dir: string): Promise<number> {
  const sizes = await Promise.all(
    (await segments(dir)).map(
      async (segment) => (await stat(join(dir, `log.${segment}`)).catch(() => undefined))?.size ?? 0,
    ),
  );
  return sizes.reduce((sum, size) => sum + size, 0);
}

interface Position {
  segment: number;
  offset: number;
}

/** Where the log ends now. */
async function endPosition(dir: string): Promise<Position> {
  const segment = (await segments(dir)).at(-1) ?? 0;
  const { size } = (await stat(join(dir, `log.${segment}`)).catch(() => undefined)) ?? { size: 0 };
  return { segment, offset: size };
}

/**
 * The lines of one container instance, past and, with `follow`, to come. Without it the log ends where it did when it
 * was asked for: of one that grows, `tail` gives no line too many, and the reader of one that grows fast comes to an
 * end. In batches, as they are read: a log has hundreds of thousands of lines, and a wait for each of them costs more
 * than all else that is done to it.
 */
export async function* readLog(dir: string, options: ReadLogOptions): AsyncGenerator<LogLine[]> {
  let left = options.limitBytes ?? Infinity;
  const since = options.since === undefined ? undefined : sinceKey(options.since);
  const wanted = (line: LogLine) =>
    (options.stream === undefined || line.stream === options.stream) &&
    (since === undefined || sinceKey(line.at) >= since);
  const end = await endPosition(dir);
  const start =
    options.tail === undefined ? { segment: 0, offset: 0 } : await tailPosition(dir, options.tail, wanted, end);
  for await (const lines of allLines(dir, start, options, options.follow ? undefined : end)) {
    const batch: LogLine[] = [];
    for (const line of lines) {
      if (left <= 0) break;
      if (!wanted(line)) continue;
      const size = line.content.length + (line.partial ? 0 : 1);
      batch.push(size <= left ? line : { ...line, partial: true, content: line.content.subarray(0, left) });
      left -= size;
    }
    if (batch.length > 0) yield batch;
    if (left <= 0) return;
  }
}

/** RFC 3339 in UTC with any number of decimals, as text that sorts by time. */
function sinceKey(time: string): string {
  const [, whole, decimals = ""] = /^([^.Z+]+)(?:\.(\d+))?/.exec(time) ?? [];
  if (time.endsWith("Z") && whole !== undefined) return `${whole}.${decimals.padEnd(9, "0")}`;
  return `${new Date(time).toISOString().slice(0, 19)}.${decimals.padEnd(9, "0")}`;
}

/** Where the last `count` wanted lines before `end` begin; parts of one line count once. */
async function tailPosition(
  dir: string,
  count: number,
  wanted: (line: LogLine) => boolean,
  end: Position,
): Promise<Position> {
  const all = (await segments(dir)).filter((segment) => segment <= end.segment);
  let left = count;
  for (const segment of all.toReversed()) {
    const starts: { offset: number; ends: boolean }[] = [];
    let offset = 0;
    for await (const { lines, offsets, next } of segmentLines(dir, { segment, offset: 0 }, end)) {
      offset = next;
      for (const [index, line] of lines.entries())
        if (wanted(line)) starts.push({ offset: offsets[index]!, ends: !line.partial });
    }
    if (count === 0) return { segment, offset };
    // Walk back over whole lines: a line begins after the end of the one before it.
    for (let index = starts.length - 1; index >= 0; index--) {
      const begins = index === 0 || starts[index - 1]!.ends;
      if (begins && --left === 0) return { segment, offset: starts[index]!.offset };
    }
  }
  return { segment: 0, offset: 0 };
}

/** Whole lines, where each begins, and where the one after them will. */
interface Batch {
  lines: LogLine[];
  offsets: number[];
  next: number;
}

async function* segmentLines(dir: string, from: Position, end?: Position): AsyncGenerator<Batch> {
  const limit = end?.segment === from.segment ? end.offset : Infinity;
  let handle: FileHandle;
  try {
    handle = await open(join(dir, `log.${from.segment}`), "r");
  } catch {
    // Rotated away meanwhile.
    return;
  }
  try {
    let rest: Buffer = Buffer.alloc(0);
    let offset = from.offset;
    for (;;) {
      // A new one each time: the lines are parts of it.
      const buffer = Buffer.allocUnsafe(rest.length + CHUNK_BYTES);
      rest.copy(buffer);
      const at = offset + rest.length;
      const wanted = Math.min(CHUNK_BYTES, limit - at);
      if (wanted <= 0) return;
      const { bytesRead } = await handle.read(buffer, rest.length, wanted, at);
      if (bytesRead === 0) return;
      const data = buffer.subarray(0, rest.length + bytesRead);
      const batch: Batch = { lines: [], offsets: [], next: offset };
      let start = 0;
      for (let newline = data.indexOf(10); newline !== -1; newline = data.indexOf(10, start)) {
        const line = decodeLogLine(data.subarray(start, newline));
        if (line !== undefined) {
          batch.lines.push(line.at.length === NANOS_LENGTH ? line : { ...line, at: withNanos(line.at) });
          batch.offsets.push(offset + start);
        }
        start = newline + 1;
      }
      rest = data.subarray(start);
      offset += start;
      batch.next = offset;
      yield batch;
    }
  } finally {
    await handle.close();
  }
}

async function* allLines(
  dir: string,
  from: Position,
  options: ReadLogOptions,
  end: Position | undefined,
): AsyncGenerator<LogLine[]> {
  let { segment, offset } = from;
  const { signal, watches = new LogWatches() } = options;
  using watch = options.follow ? watches.follow(dir, options.clock) : undefined;
  let files: readonly number[] = [];
  /** It has read what there was, and so have the others who follow. */
  let hasCaughtUp = false;
  while (!signal.aborted) {
    // In this order, so that nothing written before the end or before a rotation is missed.
    const complete = options.complete();
    if (watch?.look() !== false || complete) files = await segments(dir);
    const later = files.find((other) => other > segment && (end === undefined || other <= end.segment));
    const at = { segment, offset };
    const batches =
      watch !== undefined && hasCaughtUp && !complete ? sharedLines(dir, at, watch) : segmentLines(dir, at, end);
    for await (const { lines, next } of batches) {
      if (signal.aborted) return;
      offset = next;
      yield lines;
    }
    if (later !== undefined) {
      segment = later;
      offset = 0;
      continue;
    }
    if (complete || watch === undefined) return;
    await watch.next(options.changed, signal);
    hasCaughtUp = true;
  }
}

/** The same as `segmentLines`, read once for all who are at the same place. */
async function* sharedLines(dir: string, from: Position, watch: FollowedLog): AsyncGenerator<Batch> {
  let at = from;
  for (;;) {
    const { segment, offset } = at;
    const batches = await watch.share(`${segment} ${offset}`, () => someLines(dir, { segment, offset }));
    yield* batches;
    const next = batches.at(-1)?.next ?? offset;
    if (next === offset) return;
    at = { segment, offset: next };
  }
}

async function someLines(dir: string, from: Position): Promise<Batch[]> {
  const batches: Batch[] = [];
  for await (const batch of segmentLines(dir, from)) {
    batches.push(batch);
    // A line may be longer than all of them.
    if (batches.length >= SHARED_CHUNKS && batch.next > from.offset) break;
  }
  return batches;
}

/** The last lines of a log: kubelet's fallback for a termination message is 80 lines, 2048 bytes. */
export async function logTail(dir: string, lines: number, bytes: number): Promise<string> {
  const position = await tailPosition(dir, lines, () => true, await endPosition(dir));
  const parts: Buffer[] = [];
  for (const segment of (await segments(dir)).filter((number) => number >= position.segment)) {
    for await (const { lines } of segmentLines(dir, {
      segment,
      offset: segment === position.segment ? position.offset : 0,
    })) {
      for (const line of lines) {
        parts.push(line.content);
        if (!line.partial) parts.push(Buffer.from("\n"));
      }
    }
  }
  return Buffer.concat(parts).subarray(-bytes).toString();
}

const NANOS_LENGTH = "2026-01-01T00:00:00.000000000Z".length;

/** containerd leaves out zeros at the end; times are compared as text, and shown with nine decimals. */
function withNanos(time: string): string {
  const [seconds = "", fraction = ""] = time.slice(0, -1).split(".");
  return `${seconds}.${fraction.padEnd(9, "0")}Z`;
}
