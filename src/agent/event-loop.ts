/**
 * Tells when this process's event loop stood still: nothing was answered meanwhile, the lease was not renewed. A timer
 * measures how late it is. Node's own monitor (`monitorEventLoopDelay`) does not do: it measures nothing until its
 * first tick after a reset, so a standstill that follows at once on a start, or on a look, is lost.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { HealthCheck } from "../telemetry/health.ts";
import type { Clock } from "../util/clock.ts";
import { every } from "../util/idle-timer.ts";

/** A process that cannot turn its loop for seconds is stuck; one turn of this length is not. */
const MAX_STALL_MS = 5_000;
const TICK_MS = 500;

export class EventLoopWatch {
  readonly #clock: Clock;
  readonly #stop: () => void;
  #tickedAt: number;
  #worstMs = 0;

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

  close(): void {
    this.#stop();
  }

  #tick(): void {
    const now = this.#clock.monotonic();
    this.#worstMs = Math.max(this.#worstMs, now - this.#tickedAt);
    this.#tickedAt = now;
  }
}
