/**
 * Volumes that others have mounted on this host before they are told of: a cloud's VM is made with them. Here they are
 * neither made nor removed, and what is on them stays when this host's machine is gone: FOLDER/ID is where one is.
 *
 * One that is not mounted is never given, for its folder would be on this host's own disk, and what is written there
 * would go with it.
 */
import { chmodSync, readdirSync, statSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { join } from "node:path";
import { ProviderError, type VolumeClass, type VolumeRecord } from "../../../src/provider/kit/index.ts";
import { findTool, run } from "../host/command.ts";
import { HostError } from "../host/host-error.ts";
import { mountPoints } from "../host/mounts.ts";
import { TreeMeter } from "../host/tree-use.ts";
import type { HostVolumes, VolumePlace, VolumeSample, VolumeUse } from "../volume-contents.ts";
import { ownTree } from "../host/own-tree.ts";

/** As Incus makes a new one. */
const FRESH_BITS = 0o711;

export class GivenVolumes implements HostVolumes {
  readonly classes: readonly VolumeClass[] = [{ name: "given", sharing: "one", modes: ["filesystem"] }];
  readonly fsTypes = [];
  readonly #folder: string;
  readonly #meter: TreeMeter;

  constructor(folder: string, { clock, walks }: Pick<VolumePlace, "clock" | "walks">) {
    this.#folder = folder;
    this.#meter = new TreeMeter(clock, walks, "volumes");
  }

  async make({ volume }: VolumeRecord, source: VolumeRecord | undefined): Promise<{ size_bytes: number }> {
    if (source !== undefined) throw new ProviderError("invalid", "what is given is no copy", { field: "source" });
    await this.#assertMounted(volume.id);
    return { size_bytes: volume.size_bytes };
  }

  /** Who gives it lets it grow; here its size is told of. */
  grow(_record: VolumeRecord, sizeBytes: number): Promise<number> {
    return Promise.resolve(sizeBytes);
  }

  /** It is not this host's to remove. */
  remove(): Promise<void> {
    return Promise.resolve();
  }

  room(): Promise<number> {
    return Promise.resolve(Number.MAX_SAFE_INTEGER);
  }

  async attach({ volume }: VolumeRecord, { readOnly, group, groupOnMismatchOnly }: VolumeUse): Promise<void> {
    await this.#assertMounted(volume.id);
    if (readOnly) return;
    const path = this.path(volume.id);
    // As an emptyDir: containers of any user write to a new one.
    const { uid, mode } = statSync(path);
    if (uid === 0 && (mode & 0o777) === FRESH_BITS && readdirSync(path).length === 0) chmodSync(path, 0o777);
    if (group !== undefined) await ownTree(path, group, { onMismatchOnly: groupOnMismatchOnly === true });
  }

  /** What was written is where it is to stay before it is said that nothing writes any more. */
  async detach(id: string): Promise<void> {
    if (await this.#isMounted(id)) await run(findTool("sync") ?? "sync", ["--file-system", this.path(id)]);
  }

  attached(): Promise<string[]> {
    return Promise.resolve([]);
  }

  path(id: string): string {
    return join(this.#folder, id);
  }

  device(id: string): Promise<string> {
    return Promise.reject(new HostError(`volume ${id} is a file system, and no device`));
  }

  /** The file system that it is on may be larger than what it may have of it. */
  async sample({ volume: { id, size_bytes } }: VolumeRecord): Promise<VolumeSample> {
    const path = this.path(id);
    const used_bytes = await this.#meter.bytes(path);
    const { bavail, bsize } = await statfs(path);
    return {
      used_bytes,
      capacity_bytes: size_bytes,
      available_bytes: Math.max(0, Math.min(bavail * bsize, size_bytes - used_bytes)),
      inodes_used: await this.#meter.inodes(path),
    };
  }

  async #isMounted(id: string): Promise<boolean> {
    const path = this.path(id);
    return (await mountPoints()).some((each) => each.path === path);
  }

  /** @throws ProviderError unavailable */
  async #assertMounted(id: string): Promise<void> {
    if (!(await this.#isMounted(id)))
      throw new ProviderError("unavailable", `volume ${id} is not mounted at ${this.path(id)}: nobody has given it`);
  }
}
