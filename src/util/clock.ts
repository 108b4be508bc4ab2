/**
 * Time, as a collaborator. Nothing outside this folder reads the wall clock or starts a timer, so a simulation can put
 * virtual time in its place.
 */
import { addAbortListener, removeAbortListener } from "./abort.ts";

export interface Clock {
  /** Wall clock, milliseconds since the epoch. For timestamps that others will read, never for measuring a span. */
  now(): number;
  /** Monotonic milliseconds from an arbitrary start. For spans and deadlines: it does not jump with the wall clock. */
  monotonic(): number;
  /** Resolves after `ms` milliseconds; rejects with the signal's reason when `signal` aborts first. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /**
   * Calls `callback` once after `ms` milliseconds; the returned function cancels it. Does not keep the process alive.
   */
  after(ms: number, callback: () => void): () => void;
}

/** Node's timers take no more: one that is set for longer fires at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Calls `callback` after `ms` milliseconds, however many those are; `unref` to not keep the process alive. */
function startTimer(ms: number, callback: () => void, unref: boolean): () => void {
  let timer: NodeJS.Timeout;
  const arm = (leftMs: number) => {
    const thisMs = Math.min(leftMs, LONGEST_TIMER_MS);
    timer = setTimeout(leftMs > thisMs ? () => arm(leftMs - thisMs) : callback, thisMs);
    if (unref) timer.unref();
  };
  arm(ms);
  return () => clearTimeout(timer);
}

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason as Error);
        return;
      }
      const awake = () => {
        if (signal) removeAbortListener(signal, onAbort);
        resolve();
      };
      const cancel = startTimer(ms, awake, false);
      const onAbort = () => {
        cancel();
        reject(signal!.reason as Error);
      };
      if (signal) addAbortListener(signal, onAbort);
    }),
  after: (ms, callback) => startTimer(ms, callback, true),
};

/** A status has many times, and most of a burst of them are of the same few seconds. */
const written = new Map<number, string>();
const REMEMBERED_SECONDS = 64;

/** Kubernetes `metav1.Time`: RFC 3339 in UTC at second precision. */
export function rfc3339(ms: number): string {
  const second = Math.floor(ms / 1000);
  const known = written.get(second);
  if (known !== undefined) return known;
  const text = new Date(second * 1000).toISOString().replace(".000Z", "Z");
  if (written.size >= REMEMBERED_SECONDS) written.clear();
  written.set(second, text);
  return text;
}

/** Kubernetes `metav1.MicroTime`: RFC 3339 with exactly six decimals, as Lease and events.k8s.io want it. */
export function rfc3339Micro(ms: number): string {
  return new Date(ms).toISOString().replace("Z", "000Z");
}
