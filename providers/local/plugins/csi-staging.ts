/**
 * Where CSI drivers stage volumes on this host, before machines have them (NodeStageVolume), as a kubelet lays it out:
 *
 *     ROOT/plugins/kubernetes.io/csi/DRIVER/SHA256/vol_data.json   whose it is
 *     ROOT/plugins/kubernetes.io/csi/DRIVER/SHA256/globalmount     where the driver stages
 *
 * and of those that machines have as block devices:
 *
 *     ROOT/plugins/kubernetes.io/csi/volumeDevices/SHA256/data/vol_data.json
 *     ROOT/plugins/kubernetes.io/csi/volumeDevices/staging/SHA256
 *
 * Who has it staged is not kept here: the machines' records say it.
 */
import { existsSync, readdirSync, rmSync, unlinkSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import { DEVICES, stagingPlace, type VolumeKey } from "../csi-volumes.ts";
import { makeFolder, writeJson } from "../host/files.ts";
import { DATA, foldersIn, readData, removeEmpty } from "./csi-folders.ts";
import type { CsiPlugin } from "./csi-plugin.ts";

/** A kubelet's own have no such key. */
const MARK = { vmletStaged: "true" };

/** In both of its modes it is one volume. */
export const keyOf = ({ driver, volume }: Pick<VolumeKey, "driver" | "volume">): string => `${driver}^${volume}`;

export class CsiStaging {
  /** By place: those of which a driver has said to this process that they are staged. */
  readonly #staged = new Set<string>();

  /**
   * @param root the folder that plugins know
   * @returns where it is staged; undefined: this driver stages none
   */
  async stage(
    key: VolumeKey,
    { root, can }: { root: string; can: ReadonlySet<Rpc> },
    ask: (path: string) => Promise<void>,
  ): Promise<string | undefined> {
    if (!can.has(Rpc.STAGE_UNSTAGE_VOLUME)) return undefined;
    const { path, note } = placeOf(key, root);
    if (this.#staged.has(path)) return path;
    makeFolder(note, 0o750);
    const data = { driverName: key.driver, volumeHandle: key.volume, ...MARK };
    writeJson(join(note, DATA), data, { flush: true });
    makeFolder(path, 0o750);
    await ask(path);
    this.#staged.add(path);
    return path;
  }

  /** Its driver may have it staged. */
  has(key: VolumeKey, root: string): boolean {
    return existsSync(join(placeOf(key, root).note, DATA));
  }

  /** Nobody has it any more. @throws what the driver says; it is to be asked again */
  async unstage(key: VolumeKey, root: string, plugin: () => CsiPlugin, signal: AbortSignal): Promise<void> {
    const { path, note } = placeOf(key, root);
    if (!existsSync(note)) return;
    this.#staged.delete(path);
    const api = plugin();
    if ((await api.capabilities(signal)).has(Rpc.STAGE_UNSTAGE_VOLUME))
      await api.unstage({ volumeId: key.volume, stagingTargetPath: path }, signal);
    if (key.isBlock) clearFiles(path);
    removeEmpty(path);
    rmSync(join(note, DATA), { force: true });
    removeEmpty(note);
    if (key.isBlock) removeEmpty(dirname(note));
  }

  /** All that drivers may have staged. */
  known(root: string): VolumeKey[] {
    const all = join(root, "plugins/kubernetes.io/csi");
    const mounts = foldersIn(all).flatMap((driver) => foldersIn(join(all, driver)).map((each) => join(driver, each)));
    const devices = foldersIn(join(root, DEVICES)).map((each) => join(basename(DEVICES), each, "data"));
    return [...mounts, ...devices].flatMap((folder, index) => {
      const { driverName: driver, volumeHandle: volume, vmletStaged } = readData(join(all, folder));
      if (driver === undefined || volume === undefined || vmletStaged !== MARK.vmletStaged) return [];
      const key = { driver, volume, isBlock: index >= mounts.length };
      return placeOf(key, root).note === join(all, folder) ? [key] : [];
    });
  }
}

function placeOf(key: VolumeKey, root: string): { path: string; note: string } {
  const { path, note } = stagingPlace(key);
  return { path: join(root, path), note: join(root, note) };
}

/**
 * What the driver has left of its own where a device was staged, as a kubelet removes it (csi_block: RemoveAll), but no
 * folder, in which something may be mounted.
 */
function clearFiles(path: string): void {
  for (const entry of existsSync(path) ? readdirSync(path, { withFileTypes: true }) : [])
    if (!entry.isDirectory()) unlinkSync(join(path, entry.name));
}
