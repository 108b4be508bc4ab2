/**
 * Tells those who follow logs that something was written: one watch of a folder for all who follow the log in it, who
 * look at the same time, so that one of them reads for all; and a limit on how often, for a container may write a line
 * at a time thousands of times a second.
 */
import { type FSWatcher, watch } from "node:fs";
import { type Clock, linkAbort, pause, Pulse, untilAborted } from "../../../src/provider/kit/index.ts";

/** inotify reports every write; this is for file systems where it does not. */
const POLL_MS = 1_000;
/** What is written meanwhile is read together. */
const TOGETHER_MS = 20;
/** Timers may fire before their time. */
const EARLY_MS = 1;
/** Who is woken by the same write looks with the first of them. */
const SAME_LOOK_MS = 5;
/** The newest that was read: nobody who has caught up asks for more. */
const READS_KEPT = 4;

interface Folder {
  watcher: FSWatcher | undefined;
  pulse: Pulse;
  /** How often something was written, and how often files came or went. */
  writes: number;
  renames: number;
  followers: number;
  /** When the last look began that all share. */
  lookedAt: number;
  /** What was read for all: by place, and by how often something had been written. */
  readonly reads: Map<string, Promise<unknown>>;
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

export class FollowedLog implements Disposable {
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
    const now = this.#clock.monotonic();
    if (now - this.#folder.lookedAt >= TOGETHER_MS - EARLY_MS) this.#folder.lookedAt = now;
    this.#lookedAt = this.#folder.lookedAt;
    return isOther;
  }

  /** What `read` finds at this place since the last `look`: read once for all who have seen as much. */
  async share<T>(place: string, read: () => Promise<T>): Promise<T> {
    const { reads } = this.#folder;
    const key = `${place} ${this.#seenWrites}`;
    let found = reads.get(key) as Promise<T> | undefined;
    if (found === undefined) {
      found = read();
      reads.set(key, found);
      for (const old of [...reads.keys()].slice(0, -READS_KEPT)) reads.delete(old);
      found.catch(() => reads.delete(key));
    }
    return await found;
  }

  /** Resolves when something may have been written since `look`, when `changed` does, or when the signal aborts. */
  async next(changed: (signal: AbortSignal) => Promise<void>, signal: AbortSignal): Promise<void> {
    if (this.#folder.writes === this.#seenWrites) {
      const stop = new AbortController();
      using either = linkAbort(stop.signal, signal);
      const written = this.#folder.pulse.waitAtMost(this.#clock, POLL_MS, either.signal);
      await untilAborted(signal, Promise.race([written, changed(either.signal).catch(() => undefined)]));
      stop.abort();
      // After a poll, files and lines may have come without a word.
      if (this.#folder.writes === this.#seenWrites) {
        this.#seenRenames = -1;
        this.#folder.reads.clear();
      }
    }
    const since = this.#clock.monotonic() - this.#folder.lookedAt;
    if (this.#folder.lookedAt > this.#lookedAt && since < SAME_LOOK_MS) return;
    if (since < TOGETHER_MS) await pause(this.#clock, TOGETHER_MS - since, signal);
  }

  [Symbol.dispose](): void {
    this.#leave();
  }
}

function watchFolder(dir: string): Folder {
  const counts = { writes: 0, renames: 0, followers: 0, lookedAt: -Infinity };
  const folder: Folder = { watcher: undefined, pulse: new Pulse(), reads: new Map(), ...counts };
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
