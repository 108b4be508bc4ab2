/**
 * Frees the disk of images that nobody needs, as the kubelet does: above the high threshold, least recently used first,
 * until the low threshold is reached. Nothing is removed before `retain` has said what is needed.
 */
import { readFileSync } from "node:fs";
import type { Clock, Logger } from "../../../src/provider/kit/index.ts";
import type { ImageDisk } from "./disk.ts";
import type { ImageFolders } from "./folders.ts";

/** Kubelet's imageGCHighThresholdPercent, imageGCLowThresholdPercent and imageMinimumGCAge. */
export interface GcOptions {
  highPercent: number;
  lowPercent: number;
  minAgeMs: number;
}

interface ImageCollectorOptions {
  folders: Pick<ImageFolders, "list" | "usedAt" | "remove" | "removeOrphans">;
  disk: Pick<ImageDisk, "use">;
  clock: Clock;
  logger: Logger;
  thresholds: GcOptions;
  /** An image is being removed: its names mean nothing any more. */
  forget: (hex: string) => Promise<void>;
}

export class ImageCollector {
  readonly #options: ImageCollectorOptions;
  #collected: Promise<unknown> = Promise.resolve();
  /** Folders of images that machines need. Not by name: what a name means can change while a machine runs. */
  #retained: ReadonlySet<string> | undefined;
  /** Folders of images that are being given to callers just now, and to how many: they are not yet listed as needed. */
  readonly #givenOut = new Map<string, number>();
  /** When it was last given out, or first seen with a time that cannot be; monotonic, for wall clocks jump. */
  readonly #usedHere = new Map<string, number>();

  constructor(options: ImageCollectorOptions) {
    this.#options = options;
  }

  /** @param hexes folders of all the images that machines need */
  retain(hexes: ReadonlySet<string>): void {
    this.#retained = hexes;
  }

  /** Does `work` for a caller that is given the image in this folder: it is not removed meanwhile. */
  async keepDuring<T>(hex: string, work: () => Promise<T>): Promise<T> {
    this.#usedHere.set(hex, this.#options.clock.monotonic());
    this.#givenOut.set(hex, (this.#givenOut.get(hex) ?? 0) + 1);
    try {
      return await work();
    } finally {
      const others = this.#givenOut.get(hex)! - 1;
      if (others === 0) this.#givenOut.delete(hex);
      else this.#givenOut.set(hex, others);
    }
  }

  /**
   * @param roomBytes that are to be free afterwards, whatever the thresholds
   * @returns the folders of images/ that were removed
   */
  collect(roomBytes: number): Promise<string[]> {
    // One after another: two at once would remove the same image.
    const turn = this.#collected.then(() => this.#collect(roomBytes));
    this.#collected = turn.catch(() => undefined);
    return turn;
  }

  async #collect(roomBytes: number): Promise<string[]> {
    const { folders, thresholds, logger, forget } = this.#options;
    if (this.#retained === undefined || (await this.#hasRoom(thresholds.highPercent, roomBytes))) return [];
    await folders.removeOrphans();
    const images = (await folders.list()).map((hex) => ({ hex, usedAt: folders.usedAt(hex) }));
    const removed: string[] = [];
    for (const { hex } of images.toSorted((a, b) => a.usedAt - b.usedAt)) {
      if (await this.#hasRoom(thresholds.lowPercent, roomBytes)) break;
      // Only now: removing the ones before may have taken minutes.
      if (!this.#isUnused(hex)) continue;
      try {
        await folders.remove(hex, () => forget(hex));
      } catch (thrown) {
        // Others may still go.
        logger.warn({ image: hex, err: thrown }, "Cannot remove an image to its end yet");
        continue;
      }
      this.#usedHere.delete(hex);
      removed.push(hex);
    }
    if (removed.length > 0) logger.info({ images: removed.length }, "Images removed to free disk");
    return removed;
  }

  #isUnused(hex: string): boolean {
    const { clock, folders, thresholds } = this.#options;
    if (this.#givenOut.has(hex) || this.#retained!.has(hex)) return false;
    const age = clock.now() - folders.usedAt(hex);
    // Used while the clock was ahead: what it says is worth nothing, and would protect the image for days.
    if (age < 0 && !this.#usedHere.has(hex)) this.#usedHere.set(hex, clock.monotonic());
    const usedHere = this.#usedHere.get(hex);
    if (usedHere !== undefined && clock.monotonic() - usedHere < thresholds.minAgeMs) return false;
    if (age >= 0 && age < thresholds.minAgeMs) return false;
    // Even if it is not listed as needed: the image of a running container stays.
    return !readFileSync("/proc/self/mountinfo", "latin1").includes(hex);
  }

  async #hasRoom(belowPercent: number, roomBytes: number): Promise<boolean> {
    const { totalBytes, freeBytes } = await this.#options.disk.use();
    const usedPercent = totalBytes === 0 ? 0 : (100 * (totalBytes - freeBytes)) / totalBytes;
    return usedPercent < belowPercent && freeBytes >= roomBytes;
  }
}
