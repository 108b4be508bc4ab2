/**
 * Volumes as disks of virtual machines: a file of this host each, which a QEMU has open while its machine has the
 * volume. What is on it, a tenant may have written byte by byte: no program of this host reads it, and a file system on
 * it is checked, grown and mounted in the guest.
 *
 *     VOLUME/disk.img   what is on it (image-files.ts)
 *
 * QEMU locks what it has open, also against another QEMU: who has a volume, the kernel knows, whatever backend asks.
 */
import { existsSync, statSync } from "node:fs";
import { readdir, readFile, statfs } from "node:fs/promises";
import { join } from "node:path";
import {
  type Logger,
  ProviderError,
  type VolumeClass,
  type VolumeMode,
  type VolumeRecord,
} from "../../../src/provider/kit/index.ts";
import type { HostProblem } from "../engine.ts";
import { findTool } from "../host/command.ts";
import { deviceNumbers } from "../host/device-numbers.ts";
import { flushFile } from "../host/files.ts";
import { HostError } from "../host/host-error.ts";
import { removeTree } from "../host/remove-tree.ts";
import type { HostVolumes, VolumePlace } from "../volume-contents.ts";
import {
  existingImage,
  extendImage,
  imageOf,
  isTaken,
  keepReserved,
  makeImage,
  roomFor,
  takeImage,
  wholeSize,
} from "./image-files.ts";

const FS_TYPE = "ext4";
const TOOLS = [
  ["dd", "coreutils"],
  ["fallocate", "util-linux"],
  ["mkfs.ext4", "e2fsprogs"],
  ["debugfs", "e2fsprogs"],
] as const;

/** A guest has a kernel of its own: two of them that write one file system would destroy it. */
const VM_CLASSES: readonly VolumeClass[] = [{ name: "local", sharing: "one", modes: ["filesystem", "block"] }];

export class DiskVolumes implements HostVolumes {
  readonly classes = VM_CLASSES;
  readonly fsTypes = [FS_TYPE];
  readonly #dir: string;
  readonly #logger: Logger;
  readonly #grown: (id: string, sizeBytes: number) => Promise<void>;
  /** Of those that were attached by this backend. */
  readonly #modes = new Map<string, VolumeMode>();

  /** @param grown has the machine that has the disk see its new size. @throws when none is known to have it */
  constructor(
    { dir, logger }: Pick<VolumePlace, "dir" | "logger">,
    grown: (id: string, sizeBytes: number) => Promise<void>,
  ) {
    this.#dir = dir;
    this.#logger = logger;
    this.#grown = grown;
  }

  async take(record: VolumeRecord, source: VolumeRecord): Promise<boolean> {
    return await takeImage(this.#dirOf(record.volume.id), this.#file(source.volume.id));
  }

  async make(
    record: VolumeRecord,
    source: VolumeRecord | undefined,
  ): Promise<{ size_bytes: number; fs_type?: string }> {
    const { id, mode } = record.volume;
    const dir = this.#dirOf(id);
    const from = source === undefined || isTaken(dir) ? undefined : this.#file(source.volume.id);
    if (from !== undefined && (await isHeld(from)))
      throw new ProviderError("in_use", `volume ${source!.volume.id} is a machine's`, { field: "source.volume" });
    const size_bytes = await makeImage(dir, record, { from, isForeign: true });
    return { size_bytes, ...(mode === "filesystem" && { fs_type: FS_TYPE }) };
  }

  async grow({ volume: { id } }: VolumeRecord, sizeBytes: number): Promise<number> {
    const file = this.#file(id);
    const size = await extendImage(file, sizeBytes, undefined);
    if (await isHeld(file)) await this.#grown(id, size);
    return size;
  }

  async remove({ volume: { id } }: VolumeRecord): Promise<void> {
    await this.detach(id);
    for (const part of ["disk.img", "disk.img.new", "disk.img.new.taken"])
      await removeTree(join(this.#dirOf(id), part));
  }

  async room(): Promise<number> {
    return await roomFor(this.#dir);
  }

  taken(sizeBytes: number): number {
    return wholeSize(sizeBytes, undefined);
  }

  /** No volume is longer, in bytes, or will ever be. */
  async largestFile(): Promise<number> {
    const { blocks, bsize } = await statfs(this.#dir);
    return blocks * bsize;
  }

  /** It is the engine that gives it to the machine's QEMU. */
  async attach({ volume: { id, mode, fs_type: fsType = FS_TYPE } }: VolumeRecord): Promise<void> {
    if (mode === "filesystem" && fsType !== FS_TYPE)
      throw new HostError(`volume ${id} has a file system ${fsType}, which guests of engine vm do not know`);
    const file = this.#file(id);
    if (!(await isHeld(file))) await keepReserved(file);
    this.#modes.set(id, mode);
  }

  /** Also what the host has still in its memory of it is on its disk. */
  async detach(id: string): Promise<void> {
    const file = imageOf(this.#dirOf(id));
    if (!existsSync(file)) return;
    if (await isHeld(file))
      throw new HostError(`volume ${id} is still open in a QEMU of this host: fuser ${file} finds it`);
    await flushFile(file);
    this.#modes.delete(id);
  }

  async attached(): Promise<string[]> {
    const held = await heldFiles();
    const names = await readdir(this.#dir).catch(() => []);
    return names.filter((id) => held.has(fileKey(imageOf(this.#dirOf(id))) ?? ""));
  }

  path(id: string): string {
    throw new HostError(`volume ${id} is mounted in its machine's guest alone`);
  }

  device(id: string): Promise<string> {
    return Promise.reject(new HostError(`volume ${id} is a device in its machine's guest alone`));
  }

  /** Its machine's guest tells, with all else that it measures. */
  sample(): Promise<undefined> {
    return Promise.resolve(undefined);
  }

  /** Of one that is attached. @throws HostError */
  disk(id: string): { file: string; mode: VolumeMode } {
    const mode = this.#modes.get(id);
    if (mode === undefined) throw new HostError(`volume ${id} is not attached`);
    return { file: this.#file(id), mode };
  }

  /** @throws HostError for a volume of another kind */
  #file(id: string): string {
    return existingImage(this.#dirOf(id), id, this.#logger);
  }

  #dirOf(id: string): string {
    return join(this.#dir, id);
  }
}

async function isHeld(file: string): Promise<boolean> {
  return (await heldFiles()).has(fileKey(file) ?? "");
}

/** Those that a program has locked as QEMU does: by open file, whichever process has it. */
async function heldFiles(): Promise<ReadonlySet<string>> {
  const locks = await readFile("/proc/locks", "latin1");
  return new Set([...locks.matchAll(/: OFDLCK .* ([0-9a-f]+:[0-9a-f]+:\d+) /g)].map(([, key]) => key!));
}

/** As /proc/locks has it. */
function fileKey(file: string): string | undefined {
  const stats = statSync(file, { throwIfNoEntry: false, bigint: true });
  if (stats === undefined) return undefined;
  const { major, minor } = deviceNumbers(stats.dev);
  const hex = (value: bigint) => value.toString(16).padStart(2, "0");
  return `${hex(major)}:${hex(minor)}:${stats.ino}`;
}

/** Why machines cannot have such volumes. */
export function checkDiskVolumes(): HostProblem[] {
  return TOOLS.filter(([tool]) => findTool(tool) === undefined).map(([tool, debian]) => ({
    fatal: false,
    problem: `volumes that outlive machines are not to be had: ${tool} is not on the PATH`,
    cure: `install the package ${debian}`,
  }));
}

export const hasDiskVolumes = (): boolean => checkDiskVolumes().length === 0;
