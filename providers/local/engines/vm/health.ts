/**
 * Asks a guest now and then whether it lives: QEMU, what its processors do, and its control channel, what time it is. A
 * guest that stands still because its host's disk was full goes on when there is room again; one that answers no more
 * is out of sight, and after a long time lost. Its clock is kept right: it stands still with its host.
 */
import { type Clock, toError } from "../../../../src/provider/kit/index.ts";
import type { SandboxHealth, SandboxLoss } from "../../engine.ts";

/** What is asked of a guest. All reject when there is no answer. */
export interface GuestProbe {
  /** QEMU's run state (query-status): `running`, `io-error`, `paused`... */
  status(signal: AbortSignal): Promise<string>;
  /** Lets its processors go on. */
  resume(signal: AbortSignal): Promise<void>;
  /** Its clock, seconds since the epoch. */
  time(signal: AbortSignal): Promise<number>;
  /** Milliseconds since the epoch. */
  setTime(ms: number, signal: AbortSignal): Promise<void>;
  /** Whether the disk that its own is on has room again. */
  hasRoom(): Promise<boolean>;
}

interface GuestHealthOptions {
  probe: GuestProbe;
  clock: Clock;
  onChange(health: SandboxHealth): void;
  onLost(loss: SandboxLoss): void;
}

const PERIOD_MS = 10_000;
/** An emulated guest on a busy host. */
const ANSWER_MS = 20_000;
/** In a row: an answer may be late. */
const MISSES = 3;
/** As long as a kubelet's pod on a node out of reach is tolerated: it may come back. */
const LOST_MS = 5 * 60_000;
/** Seconds are what a guest tells. */
const CLOCK_OFF_MS = 1_500;
const STOPPED = "io-error";

export class GuestHealth {
  readonly #options: GuestHealthOptions;
  readonly #closing = new AbortController();
  #shown: SandboxHealth["state"] = "ok";
  #misses = 0;
  /** When it last answered, on the monotonic clock. */
  #answeredAt: number;
  #cancel: () => void = () => {};

  constructor(options: GuestHealthOptions) {
    this.#options = options;
    this.#answeredAt = options.clock.monotonic();
    this.#later();
  }

  close(): void {
    this.#cancel();
    this.#closing.abort(new Error("the guest is not asked any more"));
  }

  #later(): void {
    if (this.#closing.signal.aborted) return;
    this.#cancel = this.#options.clock.after(PERIOD_MS, () => {
      // Never rejects.
      void this.#look().finally(() => this.#later());
    });
  }

  async #look(): Promise<void> {
    const { clock, onLost } = this.#options;
    try {
      const isRunning = await this.#ask();
      this.#misses = 0;
      this.#answeredAt = clock.monotonic();
      if (isRunning) this.#show({ state: "ok" });
    } catch (thrown) {
      if (this.#closing.signal.aborted) return;
      if (++this.#misses < MISSES) return;
      const message = `the machine's guest does not answer: ${toError(thrown).message}`;
      this.#show({ state: "unknown", reason: "GuestUnresponsive", message });
      if (clock.monotonic() - this.#answeredAt >= LOST_MS) onLost({ reason: "GuestUnresponsive", message });
    }
  }

  /** @returns false while it stands still because there is no room; @throws when it does not answer */
  async #ask(): Promise<boolean> {
    const { probe, clock } = this.#options;
    using limited = deadline(clock, ANSWER_MS, this.#closing.signal);
    const { signal } = limited;
    const status = await probe.status(signal);
    if (status === STOPPED) {
      if (await probe.hasRoom()) await probe.resume(signal);
      else
        this.#show({
          state: "unknown",
          reason: "HostDiskFull",
          message: "the machine stands still until its host's disk has room again",
        });
      return false;
    }
    if (status !== "running") throw new Error(`QEMU says that it is ${status}`);
    const asked = clock.now();
    const seconds = await probe.time(signal);
    const now = clock.now();
    // Its second may have begun at any time while it was asked.
    const isRight = seconds * 1000 > asked - 1000 - CLOCK_OFF_MS && seconds * 1000 < now + CLOCK_OFF_MS;
    if (!isRight) await probe.setTime(clock.now(), signal);
    return true;
  }

  #show(health: SandboxHealth): void {
    if (health.state === this.#shown) return;
    this.#shown = health.state;
    this.#options.onChange(health);
  }
}

function deadline(clock: Clock, ms: number, outer: AbortSignal): Disposable & { signal: AbortSignal } {
  const late = new AbortController();
  const cancel = clock.after(ms, () => late.abort(new Error(`no answer within ${ms / 1000} s`)));
  return { signal: AbortSignal.any([outer, late.signal]), [Symbol.dispose]: cancel };
}
