/**
 * Keys of objects that a controller has to look at: each once for all changes of the moment, and again later when that
 * failed.
 */
import type { Logger } from "../../telemetry/logger.ts";
import type { Clock } from "../../util/clock.ts";
import { ApiStatusError } from "../objects/errors.ts";
import { doubledMs } from "../../util/doubled.ts";

/** client-go's back-off of a failing item. */
const RETRY_MS = { first: 5, max: 1_000_000 };

interface WorkQueueOptions {
  clock: Clock;
  logger: Logger;
  /** The controller's name, for the log. */
  name: string;
  /** Looks at the object of this key. What it throws is tried again later. */
  sync(key: string): void;
}

export class WorkQueue {
  readonly #options: WorkQueueOptions;
  readonly #due = new Set<string>();
  /** When a key is looked at again by itself: monotonic milliseconds, and what cancels it. */
  readonly #later = new Map<string, { at: number; cancel: () => void }>();
  readonly #failures = new Map<string, number>();
  #cancelRun: (() => void) | undefined;
  #stopped = false;

  constructor(options: WorkQueueOptions) {
    this.#options = options;
  }

  /** Looks at this object soon. */
  add(key: string): void {
    if (this.#stopped) return;
    this.#due.add(key);
    this.#cancelRun ??= this.#options.clock.after(0, () => this.#run());
  }

  /** Looks at it after a while; of several times the earliest counts. */
  addAfter(key: string, ms: number): void {
    if (this.#stopped) return;
    const at = this.#options.clock.monotonic() + Math.max(0, ms);
    const before = this.#later.get(key);
    if (before && before.at <= at) return;
    before?.cancel();
    const cancel = this.#options.clock.after(Math.max(0, ms), () => {
      this.#later.delete(key);
      this.add(key);
    });
    this.#later.set(key, { at, cancel });
  }

  stop(): void {
    this.#stopped = true;
    this.#cancelRun?.();
    for (const { cancel } of this.#later.values()) cancel();
    this.#later.clear();
  }

  #run(): void {
    this.#cancelRun = undefined;
    const keys = [...this.#due];
    this.#due.clear();
    for (const key of keys) {
      try {
        this.#options.sync(key);
        this.#failures.delete(key);
      } catch (thrown) {
        const failures = this.#failures.get(key) ?? 0;
        this.#failures.set(key, failures + 1);
        this.addAfter(key, doubledMs(RETRY_MS, failures));
        // What the API refuses has its event or its condition; only what nobody expects is for the log.
        if (!(thrown instanceof ApiStatusError))
          this.#options.logger.error({ err: thrown, controller: this.#options.name, key }, "Controller failed");
      }
    }
  }
}
