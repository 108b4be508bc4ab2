/**
 * Tells when this process's event loop stood still: nothing was answered meanwhile, the lease was not renewed. A timer
 * measures how late it is. Node's own monitor (`monitorEventLoopDelay`) does not do: it measures nothing until its
 * first tick after a reset, so a standstill that follows at once on a start, or on a look, is lost. It would also wake
 * an idle process twenty times a second, which was most of what woke it.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { HealthCheck } from "../telemetry/health.ts";
import type { Clock } from "../util/clock.ts";
import { every } from "../util/idle-timer.ts";

/** In seconds; 0 when nothing was measured. */
export interface Lag {
  readonly last: number;
  readonly min: number;
  readonly max: number;
  readonly mean: number;
  readonly stddev: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
}

/** A process that cannot turn its loop for seconds is stuck; one turn of this length is not. */
const MAX_STALL_MS = 5_000;
/** Often enough: each measure wakes a process that may have nothing else to do. */
const TICK_MS = 500;
/** Measures that are kept for the next look at them: of five minutes. */
const KEPT = 600;

export class EventLoopWatch {
  readonly #clock: Clock;
  readonly #stop: () => void;
  #tickedAt: number;
  #worstMs = 0;
  /** By how many seconds the ticks since the last look were late. */
  #late: number[] = [];

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#tickedAt = clock.monotonic();
    this.#stop = every(clock, TICK_MS, () => this.#tick());
  }

  /** Fails once for each standstill. One of this very turn is known when the timers of the next have run. */
  readonly check: HealthCheck = async () => {
    await nextTurn();
    await nextTurn();
    const worstMs = this.#worstMs;
    this.#worstMs = 0;
    return worstMs > MAX_STALL_MS ? `the event loop stood still for ${Math.round(worstMs)} ms` : undefined;
  };

  /** How late the loop was since this was asked last. */
  lag(): Lag {
    const late = this.#late;
    this.#late = [];
    const sorted = late.toSorted((a, b) => a - b);
    const count = Math.max(1, sorted.length);
    const at = (share: number) => sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? 0;
    const mean = sorted.reduce((sum, each) => sum + each, 0) / count;
    const variance = sorted.reduce((sum, each) => sum + (each - mean) ** 2, 0) / count;
    return {
      last: late.at(-1) ?? 0,
      min: at(0),
      max: at(1),
      mean,
      stddev: Math.sqrt(variance),
      p50: at(0.5),
      p90: at(0.9),
      p99: at(0.99),
    };
  }

  close(): void {
    this.#stop();
  }

  #tick(): void {
    const now = this.#clock.monotonic();
    this.#worstMs = Math.max(this.#worstMs, now - this.#tickedAt);
    this.#late.push(Math.max(0, now - this.#tickedAt - TICK_MS) / 1000);
    if (this.#late.length > KEPT) this.#late.shift();
    this.#tickedAt = now;
  }
}
