/**
 * What one instance of a container wrote: lines with times, the oldest dropped when they are too many, and readers that
 * wait for more.
 */
import type { Clock } from "../../util/clock.ts";
import { Pulse } from "../../util/pulse.ts";
import type { LogLine, LogOptions } from "../provider.ts";

const MAX_LINES = 10_000;
const PARTIAL_BYTES = 16 * 1024;

export class OutputLog {
  readonly #clock: Clock;
  #lines: LogLine[] = [];
  /** Number of lines dropped from the front. */
  #dropped = 0;
  #open: Record<"stdout" | "stderr", Buffer> = { stdout: Buffer.alloc(0), stderr: Buffer.alloc(0) };
  #ended = false;
  readonly #more = new Pulse();
  #lastMs = 0;
  #sameMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Takes output as it comes, in pieces of any size. */
  append(stream: "stdout" | "stderr", bytes: Buffer): void {
    let rest = this.#open[stream].length === 0 ? bytes : Buffer.concat([this.#open[stream], bytes]);
    for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
      this.#push(stream, rest.subarray(0, end), false);
      rest = rest.subarray(end + 1);
    }
    while (rest.length >= PARTIAL_BYTES) {
      this.#push(stream, rest.subarray(0, PARTIAL_BYTES), true);
      rest = rest.subarray(PARTIAL_BYTES);
    }
    this.#open[stream] = Buffer.from(rest);
    this.#more.fire();
  }

  /** Nothing more will come: readers that follow end. */
  end(): void {
    for (const stream of ["stdout", "stderr"] as const) {
      if (this.#open[stream].length > 0) this.#push(stream, this.#open[stream], true);
    }
    this.#ended = true;
    this.#more.fire();
  }

  /** What `Provider.getLogs` has to return, whatever the options. */
  async *read(options: LogOptions): AsyncGenerator<LogLine> {
    let budget = options.limitBytes ?? Infinity;
    let next = this.#firstOf(options);
    for (;;) {
      for (; next < this.#dropped + this.#lines.length; next++) {
        if (next < this.#dropped) next = this.#dropped;
        const line = this.#lines[next - this.#dropped]!;
        if (!isWanted(line, options)) continue;
        if (budget <= 0) return;
        const cut = line.content.length > budget;
        yield cut ? { ...line, partial: true, content: line.content.subarray(0, budget) } : line;
        budget -= line.content.length + 1;
      }
      if (budget <= 0 || options.follow !== true || this.#ended || options.signal.aborted) return;
      await this.#more.wait(options.signal);
    }
  }

  #firstOf(options: LogOptions): number {
    if (options.tail === undefined) return this.#dropped;
    let left = options.tail;
    let at = this.#lines.length;
    while (at > 0 && left > 0) {
      at--;
      if (isWanted(this.#lines[at]!, options) && !this.#lines[at]!.partial) left--;
    }
    return this.#dropped + at;
  }

  #push(stream: "stdout" | "stderr", content: Buffer, partial: boolean): void {
    const now = this.#clock.now();
    // Lines of one millisecond keep their order.
    this.#sameMs = now === this.#lastMs ? this.#sameMs + 1 : 0;
    this.#lastMs = now;
    const at = new Date(now).toISOString().replace("Z", `${String(this.#sameMs % 1_000_000).padStart(6, "0")}Z`);
    this.#lines.push({ at, stream, partial, content });
    if (this.#lines.length > MAX_LINES) {
      this.#lines = this.#lines.slice(MAX_LINES / 2);
      this.#dropped += MAX_LINES / 2;
    }
  }
}

function isWanted(line: LogLine, options: LogOptions): boolean {
  if (options.stream !== undefined && line.stream !== options.stream) return false;
  return options.since === undefined || line.at >= toNanos(options.since);
}

/** Times of any precision compare as text once they have nine decimals. */
function toNanos(time: string): string {
  const [seconds, fraction = ""] = time.slice(0, -1).split(".");
  return `${seconds}.${fraction.padEnd(9, "0")}Z`;
}
