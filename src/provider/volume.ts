/**
 * Volumes that outlive machines, as every provider and the Machine API describe them. contract/openapi.yaml says what
 * each field means.
 */
import type { Schemas } from "./contract/document.ts";
import { ProviderError } from "./errors.ts";
import type { Machine, MachineSpec, Volume } from "./machine.ts";
import type { CallOptions } from "./provider.ts";

export type VolumeClass = Schemas["VolumeClass"];
export type VolumeMode = Schemas["VolumeMode"];
export type PersistentVolumeSpec = Schemas["PersistentVolumeSpec"];
export type PersistentVolume = Schemas["PersistentVolume"];
export type VolumeAttachment = Schemas["VolumeAttachment"];
export type VolumeReservation = Schemas["VolumeReservation"];
export type VolumeCapacity = Schemas["VolumeCapacity"];
/** A machine's claim of a volume. */
export type VolumeClaim = Extract<Volume, { type: "persistent" }>;

/** A volume of which its backend said nothing that can be believed: it exists, and that is all that is known. */
export interface UnknownVolume {
  id: string;
  /** What is wrong with the description, for people. */
  reason: string;
}

export interface ReservationOptions {
  readOnly?: boolean | undefined;
  exclusive?: boolean | undefined;
}

export interface PersistentVolumeList {
  items: PersistentVolume[];
  /** Absent: none. */
  unknown?: UnknownVolume[];
}

/**
 * Capability `volumes.persistent`. What every provider must keep (the conformance kit checks it):
 *
 * - `create` with the same id and specification, any number of times and concurrently, makes one volume.
 * - Only `not_found` means absent, and a deleted id is never used again.
 * - `createPod` claims all volumes that the machine names, or none of them and fails. A claim ends when nothing of the
 *   machine can write to the volume any more, and never because somebody else asks for it.
 * - What was written to a volume is there for the next machine, whatever became of the one before.
 */
export interface VolumeProvider {
  /**
   * Idempotent. Resolves when the volume is there, or is certain to come (`creating`).
   * @throws ProviderError invalid, unsupported, conflict, gone, quota, out_of_zone, rate_limited, unauthorized,
   *   unavailable
   */
  create(id: string, spec: PersistentVolumeSpec, options: CallOptions): Promise<PersistentVolume>;
  /**
   * A tombstone is found with state `deleted`.
   * @throws ProviderError not_found when absent, unavailable when unknown
   */
  get(id: string, options: CallOptions): Promise<PersistentVolume>;
  /** All volumes that carry every one of `labels`. */
  list(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined },
  ): Promise<PersistentVolumeList>;
  /**
   * It has at least so many bytes afterwards; what is not more than it has changes nothing.
   * @throws ProviderError not_found, gone, quota, in_use where it cannot grow while a machine has it, unavailable
   */
  resize(id: string, sizeBytes: number, options: CallOptions): Promise<PersistentVolume>;
  /** Idempotent, leaves a tombstone. @throws ProviderError in_use, unavailable */
  delete(id: string, options: CallOptions): Promise<void>;
  /**
   * Keeps it for machines that name the reservation; with `exclusive` (capability `volumes.exclusive`) for these alone,
   * whatever its class lets be shared. Idempotent.
   * @throws ProviderError not_found, gone, conflict, in_use, unavailable
   */
  reserve(id: string, name: string, options: CallOptions & ReservationOptions): Promise<PersistentVolume>;
  /**
   * Idempotent. With `force` (capability `volumes.force_release`) machines that have the volume by it are stopped at
   * once; it is released when nothing of them can write, and not before, all the same.
   * @throws ProviderError in_use while a machine has the volume by it, unavailable
   */
  release(id: string, name: string, options: CallOptions & { force?: boolean | undefined }): Promise<void>;
  getCapacity(
    options: CallOptions & { class?: string | undefined; zone?: string | undefined },
  ): Promise<VolumeCapacity>;
}

/** The volumes that a machine claims, each with its place in the specification. */
export function volumeClaims({ volumes = [] }: Pick<MachineSpec, "volumes">): { claim: VolumeClaim; field: string }[] {
  return volumes.flatMap((claim, index) =>
    claim.type === "persistent" ? [{ claim, field: `volumes.${index}.volume` }] : [],
  );
}

/**
 * The volumes of CSI drivers of others that outlive the machine, each once: what it tells of as `csi_volumes` until it
 * is over.
 */
export function outlivingCsiVolumes({
  volumes = [],
}: Pick<MachineSpec, "volumes">): NonNullable<Machine["csi_volumes"]> {
  const outliving = volumes.flatMap((each) =>
    each.type === "csi" && each.persistent ? [{ driver: each.driver, volume: each.persistent.volume }] : [],
  );
  return [...new Map(outliving.map((each) => [JSON.stringify(each), each])).values()];
}

/** Says that there certainly is no such volume. */
export function noSuchVolume(id: string): ProviderError {
  return new ProviderError("not_found", `there is no volume ${id}`);
}
