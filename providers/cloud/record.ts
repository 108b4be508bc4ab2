/**
 * What is written of a machine in its entry, which is all that is known of it beside what its VM's guest says:
 *
 *     made -> told -> held -> ending -> over -> burying -> buried
 *
 * `made`: it has the name of a VM, and no guest was told of it. `told`: a guest may have been. `held`: its guest has
 * it. `ending`: nothing is told any more, and its VM goes; `over` when that is gone. `burying` and `buried` are the
 * same on the way to a tombstone. Each step is one compare-and-swap, goes one way, and may be taken by anybody. A guest
 * is told only by who has seen `told` after the VM: the step to `ending` or `burying` ends that VM, and no other ever
 * has its name.
 */
import type { ContainerState, Machine, MachineSpec } from "../../src/provider/kit/index.ts";
import type { Entry, VolumeRef } from "./cloud.ts";

export type Phase = "made" | "told" | "held" | "ending" | "over" | "burying" | "buried";

export interface MachineRecord {
  readonly id: string;
  readonly phase: Phase;
  readonly labels: Readonly<Record<string, string>>;
  readonly createdAt: string;
  /** Of the specification. Absent for a tombstone of what never was. */
  readonly identity?: string | undefined;
  /** Its VM's name, and of which type it is to be. Absent for a tombstone of what never was. */
  readonly vm?: string | undefined;
  readonly type?: string | undefined;
  readonly zone?: string | undefined;
  /** By the hour, as the type's was when it was ordered. */
  readonly price?: number | undefined;
  /** Of a VM that waited for it: that one's own entry, which says whether it is this machine's. */
  readonly pool?: string | undefined;
  /** How many VMs were to be its own. */
  readonly attempt: number;
  /** How many of them never came up. */
  readonly misses: number;
  /**
   * The volumes that it claims, as its specification has them in order; absent: none. They are its own (`granted`) when
   * each says so in its own entry, and until nothing of it can write to them: its VM is gone, or it is over and they
   * were taken from its VM (`freed`).
   */
  readonly volumes?: readonly VolumeRef[] | undefined;
  /** Of claims: another for each time that a machine is written, so that those of an earlier one do not count. */
  readonly token?: string | undefined;
  readonly claims?: "granted" | "freed" | undefined;
  /** Its guest has been told to delete it when its grace is over: nobody makes it any more. */
  readonly isDoomed?: boolean | undefined;
  /** How it ended, from `ending` on. */
  readonly end?: MachineEnd | undefined;
  readonly buriedAt?: string | undefined;
  /** Of the entry that it was read from. */
  readonly version: string;
}

export interface MachineEnd {
  readonly state: "stopped" | "failed";
  readonly at: string;
  readonly reason?: string | undefined;
  readonly message?: string | undefined;
  readonly containers: readonly ContainerState[];
}

/** Entries of one cloud are shared by those who have the same scope. */
export const SCOPE = "vmlet-scope";

/** Texts of containers are left out when they are longer than this together. */
const MOST_CONTAINER_BYTES = 8 * 1024;

/** @throws TypeError when it is no record of ours */
export function recordOf({ name, words, version }: Entry): MachineRecord {
  const { phase, labels, created, attempt, misses, doomed, end, identity, vm, type, zone, price, pool, buried } = words;
  const { volumes, token, claims } = words;
  if (!isPhase(phase) || labels === undefined || created === undefined)
    throw new TypeError(`the entry ${name} is not a machine's`);
  return {
    id: name,
    phase,
    labels: JSON.parse(labels) as Record<string, string>,
    createdAt: created,
    identity,
    vm,
    type,
    zone,
    price: price === undefined ? undefined : Number(price),
    pool,
    volumes: volumes === undefined ? undefined : volumes.split(" ").map(volumeRefOf),
    token,
    claims: claims === "granted" || claims === "freed" ? claims : undefined,
    attempt: Number(attempt ?? 0),
    misses: Number(misses ?? 0),
    isDoomed: doomed !== undefined,
    end: end === undefined ? undefined : (JSON.parse(end) as MachineEnd),
    buriedAt: buried,
    version,
  };
}

const PHASES: readonly string[] = ["made", "told", "held", "ending", "over", "burying", "buried"] satisfies Phase[];
const isPhase = (text: string | undefined): text is Phase => text !== undefined && PHASES.includes(text);

export function wordsOf(record: Omit<MachineRecord, "version" | "id">, scope: string): Entry["words"] {
  const words = {
    [SCOPE]: scope,
    phase: record.phase,
    labels: JSON.stringify(record.labels),
    created: record.createdAt,
    attempt: String(record.attempt),
    misses: String(record.misses),
    identity: record.identity,
    vm: record.vm,
    type: record.type,
    zone: record.zone,
    price: record.price === undefined ? undefined : String(record.price),
    pool: record.pool,
    volumes: record.volumes?.map(textOfVolume).join(" "),
    token: record.token,
    claims: record.claims,
    doomed: record.isDoomed === true ? "yes" : undefined,
    end: record.end && JSON.stringify(trimmed(record.end)),
    buried: record.buriedAt,
  };
  return Object.fromEntries(Object.entries(words).filter((word): word is [string, string] => word[1] !== undefined));
}

/** Exit codes are asked for after the end; messages are what makes them long. */
function trimmed(end: MachineEnd): MachineEnd {
  if (Buffer.byteLength(JSON.stringify(end.containers)) <= MOST_CONTAINER_BYTES) return end;
  const containers = end.containers.map(({ terminated, last: _last, message: _message, ...rest }) => {
    if (terminated === undefined) return rest;
    const { message: _text, ...short } = terminated;
    return { ...rest, terminated: short };
  });
  const isShort = Buffer.byteLength(JSON.stringify(containers)) <= MOST_CONTAINER_BYTES;
  return { ...end, containers: isShort ? containers : [] };
}

export function newRecord(
  spec: MachineSpec,
  about: {
    identity: string;
    place: Pick<MachineRecord, "vm" | "type" | "zone" | "price" | "pool">;
    claims: Pick<MachineRecord, "volumes" | "token">;
    at: string;
  },
): Omit<MachineRecord, "version" | "id"> {
  const { identity, place, claims, at } = about;
  return {
    phase: "made",
    labels: spec.labels,
    createdAt: at,
    identity,
    ...place,
    ...claims,
    attempt: 1,
    misses: 0,
  };
}

/** What a machine's containers are before a guest knows of them. */
export function waitingContainers(spec: MachineSpec): ContainerState[] {
  const waiting =
    (kind: ContainerState["kind"]) =>
    ({ name, image }: { name: string; image: string }): ContainerState => ({
      name,
      kind,
      state: "waiting",
      reason: "ContainerCreating",
      ready: false,
      started: false,
      restart_count: 0,
      image,
      image_id: "",
    });
  return [...(spec.init_containers ?? []).map(waiting("init")), ...spec.containers.map(waiting("main"))];
}

/** Machines' versions grow through all guests and phases that they have. */
const PHASE_STEP = 2 ** 40;
const STEPS: Readonly<Record<Phase, number>> = { made: 1, told: 2, held: 2, ending: 3, over: 4, burying: 5, buried: 6 };

export const versionIn = (phase: Phase, within: number): number =>
  STEPS[phase] * PHASE_STEP + Math.min(within, PHASE_STEP - 1);

/** Its VM is there, is to be made, or is still to be seen going. What is behind that never comes back to it. */
export const needsVm = ({ phase, vm }: MachineRecord): boolean =>
  vm !== undefined && phase !== "over" && phase !== "buried";

/** As records name volumes. Neither part has a slash in it. */
export const textOfVolume = ({ name, class: of }: VolumeRef): string => `${of}/${name}`;

export function volumeRefOf(text: string): VolumeRef {
  const [of = "", name = ""] = text.split("/");
  return { name, class: of };
}

/** Revisions are counted where machines are told of. */
export const NO_REVISION = 0;

/** The machine as far as its record tells, from `ending` on. */
export function endedMachine(record: MachineRecord): Machine {
  const { id, labels, phase, end, createdAt, attempt } = record;
  const over = phase === "over" ? (end?.state ?? "failed") : phase === "ending" ? "stopping" : undefined;
  const state = over ?? (phase === "buried" ? "deleted" : "deleting");
  const isKnownOver = state !== "stopping" && state !== "deleting";
  return {
    id,
    version: versionIn(phase, attempt),
    revision: NO_REVISION,
    labels: { ...labels },
    state,
    reachability: "ok",
    sandbox_ready: false,
    created_at: createdAt,
    addresses: [],
    containers: [...(end?.containers ?? [])],
    ...(end?.reason !== undefined && isKnownOver && { reason: end.reason }),
    ...(end?.message !== undefined && isKnownOver && { message: end.message }),
    ...(end !== undefined && isKnownOver && { stopped_at: end.at }),
    ...(record.buriedAt !== undefined && { deleted_at: record.buriedAt }),
    ...placeOf(record, needsVm(record)),
  };
}

/** Which size it is and where. @param isPaid its VM may be there still */
export function placeOf(
  { type, zone, price }: Pick<MachineRecord, "type" | "zone" | "price">,
  isPaid: boolean,
): Pick<Machine, "instance_type" | "zone" | "price"> {
  return {
    ...(type !== undefined && { instance_type: type }),
    ...(zone !== undefined && { zone }),
    ...(isPaid && price !== undefined && { price }),
  };
}
