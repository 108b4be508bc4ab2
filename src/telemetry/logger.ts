import { pino } from "pino";
import { VmletError } from "../util/errors.ts";

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

/** Characters of a log that cannot be written now; the newest beyond that are dropped. */
const MAX_UNWRITTEN = 1 << 20;

/** JSON lines on `destination` (a file descriptor; default 2, standard error), ISO times, credentials redacted. */
export function createLogger(options: { level: LogLevel; destination?: number }): Logger {
  const destination = pino.destination({ dest: options.destination ?? 2, sync: true, maxLength: MAX_UNWRITTEN });
  // A log that cannot be written (a full disk, a reader that is gone) must not end what it tells of.
  destination.on("error", () => {});
  return pino(
    {
      level: options.level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: errorFields },
      redact: {
        paths: ["token", "password", "authorization", "*.token", "*.password", "*.authorization"],
        censor: "[redacted]",
      },
    },
    destination,
  );
}

/**
 * An error that vmlet raised on purpose says all in its message; of any other one the place is wanted. Its other properties
 * stay out: a library's error may hold the whole request, with its credentials.
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
