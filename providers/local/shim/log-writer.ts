/**
 * Writes a container's log segments in the CRI format: `2016-10-06T00:17:09.669794202Z stdout F text`, P for a part of
 * a line. A part of the shim's program, so it reads the clock itself (shim.ts). log-reader.ts reads them.
 */
import { closeSync, openSync, unlinkSync, writeSync } from "node:fs";
import { join } from "node:path";

/** The longest log line in one piece (containerd's max_container_log_line_size). */
const MAX_LINE_BYTES = 16 * 1024;
const NEWLINE = Buffer.from("\n");

export class LogWriter {
  readonly #dir: string;
  readonly #maxBytes: number;
  readonly #maxFiles: number;
  #segment = 0;
  #fd: number;
  /** In the current segment, the pending ones included. */
  #bytes = 0;
  #pending: Buffer[] = [];
  /** The current segment ends in the middle of a line. */
  #isTorn = false;
  #partial: { stdout: Buffer; stderr: Buffer } = { stdout: Buffer.alloc(0), stderr: Buffer.alloc(0) };
  /** Wall clock minus monotonic clock, in nanoseconds: gives nine true decimals that do not run backwards. */
  #offset = 0n;

  /** @param dir of the segments; the first begins there at once */
  constructor(dir: string, maxBytes: number, maxFiles: number) {
    this.#dir = dir;
    this.#maxBytes = maxBytes;
    this.#maxFiles = maxFiles;
    this.#fd = openSync(join(this.#dir, "log.0"), "a", 0o600);
  }

  write(stream: "stdout" | "stderr", chunk: Buffer): void {
    const held = this.#partial[stream];
    const data = held.length === 0 ? chunk : Buffer.concat([held, chunk]);
    const at = this.#timestamp();
    let from = 0;
    for (;;) {
      const newline = data.indexOf(10, from);
      const end = newline === -1 ? data.length : newline;
      for (; end - from > MAX_LINE_BYTES; from += MAX_LINE_BYTES)
        this.#add(at, stream, "P", data.subarray(from, from + MAX_LINE_BYTES));
      if (newline === -1) break;
      this.#add(at, stream, "F", data.subarray(from, end));
      from = newline + 1;
    }
    this.#partial[stream] = Buffer.from(data.subarray(from));
    this.#flush();
  }

  /** The last words of a stream that ended without a newline. */
  end(stream: "stdout" | "stderr"): void {
    const rest = this.#partial[stream];
    this.#partial[stream] = Buffer.alloc(0);
    if (rest.length > 0) this.#add(this.#timestamp(), stream, "P", rest);
    this.#flush();
  }

  #add(at: string, stream: string, tag: "F" | "P", text: Buffer): void {
    const head = Buffer.from(`${at} ${stream} ${tag} `);
    const size = head.length + text.length + 1;
    if (this.#bytes > 0 && this.#bytes + size > this.#maxBytes) {
      this.#flush();
      this.#rotate();
    }
    this.#pending.push(head, text, NEWLINE);
    this.#bytes += size;
  }

  /** One write per chunk of output, not per line. */
  #flush(): void {
    const pending = this.#pending.splice(0);
    const lines = Buffer.concat(this.#isTorn && pending.length > 0 ? [NEWLINE, ...pending] : pending);
    let sent = 0;
    try {
      while (sent < lines.length) sent += writeSync(this.#fd, lines, sent);
      if (sent > 0) this.#isTorn = false;
    } catch (thrown) {
      // A full disk must not end the container: its log has a hole instead. What comes next begins a line of its own.
      if (sent > 0) this.#isTorn = lines[sent - 1] !== NEWLINE[0];
      process.stderr.write(`log: ${String(thrown)}\n`);
    }
  }

  #rotate(): void {
    let next: number;
    try {
      next = openSync(join(this.#dir, `log.${this.#segment + 1}`), "a", 0o600);
    } catch (thrown) {
      // As above: this segment grows on until there is room for another.
      process.stderr.write(`log: ${String(thrown)}\n`);
      return;
    }
    this.#segment++;
    closeSync(this.#fd);
    this.#fd = next;
    this.#isTorn = false;
    this.#bytes = 0;
    try {
      unlinkSync(join(this.#dir, `log.${this.#segment - this.#maxFiles}`));
    } catch {
      // Not that many yet.
    }
  }

  #timestamp(): string {
    const wall = BigInt(Date.now()) * 1_000_000n;
    const monotonic = process.hrtime.bigint();
    const drift = wall - (monotonic + this.#offset);
    if (drift > 5_000_000n || drift < -5_000_000n) this.#offset = wall - monotonic;
    const nanoseconds = monotonic + this.#offset;
    const whole = new Date(Number(nanoseconds / 1_000_000n)).toISOString();
    return `${whole.slice(0, 20)}${String(nanoseconds % 1_000_000_000n).padStart(9, "0")}Z`;
  }
}
