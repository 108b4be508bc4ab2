/** The time limit of one exchange, as a signal. */
import { onAbort } from "./abort.ts";
import type { Clock } from "./clock.ts";

export interface TimeLimit {
  /** Follows the caller's signal, and aborts with the error of `late` when time is up. */
  readonly signal: AbortSignal;
  /** Something came: a limit of silence begins again. */
  touch(): void;
  /** Ends the exchange at once. */
  abort(reason: unknown): void;
  /** Lets go of the caller's signal and the timer; must be called when the exchange is over. */
  release(): void;
}

/**
 * The time that an exchange may take. With `silenceMs` it may take as long as `totalMs` (default: for ever) while
 * something comes within each `silenceMs`; else `totalMs` is all there is.
 *
 * @param late the reason of the abort, from the limit in milliseconds that was not kept
 */
export function timeLimit(
  clock: Clock,
  caller: AbortSignal,
  limits: { totalMs?: number | undefined; silenceMs?: number | undefined },
  late: (limitMs: number) => Error,
): TimeLimit {
  const controller = new AbortController();
  const followed = onAbort(caller, () => controller.abort(caller.reason));
  const { totalMs = Number.POSITIVE_INFINITY, silenceMs = totalMs } = limits;
  const endAt = clock.monotonic() + totalMs;
  let dueAt = Math.min(endAt, clock.monotonic() + silenceMs);
  // One timer, which is set again only when it fires.
  let cancel = clock.after(dueAt - clock.monotonic(), check);
  function check(): void {
    const leftMs = dueAt - clock.monotonic();
    // A timer may fire a little early.
    if (leftMs > 1) {
      cancel = clock.after(leftMs, check);
      return;
    }
    controller.abort(late(dueAt === endAt ? totalMs : silenceMs));
  }
  return {
    signal: controller.signal,
    touch: () => {
      dueAt = Math.min(endAt, clock.monotonic() + silenceMs);
    },
    abort: (reason) => controller.abort(reason),
    release: () => {
      cancel();
      followed[Symbol.dispose]();
    },
  };
}
