/** What CSI drivers are asked about a machine's volumes, as a kubelet asks it (pkg/volume/csi): pure. */
import type { MachineSpec } from "../../../src/provider/kit/index.ts";
import {
  NodeServiceCapability_RPC_Type as Rpc,
  VolumeCapability_AccessMode_Mode as Mode,
} from "../../../src/csi/api.gen.js";
import type { CsiVolume } from "../csi-volumes.ts";
import type { CsiPlugin } from "./csi-plugin.ts";

type Persistent = NonNullable<CsiVolume["persistent"]>;
type PublishRequest = Parameters<CsiPlugin["publish"]>[0];

/** Where it is, and by which id. */
interface Place {
  volumeId: string;
  targetPath: string;
  /** Empty: it is not staged. */
  stagingTargetPath: string;
}

interface Wish {
  volume: CsiVolume;
  /** What the driver can. */
  can: ReadonlySet<Rpc>;
  /** Of the machine. */
  security: MachineSpec["security"];
}

/** The group that the driver is to give the files to; empty: it cannot, or need not. */
export function driversGroup({ can, security }: Pick<Wish, "can" | "security">): string {
  const group = security?.fs_group;
  return group !== undefined && can.has(Rpc.VOLUME_MOUNT_GROUP) ? String(group) : "";
}

export function stageRequest(
  persistent: Persistent,
  wish: Wish,
  { volumeId, stagingTargetPath }: Pick<Place, "volumeId" | "stagingTargetPath">,
): Parameters<CsiPlugin["stage"]>[0] {
  return {
    volumeId,
    stagingTargetPath,
    publishContext: persistent.publish_context ?? {},
    secrets: persistent.stage_secrets ?? {},
    volumeContext: wish.volume.attributes ?? {},
    volumeCapability: capabilityOf(wish),
  };
}

export function publishRequest(wish: Wish, { volumeId, targetPath, stagingTargetPath }: Place): PublishRequest {
  const { attributes, secret_attributes, secrets = {}, read_only, persistent } = wish.volume;
  return {
    volumeId,
    targetPath,
    stagingTargetPath,
    publishContext: persistent?.publish_context ?? {},
    readonly: read_only === true,
    secrets,
    volumeContext: { ...attributes, ...persistent?.publish_attributes, ...secret_attributes },
    volumeCapability: capabilityOf(wish),
  };
}

export function expandRequest(
  { size_bytes = 0, expand_secrets }: Pick<Persistent, "size_bytes" | "expand_secrets">,
  wish: Wish,
  { volumeId, targetPath, stagingTargetPath }: Place,
): Parameters<CsiPlugin["expand"]>[0] {
  return {
    volumeId,
    volumePath: targetPath,
    stagingTargetPath,
    capacityRange: { requiredBytes: BigInt(size_bytes) },
    volumeCapability: capabilityOf({ ...wish, security: undefined }),
    secrets: expand_secrets ?? {},
  };
}

function capabilityOf(wish: Wish): NonNullable<PublishRequest["volumeCapability"]> {
  const { fs_type = "", persistent } = wish.volume;
  const mountFlags = persistent?.mount_options ?? [];
  return {
    // kubelet: csi_client, whose fsTypeBlockName stands for no file system at all.
    accessType:
      persistent?.mode === "block"
        ? { case: "block", value: {} }
        : { case: "mount", value: { fsType: fs_type, mountFlags, volumeMountGroup: driversGroup(wish) } },
    accessMode: { mode: modeOf(persistent?.access_mode ?? "read_write_once", wish.can) },
  };
}

/** kubelet: asCSIAccessModeV1 and asSingleNodeMultiWriterCapableCSIAccessModeV1. */
function modeOf(mode: Persistent["access_mode"], can: ReadonlySet<Rpc>): Mode {
  const knowsWriters = can.has(Rpc.SINGLE_NODE_MULTI_WRITER);
  switch (mode) {
    case "read_write_once":
      return knowsWriters ? Mode.SINGLE_NODE_MULTI_WRITER : Mode.SINGLE_NODE_WRITER;
    case "read_write_once_pod":
      return knowsWriters ? Mode.SINGLE_NODE_SINGLE_WRITER : Mode.SINGLE_NODE_WRITER;
    case "read_only_many":
      return Mode.MULTI_NODE_READER_ONLY;
    case "read_write_many":
      return Mode.MULTI_NODE_MULTI_WRITER;
  }
}
