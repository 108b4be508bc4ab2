/** A container's log, from the file that its shim writes. */
import { closeSync, existsSync, fstatSync, openSync, readSync } from "node:fs";
import { join } from "node:path";
import type { Machine } from "./machine.ts";

export interface LogOptions {
  follow?: boolean;
  tail?: number;
  since?: string;
  stream?: string;
  limit_bytes?: number;
}

interface LogRecord {
  at: string;
  stream: string;
  mark: string;
  content: Buffer;
}

/** What a reply is made of, piece by piece: the log of this one instance, whatever its machine does meanwhile. */
export async function* readLog(
  machine: Machine,
  folder: string,
  { follow = false, tail, since, stream, limit_bytes = Infinity }: LogOptions,
  pause: () => Promise<void>,
): AsyncGenerator<Buffer> {
  let offset = 0;
  let left = limit_bytes;
  for (let isFirst = true; ; isFirst = false) {
    const isEnded = machine.isOver || !existsSync(folder) || existsSync(join(folder, "exit"));
    const data = wholeLines(join(folder, "log"), offset);
    offset += data.length;
    let records = recordsOf(data)
      .filter((each) => stream === undefined || each.stream === stream)
      .filter((each) => since === undefined || nanoseconds(each.at) >= nanoseconds(since));
    if (isFirst && tail !== undefined) records = tailOf(records, tail);
    for (let { at, stream: from, mark, content } of records) {
      if (content.length + (mark === "F" ? 1 : 0) > left) {
        content = content.subarray(0, left);
        mark = "P";
      }
      left -= content.length + (mark === "F" ? 1 : 0);
      yield Buffer.concat([Buffer.from(`${at} ${from} ${mark} `), content, Buffer.from("\n")]);
      if (left === 0) return;
    }
    if (isEnded || !follow || left === 0) return;
    await pause();
  }
}

function wholeLines(path: string, offset: number): Buffer {
  if (!existsSync(path)) return Buffer.alloc(0);
  const file = openSync(path, "r");
  try {
    const data = Buffer.alloc(Math.max(fstatSync(file).size - offset, 0));
    const size = readSync(file, data, 0, data.length, offset);
    return data.subarray(0, data.subarray(0, size).lastIndexOf(10) + 1);
  } finally {
    closeSync(file);
  }
}

/** Only newlines part records, whatever else programs print. */
function recordsOf(data: Buffer): LogRecord[] {
  const records: LogRecord[] = [];
  for (let from = 0, to = data.indexOf(10); to >= 0; from = to + 1, to = data.indexOf(10, from)) {
    const line = data.subarray(from, to);
    // The head is ASCII: so many characters are so many bytes.
    const [at, stream, mark] = line.subarray(0, 64).toString("latin1").split(" ", 3) as [string, string, string];
    records.push({ at, stream, mark, content: line.subarray(at.length + stream.length + mark.length + 3) });
  }
  return records;
}

/** The last whole lines; what is marked P belongs to the line that ends after it. */
function tailOf(records: readonly LogRecord[], count: number): LogRecord[] {
  const starts = records.flatMap((_each, index) => (index === 0 || records[index - 1]!.mark === "F" ? [index] : []));
  return count === 0 ? [] : records.slice(starts.at(-count) ?? 0);
}

/** Since 1970. */
function nanoseconds(time: string): bigint {
  const [, whole, decimals = ""] = /^(.*?)(?:\.(\d+))?Z$/.exec(time)!;
  return BigInt(Date.parse(`${whole}Z`)) * 1_000_000n + BigInt(decimals.padEnd(9, "0").slice(0, 9));
}
