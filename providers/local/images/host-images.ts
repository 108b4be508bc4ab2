/**
 * The images of this host, for every engine that has images: what a name means (names.ts), what is on disk
 * (folders.ts), how it gets there (shared-pulls.ts, download.ts) and when it goes (collector.ts).
 *
 * Knowing a digest gives no right to what it names. What is here is given out only to names of a repository that has
 * sent all of it: any other one is asked for every blob first, although the bytes turn out to be the same and are kept
 * once.
 */
import { basename, dirname } from "node:path";
import { type Clock, type Logger, type RegistryAuth, SharedPlaces } from "../../../src/provider/kit/index.ts";
import { ContainerError, type HostProblem, type FoundImage, type ImageStore } from "../engine.ts";
import { findTool } from "../host/command.ts";
import { TornFiles } from "../host/torn-files.ts";
import { type GcOptions, ImageCollector } from "./collector.ts";
import { type DiskUse, ImageDisk } from "./disk.ts";
import { ImageDownload } from "./download.ts";
import { hexOf, ImageFolders, type StoredImage } from "./folders.ts";
import { ImageNames, type NameEntry } from "./names.ts";
import { fullName, parseReference, repository, type ImageReference } from "./reference.ts";
import type { Registry, ResolvedImage } from "./registry.ts";
import { SharedPulls } from "./shared-pulls.ts";
import { allowedRegistries, type PullLimits, withDefaults } from "./pull-limits.ts";

export interface HostImagesOptions extends PullLimits {
  /** Made when absent. One store belongs to one backend at a time. */
  dir: string;
  clock: Clock;
  logger: Logger;
  gc?: { [K in keyof GcOptions]?: GcOptions[K] | undefined } | undefined;
  /** Of the file system that the store is on. */
  diskUsage?: (() => Promise<DiskUse>) | undefined;
}

/** Registries asked at a time, for one tenant, what a name means. */
const QUESTIONS = 8;
/** A registry that does not answer must not keep others from being asked. */
const ANSWER_MS = 60_000;

export class HostImages implements ImageStore {
  readonly #options: HostImagesOptions;
  readonly #pullTimeoutMs: number;
  readonly #disk: ImageDisk;
  readonly #torn: TornFiles;
  readonly #folders: ImageFolders;
  readonly #registry: Registry;
  readonly #questions = new SharedPlaces(QUESTIONS);
  readonly #pulls: SharedPulls<StoredImage>;
  readonly #collector: ImageCollector;
  #names: ImageNames | undefined;

  constructor(options: HostImagesOptions) {
    const { dir, clock, logger } = options;
    const { maxImageBytes, unpacked, parallelPulls, pullTimeoutMs } = withDefaults(options);
    this.#options = options;
    this.#pullTimeoutMs = pullTimeoutMs;
    this.#disk = new ImageDisk({ dir, clock, usage: options.diskUsage });
    this.#torn = new TornFiles(dir, logger);
    this.#folders = new ImageFolders(dir, this.#torn, logger);
    this.#registry = allowedRegistries(options);
    const shared = { folders: this.#folders, disk: this.#disk, clock };
    const { highPercent = 85, lowPercent = 80, minAgeMs = 120_000 } = options.gc ?? {};
    this.#collector = new ImageCollector({
      ...shared,
      logger,
      thresholds: { highPercent, lowPercent, minAgeMs },
      forget: (hex) => this.#open().forget(hex),
    });
    const download = new ImageDownload({
      ...shared,
      registry: this.#registry,
      limits: { maxImageBytes, unpacked },
      makeRoom: (bytes) => this.collect(bytes),
    });
    this.#pulls = new SharedPulls((wanted, signal) => download.fetch(wanted, signal), parallelPulls);
  }

  /** What is on disk, read at the first use. */
  #open(): ImageNames {
    if (this.#names !== undefined) return this.#names;
    this.#folders.open();
    this.#names = new ImageNames(this.#options.dir, this.#torn);
    return this.#names;
  }

  /** What the host lacks for images. */
  static check(): HostProblem[] {
    return ["umoci"]
      .filter((tool) => findTool(tool) === undefined)
      .map((tool) => ({
        fatal: true,
        problem: `${tool} is not on the PATH`,
        cure: `install the package ${tool} (Debian: apt-get install ${tool})`,
      }));
  }

  async find(image: string, auth?: readonly RegistryAuth[]): Promise<FoundImage | undefined> {
    const reference = parseReference(image);
    const entry = this.#open().find(reference, auth);
    if (entry === undefined) return undefined;
    return await this.#collector.keepDuring(entry.hex, async () => {
      const stored = this.#folders.read(entry.hex);
      return stored === undefined ? undefined : await this.#prepared(reference, entry, stored);
    });
  }

  async pull(
    image: string,
    options: { auth: readonly RegistryAuth[]; tenant: string; signal: AbortSignal },
  ): Promise<FoundImage> {
    const reference = parseReference(image);
    this.#open();
    const timeout = AbortSignal.timeout(this.#pullTimeoutMs);
    const signal = AbortSignal.any([options.signal, timeout]);
    try {
      const ask = () => this.#ask(image, reference, options.auth, signal);
      const resolved = await this.#questions.run(options.tenant, ask, signal);
      const hex = hexOf(resolved.manifestDigest);
      return await this.#collector.keepDuring(hex, async () => {
        const here = this.#folders.read(hex);
        const isTheirs = here?.repositories.includes(repository(reference)) === true;
        const stored = isTheirs
          ? here
          : await this.#pulls.pull({ image, reference, resolved }, { tenant: options.tenant, signal });
        const entry = await this.#open().remember(reference, resolved, hex);
        await this.collect();
        return await this.#prepared(reference, entry, stored);
      });
    } catch (thrown) {
      if (timeout.aborted && !options.signal.aborted)
        throw new ContainerError(
          "ErrImagePull",
          `${image}: the pull took longer than ${this.#pullTimeoutMs / 1000} s`,
          { cause: thrown },
        );
      throw thrown;
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
    this.#collector.retain(new Set([...locations].map((location) => basename(dirname(location)))));
  }

  /** Bytes of the file system that images and machines' disks are on. */
  async diskSize(): Promise<number> {
    return (await this.#disk.use()).totalBytes;
  }

  async removeUnused(): Promise<void> {
    await this.collect(Infinity);
  }

  async place(): Promise<string> {
    return await Promise.resolve(this.#options.dir);
  }

  /**
   * Frees disk where there is need: see ImageCollector.
   * @param roomBytes that are to be free afterwards, whatever the thresholds
   * @returns the folders of images/ that were removed
   */
  async collect(roomBytes = 0): Promise<string[]> {
    this.#open();
    return await this.#collector.collect(roomBytes);
  }

  async #prepared(reference: ImageReference, { imageId, hex }: NameEntry, stored: StoredImage): Promise<FoundImage> {
    await this.#folders.markUsed(hex, this.#options.clock.now());
    const { config, sizeBytes } = stored;
    return { imageId, image: fullName(reference), config, location: this.#folders.rootfs(hex), sizeBytes };
  }
}
