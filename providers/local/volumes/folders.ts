/**
 * Volumes as folders: for engines whose containers are processes of this host and its files theirs. What a volume may
 * have is told, and not enforced. VOLUME/data/ is what is on it.
 */
import { chmodSync, existsSync, mkdirSync, renameSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { join } from "node:path";
import type { VolumeRecord } from "../../../src/provider/kit/index.ts";
import { findTool, run } from "../host/command.ts";
import { flushFolder, flushTree } from "../host/files.ts";
import { HostError } from "../host/host-error.ts";
import { removeTree } from "../host/remove-tree.ts";
import { TreeMeter } from "../host/tree-use.ts";
import type { HostVolumes, VolumePlace, VolumeSample } from "../volume-contents.ts";
import { LOCAL_CLASSES } from "./classes.ts";
import { imageOf } from "./image-files.ts";

export class FolderVolumes implements HostVolumes {
  readonly classes = LOCAL_CLASSES;
  readonly fsTypes = [];
  readonly #dir: string;
  readonly #meter: TreeMeter;

  constructor({ dir, clock, walks }: VolumePlace) {
    this.#dir = dir;
    this.#meter = new TreeMeter(clock, walks, "volumes");
  }

  async make({ volume }: VolumeRecord, source: VolumeRecord | undefined): Promise<{ size_bytes: number }> {
    const { id, size_bytes } = volume;
    const data = this.path(id);
    if (source === undefined) {
      mkdirSync(data, { recursive: true });
      // As an emptyDir: containers of any user write to it.
      chmodSync(data, 0o777);
    } else if (!existsSync(data)) {
      const fresh = `${data}.new`;
      await removeTree(fresh);
      await run(findTool("cp") ?? "cp", ["--archive", "--no-target-directory", this.path(source.volume.id), fresh]);
      await flushTree(fresh);
      renameSync(fresh, data);
    }
    flushFolder(join(this.#dir, id));
    return { size_bytes };
  }

  grow(_record: VolumeRecord, sizeBytes: number): Promise<number> {
    return Promise.resolve(sizeBytes);
  }

  async remove({ volume }: VolumeRecord): Promise<void> {
    for (const path of [this.path(volume.id), `${this.path(volume.id)}.new`]) await removeTree(path);
    await removeTree(imageOf(join(this.#dir, volume.id)));
  }

  async room(): Promise<number> {
    const { bavail, bsize } = await statfs(this.#dir);
    return bavail * bsize;
  }

  attach({ volume }: VolumeRecord): Promise<void> {
    if (existsSync(imageOf(join(this.#dir, volume.id))))
      throw new HostError(`volume ${volume.id} is the file of a disk, which only engines oci and cri can mount`);
    return Promise.resolve();
  }

  /** Machines' records alone say who writes to a folder. */
  detach(): Promise<void> {
    return Promise.resolve();
  }

  attached(): Promise<string[]> {
    return Promise.resolve([]);
  }

  path(id: string): string {
    return join(this.#dir, id, "data");
  }

  device(id: string): Promise<string> {
    return Promise.reject(new HostError(`volume ${id} is a folder, and no device`));
  }

  async sample({ volume: { id, size_bytes } }: VolumeRecord): Promise<VolumeSample> {
    const path = this.path(id);
    const used_bytes = await this.#meter.bytes(path);
    const { bavail, bsize, files, ffree } = await statfs(path);
    return {
      used_bytes,
      capacity_bytes: size_bytes,
      available_bytes: Math.max(0, Math.min(bavail * bsize, size_bytes - used_bytes)),
      inodes: files,
      inodes_used: await this.#meter.inodes(path),
      inodes_free: ffree,
    };
  }
}
