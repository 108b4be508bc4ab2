/** How the process ends: its exit status, what the user reads, and the signals that stop it. */
import { InvalidArgumentError } from "commander";
import type { Logger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { VmletError, toError } from "../util/errors.ts";

/** The user has to change something first: configuration, arguments, permissions. Whatever else fails is 1. */
export const USAGE_ERROR = 2;

/**
 * Codes of the errors that only the user can cure: ConfigError's, KubeConfigError's and NoSuchNodeError's, whose
 * classes would take a second to load.
 */
const USAGE_CODES: readonly string[] = ["CONFIG", "KUBECONFIG", "NO_SUCH_NODE", "NO_SUCH_MACHINE"];

/** Ends the process with the status that says whose turn it is. */
export function failWith(thrown: unknown): never {
  const error = toError(thrown);
  if (error instanceof VmletError && USAGE_CODES.includes(error.code)) {
    console.error(error.message);
    process.exit(USAGE_ERROR);
  }
  // A stack helps only those who know the code. An error that is not one of ours is a bug, and shows its stack.
  console.error(error instanceof VmletError ? `vmlet: ${error.message}` : `vmlet: ${error.stack ?? error.message}`);
  process.exit(1);
}

/** A port that a flag gives. */
export function portNumber(text: string): number {
  const port = Number(text);
  if (!/^\d+$/.test(text) || port > 65_535) throw new InvalidArgumentError("it must be a number from 0 to 65535.");
  return port;
}

/** Whether `endWithoutReader` has found that output comes to nothing. */
let isReaderGone = false;

/** npm passes on to its child what the terminal has told the child already: one Ctrl-C comes as two signals. */
const ONE_CTRL_C_MS = 500;

/**
 * Aborts on SIGINT, SIGTERM or SIGHUP, by which a terminal says that it is closed; a second signal, when it is not the
 * same Ctrl-C, ends the process at once.
 */
export function signalToStop(): AbortSignal {
  const controller = new AbortController();
  let firstAt = 0;
  for (const name of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(name, () => {
      if (controller.signal.aborted && systemClock.monotonic() - firstAt > ONE_CTRL_C_MS) process.exit(130);
      firstAt ||= systemClock.monotonic();
      // Nobody has sent one when it is this process that ends because nobody reads.
      controller.abort(new Error(isReaderGone ? "nobody reads its output any more" : `stopped by ${name}`));
    });
  }
  return controller.signal;
}

/** 128 and SIGPIPE's number: what shells show of programs whose reader has gone, as behind `| head`. */
const READER_IS_GONE = 141;

/**
 * Ends the process when its output comes to nothing, because nobody reads it any more or there is no room for it: at
 * once, or as SIGTERM does where that cleans up. Standard error counts as well: behind `2>&1 | head` both have the
 * same reader.
 */
export function endWithoutReader(): void {
  const end = (thrown: NodeJS.ErrnoException) => {
    if (isReaderGone) return;
    isReaderGone = true;
    const status = thrown.code === "EPIPE" ? READER_IS_GONE : 1;
    // A reader that has gone needs no word; of a full disk nobody knows yet.
    if (status === 1) console.error(`vmlet: its output cannot be written: ${thrown.message}`);
    // Whatever the command makes of being stopped.
    process.on("exit", () => {
      process.exitCode = status;
    });
    if (process.listenerCount("SIGTERM") === 0) process.exit(status);
    process.emit("SIGTERM", "SIGTERM");
  };
  process.stdout.on("error", end);
  process.stderr.on("error", end);
}

/** Aborts on SIGPWR, by which an init without systemd says that the host goes down. */
export function powerFailure(): AbortSignal {
  const controller = new AbortController();
  process.once("SIGPWR", () => controller.abort(new Error("stopped by SIGPWR")));
  return controller.signal;
}

/** Node.js would open a debugger on SIGUSR1, and a program that reaches its port could do all that this process can. */
export function openNoDebugger(logger: Logger): void {
  process.on("SIGUSR1", () => logger.warn({}, "SIGUSR1 is ignored: it would open a debugger"));
}
