import { join } from "node:path";
import type { Logger } from "../telemetry/logger.ts";
import { ProcessFaults } from "../telemetry/process-faults.ts";
import { systemClock } from "../util/clock.ts";
import { failWith } from "./exit.ts";

/** Longer than any part of a command takes to stop. */
const LONGEST_STOP_MS = 20_000;

/** The folder of this program: `src` and `providers` lie in it. */
export const PROGRAM_FOLDER = join(import.meta.dirname, "../..");

/**
 * Has this process outlive what foreign code leaves to nobody (see ProcessFaults).
 *
 * @param options `ownFolder`: where the code lies whose exceptions end the process. Default: vmlet's without its
 *   providers
 * @returns `fatal` aborts, with the error, when the process is to stop; when it has not within 20 s, it is ended
 */
export function outliveFaults(
  logger: Logger,
  options: { ownFolder?: string | undefined } = {},
): { fatal: AbortSignal; counts: ProcessFaults["counts"] } {
  const fatal = new AbortController();
  const faults = new ProcessFaults({
    clock: systemClock,
    logger,
    onFatal: (error) => {
      fatal.abort(error);
      // A part that it left half done may be among those that have to stop.
      systemClock.after(LONGEST_STOP_MS, () => failWith(error));
    },
    ...options,
  });
  faults.install();
  return { fatal: fatal.signal, counts: faults.counts };
}
