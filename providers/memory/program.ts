/**
 * What runs "inside" a machine of the memory provider: a function instead of a process. It gets argv, streams and
 * signals, and returns an exit code. All time passes on the injected clock.
 */
import { constants } from "node:os";
import type { Clock } from "../../src/provider/kit/index.ts";

/** Where a program runs. */
export interface Surroundings {
  folder: string;
  /** User id. */
  user: number;
  hostname: string;
  /** Undefined when there is no such file. */
  readFile(path: string): string | undefined;
  /** @throws ReadOnlyFile */
  writeFile(path: string, text: string): void;
}

export interface ProgramIo {
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly clock: Clock;
  readonly surroundings: Surroundings;
  readonly stdin: AsyncIterable<Buffer>;
  /** Resolves when the reader took the bytes. */
  write(stream: "stdout" | "stderr", bytes: Buffer): Promise<void>;
  /**
   * Calls `handler` with the stop signal (`TERM`) when it comes. Without a handler, and when that returns false, the
   * program ends at once, as by a signal that it does not catch.
   */
  onStop(handler: (signal: string) => unknown): void;
  /** Calls `handler` when the program is killed and its result no longer counts. */
  onKill(handler: () => void): void;
  /** The terminal's size. */
  size(): { columns: number; rows: number };
}

/** @returns the exit code. @throws OutOfMemory */
export type Program = (io: ProgramIo) => Promise<number>;

/** Thrown at who writes where only reading is possible. */
export class ReadOnlyFile extends Error {
  constructor(path: string) {
    super(`can't create ${path}: Read-only file system`);
  }
}

/** Thrown by a program that used more memory than its container has. */
export class OutOfMemory extends Error {}

const SIGTERM = 15;
const SIGKILL_EXIT = 137;

interface ProgramStreams {
  stdin: AsyncIterable<Buffer>;
  write(stream: "stdout" | "stderr", bytes: Buffer): Promise<void>;
}

/** One run of a program. Ends once, with the first of: its return, the stop signal without a handler, a kill. */
export class RunningProgram {
  readonly #onExit: (exitCode: number, isOutOfMemory: boolean) => void;
  #stopHandler: ((signal: string) => unknown) | undefined;
  #killHandler: (() => void) | undefined;
  #over = false;
  #size = { columns: 80, rows: 24 };

  /** Without a program it runs until it is stopped, which is what most containers do. */
  constructor(
    program: Program | undefined,
    context: {
      argv: readonly string[];
      env: Record<string, string>;
      clock: Clock;
      surroundings: Surroundings;
      streams: ProgramStreams;
    },
    onExit: (exitCode: number, isOutOfMemory: boolean) => void,
  ) {
    this.#onExit = onExit;
    if (program === undefined) return;
    program({
      argv: context.argv,
      env: context.env,
      clock: context.clock,
      surroundings: context.surroundings,
      stdin: context.streams.stdin,
      write: (stream, bytes) => (this.#over ? Promise.resolve() : context.streams.write(stream, bytes)),
      onStop: (handler) => {
        this.#stopHandler = handler;
      },
      onKill: (handler) => {
        this.#killHandler = handler;
      },
      size: () => this.#size,
    }).then(
      (exitCode) => this.#end(exitCode),
      (thrown: unknown) => (thrown instanceof OutOfMemory ? this.#end(SIGKILL_EXIT, true) : this.#end(1)),
    );
  }

  resize(columns: number, rows: number): void {
    this.#size = { columns, rows };
  }

  /** @param signal by name or number, as images have it */
  stop(signal = "TERM"): void {
    if (this.#over) return;
    const name = signal.toUpperCase().replace(/^SIG/, "");
    const handled = this.#stopHandler !== undefined && this.#stopHandler(name) !== false;
    const numbers: Readonly<Record<string, number>> = constants.signals;
    if (!handled) this.exit(128 + (numbers[`SIG${name}`] ?? SIGTERM));
  }

  kill(): void {
    this.exit(SIGKILL_EXIT);
  }

  /** Ends it from outside with a code of the caller's choice. */
  exit(exitCode: number): void {
    if (this.#over) return;
    this.#end(exitCode);
    this.#killHandler?.();
  }

  #end(exitCode: number, isOutOfMemory = false): void {
    if (this.#over) return;
    this.#over = true;
    this.#onExit(exitCode, isOutOfMemory);
  }
}
