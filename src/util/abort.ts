/**
 * Waiting that ends. Each helper removes its listener from the AbortSignal again, because a signal that lives as long
 * as the process would keep every listener that is forgotten there.
 */
import type { Clock } from "./clock.ts";

/**
 * Who waits for each signal. An EventTarget looks through all listeners that it has when one comes or goes, which
 * takes 4 to 9 µs with 1,000 of them; so a signal has one listener here, and those who wait stand in a set.
 */
const waiting = new WeakMap<AbortSignal, { listeners: Set<() => void>; onAbort: () => void }>();

/** Calls `listener` once when the signal aborts; what it throws keeps no other from being called. */
export function addAbortListener(signal: AbortSignal, listener: () => void): void {
  const known = waiting.get(signal);
  if (known !== undefined) {
    known.listeners.add(listener);
    return;
  }
  const listeners = new Set([listener]);
  const onAbort = () => {
    for (const each of listeners) {
      try {
        each();
      } catch (thrown) {
        // As an EventTarget does: it is the process' uncaught exception, once all have been called.
        process.nextTick(() => {
          throw thrown;
        });
      }
    }
    waiting.delete(signal);
  };
  waiting.set(signal, { listeners, onAbort });
  signal.addEventListener("abort", onAbort, { once: true });
}

/** Takes back what addAbortListener was given; the last one leaves nothing behind in the signal. */
export function removeAbortListener(signal: AbortSignal, listener: () => void): void {
  const known = waiting.get(signal);
  if (!known?.listeners.delete(listener) || known.listeners.size > 0) return;
  waiting.delete(signal);
  signal.removeEventListener("abort", known.onAbort);
}

/** A signal that is to be given back: `using linked = linkAbort(...)`. */
export interface LinkedSignal extends Disposable {
  readonly signal: AbortSignal;
  /** Lets go of the sources; must be called when the signal is not needed any more. The same as disposing of it. */
  release(): void;
}

/**
 * A signal that aborts with the first of `sources`, for work that is shorter than they are. AbortSignal.any does the
 * same, but leaves some 600 bytes in each source for every signal that it made (Node 24), which a source that lives as
 * long as the process never gives back.
 */
export function linkAbort(...sources: readonly AbortSignal[]): LinkedSignal {
  const controller = new AbortController();
  const release = () => {
    for (const source of sources) removeAbortListener(source, onSourceAbort);
  };
  const onSourceAbort = () => {
    controller.abort(sources.find((source) => source.aborted)!.reason);
    release();
  };
  for (const source of sources) addAbortListener(source, onSourceAbort);
  if (sources.some((source) => source.aborted)) onSourceAbort();
  return { signal: controller.signal, release, [Symbol.dispose]: release };
}

/**
 * Calls `listener` when the signal aborts, at once when it has already; not after the returned object was disposed of:
 * `using _ = onAbort(signal, () => socket.destroy())`.
 */
export function onAbort(signal: AbortSignal | undefined, listener: () => void): Disposable {
  if (signal?.aborted) listener();
  else if (signal) addAbortListener(signal, listener);
  return { [Symbol.dispose]: () => signal && removeAbortListener(signal, listener) };
}

/**
 * The result of `work`, unless the signal aborts first. The work itself goes on, and a failure of it is then ignored.
 * @throws the signal's reason
 */
export async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  using _ = onAbort(signal, () => reject(signal.reason as Error));
  return await Promise.race([promise, work]);
}

/** Resolves when `work` has ended, failed or not, or when the signal aborts; by default only then. Never rejects. */
export async function untilAborted(signal: AbortSignal, work?: Promise<unknown>): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  using _ = onAbort(signal, resolve);
  work?.then(
    () => resolve(),
    () => resolve(),
  );
  await promise;
}

/** Waits `ms` milliseconds, or until the signal aborts. Never rejects: the caller has to look at the signal. */
export async function pause(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const cancel = clock.after(ms, resolve);
  using _ = onAbort(signal, resolve);
  await promise;
  cancel();
}
