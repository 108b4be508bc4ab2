/** The bytes of a watch as its events. */
import { KubeApiError, ReplyTooLargeError } from "./errors.ts";

const NEWLINE = 10;

/**
 * Splits a watch's bytes into JSON lines and parses them. Bytes are joined before they are decoded, so a UTF-8
 * character may be cut anywhere. Pulls one chunk at a time: a slow consumer holds the server back.
 *
 * @throws ReplyTooLargeError when a line is longer than `maxLineBytes`; KubeApiError `Malformed` when one is not JSON
 *   or the stream ends within one
 */
export async function* decodeWatch(
  chunks: AsyncIterable<Buffer>,
  options: { maxLineBytes: number; what: string },
): AsyncGenerator {
  const { maxLineBytes, what } = options;
  let pending: Buffer[] = [];
  let pendingBytes = 0;
  for await (const chunk of chunks) {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end !== -1; end = chunk.indexOf(NEWLINE, start)) {
      const tail = chunk.subarray(start, end);
      start = end + 1;
      checkLength(pendingBytes + tail.length);
      const line = pending.length === 0 ? tail : Buffer.concat([...pending, tail]);
      pending = [];
      pendingBytes = 0;
      if (line.length > 0) yield parseLine(line, what);
    }
    if (start < chunk.length) {
      pending.push(chunk.subarray(start));
      pendingBytes += chunk.length - start;
      checkLength(pendingBytes);
    }
  }
  // The server ends every event with a newline: a rest is an event cut short, and ignoring it would lose it.
  if (pendingBytes > 0) throw malformed(`${what} ended in the middle of an event`);

  function checkLength(bytes: number): void {
    if (bytes > maxLineBytes) throw new ReplyTooLargeError(`${what} sent an event of more than ${maxLineBytes} bytes`);
  }
}

function parseLine(line: Buffer, what: string): unknown {
  try {
    return JSON.parse(line.toString("utf8"));
  } catch (thrown) {
    throw malformed(`${what} sent a line that is not JSON`, thrown);
  }
}

function malformed(message: string, cause?: unknown): KubeApiError {
  return new KubeApiError(message, { status: 0, reason: "Malformed", cause });
}
