/** Byte streams as records: the lines of a log, the events of a text/event-stream. */
import { InvalidReplyError } from "./invalid-reply.ts";
import { REPLY_BYTES } from "./options.ts";

/**
 * The lines of a byte stream, without their newlines, as many at a time as came together. Undefined stands for one that
 * is too long, and comes as soon as it is known to be.
 *
 * @throws InvalidReplyError when the last line is cut off
 */
export async function* recordBatches(
  source: AsyncIterable<Buffer>,
  maxBytes: number,
): AsyncGenerator<(Buffer | undefined)[]> {
  let rest: Buffer = Buffer.alloc(0);
  /** Up to the next newline. */
  let isSkipping = false;
  for await (const chunk of source) {
    const data = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    const records: (Buffer | undefined)[] = [];
    let start = 0;
    for (let end = data.indexOf(10); end >= 0; end = data.indexOf(10, start)) {
      if (!isSkipping) records.push(end - start > maxBytes ? undefined : data.subarray(start, end));
      isSkipping = false;
      start = end + 1;
    }
    if (!isSkipping && data.length - start > maxBytes) {
      records.push(undefined);
      isSkipping = true;
    }
    rest = isSkipping ? Buffer.alloc(0) : data.subarray(start);
    yield records;
  }
  if (rest.length > 0) throw new InvalidReplyError("log_line", "the last line is cut off");
}

interface StreamEvent {
  event: string;
  /** Undefined when it was too long to be kept. */
  data: string | undefined;
}

/**
 * The part of the WHATWG format that the Machine API uses. An event that is too long comes without its data, and the
 * next ones as they are.
 */
export async function* serverSentEvents(source: AsyncIterable<Buffer>): AsyncGenerator<StreamEvent> {
  let event = "";
  let data: string | undefined;
  let isTooLong = false;
  for await (const records of recordBatches(source, REPLY_BYTES.single)) {
    for (const record of records) {
      const line = record?.at(-1) === 13 ? record.toString("utf8", 0, record.length - 1) : record?.toString("utf8");
      if (line === "") {
        if (data !== undefined || isTooLong) yield { event, data: isTooLong ? undefined : data };
        event = "";
        data = undefined;
        isTooLong = false;
        continue;
      }
      const { field, value } = line === undefined ? { field: "data", value: undefined } : fieldOf(line);
      if (field === "event") event = value ?? "";
      if (field !== "data" || isTooLong) continue;
      data = data === undefined ? value : `${data}\n${value}`;
      isTooLong = value === undefined || data!.length > REPLY_BYTES.single;
      if (isTooLong) data = undefined;
    }
  }
  if (isTooLong) yield { event, data: undefined };
}

function fieldOf(line: string): { field: string; value: string } {
  const colon = line.indexOf(":");
  if (colon < 0) return { field: line, value: "" };
  return { field: line.slice(0, colon), value: line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1) };
}
