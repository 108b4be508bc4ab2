/** One running instance of a container, in memory: who it is, who watches it, and what can be waited for. */
import type { Pulse, Clock, Prober, ProbeKind, Target } from "../../../src/provider/kit/index.ts";
import type { ContainerRef, Sandbox } from "../engine.ts";
import type { ShimWatch } from "../shim/client.ts";

/** How long the end of a container waits for its shim to write the last of the log. */
const LOG_DRAIN_MS = 5_000;

/** The stop of a container. It may be hastened while it is under way: change it, then fire `changed`. */
export interface StopTask {
  /** Milliseconds on the monotonic clock. */
  deadline: number;
  /** The signal waits: another container must end before this one. */
  holdSignal: boolean;
  /** Kill at once. */
  force: boolean;
  readonly changed: Pulse;
}

export class ContainerRun {
  ref: ContainerRef & { pid?: number };
  watch: ShimWatch | undefined;
  readonly probers: Partial<Record<ProbeKind, Prober>> = {};
  /** Its end, when that is under way. */
  stop: StopTask | undefined;
  /** Aborts hooks and probes when the instance has ended. */
  readonly ended = new AbortController();
  readonly #started = Promise.withResolvers<boolean>();
  readonly #gone = Promise.withResolvers<void>();
  readonly #over = Promise.withResolvers<void>();

  constructor(ref: ContainerRef) {
    this.ref = { ...ref };
  }

  /** Fulfilled with whether the command was begun. */
  get started(): Promise<boolean> {
    return this.#started.promise;
  }

  /** Fulfilled when the instance has been concluded and its status written. */
  get over(): Promise<void> {
    return this.#over.promise;
  }

  hasStarted(): void {
    this.#started.resolve(true);
  }

  /** Nobody holds the container's output any more. */
  outputClosed(): void {
    this.#gone.resolve();
  }

  concluded(): void {
    this.#over.resolve();
  }

  /** The instance runs no more. */
  end(reason: unknown): void {
    for (const prober of Object.values(this.probers)) prober.stop();
    this.ended.abort(reason);
    this.#started.resolve(false);
  }

  /** Lets go of everything, whatever has become of the instance. */
  drop(): void {
    this.watch?.close();
    this.end(new Error("the container has ended"));
    this.outputClosed();
    this.concluded();
  }

  /** Resolves when the last of the log is written, or that takes too long. */
  async drained(clock: Clock): Promise<void> {
    const late = Promise.withResolvers<void>();
    const cancel = clock.after(LOG_DRAIN_MS, late.resolve);
    await Promise.race([this.#gone.promise, late.promise]);
    cancel();
  }

  /** What hooks and probes are aimed at. */
  target(sandbox: Sandbox): Target {
    return {
      addresses: sandbox.addresses,
      dial: (port, signal) => sandbox.dial(port, "address", signal),
      dialLoopback: (port, signal) => sandbox.dial(port, "loopback", signal),
      exec: (command, options) => sandbox.exec(this.ref, command, options),
    };
  }
}
