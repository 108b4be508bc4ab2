/**
 * A CSI driver lets a volume grow while a machine has it (NodeExpandVolume), as for a kubelet (csi/expander.go,
 * operationexecutor: GenerateExpandInUseVolumeFunc). Nothing is written down before: asked again, it does no harm.
 */
import { join } from "node:path";
import { ProviderError } from "../../../src/provider/kit/index.ts";
import { NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import {
  type CsiGrowth,
  type CsiHolder,
  type CsiVolume,
  csiVolumes,
  isDevice,
  type PublishedVolume,
  stagingPlace,
} from "../csi-volumes.ts";
import type { BlockDevices } from "./csi-devices.ts";
import { assertMounted } from "./csi-folders.ts";
import type { CsiPlugin } from "./csi-plugin.ts";
import { expandRequest } from "./csi-requests.ts";

interface Surroundings {
  /** @throws Error for a driver that is not there */
  drivers: { plugin(driver: string): CsiPlugin };
  devices: BlockDevices;
  /** The folder that plugins know. */
  root: string;
  /** Of this process: no call is broken off before. */
  signal: AbortSignal;
}

interface Growing {
  /** With the size that it is to have, and the secrets for that. */
  volume: CsiVolume & Required<Pick<CsiVolume, "persistent">>;
  at: PublishedVolume;
}

/** @throws ProviderError conflict when the machine does not have it, or may not write to it */
export function growingVolume({ id, spec, published }: CsiHolder, { driver, volume, ...growth }: CsiGrowth): Growing {
  // A claim may be named twice, by one of them to be read alone.
  const isWritable = (each: CsiVolume) => each.driver === driver && each.read_only !== true;
  const own = csiVolumes(spec).find((each) => isWritable(each) && each.persistent?.volume === volume);
  const at = own && published?.[own.name];
  if (own?.persistent !== undefined && at !== undefined)
    return { volume: { ...own, persistent: { ...own.persistent, ...growth } }, at };
  const why = `machine ${id} has no volume ${volume} of the CSI driver ${driver} that may grow`;
  throw new ProviderError("conflict", why, { field: "csi_volumes.volume" });
}

/** In the volume's turn. @throws ProviderError, and Error of the driver or the system */
export async function growVolume(
  holder: CsiHolder,
  growth: CsiGrowth,
  { drivers, devices, signal, ...known }: Surroundings,
): Promise<void> {
  const { volume, at } = growingVolume(holder, growth);
  const { driver, persistent } = volume;
  const { root = known.root, path } = at;
  const targetPath = join(root, path);
  const plugin = drivers.plugin(driver);
  const can = await plugin.capabilities(signal);
  if (!can.has(Rpc.EXPAND_VOLUME))
    throw new ProviderError("unsupported", `NodeExpand is not supported by the CSI driver ${driver}`, {
      field: "csi_volumes",
    });
  // Before it is there, no driver could let it grow.
  if (isDevice(at)) devices.numbers(targetPath);
  else assertMounted(targetPath, root);
  const staged = stagingPlace({ driver, volume: persistent.volume, isBlock: isDevice(at) }).path;
  const stagingTargetPath = can.has(Rpc.STAGE_UNSTAGE_VOLUME) ? join(root, staged) : "";
  const place = { volumeId: persistent.volume, targetPath, stagingTargetPath };
  const wish = { volume, can, security: holder.spec.security };
  await plugin.expand(expandRequest(persistent, wish, place), signal);
  holder.showSize({ driver, volume: persistent.volume }, growth.size_bytes);
}
