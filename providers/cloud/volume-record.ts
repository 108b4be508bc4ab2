/**
 * What is written of a volume that outlives machines, in an entry of its own:
 *
 *     creating -> available -> deleting -> deleted (a tombstone)
 *
 * Which of the cloud's volumes it is stands there before that is ordered, and no name is given twice: what an order
 * makes that comes late is nobody's. Who has the volume stands there too, and counts only together with the machine's
 * entry: a machine is written with a token, then claims its volumes by it, and has them from when its entry says that
 * all are granted. A claim whose machine is gone, is another by now, or has let go is no claim any more, and never will
 * be one again: who finds it may take the volume by the next compare-and-swap.
 */
import { createHash } from "node:crypto";
import type { PersistentVolume, PersistentVolumeSpec } from "../../src/provider/kit/index.ts";
import type { Entry, VolumeRef } from "./cloud.ts";
import { type MachineRecord, textOfVolume, volumeRefOf } from "./record.ts";

/** That this machine has the volume. */
export interface Claim {
  readonly machine: string;
  readonly token: string;
  readonly reservation?: string | undefined;
  readonly read_only: boolean;
}

/** That this volume is being made as a copy. */
interface CopyHold {
  readonly volume: string;
  /** The cloud's name of what is being made. */
  readonly content: string;
  /** What is written to the source meanwhile is not in the copy. */
  readonly in_use?: boolean | undefined;
}

export interface CloudVolumeRecord {
  readonly volume: Omit<PersistentVolume, "attachments">;
  /** Of the specification as it was created. */
  readonly fingerprint: string;
  /** Where its bytes are. Absent for a tombstone of what never was. */
  readonly content?: VolumeRef | undefined;
  /** Id of the volume that it begins as a copy of. */
  readonly source?: string | undefined;
  /** It could not be made: nothing of it stays, no tombstone either. */
  readonly isUnmade?: boolean | undefined;
  readonly claims: readonly Claim[];
  readonly copies: readonly CopyHold[];
  /** Of the entry that it was read from. */
  readonly version: string;
}

export type NewVolumeRecord = Omit<CloudVolumeRecord, "version">;

/** Word of volumes' entries; its value is the scope. */
export const VOLUMES = "vmlet-volumes";
/** Label of the cloud's volumes: the id of the volume that it was ordered for. */
export const VOLUME_LABEL = "vmlet-volume";

/** No machine's id begins like this, and the ids of volumes may be as long as an entry's name. */
export const volumeEntryOf = (id: string): string =>
  `_volume.${createHash("sha256").update(id).digest("hex").slice(0, 40)}`;

/** @throws TypeError when it is no record of ours */
export function volumeRecordOf({ name, words, version }: Entry): CloudVolumeRecord {
  const { volume, fingerprint, content, source, unmade, claims, copies } = words;
  const parsed = volume === undefined ? undefined : (JSON.parse(volume) as CloudVolumeRecord["volume"]);
  if (parsed === undefined || fingerprint === undefined || volumeEntryOf(parsed.id) !== name)
    throw new TypeError(`the entry ${name} is not a volume's`);
  return {
    volume: parsed,
    fingerprint,
    content: content === undefined ? undefined : volumeRefOf(content),
    source,
    isUnmade: unmade !== undefined,
    claims: claims === undefined ? [] : (JSON.parse(claims) as Claim[]),
    copies: copies === undefined ? [] : (JSON.parse(copies) as CopyHold[]),
    version,
  };
}

export function volumeWordsOf(record: NewVolumeRecord, scope: string): Entry["words"] {
  const { volume, fingerprint, content, source, isUnmade, claims, copies } = record;
  return {
    [VOLUMES]: scope,
    volume: JSON.stringify(volume),
    fingerprint,
    ...(content !== undefined && { content: textOfVolume(content) }),
    ...(source !== undefined && { source }),
    ...(isUnmade === true && { unmade: "yes" }),
    ...(claims.length > 0 && { claims: JSON.stringify(claims) }),
    ...(copies.length > 0 && { copies: JSON.stringify(copies) }),
  };
}

export function newVolumeRecord(
  id: string,
  spec: PersistentVolumeSpec,
  about: { fingerprint: string; content: VolumeRef; zone: string | undefined; at: string },
): NewVolumeRecord {
  const { labels, size_bytes, mode, class: named, source } = spec;
  const { fingerprint, content, at } = about;
  const { zone = about.zone } = spec;
  return {
    volume: {
      id,
      version: 1,
      labels: { ...labels },
      state: "creating",
      size_bytes,
      mode,
      ...(named !== undefined && { class: named }),
      ...(zone !== undefined && { zone }),
      created_at: at,
      reservations: [],
    },
    fingerprint,
    content,
    source: source?.volume,
    claims: [],
    copies: [],
  };
}

/** Of an id that never was: its tombstone keeps a create away that is late. */
export function unseenVolumeRecord(id: string, at: string): NewVolumeRecord {
  return {
    volume: {
      id,
      version: 1,
      labels: {},
      state: "deleted",
      size_bytes: 0,
      mode: "filesystem",
      created_at: at,
      deleted_at: at,
      reservations: [],
    },
    fingerprint: "",
    claims: [],
    copies: [],
  };
}

/**
 * True when the claim never counts again: its machine is not there, was written again, is over with its VM gone, or was
 * over when its volumes were taken from its VM. Of a machine without a token nothing is concluded: an agent of an
 * earlier release may have written it again.
 */
export function isClaimOver({ token }: Claim, machine: MachineRecord | undefined): boolean {
  if (machine === undefined || machine.phase === "over" || machine.phase === "buried") return true;
  return machine.claims === "freed" || (machine.token !== undefined && machine.token !== token);
}
