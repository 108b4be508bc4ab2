/** A value that is looked at again and again while the agent runs, and keeps its last good state through any error. */
import { isDeepStrictEqual } from "node:util";
import { pause } from "./abort.ts";
import type { Clock } from "./clock.ts";

/** How often files are read again: watches do not see the swapped links of projected volumes. */
export const FILE_POLL_MS = 10_000;

/** Something that may change while the agent runs. */
export interface Reloadable<T> {
  /** undefined until there is a first value. */
  current(): T | undefined;
  /** Calls `listener` after each change. */
  onChange(listener: (value: T) => void): void;
  /** Watches for changes until the signal aborts. Never rejects. */
  run(signal: AbortSignal): Promise<void>;
}

/** Where a `Reloadable` keeps its value. */
export class Holder<T> {
  #value: T | undefined;
  readonly #listeners: ((value: T) => void)[] = [];

  readonly current = (): T | undefined => this.#value;
  readonly onChange = (listener: (value: T) => void): void => {
    this.#listeners.push(listener);
  };

  set(value: T): void {
    this.#value = value;
    for (const listener of this.#listeners) listener(value);
  }
}

/**
 * A `Reloadable` of what `holder` holds; `round` brings it up to date and says how many milliseconds later it is due
 * again.
 */
export function reloadable<T>(
  holder: Holder<T>,
  clock: Clock,
  round: (signal: AbortSignal) => Promise<number>,
): Reloadable<T> {
  return {
    current: holder.current,
    onChange: holder.onChange,
    async run(signal) {
      while (!signal.aborted) await pause(clock, await round(signal), signal);
    },
  };
}

/**
 * What files hold, read again every 10 s. While a reading fails (one file may be written and the next not yet), the
 * last good value stays.
 *
 * @param options.read the files
 * @param options.check throws when what they hold cannot be used; not called for what is in use already
 * @param options.onLoaded told of the first value, and of each that takes its place
 * @param options.onFailed told of each later reading that fails
 * @throws what the first reading throws
 */
export async function followFiles<T>(options: {
  read: () => Promise<T>;
  check: (value: T) => void;
  onLoaded: (value: T) => void;
  onFailed: (thrown: unknown) => void;
  clock: Clock;
}): Promise<Reloadable<T>> {
  const holder = new Holder<T>();
  const load = async () => {
    const value = await options.read();
    if (isDeepStrictEqual(value, holder.current())) return;
    options.check(value);
    holder.set(value);
    options.onLoaded(value);
  };
  await load();
  return reloadable(holder, options.clock, async () => {
    await load().catch(options.onFailed);
    return FILE_POLL_MS;
  });
}
