/**
 * Tells those who follow logs that something was written: one watch of a folder for all who follow the log in it, and a
 * limit on how often each of them looks, for a container may write a line at a time thousands of times a second.
 */
import { type FSWatcher, watch } from "node:fs";
import { type Clock, linkAbort, pause, Pulse, untilAborted } from "../../../src/provider/kit/index.ts";

/** inotify reports every write; this is for file systems where it does not. */
const POLL_MS = 1_000;
/** What is written meanwhile is read together. */
const TOGETHER_MS = 20;

interface Folder {
  watcher: FSWatcher | undefined;
  pulse: Pulse;
  /** How often something was written, and how often files came or went. */
  writes: number;
  renames: number;
  followers: number;
}

export class LogWatches {
  readonly #folders = new Map<string, Folder>();

  /** How many folders are watched. @internal */
  get size(): number {
    return this.#folders.size;
  }

  /** To be disposed of when the log is not followed any more. */
  follow(dir: string, clock: Clock): FollowedLog {
    let folder = this.#folders.get(dir);
    if (folder === undefined) {
      folder = watchFolder(dir);
      this.#folders.set(dir, folder);
    }
    folder.followers++;
    return new FollowedLog(folder, clock, () => this.#leave(dir, folder));
  }

  #leave(dir: string, folder: Folder): void {
    if (--folder.followers > 0) return;
    folder.watcher?.close();
    this.#folders.delete(dir);
  }
}

class FollowedLog implements Disposable {
  readonly #folder: Folder;
  readonly #clock: Clock;
  readonly #leave: () => void;
  #seenWrites = -1;
  #seenRenames = -1;
  #lookedAt = -Infinity;

  constructor(folder: Folder, clock: Clock, leave: () => void) {
    this.#folder = folder;
    this.#clock = clock;
    this.#leave = leave;
  }

  /** To be called before a look at the log. @returns whether its files may be others than at the last one */
  look(): boolean {
    const { writes, renames, watcher } = this.#folder;
    const isOther = watcher === undefined || renames !== this.#seenRenames;
    this.#seenWrites = writes;
    this.#seenRenames = renames;
    this.#lookedAt = this.#clock.monotonic();
    return isOther;
  }

  /** Resolves when something may have been written since `look`, when `changed` does, or when the signal aborts. */
  async next(changed: (signal: AbortSignal) => Promise<void>, signal: AbortSignal): Promise<void> {
    if (this.#folder.writes === this.#seenWrites) {
      const stop = new AbortController();
      using either = linkAbort(stop.signal, signal);
      const written = this.#folder.pulse.waitAtMost(this.#clock, POLL_MS, either.signal);
      await untilAborted(signal, Promise.race([written, changed(either.signal).catch(() => undefined)]));
      stop.abort();
      // After a poll, files may have come without a word.
      if (this.#folder.writes === this.#seenWrites) this.#seenRenames = -1;
    }
    const early = TOGETHER_MS - (this.#clock.monotonic() - this.#lookedAt);
    if (early > 0) await pause(this.#clock, early, signal);
  }

  [Symbol.dispose](): void {
    this.#leave();
  }
}

function watchFolder(dir: string): Folder {
  const folder: Folder = { watcher: undefined, pulse: new Pulse(), writes: 0, renames: 0, followers: 0 };
  const told = (event: string) => {
    folder.writes++;
    if (event === "rename") folder.renames++;
    folder.pulse.fire();
  };
  try {
    folder.watcher = watch(dir, { persistent: false }, told);
    folder.watcher.on("error", () => told("rename"));
  } catch {
    // The host's inotify watches are used up, or the folder is going: the poll goes on.
  }
  return folder;
}
