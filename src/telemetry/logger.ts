/** Log lines: their form, and what must never stand in them (credentials, bodies of requests). */
import { isatty } from "node:tty";
import { pino } from "pino";
import { systemClock } from "../util/clock.ts";
import { foreignEnvironment } from "../util/environment.ts";
import { VmletError } from "../util/errors.ts";
import { LogSink } from "./log-sink.ts";
import { logText } from "./log-text.ts";

/**
 * The narrow logger that the rest of vmlet takes as a collaborator; pino satisfies it structurally.
 *
 * The message is a constant sentence and the data are fields. Levels: error = needs a human, warn = heals itself,
 * info = lifecycle, debug = per event.
 */
export interface Logger {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
  child(fields: object): Logger;
}

export type LogLevel = "debug" | "info" | "warn" | "error" | "silent";

/** `auto`: text on a terminal, JSON for everything else. */
export type LogFormat = "auto" | "text" | "json";

/**
 * JSON lines, ISO times, credentials redacted; or the same as text for people.
 *
 * @param options.format default `json`. Text has colours on a terminal, unless `NO_COLOR` says otherwise
 * @param options.sink where they go; default a sink of its own for `destination` (a file descriptor; default 2,
 *   standard error)
 */
export function createLogger(options: {
  level: LogLevel;
  destination?: number | undefined;
  sink?: LogSink | undefined;
  format?: LogFormat | undefined;
}): Logger {
  const sink = options.sink ?? createLogSink(options.destination);
  const isTerminal = isatty(options.destination ?? 2);
  const { format = "json" } = options;
  const color = isTerminal && !foreignEnvironment()["NO_COLOR"];
  const isText = format === "text" || (format === "auto" && isTerminal);
  const destination = isText ? { write: (line: string) => sink.write(logText(line, { color })) } : sink;
  return pino(
    {
      level: options.level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }), log: withCode },
      serializers: { err: errorFields },
      redact: {
        paths: ["token", "password", "authorization", "*.token", "*.password", "*.authorization"],
        censor: "[redacted]",
      },
    },
    destination,
  );
}

/** A sink for log lines that tells in a line of its own of those that it had to drop. */
export function createLogSink(destination = 2): LogSink {
  const droppedLine = (lines: number) =>
    `${JSON.stringify({
      level: "warn",
      time: new Date(systemClock.now()).toISOString(),
      lines,
      msg: "Log lines were dropped, because they could not be written",
    })}\n`;
  return new LogSink({ destination, droppedLine });
}

/** The code of an error of our own, by which ERRORS.md explains it. */
function withCode(fields: Record<string, unknown>): Record<string, unknown> {
  return fields["err"] instanceof VmletError ? { code: fields["err"].code, ...fields } : fields;
}

/**
 * An error that vmlet raised on purpose says all in its message; of any other one the place is wanted. Its other
 * properties stay out: a library's error may hold the whole request, with its credentials.
 */
function errorFields(thrown: unknown): unknown {
  if (thrown instanceof VmletError) return thrown.message;
  if (!(thrown instanceof Error)) return thrown;
  const { type, message, stack, code } = pino.stdSerializers.err(thrown) as ReturnType<
    typeof pino.stdSerializers.err
  > & {
    code?: unknown;
  };
  return { type, message, stack, ...(code === undefined ? {} : { code }) };
}

/** A logger that says nothing: the default of tests. */
export const silentLogger: Logger = {
  debug() {},
  info() {},
  warn() {},
  error() {},
  child() {
    return silentLogger;
  },
};
