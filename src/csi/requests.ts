/** What CSI's requests ask of a volume, in the Machine API's words. */
import { Code, ConnectError } from "@connectrpc/connect";
import { ZONE_KEY } from "../provider/csi-names.ts";
import { clusterPrefix, LABEL_CLUSTER, LABEL_NAMESPACE } from "../provider/owner.ts";
import type { ProviderInfo } from "../provider/provider.ts";
import type { PersistentVolumeSpec, VolumeClass, VolumeMode } from "../provider/volume.ts";
import {
  type CapacityRange,
  type CreateVolumeRequest,
  type TopologyRequirement,
  type VolumeCapability,
  VolumeCapability_AccessMode_Mode as Mode,
} from "./api.gen.js";
import { invalid } from "./errors.ts";

/** Of a StorageClass, besides what the provisioner adds. */
const CLASS_PARAMETER = "class";
const PROVISIONER_PREFIX = "csi.storage.k8s.io/";
const DEFAULT_BYTES = 2 ** 30;
/** Of a volume that is a snapshot: the volume that it was made of. */
export const LABEL_SNAPSHOT = "vmlet.dev/snapshot-of";
/** Of a pod's claim, when the provisioner says it (`--extra-create-metadata`). */
const LABEL_CLAIM = "vmlet.dev/claim";

/**
 * @param source the volume that it is to begin as a copy of
 * @throws ConnectError
 */
export function specOf(
  clusterId: string,
  info: ProviderInfo,
  request: CreateVolumeRequest,
  source?: { id: string; size_bytes: number },
): PersistentVolumeSpec {
  const { parameters, volumeCapabilities, capacityRange, accessibilityRequirements } = request;
  if (request.name === "") throw invalid("the name is missing");
  if (volumeCapabilities.length === 0) throw invalid("the volume's capabilities are missing");
  for (const name of Object.keys(parameters))
    if (name !== CLASS_PARAMETER && !name.startsWith(PROVISIONER_PREFIX))
      throw invalid(`there is no parameter ${JSON.stringify(name)}: a StorageClass may have "${CLASS_PARAMETER}"`);
  if (Object.keys(request.mutableParameters).length > 0) throw invalid("there are no mutable parameters");
  const named = parameters[CLASS_PARAMETER];
  const mode = modeOf(volumeCapabilities);
  const unmet = unmetCapability(volumeCapabilities, info, { mode, class: named });
  if (unmet !== undefined) throw invalid(unmet);
  const fsType = fsTypeOf(volumeCapabilities);
  const zone = zoneOf(info, accessibilityRequirements);
  const claim = parameters[`${PROVISIONER_PREFIX}pvc/name`];
  const namespace = parameters[`${PROVISIONER_PREFIX}pvc/namespace`];
  return {
    labels: {
      [LABEL_CLUSTER]: clusterPrefix(clusterId),
      ...(namespace !== undefined && { [LABEL_NAMESPACE]: namespace }),
      ...(claim !== undefined && { [LABEL_CLAIM]: claim }),
    },
    size_bytes: source === undefined ? bytesOf(capacityRange) : copyBytesOf(capacityRange, source.size_bytes),
    mode,
    ...(fsType !== undefined && { fs_type: fsType }),
    ...(named !== undefined && { class: named }),
    ...(zone !== undefined && { zone }),
    ...(source !== undefined && { source: { volume: source.id } }),
  };
}

/** A copy has at least what its source has: who asks for less asks for no more than that. @throws ConnectError */
function copyBytesOf(range: CapacityRange | undefined, sourceBytes: number): number {
  const limit = Number(range?.limitBytes ?? 0);
  const bytes = Math.max(sourceBytes, Number(range?.requiredBytes ?? 0) > 0 ? bytesOf(range) : 0);
  if (limit > 0 && limit < bytes)
    throw new ConnectError(`a copy has at least the ${sourceBytes} bytes of its source`, Code.OutOfRange);
  return bytes;
}

/** What is asked for, or what fits a limit. @throws ConnectError */
export function bytesOf(range: CapacityRange | undefined): number {
  const required = Number(range?.requiredBytes ?? 0);
  const limit = Number(range?.limitBytes ?? 0);
  if (required < 0 || limit < 0) throw invalid("sizes are not negative");
  if (limit > 0 && limit < required)
    throw new ConnectError(`at least ${required} bytes are required, and at most ${limit} allowed`, Code.OutOfRange);
  if (required > Number.MAX_SAFE_INTEGER) throw new ConnectError(`no volume has ${required} bytes`, Code.OutOfRange);
  if (required > 0) return required;
  return limit > 0 ? Math.min(limit, DEFAULT_BYTES) : DEFAULT_BYTES;
}

/** @throws ConnectError when some ask for a device and others for a file system */
function modeOf(capabilities: readonly VolumeCapability[]): VolumeMode {
  const modes = new Set(capabilities.map(({ accessType }) => accessType.case));
  if (modes.has(undefined)) throw invalid("a capability says neither block nor mount");
  if (modes.size > 1) throw invalid("a volume is a block device or a file system, and not both");
  return modes.has("block") ? "block" : "filesystem";
}

function fsTypeOf(capabilities: readonly VolumeCapability[]): string | undefined {
  const types = new Set(
    capabilities.flatMap(({ accessType }) => (accessType.case === "mount" ? accessType.value.fsType : [])),
  );
  types.delete("");
  if (types.size > 1) throw invalid(`a volume has one file system, not ${[...types].join(" and ")}`);
  return [...types][0];
}

const ONE_NODE: ReadonlySet<Mode> = new Set([
  Mode.SINGLE_NODE_WRITER,
  Mode.SINGLE_NODE_READER_ONLY,
  Mode.SINGLE_NODE_SINGLE_WRITER,
  Mode.SINGLE_NODE_MULTI_WRITER,
]);

/** Whether a volume is asked for that one node alone has, be its class shared or not. */
export const isForOneNode = ({ accessMode }: VolumeCapability): boolean =>
  accessMode !== undefined && ONE_NODE.has(accessMode.mode);

/** Whether the backend keeps a volume for one node also where its class is shared. */
export const canExclude = ({ capabilities }: ProviderInfo): boolean => capabilities.includes("volumes.exclusive");

/**
 * Why a volume cannot be what is asked of it; undefined when it can.
 *
 * @throws ConnectError for a class that the backend does not have
 */
export function unmetCapability(
  capabilities: readonly VolumeCapability[],
  info: ProviderInfo,
  { mode, class: named }: { mode: VolumeMode; class?: string | undefined },
): string | undefined {
  const sharing = sharingOf(info, named);
  for (const { accessMode, accessType } of capabilities) {
    const asked = accessType.case === "block" ? "block" : "filesystem";
    if (asked !== mode) return `the volume is of mode ${mode}, not ${asked}`;
    const access = accessMode?.mode ?? Mode.UNKNOWN;
    if (access === Mode.UNKNOWN) return "an access mode is missing";
    if (ONE_NODE.has(access) && sharing !== "one" && !canExclude(info))
      return `the backend shares volumes of this class, and keeps none for one node alone (volumes.exclusive), as ${Mode[access]} asks`;
    if (ONE_NODE.has(access) || sharing === "writers") continue;
    if (access === Mode.MULTI_NODE_READER_ONLY && sharing === "readers") continue;
    return `volumes of this class cannot be had in the access mode ${Mode[access]}`;
  }
  return undefined;
}

/** @throws ConnectError */
function sharingOf({ volumeClasses = [] }: ProviderInfo, named: string | undefined): VolumeClass["sharing"] {
  if (named === undefined) return volumeClasses[0]?.sharing ?? "one";
  const found = volumeClasses.find(({ name }) => name === named);
  if (found !== undefined) return found.sharing;
  throw invalid(
    `there is no class ${JSON.stringify(named)} (there is ${volumeClasses.map(({ name }) => name).join(", ") || "none"})`,
  );
}

/** @throws ConnectError when the volume has to be where this backend has none */
function zoneOf({ zone }: ProviderInfo, requirement: TopologyRequirement | undefined): string | undefined {
  const topologies = [...(requirement?.preferred ?? []), ...(requirement?.requisite ?? [])];
  const zones = topologies.flatMap(({ segments }) => segments[ZONE_KEY] ?? []);
  if (zones.length === 0 || (zone !== undefined && zones.includes(zone))) return zone;
  throw new ConnectError(`volumes are in zone ${zone ?? "(none)"}, not in ${zones.join(", ")}`, Code.ResourceExhausted);
}
