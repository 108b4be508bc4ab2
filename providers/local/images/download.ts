/** One download: an image from its registry to its folder on this disk, held to what this host accepts. */
import { mkdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Clock } from "../../../src/provider/kit/index.ts";
import { ContainerError, type ImageConfig } from "../engine.ts";
import { CommandError, findTool, run } from "../host/command.ts";
import { flushTree, writeFileAtomic } from "../host/files.ts";
import { type ImageDisk, MIN_FREE_BYTES } from "./disk.ts";
import { blobIn, type ImageFolders, type StoredImage } from "./folders.ts";
import { imageConfig } from "./image-config.ts";
import { MAX_CONFIG_BYTES } from "./manifest.ts";
import { repository, type ImageReference } from "./reference.ts";
import type { Registry, ResolvedImage } from "./registry.ts";

/** containerd's image_pull_progress_timeout: a pull that stands still must not keep others waiting. */
const STALL_MS = 5 * 60_000;
interface DownloadLimits {
  /** Of the sum of an image's compressed layers. */
  maxImageBytes: number;
  /** Of what an image may take when unpacked. */
  unpacked: { bytes: number; inodes: number };
}

interface ImageDownloadOptions {
  registry: Registry;
  folders: ImageFolders;
  disk: ImageDisk;
  limits: DownloadLimits;
  clock: Clock;
  /** Frees so many bytes where it can: see ImageCollector. */
  makeRoom: (bytes: number) => Promise<unknown>;
}

/** An image as it was asked for, and what the registry says that this means. */
export interface WantedImage {
  /** As the pod names it, for messages. */
  image: string;
  reference: ImageReference;
  resolved: ResolvedImage;
}

export class ImageDownload {
  readonly #options: ImageDownloadOptions;

  constructor(options: ImageDownloadOptions) {
    this.#options = options;
  }

  /**
   * Fetches what is missing, unpacks it and puts the image in its place.
   * @throws ContainerError ErrImagePull or ImageInspectError
   */
  async fetch({ image, reference, resolved }: WantedImage, signal: AbortSignal): Promise<StoredImage> {
    signal.throwIfAborted();
    const { folders, limits } = this.#options;
    const sizeBytes = resolved.layers.reduce((sum, layer) => sum + layer.size, 0);
    if (sizeBytes > limits.maxImageBytes)
      throw new ContainerError(
        "ErrImagePull",
        `${image}: its layers have ${sizeBytes} bytes, more than the ${limits.maxImageBytes} that this host accepts`,
      );
    const work = await folders.workDir();
    try {
      const layout = join(work, "layout");
      await mkdir(join(layout, "blobs/sha256"), { recursive: true });
      const here = await folders.linkSent(repository(reference), resolved, layout);
      await this.#assertRoom(image, resolved, here);
      const blobs = await this.#copy(image, reference, resolved, layout, signal);
      const stored: StoredImage = {
        manifestDigest: resolved.manifestDigest,
        config: await this.#readConfig(image, blobIn(layout, resolved.config.digest)),
        blobs,
        sizeBytes,
        repositories: [repository(reference)],
      };
      const known = await folders.addRepository(stored);
      if (known !== undefined) return known;
      await mkdir(join(work, "image"));
      await this.#unpack(image, layout, join(work, "image", "rootfs"), here, signal);
      await writeFileAtomic(join(work, "image", "image.json"), JSON.stringify(stored));
      // Its folder says that it is complete, also after a loss of power.
      await flushTree(join(work, "image"), signal);
      return await folders.place(join(work, "image"), layout, stored);
    } finally {
      await folders.discard(work);
    }
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
    } catch (thrown) {
      throw new ContainerError("ImageInspectError", `${image}: its configuration cannot be read`, { cause: thrown });
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
    await this.#options.makeRoom(roomBytes);
    const { freeBytes } = await this.#options.disk.use();
    if (freeBytes < roomBytes)
      throw new ContainerError(
        "ErrImagePull",
        `${image}: no space left on this host's image disk: ${bytes} bytes are to be fetched, ${freeBytes} are free, and ${MIN_FREE_BYTES} of them are kept free`,
      );
  }

  /** Fetches what is not in the layout yet. @returns the digests of what the image is made of there */
  async #copy(
    image: string,
    reference: ImageReference,
    resolved: ResolvedImage,
    layout: string,
    signal: AbortSignal,
  ): Promise<string[]> {
    const { clock, disk, registry } = this.#options;
    let arrivedAt = clock.monotonic();
    const onBytes = () => (arrivedAt = clock.monotonic());
    const excess = () => {
      const isSilent = clock.monotonic() - arrivedAt >= STALL_MS;
      return Promise.resolve(isSilent ? `the registry has sent nothing for ${STALL_MS / 60_000} minutes` : undefined);
    };
    let blobs: string[] = [];
    await disk.guard(image, excess, signal, async (guarded) => {
      blobs = await registry.copy(image, reference, resolved, layout, { onBytes, signal: guarded });
    });
    return blobs;
  }

  async #unpack(
    image: string,
    layout: string,
    rootfs: string,
    here: ReadonlySet<string>,
    signal: AbortSignal,
  ): Promise<void> {
    await this.#options.disk.guardTree(image, rootfs, this.#options.limits.unpacked, signal, async (guarded) => {
      try {
        await run(findTool("umoci") ?? "umoci", ["raw", "unpack", "--image", `${layout}:image`, rootfs], {
          signal: guarded,
        });
      } catch (thrown) {
        if (guarded.aborted) throw guarded.reason;
        // Layers on this disk that no longer match their digest would fail every later pull as well: fetch them again.
        for (const digest of here) this.#options.folders.dropBlob(digest);
        const text = thrown instanceof CommandError ? umociMessage(thrown.stderr) : String(thrown);
        throw new ContainerError("ErrImagePull", `${image}: failed to unpack: ${text}`, { cause: thrown });
      }
    });
  }
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
