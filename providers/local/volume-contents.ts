/**
 * Where the bytes of volumes are, and how a machine comes by them. The rules of who has which volume are VolumeBook's.
 */
import type {
  Clock,
  Logger,
  Machine,
  MachineSpec,
  MachineStats,
  SharedPlaces,
  VolumeClass,
  VolumeContents,
  VolumeRecord,
} from "../../src/provider/kit/index.ts";

/** What of a volume a sample tells; undefined where that cannot be known just now. */
export type VolumeSample = Omit<NonNullable<MachineStats["volumes"]>[number], "name">;

/** How the machines that have a volume are to have it. */
export interface VolumeUse {
  /** None of them writes. */
  readOnly: boolean;
  /** That of a claim, each of them one that `volumes/mount-options.ts` allows. */
  mountOptions: readonly string[];
  /** As a pod's fsGroup. */
  group?: number | undefined;
  /** A volume whose root has that group already is left as it is. */
  groupOnMismatchOnly?: boolean | undefined;
}

/** A file system that its kernel has made read-only, for it is damaged. */
export interface DamagedVolume {
  id: string;
  message: string;
}

/**
 * All of it may be called again, also by the next backend after a kill at any instant, and finds what was done by then.
 */
export interface HostVolumes extends VolumeContents {
  /** Absent: one without a name. */
  readonly classes?: readonly VolumeClass[] | undefined;
  readonly fsTypes: readonly string[];
  /** Makes it so that `path`, or `device`, is what is on the volume. */
  attach(record: VolumeRecord, use: VolumeUse): Promise<void>;
  /** When it resolves, nothing of this host can write to it any more. */
  detach(id: string): Promise<void>;
  /** Those that may be attached, by whomever. */
  attached(): Promise<string[]>;
  /** Of mode `filesystem`: the folder. @throws Error when it is not attached */
  path(id: string): string;
  /** Of mode `block`: the device. @throws Error when it is not attached */
  device(id: string): Promise<string>;
  sample(record: VolumeRecord): Promise<VolumeSample | undefined>;
  /** Of those that are attached. Absent: it cannot be seen here. */
  damaged?(): Promise<DamagedVolume[]>;
}

export interface VolumePlace {
  /** The folder of each volume is in it, by the volume's id. It is there. */
  dir: string;
  clock: Clock;
  logger: Logger;
  /** Bounds how many trees are measured at a time. */
  walks: SharedPlaces;
}

/** What of a machine's record says which volumes it has. */
export interface VolumeHolder {
  readonly machine: Pick<Machine, "id" | "state" | "reachability">;
  readonly sandbox: "none" | "opening" | "open";
  /** Absent: none. */
  readonly claims?: readonly {
    readonly name: string;
    readonly volume: string;
    readonly reservation?: string;
    readonly read_only: boolean;
  }[];
}

export interface VolumeUser {
  readonly spec: Pick<MachineSpec, "volumes" | "security">;
  readonly record: VolumeHolder;
  /** Tells its owner. */
  notice(type: "Warning", reason: string, message: string): void;
}

/** This host's volumes, as its machines have them. */
export interface MachineVolumes {
  /**
   * Has all volumes of a machine where its containers find them; nothing happens to those that are there.
   * @param options.isRunning containers of the machine may use them already: their files stay as they are
   * @throws Error when one cannot be had
   */
  attach(machine: VolumeUser, options: { signal: AbortSignal; isRunning?: boolean }): Promise<void>;
  /**
   * Nothing of the machine runs any more. When this resolves, nothing of this host can write to its volumes.
   * @throws Error when that is not so yet
   */
  detach(machine: Pick<VolumeUser, "record">): Promise<void>;
  /** Of mode `filesystem`: the folder. @throws Error when it is of another mode, or not attached */
  path(id: string): string;
  /** Whether any are, or come to be, mounted below this path. */
  areBelow(path: string): boolean;
  /** Of mode `block`: the device. @throws Error when it is of another mode, or not attached */
  device(id: string): Promise<string>;
}
