/** What the backend keeps of a machine on disk, besides its spec. */
import {
  type ContainerState,
  containersOf,
  firstWaitingReason,
  type Machine,
  type MachineSpec,
  type NamedContainer,
  outlivingCsiVolumes,
  type RestartBackoff,
  specIdentity,
  volumeClaims,
} from "../../../src/provider/kit/index.ts";
import type { PreparedClaims } from "../claims.ts";
import type { PublishedVolumes } from "../csi-volumes.ts";
import type { HeldDevices } from "../devices.ts";
import type { PreparedImage } from "../engine.ts";

/** The reason of a machine that fails because its own record or specification is lost. */
export const MACHINE_LOST = "MachineLost";

export interface MachineRecord {
  /** The machine as clients see it. */
  machine: Machine;
  /** For a machine that loses its spec. Absent: of an earlier version. */
  restartPolicy?: MachineSpec["restart_policy"];
  /** Of the spec as it was created: tells a repeated create from a conflicting one. */
  specHash: string;
  /** The volumes that it has, also when its spec is lost. Absent: none. */
  claims?: readonly ClaimRecord[];
  /** The devices that its containers have, until it is over. Absent: none, or not given yet. `lost`: nobody knows. */
  devices?: HeldDevices | "lost";
  /** The ResourceClaims that drivers were asked to make ready for it, until they have taken them back. Absent: none. */
  prepared?: PreparedClaims;
  /** The volumes that CSI drivers were asked to mount for it, until they have taken them back. Absent: none. */
  published?: PublishedVolumes;
  /** An engine's sandbox exists, or may exist. */
  sandbox: "none" | "opening" | "open";
  /** All init containers have passed since the sandbox was made. */
  initialized: boolean;
  /** The machine is being ended: `deadline` is wall-clock milliseconds. It only ever comes nearer. */
  ending?: Ending;
  /** Everything is stopped and then starts again, init containers included. */
  restarting?: { reason: "RestartAllContainers" | "SandboxChanged" };
  /** Deleted for its owner; the rest of it is removed as soon as nothing runs. */
  deleted: boolean;
  containers: Record<string, ContainerRecord>;
  noticeSeq: number;
}

interface ClaimRecord {
  readonly name: string;
  readonly volume: string;
  readonly reservation?: string;
  readonly read_only: boolean;
}

export interface Ending {
  deadline: number;
  /** How far off that was when it was set: never further, whatever becomes of this host's clock. */
  graceMs?: number;
  /** Kill without pre_stop and without grace. */
  force: boolean;
  state: "stopped" | "failed";
  reason?: string;
  message?: string;
}

export interface ContainerRecord {
  kind: ContainerState["kind"];
  phase: "new" | "starting" | "running" | "exited";
  /** Number of the newest instance; -1 before the first. */
  attempt: number;
  /** Id and folder name of the newest instance. */
  id?: string;
  folder?: string;
  /** Folder of the instance before it. */
  previousFolder?: string;
  image?: PreparedImage;
  imageVolumes?: Record<string, PreparedImage>;
  user?: NonNullable<ContainerState["user"]>;
  postStartDone: boolean;
  preStopDone: boolean;
  backoff?: RestartBackoff;
  /** The image was changed while it ran: the next instance does not ask the restart policy. */
  definitionChanged?: boolean;
  /** Back-off of a start that failed before there was an instance (image, config). */
  retry?: { at: number; ms: number };
  finishedAt?: number;
}

export function newContainerRecord(kind: ContainerState["kind"]): ContainerRecord {
  return { kind, phase: "new", attempt: -1, postStartDone: false, preStopDone: false };
}

/** Its first status. */
export function newContainerState(container: NamedContainer, machine: MachineSpec): ContainerState {
  return {
    name: container.spec.name,
    kind: container.kind,
    state: "waiting",
    reason: firstWaitingReason(container.kind, machine),
    ready: false,
    started: false,
    restart_count: 0,
    image: container.spec.image,
    image_id: "",
    ...(container.spec.resources === undefined ? {} : { resources: container.spec.resources }),
  };
}

/** @param host of the machine, for its status; @param now wall-clock milliseconds */
export function newRecord(id: string, spec: MachineSpec, host: string, now: number): MachineRecord {
  const containers = containersOf(spec);
  const claims = volumeClaims(spec).map(({ claim: { name, volume, reservation, read_only = false } }): ClaimRecord => ({
    ...{ name, volume, read_only },
    ...(reservation !== undefined && { reservation }),
  }));
  const csi = outlivingCsiVolumes(spec);
  return {
    ...(claims.length > 0 && { claims }),
    machine: {
      id,
      host,
      version: 0,
      revision: 0,
      labels: spec.labels,
      state: "pending",
      reachability: "ok",
      sandbox_ready: false,
      created_at: new Date(now).toISOString(),
      addresses: [],
      resources: spec.resources ?? {},
      ...(spec.instance_type === undefined ? {} : { instance_type: spec.instance_type }),
      containers: containers.map((container) => newContainerState(container, spec)),
      ...(spec.registry_auth_version === undefined ? {} : { registry_auth_version: spec.registry_auth_version }),
      ...(csi.length > 0 && { csi_volumes: csi }),
    },
    specHash: specIdentity(spec),
    restartPolicy: spec.restart_policy,
    sandbox: "none",
    initialized: false,
    deleted: false,
    containers: Object.fromEntries(
      containers.map(({ spec: container, kind }) => [container.name, newContainerRecord(kind)]),
    ),
    noticeSeq: 0,
  };
}

/** Where the images are that a machine's containers have. */
export function imageLocations({ containers }: Pick<MachineRecord, "containers">): string[] {
  const images = Object.values(containers).flatMap(({ image, imageVolumes = {} }) => [
    image,
    ...Object.values(imageVolumes),
  ]);
  return images.flatMap((image) => image?.location ?? []);
}
