/**
 * What is under way, when it takes longer than two seconds: on a terminal one line that is written again each second
 * and vanishes at the end; elsewhere a line when it has begun, one every half minute, and one at the end.
 */
import { isatty } from "node:tty";
import { systemClock, type Clock } from "../util/clock.ts";
import { foreignEnvironment } from "../util/environment.ts";
import { escaped } from "../telemetry/log-text.ts";

const PATIENCE_MS = 2_000;
const REDRAW_MS = 1_000;
const REPEAT_MS = 30_000;
const DIM = "\u001b[2m";
const RESET = "\u001b[0m";
const ERASE_LINE = "\r\u001b[K";

interface ProgressOptions {
  write: (text: string) => void;
  isTerminal: boolean;
  hasColor: boolean;
  /** Of the terminal. */
  columns: () => number;
  clock: Clock;
}

/** On standard error: what a command prints is for pipes. */
function toStandardError(): ProgressOptions {
  const isTerminal = isatty(2);
  return {
    write: (text) => void process.stderr.write(text),
    isTerminal,
    hasColor: isTerminal && !foreignEnvironment()["NO_COLOR"],
    // Of a terminal without a size it is 0.
    columns: () => process.stderr.columns || 80,
    clock: systemClock,
  };
}

interface Work {
  what: string;
  detail: string;
  begunAt: number;
  saidAt: number | undefined;
}

export class Progress {
  readonly #options: ProgressOptions;
  readonly #works = new Set<Work>();
  #isDrawn = false;
  #cancel: (() => void) | undefined;

  constructor(options: ProgressOptions = toStandardError()) {
    this.#options = options;
  }

  /**
   * Does `work`, which may tell how far it is.
   * @param what such as "Pulling nginx"
   */
  async of<T>(what: string, work: (tell: (detail: string) => void) => Promise<T>): Promise<T> {
    const end = this.begin(what);
    try {
      return await work(end.tell);
    } finally {
      end();
    }
  }

  /** The same for what has its end elsewhere: the result is called at it. */
  begin(what: string): (() => void) & { tell: (detail: string) => void } {
    const { clock } = this.#options;
    const work: Work = { what: escaped(what), detail: "", begunAt: clock.monotonic(), saidAt: undefined };
    this.#works.add(work);
    this.#schedule();
    const end = () => {
      if (!this.#works.delete(work)) return;
      const { isTerminal, write } = this.#options;
      if (isTerminal) this.#erase();
      else if (work.saidAt !== undefined) write(`${work.what}: done (${this.#seconds(work)} s)\n`);
      if (this.#works.size > 0) return;
      this.#cancel?.();
      this.#cancel = undefined;
    };
    return Object.assign(end, { tell: (detail: string) => void (work.detail = escaped(detail)) });
  }

  /** Has `print` write its lines where the progress stood. */
  above(print: () => void): void {
    this.#erase();
    print();
  }

  #schedule(): void {
    if (this.#cancel !== undefined) return;
    this.#cancel = this.#options.clock.after(REDRAW_MS, () => {
      this.#cancel = undefined;
      this.#tick();
      if (this.#works.size > 0) this.#schedule();
    });
  }

  #tick(): void {
    const { clock, isTerminal } = this.#options;
    const now = clock.monotonic();
    // Timers may fire a little early.
    const slow = [...this.#works].filter(({ begunAt }) => now - begunAt > PATIENCE_MS - REDRAW_MS / 2);
    if (slow.length === 0) return;
    if (isTerminal) this.#draw(slow);
    else for (const work of slow) this.#say(work, now);
  }

  #draw(slow: readonly Work[]): void {
    const { write, hasColor, columns } = this.#options;
    const [first] = slow;
    const others = slow.length > 1 ? `, and ${slow.length - 1} more` : "";
    // A line that is wrapped could not be erased.
    const text = `${this.#line(first!)}${others}`.slice(0, Math.max(10, columns() - 1));
    // What is logged meanwhile begins at the left.
    write(`${ERASE_LINE}${hasColor ? `${DIM}${text}${RESET}` : text}\r`);
    this.#isDrawn = true;
  }

  #say(work: Work, now: number): void {
    if (work.saidAt !== undefined && now - work.saidAt < REPEAT_MS - REDRAW_MS / 2) return;
    work.saidAt = now;
    this.#options.write(`${this.#line(work)}\n`);
  }

  #line(work: Work): string {
    return `${work.what}${work.detail === "" ? "" : `: ${work.detail}`} (${this.#seconds(work)} s)`;
  }

  #seconds({ begunAt }: Work): number {
    return Math.round((this.#options.clock.monotonic() - begunAt) / 1000);
  }

  #erase(): void {
    if (this.#isDrawn) this.#options.write(ERASE_LINE);
    this.#isDrawn = false;
  }
}
