/** One download: an image from its registry to its folder on this disk, held to what this host accepts. */
import { lstat, mkdir, readdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Clock } from "../../../src/provider/kit/index.ts";
import { ContainerError, type ImageConfig } from "../engine.ts";
import { CommandError, findTool, run } from "../host/command.ts";
import { writeFileAtomic } from "../host/files.ts";
import { removeTree } from "../host/remove-tree.ts";
import { type ImageDisk, MIN_FREE_BYTES } from "./disk.ts";
import { blobIn, hexOf, type ImageFolders, type StoredImage } from "./folders.ts";
import { imageConfig } from "./image-config.ts";
import { MAX_CONFIG_BYTES } from "./manifest.ts";
import { repository, type ImageReference } from "./reference.ts";
import type { Registry, ResolvedImage } from "./registry.ts";

/** containerd's image_pull_progress_timeout: a pull that stands still must not keep others waiting. */
const STALL_MS = 5 * 60_000;
/**
 * What skopeo may write beside blobs of the announced sizes: manifest, index, a little more where it compresses by
 * itself.
 */
const COPY_SLACK = { bytes: 1024 * 1024, ratio: 1.01, manifests: 2 };

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
      // skopeo does not ask for what is in the layout already.
      const here = await folders.linkSent(repository(reference), resolved, layout);
      await this.#assertRoom(image, resolved, here);
      await this.#copy(image, reference, { resolved, here }, layout, signal);
      const described = await this.#describe(image, layout, resolved, sizeBytes);
      const stored = { ...described, repositories: [repository(reference)] };
      const known = await folders.addRepository(stored);
      if (known !== undefined) return known;
      await mkdir(join(work, "image"));
      await this.#unpack(image, layout, join(work, "image", "rootfs"), here, signal);
      await writeFileAtomic(join(work, "image", "image.json"), JSON.stringify(stored));
      return await folders.place(join(work, "image"), layout, stored);
    } finally {
      await removeTree(work);
    }
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
    await this.#options.makeRoom(roomBytes);
    const { freeBytes } = await this.#options.disk.use();
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
      : this.#options.limits.maxImageBytes;
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
    await this.#options.disk.guard(image, excess, signal, (guarded) =>
      this.#options.registry.copy(image, reference, resolved, layout, guarded),
    );
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
      } catch (cause) {
        if (guarded.aborted) throw guarded.reason;
        // Layers on this disk that no longer match their digest would fail every later pull as well: fetch them again.
        for (const digest of here) this.#options.folders.dropBlob(digest);
        const text = cause instanceof CommandError ? umociMessage(cause.stderr) : String(cause);
        throw new ContainerError("ErrImagePull", `${image}: failed to unpack: ${text}`, { cause });
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

/** Of the files in a folder, without those of these names. */
async function fileBytes(folder: string, except: ReadonlySet<string> = new Set()): Promise<number> {
  const entries = await readdir(folder, { withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile() && !except.has(entry.name));
  const sizes = files.map(async ({ name }) => (await lstat(join(folder, name)).catch(() => undefined))?.size ?? 0);
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0);
}
