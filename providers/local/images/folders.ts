/**
 * What is on disk of this host's images, and how it changes:
 *
 *     blobs/sha256/HEX     layers, configs, manifests as registries sent them; images share them
 *     images/HEX/          one image, named by its manifest's digest: rootfs/, image.json, and what engines make of it
 *     tmp/                 pulls under way; emptied at start
 *
 * An image folder appears by one rename when everything in it is complete, so nothing half-made is ever found.
 */
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, renameSync, rmSync, statSync } from "node:fs";
import { link, mkdtemp, readdir, rename, rm, utimes } from "node:fs/promises";
import { join } from "node:path";
import type { Logger } from "../../../src/provider/kit/index.ts";
import type { ImageConfig } from "../engine.ts";
import { flushFile, isMissing, writeFileAtomic } from "../host/files.ts";
import { removeTree } from "../host/remove-tree.ts";
import type { TornFiles } from "../host/torn-files.ts";
import type { ResolvedImage } from "./registry.ts";

/** Of each image, the newest: a forgotten one is only asked for again. */
const REPOSITORIES_KEPT = 100;
const HEX = /^[0-9a-f]{64}$/;

/** image.json. */
export interface StoredImage {
  manifestDigest: string;
  config: ImageConfig;
  /** Blobs that the image is made of: manifest, config, layers. */
  blobs: string[];
  /** Compressed size, what a registry would say. */
  sizeBytes: number;
  /** Those that have sent every one of the blobs. */
  repositories: string[];
}

export class ImageFolders {
  readonly #dir: string;
  readonly #torn: TornFiles;
  readonly #logger: Logger;
  /** Below tmp/, what could not be removed when it was done with. */
  readonly #left = new Set<string>();
  /** Changes of image folders, one after the other. */
  #placed: Promise<unknown> = Promise.resolve();

  /** @param dir made at `open` when absent */
  constructor(dir: string, torn: TornFiles, logger: Logger) {
    this.#dir = dir;
    this.#torn = torn;
    this.#logger = logger;
  }

  /** Removes what an earlier process left unfinished. */
  open(): void {
    rmSync(join(this.#dir, "tmp"), { recursive: true, force: true });
    for (const folder of ["tmp", "images", "blobs/sha256"])
      mkdirSync(join(this.#dir, folder), { recursive: true, mode: 0o700 });
  }

  /** Where engines find the image's files. */
  rootfs(hex: string): string {
    return join(this.#imageDir(hex), "rootfs");
  }

  /** A folder of its own for one pull, until that calls `discard`. */
  async workDir(): Promise<string> {
    await this.#discardLeft();
    return await mkdtemp(join(this.#dir, "tmp", "pull-"));
  }

  /** Removes what nobody finds any more: now, or with the next change when that fails, or at the next start. */
  async discard(folder: string): Promise<void> {
    this.#left.add(folder);
    await removeTree(folder).then(
      () => this.#left.delete(folder),
      (thrown: unknown) => this.#logger.warn({ folder, err: thrown }, "Cannot remove what an image has left yet"),
    );
  }

  async #discardLeft(): Promise<void> {
    for (const folder of this.#left) await this.discard(folder);
  }

  /** Undefined when it is not here, or its description was torn: then the next pull puts it here again. */
  read(hex: string): StoredImage | undefined {
    const found = this.#torn.readJson(this.#description(hex), isDescription);
    // Earlier versions did not write down where an image came from.
    return found && { ...found, repositories: found.repositories ?? [] };
  }

  /** All images, by their hex. */
  async list(): Promise<string[]> {
    return (await readdir(join(this.#dir, "images"))).filter((name) => HEX.test(name));
  }

  /** When it was last given to a caller, in ms since the epoch; 0 for one that can be given to nobody. */
  usedAt(hex: string): number {
    return statSync(this.#description(hex), { throwIfNoEntry: false })?.mtimeMs ?? 0;
  }

  /** @param nowMs since the epoch */
  async markUsed(hex: string, nowMs: number): Promise<void> {
    await utimes(this.#description(hex), nowMs / 1000, nowMs / 1000);
  }

  /**
   * Puts into the layout what this repository has sent before, for this image or for another one.
   * @returns what that is
   */
  async linkSent(repository: string, { config, layers }: ResolvedImage, layout: string): Promise<Set<string>> {
    const wanted = new Set([config, ...layers].map(({ digest }) => digest));
    const sent = new Set<string>();
    for (const hex of await this.list()) {
      const stored = this.read(hex);
      if (stored?.repositories.includes(repository) !== true) continue;
      for (const digest of stored.blobs)
        if (wanted.has(digest) && (await giveName(this.#blob(digest), blobIn(layout, digest)))) sent.add(digest);
    }
    return sent;
  }

  /** @returns the image when it is here; the repositories of `stored` are among its own from then on */
  async addRepository(stored: StoredImage): Promise<StoredImage | undefined> {
    const hex = hexOf(stored.manifestDigest);
    return await this.#inTurn(async () => {
      const known = this.read(hex);
      if (known === undefined) return undefined;
      const repositories = new Set([...known.repositories, ...stored.repositories]);
      const next = { ...known, repositories: [...repositories].slice(-REPOSITORIES_KEPT) };
      await writeFileAtomic(this.#description(hex), JSON.stringify(next));
      return next;
    });
  }

  /**
   * Puts a complete image in its place, unless another repository's pull was faster. Its blobs are kept for images to
   * come.
   */
  async place(folder: string, layout: string, stored: StoredImage): Promise<StoredImage> {
    const known = await this.addRepository(stored);
    if (known !== undefined) return known;
    const isPlaced = await this.#inTurn(async () => {
      const hex = hexOf(stored.manifestDigest);
      const place = this.#imageDir(hex);
      if (existsSync(place)) {
        if (this.read(hex) !== undefined) return false;
        // Without a whole description it is no image. Its files go at the next start: a container may run on them.
        await rename(place, this.#gone(hex));
      }
      await rename(folder, place);
      await flushFile(join(this.#dir, "images"));
      return true;
    });
    if (!isPlaced) return await this.place(folder, layout, stored);
    for (const digest of stored.blobs) await giveName(blobIn(layout, digest), this.#blob(digest));
    return stored;
  }

  /** Takes an image away. @param forget is called when nobody can find its folder any more, and before its files go */
  async remove(hex: string, forget: () => Promise<void>): Promise<void> {
    const doomed = this.#gone(hex);
    // Before another caller has a turn, and might be given it.
    renameSync(this.#imageDir(hex), doomed);
    try {
      await forget();
    } finally {
      // A full disk may not take what is to be remembered: there is room only when the files have gone.
      await this.discard(doomed);
      await this.removeOrphans();
    }
  }

  /** A blob that proved wrong: the next pull fetches it again. */
  dropBlob(digest: string): void {
    rmSync(this.#blob(digest), { force: true });
  }

  /** Blobs of images that were removed. A pull under way has names of its own for those that it counts on. */
  async removeOrphans(): Promise<void> {
    await this.#discardLeft();
    const used = new Set<string>();
    for (const folder of await this.list()) for (const digest of this.read(folder)?.blobs ?? []) used.add(digest);
    for (const blob of await readdir(join(this.#dir, "blobs/sha256")))
      if (!used.has(`sha256:${blob}`)) await rm(join(this.#dir, "blobs/sha256", blob), { force: true });
  }

  #inTurn<T>(change: () => Promise<T>): Promise<T> {
    const turn = this.#placed.then(change, change);
    this.#placed = turn;
    return turn;
  }

  #imageDir(hex: string): string {
    return join(this.#dir, "images", hex);
  }

  /** A name that no caller finds. */
  #gone(hex: string): string {
    return join(this.#dir, "tmp", `gone-${hex}-${randomBytes(4).toString("hex")}`);
  }

  #description(hex: string): string {
    return join(this.#imageDir(hex), "image.json");
  }

  #blob(digest: string): string {
    return join(this.#dir, "blobs/sha256", hexOf(digest));
  }
}

function isDescription(value: unknown): value is Omit<StoredImage, "repositories"> & Partial<StoredImage> {
  const { blobs, config } = (value ?? {}) as Partial<StoredImage>;
  return Array.isArray(blobs) && typeof config === "object";
}

/** Of a digest, what follows `sha256:`. */
export function hexOf(digest: string): string {
  return digest.slice("sha256:".length);
}

/** The file of a blob in an OCI image layout. */
export function blobIn(layout: string, digest: string): string {
  return join(layout, "blobs/sha256", hexOf(digest));
}

/** Gives a file a second name, unless it is gone, or has that name already. @returns whether it has it */
async function giveName(file: string, name: string): Promise<boolean> {
  try {
    await link(file, name);
    return true;
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === "EEXIST") return true;
    if (isMissing(thrown)) return false;
    throw thrown;
  }
}
