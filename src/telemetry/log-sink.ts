/**
 * Where log lines go: a file descriptor that may take nothing for now, because nobody reads the pipe, or the disk is
 * full. Writing never waits for it. What cannot be written is kept, up to a limit, and beyond it dropped and counted;
 * when lines are taken again, one of them says how many are missing.
 */
import { closeSync, constants, fstatSync, openSync, writeSync } from "node:fs";
import { Socket } from "node:net";
import { isatty } from "node:tty";
import type { Clock } from "../util/clock.ts";
import { systemClock } from "../util/clock.ts";

/** Bytes of lines that wait. */
const MAX_WAITING = 1 << 20;
/** When those are tried again: soon while some are taken, else ever later. */
const RETRY_MS = { first: 1, max: 50 };
/** For what is left when the process ends, in all and between two tries. */
const LAST_MS = 300;
const LAST_PAUSE_MS = 2;

interface LogSinkOptions {
  /** Default 2, standard error. */
  destination?: number | undefined;
  clock?: Clock | undefined;
  /** The line that tells of lines that were dropped. */
  droppedLine: (count: number) => string;
}

export class LogSink {
  readonly #clock: Clock;
  readonly #droppedLine: (count: number) => string;
  readonly #fd: number;
  /** Keeps its descriptor open and non-blocking. */
  readonly #socket: Socket | undefined;
  #waiting: Buffer[] = [];
  #waitingBytes = 0;
  /** Since lines were taken last. */
  #missing = 0;
  #dropped = 0;
  #isTrying = false;
  #retryMs = RETRY_MS.first;

  constructor(options: LogSinkOptions) {
    this.#clock = options.clock ?? systemClock;
    this.#droppedLine = options.droppedLine;
    const fd = options.destination ?? 2;
    const { reopened, socket } = nonBlocking(fd);
    this.#fd = reopened ?? fd;
    this.#socket = socket;
    if (reopened !== undefined || socket !== undefined) process.once("exit", () => this.#last());
  }

  /** Lines that were dropped since the process started. */
  get dropped(): number {
    return this.#dropped;
  }

  /** Takes a line, with its newline. Never waits and never throws. */
  write(line: string): void {
    const bytes = Buffer.from(line);
    if (this.#waiting.length === 0 && this.#missing === 0) {
      const written = this.#attempt(bytes);
      if (written === bytes.length) return;
      this.#keep(bytes.subarray(written));
    } else if (this.#waitingBytes + bytes.length > MAX_WAITING) {
      this.#missing++;
      this.#dropped++;
    } else this.#keep(bytes);
    this.#tryLater();
  }

  #keep(bytes: Buffer): void {
    this.#waiting.push(bytes);
    this.#waitingBytes += bytes.length;
  }

  #tryLater(): void {
    if (this.#isTrying) return;
    this.#isTrying = true;
    this.#clock.after(this.#retryMs, () => {
      this.#isTrying = false;
      const before = this.#waitingBytes;
      const isDone = this.#flush();
      this.#retryMs = this.#waitingBytes < before ? RETRY_MS.first : Math.min(this.#retryMs * 2, RETRY_MS.max);
      if (!isDone) this.#tryLater();
    });
  }

  /** Writes what waits. Returns false when some of it has to wait on. */
  #flush(): boolean {
    while (this.#waiting.length > 0) {
      const [first] = this.#waiting;
      const written = this.#attempt(first!);
      this.#waitingBytes -= written;
      if (written < first!.length) {
        this.#waiting[0] = first!.subarray(written);
        return false;
      }
      this.#waiting.shift();
    }
    if (this.#missing === 0) return true;
    const line = Buffer.from(this.#droppedLine(this.#missing));
    const written = this.#attempt(line);
    if (written === 0) return false;
    this.#missing = 0;
    if (written < line.length) this.#keep(line.subarray(written));
    return written === line.length;
  }

  /** Bytes that were written: 0 while nobody reads, the disk is full, or writing fails for any other reason. */
  #attempt(bytes: Buffer): number {
    try {
      return writeSync(this.#fd, bytes);
    } catch {
      return 0;
    }
  }

  /** The process ends: the remaining lines get a short time to be written. */
  #last(): void {
    const pause = new Int32Array(new SharedArrayBuffer(4));
    for (let waitedMs = 0; !this.#flush() && waitedMs < LAST_MS; waitedMs += LAST_PAUSE_MS)
      Atomics.wait(pause, 0, 0, LAST_PAUSE_MS);
    this.#socket?.unref();
  }
}

/**
 * A way to write to what the descriptor stands for without ever waiting. For pipes and terminals that is a descriptor
 * of our own, because the flag would hold for every process that shares the original; where it cannot be opened again
 * (a socket, or a pipe of another user's), the flag is set on the one that we have. Files need neither: writing to them
 * never waits for a reader.
 */
function nonBlocking(fd: number): { reopened?: number; socket?: Socket } {
  const stat = fstatSync(fd);
  if (!stat.isFIFO() && !stat.isSocket() && !isatty(fd)) return {};
  if (!stat.isSocket()) {
    try {
      const flags = constants.O_WRONLY | constants.O_NONBLOCK | constants.O_APPEND | constants.O_NOCTTY;
      const reopened = openSync(`/proc/self/fd/${fd}`, flags);
      // Opening a pipe by this name gives the same pipe; of anything else it would give another.
      const { ino, dev } = fstatSync(reopened);
      if (ino === stat.ino && dev === stat.dev) return { reopened };
      closeSync(reopened);
    } catch {
      // Not ours to open.
    }
  }
  try {
    const socket = new Socket({ fd, readable: false, writable: true });
    socket.on("error", () => undefined);
    socket.unref();
    return { socket };
  } catch {
    return {};
  }
}
