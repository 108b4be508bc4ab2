/** Waiting for conditions. Tests never sleep: they say what must become true, by when, and what was seen last when it did not. */
import { setTimeout as sleep } from "node:timers/promises";

export interface WaitOptions {
  /** Completes the sentence "timed out waiting for ...". */
  what: string;
  timeoutMs?: number | undefined;
  intervalMs?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** A condition that does not hold yet. The description is printed when it never does. */
export class NotYet extends Error {}

/**
 * Calls `probe` until it returns without throwing, and returns what it returned. A throw, a NotYet or any other, counts as
 * "not yet": an API server that restarts refuses connections for a while.
 *
 * @throws Error naming what was waited for and the last reason, after `timeoutMs` (default 30 s)
 */
export async function waitFor<T>(options: WaitOptions, probe: () => T | Promise<T>): Promise<T> {
  const timeoutMs = options.timeoutMs ?? 30_000;
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    try {
      return await probe();
    } catch (thrown) {
      if (performance.now() >= deadline) {
        const last = thrown instanceof Error ? thrown.message : String(thrown);
        throw new Error(`timed out after ${timeoutMs / 1000} s waiting for ${options.what}; last seen: ${last}`, {
          cause: thrown,
        });
      }
    }
    await sleep(options.intervalMs ?? 50, undefined, options.signal ? { signal: options.signal } : undefined);
  }
}

/** Looks that have to agree, 10 ms apart. */
const LOOKS = 15;

/** Waits until a figure stays as it is, and returns it: bytes that nobody takes any more, files that nobody opens. */
export async function settled(figure: () => number): Promise<number> {
  let last = figure();
  for (let same = 0; same < LOOKS;) {
    await sleep(10);
    const now = figure();
    same = now === last ? same + 1 : 0;
    last = now;
  }
  return last;
}

/**
 * Writes piece after piece until what is pending stays above `allowed` (default 0), the end closes, or `limit` is reached.
 * @returns the bytes that were written
 */
export async function fill(options: {
  write: () => number;
  pending: () => number;
  allowed?: number | undefined;
  limit: number;
  closed?: (() => boolean) | undefined;
}): Promise<number> {
  const isFull = () => options.pending() > (options.allowed ?? 0);
  let written = 0;
  while (written < options.limit && options.closed?.() !== true) {
    if (!isFull()) written += options.write();
    else if ((await settled(options.pending), isFull())) break;
  }
  return written;
}

/** Lets real time pass: only where that is what is tried, and no clock can be given. `_reason` tells the reader so. */
export async function passTime(ms: number, _reason: string): Promise<void> {
  await sleep(ms);
}

/** For the probes of waitFor: `state` is any JSON, printed when the wait times out. */
export function must(condition: boolean, state: unknown): asserts condition {
  if (!condition) throw new NotYet(typeof state === "string" ? state : JSON.stringify(state));
}
