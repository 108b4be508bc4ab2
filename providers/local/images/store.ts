/**
 * The images of this host, for every engine that has images. A folder:
 *
 *     blobs/sha256/HEX     layers, configs, manifests as registries sent them; images share them
 *     images/HEX/          one image, named by its manifest's digest: rootfs/, image.json, and what engines make of it
 *     names.json           which names mean which image
 *     tmp/                 pulls under way; emptied at start
 *
 * An image folder appears by one rename when everything in it is complete, so nothing half-made is ever found.
 *
 * Knowing a digest gives no right to what it names. What is here is given out only to names of a repository that has
 * sent all of it: any other one is asked for every blob first, although the bytes turn out to be the same and are kept
 * once.
 */
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, statSync } from "node:fs";
import { link, lstat, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, utimes } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import {
  type Clock,
  goArchitecture,
  type Logger,
  type RegistryAuth,
  SharedPlaces,
  unlessAborted,
} from "../../../src/provider/kit/index.ts";
import { ContainerError, type HostProblem, type ImageConfig, type ImageStore, type PreparedImage } from "../engine.ts";
import { CommandError, findTool, run } from "../host/command.ts";
import { isMissing, readFileIfExists, writeFileAtomic } from "../host/files.ts";
import { removeTree } from "../host/remove-tree.ts";
import { type DiskUse, ImageDisk, MIN_FREE_BYTES } from "./disk.ts";
import { imageConfig } from "./image-config.ts";
import { MAX_CONFIG_BYTES } from "./manifest.ts";
import { ImageNames, type NameEntry } from "./names.ts";
import { fullName, parseReference, repository, type ImageReference } from "./reference.ts";
import { Registry, type ResolvedImage } from "./registry.ts";

export interface HostImagesOptions {
  /** Made when absent. One store belongs to one backend at a time. */
  dir: string;
  clock: Clock;
  logger: Logger;
  insecureRegistries?: readonly string[];
  /** Pulls of one tenant at a time; of all, twice as many. */
  parallelPulls?: number;
  /** Limit on the sum of an image's compressed layers. */
  maxImageBytes?: number;
  /** Limit on what an image may take when unpacked. */
  maxUnpackedBytes?: number;
  /** Limit on the files of an unpacked image. */
  maxUnpackedFiles?: number;
  pullTimeoutMs?: number;
  gc?: Partial<GcOptions>;
  /** Of the file system that the store is on. */
  diskUsage?: () => Promise<DiskUse>;
}

/** Kubelet's imageGCHighThresholdPercent, imageGCLowThresholdPercent and imageMinimumGCAge. */
export interface GcOptions {
  highPercent: number;
  lowPercent: number;
  minAgeMs: number;
}

/** Registries asked at a time, for one tenant, what a name means: each question is a process of its own. */
const QUESTIONS = 8;
/** A registry that does not answer must not keep others from being asked. */
const ANSWER_MS = 60_000;
/** containerd's image_pull_progress_timeout: a pull that stands still must not keep others waiting. */
const STALL_MS = 5 * 60_000;
/**
 * What skopeo may write beside blobs of the announced sizes: manifest, index, a little more where it compresses by
 * itself.
 */
const COPY_SLACK = { bytes: 1024 * 1024, ratio: 1.01, manifests: 2 };
/** Of each image, the newest: a forgotten one is only asked for again. */
const REPOSITORIES_KEPT = 100;
const HEX = /^[0-9a-f]{64}$/;

interface StoredImage {
  manifestDigest: string;
  config: ImageConfig;
  /** Blobs that the image is made of: manifest, config, layers. */
  blobs: string[];
  /** Compressed size, what a registry would say. */
  sizeBytes: number;
  /** Those that have sent every one of the blobs. */
  repositories: string[];
}

interface SharedPull extends PromiseWithResolvers<StoredImage> {
  /** Aborts when the download has a place: the others need none any more. */
  begun: AbortController;
  /** Aborts the download. */
  abort: AbortController;
  waiters: number;
}

function newPull(): SharedPull {
  const outcome = Promise.withResolvers<StoredImage>();
  outcome.promise.catch(() => undefined); // each waiter sees the failure; there may be none left
  return { ...outcome, begun: new AbortController(), abort: new AbortController(), waiters: 0 };
}

export class HostImages implements ImageStore {
  readonly #options: HostImagesOptions;
  readonly #limits: { maxImageBytes: number; unpacked: { bytes: number; inodes: number }; pullTimeoutMs: number };
  readonly #disk: ImageDisk;
  readonly #gc: GcOptions;
  readonly #registry: Registry;
  readonly #questions = new SharedPlaces(QUESTIONS);
  readonly #downloads: SharedPlaces;
  readonly #pulls = new Map<string, SharedPull>();
  /** Changes of image folders, one after the other. */
  #placed: Promise<unknown> = Promise.resolve();
  #collected: Promise<unknown> = Promise.resolve();
  #names: ImageNames | undefined;
  /** Folders of images that machines need. Not by name: what a name means can change while a machine runs. */
  #retained: ReadonlySet<string> | undefined;
  /** Folders of images that are being given to callers just now, and to how many: they are not yet listed as needed. */
  readonly #givenOut = new Map<string, number>();

  constructor(options: HostImagesOptions) {
    this.#options = options;
    this.#limits = {
      maxImageBytes: options.maxImageBytes ?? 20 * 1024 ** 3,
      unpacked: {
        bytes: options.maxUnpackedBytes ?? 50 * 1024 ** 3,
        inodes: options.maxUnpackedFiles ?? 2_000_000,
      },
      pullTimeoutMs: options.pullTimeoutMs ?? 30 * 60_000,
    };
    this.#disk = new ImageDisk({ dir: options.dir, clock: options.clock, usage: options.diskUsage });
    this.#gc = { highPercent: 85, lowPercent: 80, minAgeMs: 120_000, ...options.gc };
    this.#downloads = new SharedPlaces(options.parallelPulls ?? 2);
    this.#registry = new Registry({
      insecureRegistries: options.insecureRegistries ?? [],
      platform: { os: "linux", architecture: goArchitecture(process.arch) },
      tmpDir: join(options.dir, "tmp"),
    });
  }

  /** What is on disk, read at the first use; what an earlier process left unfinished is removed then. */
  #open(): ImageNames {
    if (this.#names !== undefined) return this.#names;
    const { dir } = this.#options;
    rmSync(join(dir, "tmp"), { recursive: true, force: true });
    for (const folder of ["tmp", "images", "blobs/sha256"])
      mkdirSync(join(dir, folder), { recursive: true, mode: 0o700 });
    this.#names = new ImageNames(dir);
    return this.#names;
  }

  /** What the host lacks for images. */
  static check(): HostProblem[] {
    return ["skopeo", "umoci"]
      .filter((tool) => findTool(tool) === undefined)
      .map((tool) => ({
        fatal: true,
        problem: `${tool} is not on the PATH`,
        cure: `install the package ${tool} (Debian: apt-get install ${tool})`,
      }));
  }

  async find(image: string, auth?: readonly RegistryAuth[]): Promise<PreparedImage | undefined> {
    const reference = parseReference(image);
    const entry = this.#open().find(reference, auth);
    if (entry === undefined) return undefined;
    return await this.#spared(entry.hex, async () => {
      const stored = await this.#stored(entry.hex);
      return stored === undefined ? undefined : await this.#prepared(reference, entry, stored);
    });
  }

  async pull(
    image: string,
    options: { auth: readonly RegistryAuth[]; tenant: string; signal: AbortSignal },
  ): Promise<PreparedImage & { sizeBytes: number }> {
    const reference = parseReference(image);
    this.#open();
    const timeout = AbortSignal.timeout(this.#limits.pullTimeoutMs);
    const signal = AbortSignal.any([options.signal, timeout]);
    try {
      const ask = () => this.#ask(image, reference, options.auth, signal);
      const resolved = await this.#questions.run(options.tenant, ask, signal);
      const hex = hexOf(resolved.manifestDigest);
      return await this.#spared(hex, async () => {
        const here = await this.#stored(hex);
        const isTheirs = here?.repositories.includes(repository(reference)) === true;
        const stored = isTheirs
          ? here
          : await this.#pullShared(image, reference, resolved, { tenant: options.tenant, signal });
        const entry = await this.#open().remember(reference, resolved, hex);
        await this.collect();
        return { ...(await this.#prepared(reference, entry, stored)), sizeBytes: stored.sizeBytes };
      });
    } catch (cause) {
      if (timeout.aborted && !options.signal.aborted)
        throw new ContainerError(
          "ErrImagePull",
          `${image}: the pull took longer than ${this.#limits.pullTimeoutMs / 1000} s`,
          { cause },
        );
      throw cause;
    }
  }

  /** Does `work` for a caller that is given the image in this folder: it is not removed meanwhile. */
  async #spared<T>(hex: string, work: () => Promise<T>): Promise<T> {
    this.#givenOut.set(hex, (this.#givenOut.get(hex) ?? 0) + 1);
    try {
      return await work();
    } finally {
      const others = this.#givenOut.get(hex)! - 1;
      if (others === 0) this.#givenOut.delete(hex);
      else this.#givenOut.set(hex, others);
    }
  }

  async #ask(
    image: string,
    reference: ImageReference,
    auth: readonly RegistryAuth[],
    signal: AbortSignal,
  ): Promise<ResolvedImage> {
    const late = new AbortController();
    const cancel = this.#options.clock.after(ANSWER_MS, () =>
      late.abort(
        new ContainerError(
          "RegistryUnavailable",
          `image pull failed for ${image} because the registry is unavailable: no answer within ${ANSWER_MS / 1000} s`,
        ),
      ),
    );
    try {
      return await this.#registry.resolve(image, reference, auth, AbortSignal.any([signal, late.signal]));
    } finally {
      cancel();
    }
  }

  retain(locations: ReadonlySet<string>): void {
    this.#retained = new Set([...locations].map((location) => basename(dirname(location))));
  }

  /** Bytes of the file system that images and machines' disks are on. */
  async diskSize(): Promise<number> {
    return (await this.#disk.use()).totalBytes;
  }

  /**
   * Frees disk as the kubelet does: above the high threshold, images that no machine needs go, least recently used
   * first, until the low threshold is reached. Nothing is removed before `retain` has said what is needed.
   * @param roomBytes that are to be free afterwards, whatever the thresholds
   * @returns the folders of images/ that were removed
   */
  collect(roomBytes = 0): Promise<string[]> {
    // One after another: two at once would remove the same image.
    const turn = this.#collected.then(() => this.#collect(roomBytes));
    this.#collected = turn.catch(() => undefined);
    return turn;
  }

  async #collect(roomBytes: number): Promise<string[]> {
    if (this.#retained === undefined || (await this.#hasRoom(this.#gc.highPercent, roomBytes))) return [];
    this.#open();
    await this.#removeOrphans();
    const images = (await this.#imageFolders()).map((hex) => ({ hex, usedAt: this.#usedAt(hex) }));
    const removed: string[] = [];
    for (const { hex } of images.toSorted((a, b) => a.usedAt - b.usedAt)) {
      if (await this.#hasRoom(this.#gc.lowPercent, roomBytes)) break;
      // Only now: removing the ones before may have taken minutes.
      if (!this.#isUnused(hex)) continue;
      await this.#remove(hex);
      removed.push(hex);
    }
    if (removed.length > 0) this.#options.logger.info({ images: removed.length }, "images removed to free disk");
    return removed;
  }

  #isUnused(hex: string): boolean {
    if (this.#givenOut.has(hex) || this.#retained!.has(hex)) return false;
    if (this.#options.clock.now() - this.#usedAt(hex) < this.#gc.minAgeMs) return false;
    // Even if it is not listed as needed: the image of a running container stays.
    return !readFileSync("/proc/self/mountinfo", "latin1").includes(hex);
  }

  /** When it was last given to a caller, in ms since the epoch. */
  #usedAt(hex: string): number {
    return statSync(join(this.#imageDir(hex), "image.json")).mtimeMs;
  }

  async #prepared(reference: ImageReference, entry: NameEntry, stored: StoredImage): Promise<PreparedImage> {
    const now = this.#options.clock.now() / 1000;
    await utimes(join(this.#imageDir(entry.hex), "image.json"), now, now);
    return {
      imageId: entry.imageId,
      image: fullName(reference),
      config: stored.config,
      location: join(this.#imageDir(entry.hex), "rootfs"),
    };
  }

  /**
   * One download per repository and manifest, however many wait for it; it is given up when the last of them is. It
   * begins in the place that any of their tenants gets first: no caller waits for the turn of an earlier one.
   */
  async #pullShared(
    image: string,
    reference: ImageReference,
    resolved: ResolvedImage,
    { tenant, signal }: { tenant: string; signal: AbortSignal },
  ): Promise<StoredImage> {
    const key = `${repository(reference)}@${resolved.manifestDigest}`;
    const known = this.#pulls.get(key);
    const pull = known === undefined || known.abort.signal.aborted ? newPull() : known;
    this.#pulls.set(key, pull);
    pull.waiters++;
    try {
      const inPlace = this.#downloads.run(
        tenant,
        async () => {
          if (pull.begun.signal.aborted) return;
          pull.begun.abort();
          await this.#download(image, reference, resolved, pull.abort.signal).then(pull.resolve, pull.reject);
        },
        AbortSignal.any([signal, pull.begun.signal]),
      );
      inPlace.catch(() => undefined); // called off: another's has begun, or this one waits no longer
      return await unlessAborted(pull.promise, signal);
    } finally {
      pull.waiters--;
      if (pull.waiters === 0) pull.abort.abort();
      if (pull.waiters === 0 && this.#pulls.get(key) === pull) this.#pulls.delete(key);
    }
  }

  async #download(
    image: string,
    reference: ImageReference,
    resolved: ResolvedImage,
    signal: AbortSignal,
  ): Promise<StoredImage> {
    signal.throwIfAborted();
    const sizeBytes = resolved.layers.reduce((sum, layer) => sum + layer.size, 0);
    if (sizeBytes > this.#limits.maxImageBytes)
      throw new ContainerError(
        "ErrImagePull",
        `${image}: its layers have ${sizeBytes} bytes, more than the ${this.#limits.maxImageBytes} that this host accepts`,
      );
    const work = await mkdtemp(join(this.#options.dir, "tmp", "pull-"));
    try {
      const layout = join(work, "layout");
      await mkdir(join(layout, "blobs/sha256"), { recursive: true });
      // skopeo does not ask for what is in the layout already.
      const here = await this.#sentBy(repository(reference), resolved, layout);
      await this.#assertRoom(image, resolved, here);
      await this.#copy(image, reference, { resolved, here }, layout, signal);
      const described = await this.#describe(image, layout, resolved, sizeBytes);
      const stored = { ...described, repositories: [repository(reference)] };
      const known = await this.#addRepository(stored);
      if (known !== undefined) return known;
      await mkdir(join(work, "image"));
      await this.#unpack(image, layout, join(work, "image", "rootfs"), here, signal);
      await writeFileAtomic(join(work, "image", "image.json"), JSON.stringify(stored));
      return await this.#place(join(work, "image"), layout, stored);
    } finally {
      await removeTree(work);
    }
  }

  /**
   * Puts into the layout what this repository has sent before, for this image or for another one.
   * @returns what that is
   */
  async #sentBy(repository: string, { config, layers }: ResolvedImage, layout: string): Promise<Set<string>> {
    const wanted = new Set([config, ...layers].map(({ digest }) => digest));
    const sent = new Set<string>();
    for (const hex of await this.#imageFolders()) {
      const stored = await this.#stored(hex);
      if (stored?.repositories.includes(repository) !== true) continue;
      for (const digest of stored.blobs)
        if (wanted.has(digest) && (await giveName(this.#blob(digest), blobIn(layout, digest)))) sent.add(digest);
    }
    return sent;
  }

  /** @returns the image when it is here; the repositories of `stored` are among its own from then on */
  async #addRepository(stored: StoredImage): Promise<StoredImage | undefined> {
    const hex = hexOf(stored.manifestDigest);
    return await this.#inTurn(async () => {
      const known = await this.#stored(hex);
      if (known === undefined) return undefined;
      const repositories = new Set([...known.repositories, ...stored.repositories]);
      const next = { ...known, repositories: [...repositories].slice(-REPOSITORIES_KEPT) };
      await writeFileAtomic(join(this.#imageDir(hex), "image.json"), JSON.stringify(next));
      return next;
    });
  }

  /**
   * Puts a complete image in its place, unless another repository's pull was faster. Its blobs are kept for images to
   * come.
   */
  async #place(folder: string, layout: string, stored: StoredImage): Promise<StoredImage> {
    const known = await this.#addRepository(stored);
    if (known !== undefined) return known;
    const isPlaced = await this.#inTurn(async () => {
      const place = this.#imageDir(hexOf(stored.manifestDigest));
      if (existsSync(place)) return false;
      await rename(folder, place);
      return true;
    });
    if (!isPlaced) return await this.#place(folder, layout, stored);
    for (const digest of stored.blobs) await giveName(blobIn(layout, digest), this.#blob(digest));
    return stored;
  }

  #inTurn<T>(change: () => Promise<T>): Promise<T> {
    const turn = this.#placed.then(change, change);
    this.#placed = turn;
    return turn;
  }

  /** Reads what skopeo wrote: its manifest can differ from the registry's (schema conversion, recompression). */
  async #describe(
    image: string,
    layout: string,
    resolved: ResolvedImage,
    sizeBytes: number,
  ): Promise<Omit<StoredImage, "repositories">> {
    const index = JSON.parse(await readFile(join(layout, "index.json"), "utf8")) as { manifests: { digest: string }[] };
    const manifestDigest = index.manifests[0]!.digest;
    const manifest = JSON.parse(await readFile(blobIn(layout, manifestDigest), "utf8")) as {
      config: { digest: string };
      layers: { digest: string }[];
    };
    return {
      manifestDigest: resolved.manifestDigest,
      config: await this.#readConfig(image, blobIn(layout, manifest.config.digest)),
      blobs: [manifestDigest, manifest.config.digest, ...manifest.layers.map((layer) => layer.digest)],
      sizeBytes,
    };
  }

  async #readConfig(image: string, file: string): Promise<ImageConfig> {
    const { size } = await stat(file);
    if (size > MAX_CONFIG_BYTES)
      throw new ContainerError(
        "ErrImagePull",
        `${image}: its configuration has ${size} bytes, more than the ${MAX_CONFIG_BYTES} that this host accepts`,
      );
    let document: unknown;
    try {
      document = JSON.parse(await readFile(file, "utf8"));
    } catch (cause) {
      throw new ContainerError("ImageInspectError", `${image}: its configuration cannot be read`, { cause });
    }
    return imageConfig(image, document);
  }

  /** By what the registry announces, before anything is fetched; layers that are here already need no room. */
  async #assertRoom(image: string, resolved: ResolvedImage, here: ReadonlySet<string>): Promise<void> {
    const missing = new Map(
      [resolved.config, ...resolved.layers]
        .filter(({ digest }) => !here.has(digest))
        .map(({ digest, size }) => [digest, size]),
    );
    const bytes = [...missing.values()].reduce((sum, size) => sum + size, 0);
    const roomBytes = bytes + MIN_FREE_BYTES;
    await this.collect(roomBytes);
    const { freeBytes } = await this.#disk.use();
    if (freeBytes < roomBytes)
      throw new ContainerError(
        "ErrImagePull",
        `${image}: no space left on this host's image disk: ${bytes} bytes are to be fetched, ${freeBytes} are free, and ${MIN_FREE_BYTES} of them are kept free`,
      );
  }

  /** A registry may send more than it has announced: skopeo would find that out only at the end of what it is sent. */
  async #copy(
    image: string,
    reference: ImageReference,
    { resolved, here }: { resolved: ResolvedImage; here: ReadonlySet<string> },
    layout: string,
    signal: AbortSignal,
  ): Promise<void> {
    const announced = [resolved.config, ...resolved.layers].reduce((sum, { size }) => sum + size, 0);
    // Layers with another compression are compressed again by skopeo: their size is not announced.
    const limit = resolved.layers.every(({ keepsSize }) => keepsSize)
      ? announced * COPY_SLACK.ratio + resolved.manifestBytes * COPY_SLACK.manifests + COPY_SLACK.bytes
      : this.#limits.maxImageBytes;
    const known = new Set([...here].map(hexOf));
    let last = { bytes: -1, at: 0 };
    const excess = async () => {
      // Blobs are written in the first folder, and moved to the second when they are complete.
      const bytes = (await fileBytes(layout)) + (await fileBytes(join(layout, "blobs/sha256"), known));
      const now = this.#options.clock.monotonic();
      if (bytes !== last.bytes) last = { bytes, at: now };
      if (now - last.at >= STALL_MS) return `the registry has sent nothing for ${STALL_MS / 60_000} minutes`;
      return bytes > limit ? `the registry sends more than the ${announced} bytes that it has announced` : undefined;
    };
    await this.#disk.guard(image, excess, signal, (guarded) =>
      this.#registry.copy(image, reference, resolved, layout, guarded),
    );
  }

  async #unpack(
    image: string,
    layout: string,
    rootfs: string,
    here: ReadonlySet<string>,
    signal: AbortSignal,
  ): Promise<void> {
    await this.#disk.guardTree(image, rootfs, this.#limits.unpacked, signal, async (guarded) => {
      try {
        await run(findTool("umoci") ?? "umoci", ["raw", "unpack", "--image", `${layout}:image`, rootfs], {
          signal: guarded,
        });
      } catch (cause) {
        if (guarded.aborted) throw guarded.reason;
        // Layers on this disk that no longer match their digest would fail every later pull as well: fetch them again.
        for (const digest of here) rmSync(this.#blob(digest), { force: true });
        const text = cause instanceof CommandError ? umociMessage(cause.stderr) : String(cause);
        throw new ContainerError("ErrImagePull", `${image}: failed to unpack: ${text}`, { cause });
      }
    });
  }

  async #stored(hex: string): Promise<StoredImage | undefined> {
    const text = await readFileIfExists(join(this.#imageDir(hex), "image.json"));
    // Earlier versions did not write down where an image came from.
    if (text === undefined) return undefined;
    const { repositories = [], ...stored } = JSON.parse(text) as Omit<StoredImage, "repositories"> &
      Partial<StoredImage>;
    return { ...stored, repositories };
  }

  async #remove(hex: string): Promise<void> {
    const doomed = join(this.#options.dir, "tmp", `gone-${hex}-${randomBytes(4).toString("hex")}`);
    // Before another caller has a turn, and might be given it.
    renameSync(this.#imageDir(hex), doomed);
    await this.#open().forget(hex);
    await removeTree(doomed);
    await this.#removeOrphans();
  }

  /** Blobs of images that were removed. A pull under way has names of its own for those that it counts on. */
  async #removeOrphans(): Promise<void> {
    const used = new Set<string>();
    for (const folder of await this.#imageFolders())
      for (const digest of (await this.#stored(folder))?.blobs ?? []) used.add(digest);
    for (const blob of await readdir(join(this.#options.dir, "blobs/sha256")))
      if (!used.has(`sha256:${blob}`)) await rm(join(this.#options.dir, "blobs/sha256", blob), { force: true });
  }

  async #imageFolders(): Promise<string[]> {
    return (await readdir(join(this.#options.dir, "images"))).filter((name) => HEX.test(name));
  }

  async #hasRoom(belowPercent: number, roomBytes: number): Promise<boolean> {
    const { totalBytes, freeBytes } = await this.#disk.use();
    const usedPercent = totalBytes === 0 ? 0 : (100 * (totalBytes - freeBytes)) / totalBytes;
    return usedPercent < belowPercent && freeBytes >= roomBytes;
  }

  #imageDir(hex: string): string {
    return join(this.#options.dir, "images", hex);
  }

  #blob(digest: string): string {
    return join(this.#options.dir, "blobs/sha256", hexOf(digest));
  }
}

function hexOf(digest: string): string {
  return digest.slice("sha256:".length);
}

function umociMessage(stderr: string): string {
  return stderr
    .split("⨯")
    .map((part) => part.trim())
    .join("")
    .split("\n")
    .at(-1)!
    .trim();
}

function blobIn(layout: string, digest: string): string {
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

/** Of the files in a folder, without those of these names. */
async function fileBytes(folder: string, except: ReadonlySet<string> = new Set()): Promise<number> {
  const entries = await readdir(folder, { withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile() && !except.has(entry.name));
  const sizes = files.map(async ({ name }) => (await lstat(join(folder, name)).catch(() => undefined))?.size ?? 0);
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0);
}
