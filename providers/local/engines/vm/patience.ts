/**
 * How long a guest may take for its first answer, and for those by which it is judged. On a host that is overrun it
 * gets no processor, and to give it up for that would cost the host a boot, which is many times the work, or its pod a
 * machine: what a guest has computed counts, besides the time.
 */
import type { Clock } from "../../../../src/provider/kit/index.ts";
import { processStat } from "../../host/proc.ts";

interface Limits {
  /** On a host that has processors to spare. */
  ms: number;
  /** Of a processor, on any host. */
  processorMs: number;
}

/** A copy that runs answers in tenths of a second. */
export const FIRST_ANSWER: Limits = { ms: 30_000, processorMs: 15_000 };
/** Emulated it takes three or four seconds. */
export const BOOT: Limits = { ms: 90_000, processorMs: 60_000 };
/** Of what the host asks of a guest that runs, which is done in tenths of a second. */
export const CALL_PROCESSOR_MS = 30_000;
const LOOK_MS = 5_000;
/** Of a processor between two looks: who takes less is not about to answer. Its timer alone takes less. */
const LEAST_MS = 100;
const TICK_MS = 10;

export interface Patience {
  /** Aborts when there is no use in waiting. */
  readonly signal: AbortSignal;
  [Symbol.dispose](): void;
}

/** @param processorMs what the guest has computed so far; undefined: it is no more */
export function patienceFor(processorMs: () => number | undefined, most: Limits, clock: Clock): Patience {
  const over = new AbortController();
  const begin = clock.monotonic();
  const everyMs = Math.min(LOOK_MS, most.ms);
  let before = processorMs() ?? 0;
  const look = () => {
    const spent = processorMs();
    const waited = clock.monotonic() - begin;
    const isStarved = spent !== undefined && spent - before >= LEAST_MS && spent < most.processorMs;
    if (spent === undefined || (waited >= most.ms - 1 && !isStarved)) {
      over.abort(
        new Error(
          `no answer of the guest in ${Math.round(waited / 1000)} s, in which it has computed for ${(spent ?? 0) / 1000} s`,
        ),
      );
      return;
    }
    before = spent;
    cancel = clock.after(everyMs, look);
  };
  let cancel = clock.after(everyMs, look);
  return { signal: over.signal, [Symbol.dispose]: () => cancel() };
}

/** Of a process, with all its threads. */
export function processorMsOf(pid: number): number | undefined {
  const ticks = processStat(pid)?.cpuTicks;
  return ticks === undefined ? undefined : ticks * TICK_MS;
}
