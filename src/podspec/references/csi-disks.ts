/**
 * PersistentVolumes of CSI drivers of others whose node plugins run on the backend's host: from the volume, its
 * driver's CSIDriver and its VolumeAttachment to what the machine's driver is told, as a kubelet does it
 * (pkg/volume/csi). Their Secrets are read by name, when a pod is to be made, and kept nowhere.
 */
import type { PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment } from "../../kube/wire.ts";
import { Quantity } from "../../resources/quantity.ts";
import { failure, type Result, success } from "../../util/result.ts";
import type { Capability } from "../../provider/capabilities.ts";
import type { PodVolume } from "../pod-volumes.ts";
import type { DiskLookup } from "../types.ts";
import { type CsiDrivers, type DriverSpec, podInfo, some } from "./csi-driver.ts";

type VolumeSpec = NonNullable<PersistentVolume["spec"]>;
type CsiSource = NonNullable<VolumeSpec["csi"]>;
type SecretRef = CsiSource["nodeStageSecretRef"];
type Found = Extract<DiskLookup, { kind: "found" }>;
type Persistent = NonNullable<Extract<Found["disk"], { type: "csi" }>["persistent"]>;

/** A volume that is bound to a pod's claim. */
export interface BoundVolume {
  name: string;
  spec: VolumeSpec;
  csi: CsiSource;
  claim: PersistentVolumeClaim;
  /** The pod's own. */
  volume: PodVolume;
}

const MODES: Readonly<Record<string, Persistent["access_mode"]>> = {
  ReadWriteOnce: "read_write_once",
  ReadWriteOncePod: "read_write_once_pod",
  ReadOnlyMany: "read_only_many",
  ReadWriteMany: "read_write_many",
};

const NO_TOKENS = success({ tokens: [], attributes: {}, secrets: {} });

/** What a kubelet says first of the two steps (operationexecutor: GenerateMountVolumeFunc, GenerateMapVolumeFunc). */
const STEPS = {
  Filesystem: { stage: "MountVolume.MountDevice", publish: "MountVolume.SetUp" },
  Block: { stage: "MapVolume.SetUpDevice", publish: "MapVolume.MapPodDevice" },
} as const;

const isBlock = ({ volumeMode }: VolumeSpec): boolean => volumeMode === "Block";

function failed(step: "stage" | "publish", { name, spec }: Pick<BoundVolume, "name" | "spec">, why: string) {
  const words = STEPS[isBlock(spec) ? "Block" : "Filesystem"][step];
  return failure(why === "" ? "" : `${words} failed for volume "${name}" : ${why}`);
}

/** Whether the backend can do it. */
type Offers = (capability: Extract<Capability, "volumes.csi_block">, pod: Pod) => boolean;

export class CsiDisks {
  readonly #drivers: CsiDrivers;
  readonly #offers: Offers;

  constructor(drivers: CsiDrivers, offers: Offers) {
    this.#drivers = drivers;
    this.#offers = offers;
  }

  /** Not ok with the whole of what a kubelet says, or with an empty text: nothing is wrong yet. */
  async driver(pod: Pod, bound: BoundVolume, signal: AbortSignal): Promise<Result<DriverSpec>> {
    const { csi, spec } = bound;
    if (isBlock(spec) && !this.#offers("volumes.csi_block", pod))
      return failed(
        "publish",
        bound,
        `it has volumeMode Block, and this node gives machines volumes of the CSI driver ${csi.driver} as file systems alone (its backend lacks the capability volumes.csi_block)`,
      );
    const found = await this.#drivers.find(pod, csi.driver, "Persistent", signal);
    return found.ok ? found : failed("publish", bound, found.message);
  }

  /**
   * All that the driver is told, once the volume is attached.
   * @param attachment undefined where nobody attaches it
   */
  async disk(
    pod: Pod,
    bound: BoundVolume,
    { driver, attachment }: { driver: DriverSpec; attachment: VolumeAttachment | undefined },
    signal: AbortSignal,
  ): Promise<Result<Found>> {
    const { csi } = bound;
    const stage = await this.#secret(pod, "NodeStageSecretRef", csi.nodeStageSecretRef, signal);
    if (!stage.ok) return failed("stage", bound, stage.message);
    const publish = await this.#secret(pod, "NodePublishSecretRef", csi.nodePublishSecretRef, signal);
    if (!publish.ok) return failed("publish", bound, publish.message);
    const size = grownTo(bound);
    const expandRef = size === undefined ? undefined : csi.nodeExpandSecretRef;
    const expand = await this.#secret(pod, "NodeExpandSecretRef", expandRef, signal);
    if (!expand.ok) return failed("publish", bound, expand.message);
    // kubelet: csi_block, publishVolumeForBlock tells of no tokens.
    const tokens = isBlock(bound.spec) ? NO_TOKENS : await this.#drivers.tokens(pod, driver, signal);
    if (!tokens.ok) return failed("publish", bound, tokens.message);
    return success({
      kind: "found",
      secrets: [...[stage, publish, expand].flatMap(({ value }) => Object.values(value)), ...tokens.value.tokens],
      isStale: driver.requiresRepublish === true,
      disk: {
        ...mountOf(driver, bound),
        ...some("secrets", { ...publish.value, ...tokens.value.secrets }),
        ...some("secret_attributes", tokens.value.attributes),
        persistent: {
          ...persistentOf(bound),
          ...some("publish_context", attachment?.status?.attachmentMetadata ?? {}),
          ...some("publish_attributes", podInfo(driver, pod, "Persistent")),
          ...some("stage_secrets", stage.value),
          ...some("expand_secrets", expand.value),
          ...(size !== undefined && { size_bytes: size }),
        },
      },
    });
  }

  async #secret(pod: Pod, what: string, ref: SecretRef, signal: AbortSignal): Promise<Result<Record<string, string>>> {
    if (ref === undefined) return success({});
    return await this.#drivers.secret(pod, { what, namespace: ref.namespace, name: ref.name }, signal);
  }
}

function mountOf(driver: DriverSpec, { spec, csi, volume }: BoundVolume) {
  const isReadOnly = volume.persistentVolumeClaim?.readOnly === true || csi.readOnly === true;
  return {
    type: "csi" as const,
    driver: csi.driver,
    ...(csi.fsType && !isBlock(spec) && { fs_type: csi.fsType }),
    ...(isReadOnly && { read_only: true }),
    ...some("attributes", csi.volumeAttributes ?? {}),
    ...(!isBlock(spec) && isGroupApplied(driver, spec, isReadOnly) && { apply_group: true }),
  };
}

function persistentOf({ name, spec, csi }: BoundVolume): Persistent {
  const { accessModes = [], mountOptions = [] } = spec;
  return {
    volume: csi.volumeHandle,
    pv: name,
    // A kubelet takes the first, too.
    access_mode: MODES[accessModes[0] ?? ""] ?? "read_write_once",
    ...(isBlock(spec) && { mode: "block" }),
    // kubelet: csi_block tells of none, for nothing is mounted.
    ...(mountOptions.length > 0 && !isBlock(spec) && { mount_options: [...mountOptions] }),
  };
}

/** The volume's size, when its file system may not have grown to it: the claim does not say so. */
function grownTo({ spec, claim }: Pick<BoundVolume, "spec" | "claim">): number | undefined {
  const [now, told] = [spec.capacity?.["storage"], claim.status?.capacity?.["storage"]].map(
    (size) => size && Quantity.parse(size),
  );
  return now && told && told.compare(now) < 0 ? now.toNumber() : undefined;
}

/** kubelet: supportsFSGroup. */
function isGroupApplied(
  { fsGroupPolicy }: DriverSpec,
  { csi, accessModes = [] }: VolumeSpec,
  isReadOnly: boolean,
): boolean {
  if (fsGroupPolicy === "None" || isReadOnly) return false;
  if (fsGroupPolicy === "File") return true;
  return Boolean(csi?.fsType) && accessModes.some((mode) => mode === "ReadWriteOnce" || mode === "ReadWriteOncePod");
}
