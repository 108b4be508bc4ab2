/** The time limit of one exchange with the API server, as a signal. */
import type { Clock } from "../util/clock.ts";
import { KubeApiError } from "./errors.ts";

export interface TimeLimit {
  /** Follows the caller's signal, and aborts with a KubeApiError `Timeout` when time is up. */
  readonly signal: AbortSignal;
  /** Something came: a limit of silence begins again. */
  touch(): void;
  /** Ends the exchange at once. */
  abort(reason: unknown): void;
  /** Lets go of the caller's signal and the timer; must be called when the exchange is over. */
  release(): void;
}

/**
 * The time that an exchange may take. With `silenceMs` it may take as long as `totalMs` while something comes within
 * each `silenceMs`; else `totalMs` is all there is.
 *
 * @param what begins the error's message: method and path
 */
export function timeLimit(
  clock: Clock,
  caller: AbortSignal,
  limits: { totalMs: number; silenceMs?: number | undefined },
  what: string,
): TimeLimit {
  const controller = new AbortController();
  const onAbort = () => controller.abort(caller.reason);
  if (caller.aborted) onAbort();
  caller.addEventListener("abort", onAbort, { once: true });
  const { totalMs, silenceMs = totalMs } = limits;
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
    const waitedMs = dueAt === endAt ? totalMs : silenceMs;
    controller.abort(
      new KubeApiError(`${what}: no answer within ${waitedMs / 1000} s`, { status: 0, reason: "Timeout" }),
    );
  }
  return {
    signal: controller.signal,
    touch: () => {
      dueAt = Math.min(endAt, clock.monotonic() + silenceMs);
    },
    abort: (reason) => controller.abort(reason),
    release: () => {
      cancel();
      caller.removeEventListener("abort", onAbort);
    },
  };
}
