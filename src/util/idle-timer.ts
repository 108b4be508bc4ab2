/** The time limit of sessions on which nothing moves (the kubelet's streamingConnectionIdleTimeout). */
import type { Clock } from "./clock.ts";

/** Calls `onIdle` once when `touch` was not called for `timeoutMs`. Cheap to touch: no timer is restarted. */
export class IdleTimer {
  readonly #clock: Clock;
  readonly #timeoutMs: number;
  readonly #onIdle: (idleMs: number) => void;
  #touchedAt: number;
  #cancel: () => void;

  constructor(clock: Clock, timeoutMs: number, onIdle: (idleMs: number) => void) {
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
    this.#onIdle = onIdle;
    this.#touchedAt = clock.monotonic();
    this.#cancel = clock.after(timeoutMs, () => this.#check());
  }

  touch(): void {
    this.#touchedAt = this.#clock.monotonic();
  }

  stop(): void {
    this.#cancel();
  }

  #check(): void {
    const idleMs = this.#clock.monotonic() - this.#touchedAt;
    if (idleMs >= this.#timeoutMs) this.#onIdle(idleMs);
    else this.#cancel = this.#clock.after(this.#timeoutMs - idleMs, () => this.#check());
  }
}

/** Calls `action` every `periodMs`; the returned function stops it. */
export function every(clock: Clock, periodMs: number, action: () => void): () => void {
  let cancel = clock.after(periodMs, function tick() {
    cancel = clock.after(periodMs, tick);
    action();
  });
  return () => cancel();
}
