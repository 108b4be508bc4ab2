/**
 * How long a program may take for its first answer, and for those by which it is judged. On a host that is overrun it
 * gets no processor, and to give it up for that would cost the host its start once more: what it has computed counts,
 * besides the time.
 */
import type { Clock } from "../../../src/provider/kit/index.ts";
import { processStat } from "./proc.ts";

export interface PatienceLimits {
  /** On a host that has processors to spare. */
  ms: number;
  /** Of a processor, on any host, from the beginning of the wait. */
  processorMs: number;
}

const LOOK_MS = 5_000;
/** Of a processor between two looks: who takes less is not about to answer. Its timer alone takes less. */
const LEAST_MS = 100;
const TICK_MS = 10;
/** The time that there is on a host that is overrun: who hangs may compute a little for ever. */
const MOST_TIMES = 20;

export interface Patience {
  /** Aborts when there is no use in waiting. */
  readonly signal: AbortSignal;
  [Symbol.dispose](): void;
}

/** @param processorMs what it has computed so far; undefined: it is no more; @param who it is */
export function patienceFor(
  processorMs: () => number | undefined,
  most: PatienceLimits,
  clock: Clock,
  who = "the guest",
): Patience {
  const over = new AbortController();
  const begin = clock.monotonic();
  const everyMs = Math.min(LOOK_MS, most.ms);
  const first = processorMs() ?? 0;
  let before = first;
  const look = () => {
    const spent = processorMs();
    const waited = clock.monotonic() - begin;
    const isLate = waited >= most.ms - 1;
    const isStarved =
      waited < most.ms * MOST_TIMES &&
      spent !== undefined &&
      spent - before >= LEAST_MS &&
      spent - first < most.processorMs;
    if (spent === undefined || (isLate && !isStarved)) {
      over.abort(
        new Error(
          `no answer of ${who} in ${Math.round(waited / 1000)} s, in which it has computed for ${((spent ?? first) - first) / 1000} s`,
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
