import { ConfigError } from "../config/load.ts";
import { VmletError, toError } from "../util/errors.ts";

/** The user has to change something first: configuration, arguments, permissions. Whatever else fails is 1. */
export const USAGE_ERROR = 2;

/** Ends the process with the status that says whose turn it is. */
export function failWith(thrown: unknown): never {
  const error = toError(thrown);
  if (error instanceof ConfigError) {
    console.error(error.message);
    process.exit(USAGE_ERROR);
  }
  // A stack helps nobody who did not write the code; a fault that is not one of ours is a bug, and shows it.
  console.error(error instanceof VmletError ? `vmlet: ${error.message}` : `vmlet: ${error.stack ?? error.message}`);
  process.exit(1);
}

/** Aborts on SIGINT or SIGTERM; a second signal ends the process at once. */
export function signalToStop(): AbortSignal {
  const controller = new AbortController();
  for (const name of ["SIGINT", "SIGTERM"] as const) {
    process.on(name, () => {
      if (controller.signal.aborted) process.exit(130);
      controller.abort(new Error(`stopped by ${name}`));
    });
  }
  return controller.signal;
}
