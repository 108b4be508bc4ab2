/**
 * Where CSI drivers stage volumes on this host, before machines have them (NodeStageVolume), as a kubelet lays it out:
 *
 *     ROOT/plugins/kubernetes.io/csi/DRIVER/SHA256/vol_data.json   whose it is
 *     ROOT/plugins/kubernetes.io/csi/DRIVER/SHA256/globalmount     where the driver stages
 *
 * Who has it staged is not kept here: the machines' records say it.
 */
import { existsSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import { stagingPath } from "../csi-volumes.ts";
import { makeFolder, writeJson } from "../host/files.ts";
import { DATA, foldersIn, readData, removeEmpty } from "./csi-folders.ts";
import type { CsiPlugin } from "./csi-plugin.ts";

/** A volume that outlives machines, by its driver and the driver's id. */
export interface VolumeKey {
  driver: string;
  volume: string;
}

/** A kubelet's own have no such key. */
const MARK = { vmletStaged: "true" };

export const keyOf = ({ driver, volume }: VolumeKey): string => `${driver}^${volume}`;

export class CsiStaging {
  /** By key: those of which a driver has said to this process that they are staged. */
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
    const path = join(root, stagingPath(key.driver, key.volume));
    if (this.#staged.has(`${root} ${keyOf(key)}`)) return path;
    makeFolder(path, 0o750);
    const data = { driverName: key.driver, volumeHandle: key.volume, ...MARK };
    writeJson(join(dirname(path), DATA), data, { flush: true });
    await ask(path);
    this.#staged.add(`${root} ${keyOf(key)}`);
    return path;
  }

  /** Nobody has it any more. @throws what the driver says; it is to be asked again */
  async unstage(key: VolumeKey, root: string, plugin: () => CsiPlugin, signal: AbortSignal): Promise<void> {
    const path = join(root, stagingPath(key.driver, key.volume));
    const folder = dirname(path);
    if (!existsSync(folder)) return;
    this.#staged.delete(`${root} ${keyOf(key)}`);
    const api = plugin();
    if ((await api.capabilities(signal)).has(Rpc.STAGE_UNSTAGE_VOLUME))
      await api.unstage({ volumeId: key.volume, stagingTargetPath: path }, signal);
    removeEmpty(path);
    rmSync(join(folder, DATA), { force: true });
    removeEmpty(folder);
  }

  /** All that drivers may have staged. */
  known(root: string): VolumeKey[] {
    const all = join(root, "plugins/kubernetes.io/csi");
    return foldersIn(all).flatMap((driver) =>
      foldersIn(join(all, driver)).flatMap((hash) => {
        const { driverName, volumeHandle, vmletStaged } = readData(join(all, driver, hash));
        const isOurs = driverName === driver && volumeHandle !== undefined && vmletStaged === MARK.vmletStaged;
        return isOurs ? [{ driver, volume: volumeHandle }] : [];
      }),
    );
  }
}
