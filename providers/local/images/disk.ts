/** The disk that images are on: how much of it is left, and a watch over work that writes to it. */
import { mkdir, statfs } from "node:fs/promises";
import { type Clock, pause } from "../../../src/provider/kit/index.ts";
import { ContainerError } from "../engine.ts";
import { treeBytes, treeInodes } from "../host/tree-use.ts";

export interface DiskUse {
  totalBytes: number;
  freeBytes: number;
  /** Absent on file systems that make inodes as they are needed. */
  inodes?: { total: number; free: number };
}

/** Work that leaves less than this is stopped: a full disk would hurt every machine of the host. */
export const MIN_FREE_BYTES = 256 * 1024 * 1024;
/** Share of the inodes, as kubelet's imagefs.inodesFree; on large disks no more than this many. */
const MIN_FREE_INODES = { share: 0.05, most: 100_000 };
const CHECK_MS = 250;

interface ImageDiskOptions {
  /** Made when absent. */
  dir: string;
  clock: Clock;
  /** For tests. Default: that of the file system. */
  usage?: (() => Promise<DiskUse>) | undefined;
}

export class ImageDisk {
  readonly #options: ImageDiskOptions;

  constructor(options: ImageDiskOptions) {
    this.#options = options;
  }

  async use(): Promise<DiskUse> {
    const { dir, usage } = this.#options;
    if (usage !== undefined) return await usage();
    // Asked for before the first image.
    await mkdir(dir, { recursive: true, mode: 0o700 });
    const { blocks, bavail, bsize, files, ffree } = await statfs(dir);
    return {
      totalBytes: blocks * bsize,
      freeBytes: bavail * bsize,
      ...(files === 0 ? {} : { inodes: { total: files, free: ffree } }),
    };
  }

  /**
   * Does `work`, and looks at the disk meanwhile.
   * @throws ContainerError ErrImagePull when the disk runs full, or `excess` says why it is too much
   */
  async guard(
    image: string,
    excess: (use: DiskUse) => Promise<string | undefined>,
    signal: AbortSignal,
    work: (signal: AbortSignal) => Promise<void>,
  ): Promise<void> {
    const guard = new AbortController();
    const watched = this.#watch(image, excess, guard).catch((thrown: unknown) => guard.abort(thrown));
    try {
      await work(AbortSignal.any([signal, guard.signal]));
    } finally {
      guard.abort();
      await watched;
    }
  }

  /**
   * `guard`, for work that fills `tree`. A small layer can hold a huge one, or a million files: others write to this
   * disk as well, so what is left on it is only the cheap hint, and the tree is measured when that says so. At the end
   * it is measured in any case.
   */
  async guardTree(
    image: string,
    tree: string,
    most: { bytes: number; inodes: number },
    signal: AbortSignal,
    work: (signal: AbortSignal) => Promise<void>,
  ): Promise<void> {
    const before = await this.use();
    const tooMuch = async (what: "bytes" | "inodes", used: () => Promise<number>) =>
      (await used()) > most[what]
        ? `unpacks to more than the ${most[what]} ${what === "bytes" ? "bytes" : "files"} that this host accepts`
        : undefined;
    const measure = async () =>
      (await tooMuch("bytes", () => treeBytes(tree))) ?? (await tooMuch("inodes", () => treeInodes(tree)));
    const excess = async (now: DiskUse) => {
      const bytes = before.freeBytes - now.freeBytes;
      const inodes = (before.inodes?.free ?? 0) - (now.inodes?.free ?? 0);
      return bytes > most.bytes || inodes > most.inodes ? await measure() : undefined;
    };
    await this.guard(image, excess, signal, work);
    const why = await measure();
    if (why !== undefined) throw new ContainerError("ErrImagePull", `${image}: ${why}`);
  }

  async #watch(
    image: string,
    excess: (use: DiskUse) => Promise<string | undefined>,
    guard: AbortController,
  ): Promise<void> {
    for (;;) {
      await pause(this.#options.clock, CHECK_MS, guard.signal);
      if (guard.signal.aborted) return;
      const use = await this.use();
      const why = isFull(use) ? "no space left on this host's image disk" : await excess(use);
      if (why !== undefined) guard.abort(new ContainerError("ErrImagePull", `${image}: ${why}`));
    }
  }
}

function isFull({ freeBytes, inodes }: DiskUse): boolean {
  if (freeBytes < MIN_FREE_BYTES) return true;
  if (inodes === undefined) return false;
  return inodes.free < Math.min(MIN_FREE_INODES.most, inodes.total * MIN_FREE_INODES.share);
}
