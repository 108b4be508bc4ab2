/**
 * Which volumes there can be, and who may have one: the rules alone, for a provider that keeps the records. What they
 * are asked about is what is known at that instant; that it still holds when something is written is for the caller to
 * see to.
 */
import { ProviderError } from "./errors.ts";
import type { MachineSpec } from "./machine.ts";
import type {
  PersistentVolume,
  PersistentVolumeSpec,
  VolumeAttachment,
  VolumeClass,
  VolumeClaim,
  VolumeReservation,
} from "./volume.ts";

/** What volumes a backend has. */
export interface VolumeOffer {
  /** The first is that of volumes which name none. Absent: one without a name, whose volumes have one machine each. */
  readonly classes?: readonly VolumeClass[] | undefined;
  /** File systems that a volume may ask for. */
  readonly fsTypes: readonly string[];
  readonly zone?: string | undefined;
  readonly minimumBytes?: number | undefined;
  readonly maximumBytes?: number | undefined;
}

type KnownVolume = Omit<PersistentVolume, "attachments">;

const UNNAMED: VolumeClass = { name: "", sharing: "one" };

export const isGoneVolume = ({ state }: KnownVolume): boolean => state === "deleting" || state === "deleted";

/** @throws ProviderError invalid */
export function volumeClassOf(named: string | undefined, { classes = [] }: VolumeOffer): VolumeClass {
  const found = named === undefined ? (classes[0] ?? UNNAMED) : classes.find(({ name }) => name === named);
  if (found !== undefined) return found;
  const known = classes.map(({ name }) => name).join(", ");
  throw new ProviderError("invalid", `there is no class ${JSON.stringify(named)} (there is ${known || "none"})`, {
    field: "class",
  });
}

/** Whether a volume of this kind can be made at all. @throws ProviderError invalid, out_of_zone */
export function assertPossible(spec: PersistentVolumeSpec, offer: VolumeOffer): void {
  const { class: named, mode, fs_type, zone, size_bytes } = spec;
  const { modes = ["filesystem"] } = volumeClassOf(named, offer);
  const { fsTypes } = offer;
  if (!modes.includes(mode))
    throw new ProviderError("invalid", `volumes of this class are of mode ${modes.join(" or ")}, not ${mode}`, {
      field: "mode",
    });
  if (fs_type !== undefined && mode === "block")
    throw new ProviderError("invalid", "a block device has no file system", { field: "fs_type" });
  if (fs_type !== undefined && !fsTypes.includes(fs_type))
    throw new ProviderError("invalid", `there is no file system ${fs_type} (there is ${fsTypes.join(", ")})`, {
      field: "fs_type",
    });
  if (zone !== undefined && zone !== offer.zone)
    throw new ProviderError("out_of_zone", `no volumes are made in zone ${zone}`, { field: "zone" });
  assertSize(size_bytes, offer);
}

/** @throws ProviderError invalid */
export function assertSize(bytes: number, bounds: Pick<VolumeOffer, "minimumBytes" | "maximumBytes">): void {
  const { minimumBytes = 1, maximumBytes = Number.MAX_SAFE_INTEGER } = bounds;
  if (bytes >= minimumBytes && bytes <= maximumBytes) return;
  throw new ProviderError("invalid", `a volume has from ${minimumBytes} to ${maximumBytes} bytes, not ${bytes}`, {
    field: "size_bytes",
  });
}

/** @throws ProviderError invalid for what is no copy of this volume */
export function assertCopy({ mode, fs_type, size_bytes }: PersistentVolumeSpec, volume: KnownVolume): void {
  const fault = (field: string, what: string) =>
    new ProviderError("invalid", `volume ${volume.id}, which is to be copied, ${what}`, { field });
  if (mode !== volume.mode) throw fault("mode", `is of mode ${volume.mode}, not ${mode}`);
  if (fs_type !== undefined && fs_type !== volume.fs_type)
    throw fault("fs_type", `has the file system ${volume.fs_type ?? "(none)"}, not ${fs_type}`);
  if (size_bytes < volume.size_bytes)
    throw fault("size_bytes", `has ${volume.size_bytes} bytes, and its copy not fewer`);
}

/** @throws ProviderError invalid for a device that is mounted, or a file system that is shown as one */
export function assertMode(spec: MachineSpec, { name }: VolumeClaim, volume: KnownVolume, field: string): void {
  const containers = [...spec.containers, ...(spec.init_containers ?? []), ...(spec.ephemeral_containers ?? [])];
  const isMounted = containers.some(({ mounts = [] }) => mounts.some((each) => each.volume === name));
  const isDevice = containers.some(({ devices = [] }) => devices.some((each) => each.volume === name));
  if (volume.mode === "block" ? isMounted : isDevice)
    throw new ProviderError(
      "invalid",
      `volume ${volume.id} is of mode ${volume.mode}: ${isMounted ? "it cannot be mounted" : "it is no block device"}`,
      { field },
    );
}

/**
 * Whether a machine may have the volume.
 * @throws ProviderError in_use, out_of_zone, unavailable
 */
export function assertFree(
  claim: VolumeClaim,
  known: { volume: KnownVolume; attachments: readonly VolumeAttachment[]; offer: VolumeOffer; field: string },
): void {
  const { volume, attachments, offer, field } = known;
  const { id, state, zone, reservations, message } = volume;
  if (state !== "available")
    throw new ProviderError("unavailable", `volume ${id} is ${state}${message === undefined ? "" : `: ${message}`}`);
  // One that was made before the backend had a zone is where its backend is.
  if (zone !== undefined && zone !== offer.zone)
    throw new ProviderError("out_of_zone", `volume ${id} is in zone ${zone}, not here`, { field });
  const { reservation: named, read_only = false } = claim;
  const reservation = reservations.find(({ name }) => name === named);
  if (reservation === undefined && (reservations.length > 0 || named !== undefined)) {
    const whose = reservations.map(({ name }) => name).join(", ");
    const which = named === undefined ? "this machine names no reservation" : `not for ${named}`;
    throw new ProviderError(
      "in_use",
      `volume ${id} is ${whose === "" ? "not reserved" : `reserved for ${whose}`}, ${which}`,
      { field },
    );
  }
  if (reservation?.read_only === true && !read_only)
    throw new ProviderError("in_use", `volume ${id} is reserved for ${reservation.name} to be read only`, { field });
  const holder = attachments.find((each) => !mayShare(volume, [each, { read_only }], offer));
  if (holder !== undefined) throw heldBy(id, holder, field);
}

/**
 * The reservations of the volume with this one; undefined when it has it already.
 * @throws ProviderError conflict, in_use
 */
export function reservationsWith(
  wanted: VolumeReservation,
  known: { volume: KnownVolume; attachments: readonly VolumeAttachment[]; offer: VolumeOffer },
): VolumeReservation[] | undefined {
  const { volume, attachments, offer } = known;
  const { id } = volume;
  const { name, read_only, exclusive = false } = wanted;
  const own = volume.reservations.find((each) => each.name === name);
  if (own !== undefined && own.read_only !== read_only) {
    const as = own.read_only ? "read-only" : "to be written";
    throw new ProviderError("conflict", `volume ${id} is reserved for ${name} already, ${as}`);
  }
  // What is exclusive stays it: a call from before, which comes late, lets nobody else in.
  if (own !== undefined && (own.exclusive === true || !exclusive)) return undefined;
  const reservations = volume.reservations.filter((each) => each !== own);
  const other = reservations.find((each) => !mayShare(volume, [each, wanted], offer));
  if (other !== undefined) throw new ProviderError("in_use", `volume ${id} is reserved for ${other.name}`);
  const stranger = attachments.find((each) => each.reservation !== name && !mayShare(volume, [each, wanted], offer));
  if (stranger !== undefined) throw heldBy(id, stranger);
  return [...reservations, wanted];
}

function mayShare(
  { class: named }: KnownVolume,
  holders: readonly Pick<VolumeReservation, "read_only" | "exclusive">[],
  { classes }: VolumeOffer,
): boolean {
  if (holders.some(({ exclusive }) => exclusive === true)) return false;
  // One that the configuration has no more says nothing: then one machine is right.
  const { sharing } = classes?.find(({ name }, index) => name === named || (!named && index === 0)) ?? UNNAMED;
  return sharing === "writers" || (sharing === "readers" && holders.every(({ read_only }) => read_only));
}

export function heldBy(id: string, { machine, state }: VolumeAttachment, field?: string): ProviderError {
  const how = state === "unknown" ? `may still be written by machine ${machine}, which is out of sight` : undefined;
  return new ProviderError("in_use", `volume ${id} ${how ?? `is machine ${machine}'s`}`, { field });
}
