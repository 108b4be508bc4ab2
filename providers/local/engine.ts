/**
 * What an engine must supply, and nothing else: a place (sandbox) per machine, and a way to run, reach and end commands
 * in it. Order, restarts, back-off, probes, hooks, image policy, logs, exit codes and status are the supervisor's and
 * are written once.
 *
 * How a container runs, in every engine: the supervisor asks the sandbox for a launch plan; a *shim* (shim.ts, a small
 * detached process on this host) runs the plan's argv as its child, writes its stdout and stderr to the log, serves
 * attach, and records start and exit in files. So `argv` is
 *   process  the container's command itself
 *   oci      `runc run --bundle B --pid-file P ID`
 *   vm       nothing on this host: the plan is a `guest` session, whose other end runs the command in the guest. When
 *            the guest cannot be reached any more, `lost` tells; the shim's exit code then does not count.
 *   cri      nothing on this host: a container runtime keeps the command, its log and its exit code (`Engine.keeper`).
 * The backend may be killed at any instant. Shim and sandbox live on; `Engine.recover` finds the sandbox again.
 *
 * Rules for all methods: they reject with ContainerError (a reason that the container's status shows) or ProviderError
 * (`unsupported`, `unavailable`); whatever says "remove", "kill" or "destroy" is idempotent and succeeds when there is
 * nothing left to do; nothing keeps state in memory that cannot be rebuilt from `MachineHome.dir`.
 */
import { constants } from "node:os";
import type { Duplex } from "node:stream";
import {
  type Capability,
  type ContainerResources,
  type ContainerSpec,
  type ContainerState,
  type ContainerStats,
  type MachineSpec,
  type MachineStats,
  type PodRangesProvider,
  type ProcessStreams,
  type ProviderCapacity,
  type RegistryAuth,
  type ReservedCapabilities,
  type RuntimeHandler,
  type StreamOptions,
  type Volume,
  VmletError,
} from "../../src/provider/kit/index.ts";
import type { DeviceGrant } from "./devices.ts";
import type { HostVolumes, MachineVolumes, VolumePlace } from "./volume-contents.ts";

type EngineName = "process" | "oci" | "cri" | "vm";

/** Something that the host lacks. `vmlet backend check` prints it; `fatal` keeps the backend from starting. */
export interface HostProblem {
  fatal: boolean;
  problem: string;
  /** What to do about it: a package to install, a device to pass, a right to give. */
  cure: string;
}

export interface Engine {
  readonly name: EngineName;
  /** Exactly what is true of this engine on this host; valid after `sweep`. */
  readonly capabilities: readonly Capability[];
  /** What machines may name as `runtime_handler`; valid after `sweep`. Absent: nothing. */
  readonly runtimeHandlers?: readonly RuntimeHandler[];
  /** Of the capabilities, those that only machines of some namespaces have. Absent: none. */
  readonly reserved?: ReservedCapabilities | undefined;
  /** Its runtime knows the Container Device Interface. Absent: no. */
  readonly hasCdi?: boolean;
  /** Its containers can be given what a CSI driver's node plugin mounts on this host. Absent: no. */
  readonly hasCsi?: boolean;
  /** Images, when the engine has them (capability `images`). Without, `ContainerLaunch.image` is undefined. */
  readonly images?: ImageStore;
  /** Where volumes that outlive machines are (capability `volumes.persistent`). Absent: folders of this host. */
  readonly volumes?: (place: VolumePlace) => HostVolumes;
  /** Where a runtime keeps containers' commands by itself. Absent: shim processes do. */
  readonly keeper?: Shims;
  /** Where its machines' addresses are those of a Node, whose agent tells them (capability `pod_ranges`). */
  readonly nodeRange?: NodeAddresses | undefined;
  check(): Promise<HostProblem[]>;
  /** Throws ProviderError invalid or unsupported, with the field, for a spec that can never run here. */
  validate?(spec: MachineSpec): void;
  /**
   * Called once, before anything else, with the ids of all machines that exist: everything of the engine on this host
   * that belongs to none of them (processes, taps, mounts, cgroups, files) is removed.
   */
  sweep(known: ReadonlySet<string>): Promise<void>;
  /**
   * Ids of machines of which `sweep` could not remove all: it rejects for none of them, and the engine goes on trying.
   * Until it has succeeded, their folders must stay, and their ids may not be used.
   */
  readonly unswept?: ReadonlySet<string>;
  /** Makes the machine's sandbox: network, namespaces, VM; volumes except `files` (see Sandbox.applyFiles). */
  open(home: MachineHome, signal: AbortSignal): Promise<Sandbox>;
  /** After a restart of the backend: the sandbox that `open` made, or undefined when it is gone. */
  recover(home: MachineHome): Promise<Sandbox | undefined>;
  /**
   * Removes all that `open` and the containers left, running or not, also after an `open` that was cut short. With
   * `keepVolumes` another `open` follows: an engine whose volumes on disk can outlive a sandbox keeps them for it.
   */
  destroy(home: MachineHome, options?: { keepVolumes: boolean }): Promise<void>;
  /** Capability `capacity`. */
  capacity?(): Promise<ProviderCapacity>;
  /** Of the Node, beside those of the host's pressures. Absent: none. */
  conditions?(): Promise<NonNullable<ProviderCapacity["conditions"]>>;
  /** What all machines together take of the memory that they may have; undefined where they have no limit. */
  memory?(): Promise<{ usedBytes: number; limitBytes: number } | undefined>;
  /** Memory that a machine takes beyond what is counted as its containers'; 0 when absent. */
  readonly overhead?: { machineBytes: number; containerBytes: number };
  /** Releases handles and timers. Sandboxes live on. */
  close(): Promise<void>;
}

interface NodeAddresses {
  readonly api: PodRangesProvider;
  /** @throws ProviderError unavailable for a machine that would get an address which is not its Node's */
  assertServes(spec: MachineSpec): void;
  /** Whether they are those of the Node with these labels. */
  isOf(labels: Readonly<Record<string, string>>): boolean;
}

/** A machine as an engine sees it. */
export interface MachineHome {
  readonly id: string;
  /** The spec with all patches so far; read it again at each use. */
  readonly spec: MachineSpec;
  /** A folder for the engine alone. It exists, survives restarts, and is removed after `destroy`. */
  readonly dir: string;
  /**
   * A folder for the engine's files with secrets in them: files volumes, environments. It is in memory where the owner
   * of the host permits it, and may have to be made; it is removed with the sandbox.
   */
  readonly secretDir: string;
  /** Where what is on volumes is that outlive the machine. Absent: the engine has none. */
  readonly volumes?: Pick<MachineVolumes, "path" | "device" | "areBelow"> | undefined;
  /** Where a CSI driver has mounted a volume of the machine. Absent, or undefined: there is none of this name. */
  csiPath?(volume: string): string | undefined;
  /** A path short enough for a unix socket, the same for the same name each time. Removed after `destroy`. */
  socketPath(name: string): string;
}

/** A place where the containers of one machine run. */
export interface Sandbox {
  /** IPv4 and IPv6 addresses, first the main one. Fixed for the sandbox's life. */
  readonly addresses: readonly string[];
  /**
   * Resolves when the sandbox has died by itself (VM gone, guest panic). Never rejects. Not after `close` or `destroy`.
   */
  readonly lost: Promise<SandboxLoss>;

  /**
   * Told of each change from now on, where the engine can tell whether the machine's system still answers; until then
   * it does. Absent where that is this host's own.
   */
  onHealth?(listener: (health: SandboxHealth) => void): void;

  /** Prepares one start of a container (bundle, rootfs, mounts) and says what the shim has to run. */
  launch(container: ContainerLaunch): Promise<LaunchPlan>;
  /** Delivers a signal, by number, to the container's main process and, where there is no init, its process group. */
  signal(container: ContainerRef, signal: number): Promise<void>;
  /**
   * Kills everything of the container with SIGKILL (daemonised children too) and resolves only when nothing of it runs.
   * The supervisor calls it at the deadline, after every exit of the main process, and when the shim was lost.
   */
  kill(container: ContainerRef): Promise<void>;
  /**
   * After the main process ended and `kill`, or when it is never begun: what only the engine knows. Then removes what
   * `launch` prepared, except the container's log. `keep` writes the answer down: it is called before anything is
   * removed that the answer was read from, for the backend may be killed in between. What is called again finds
   * nothing to tell, and finishes the removal.
   */
  conclude(
    container: ContainerRef,
    exit: ShimExit,
    keep: (conclusion: ContainerConclusion) => void,
  ): Promise<ContainerConclusion>;

  /**
   * Runs a command beside the container's main process. It ends at `close()` of the streams and may die with the
   * backend.
   */
  exec(container: ContainerRef, command: string[], options: StreamOptions): Promise<ProcessStreams>;
  /** As `exec`, without input or terminal, for one who waits for the end: its output may come all together then. */
  execToEnd?(container: ContainerRef, command: string[], options: StreamOptions): Promise<ProcessStreams>;
  /**
   * A TCP connection to a port of the machine. `address`: as a client from outside would reach it (probes, hooks);
   * `loopback`: to localhost inside the machine (port-forward). Rejects with the socket's error (ECONNREFUSED...).
   */
  dial(port: number, target: "address" | "loopback", signal: AbortSignal): Promise<Duplex>;
  /** Samples of the containers that run now. A container without a sample is left out. */
  stats(containers: readonly ContainerRef[]): Promise<SandboxStats>;

  /**
   * For limits of local storage: how many files, folders and links there are where `stats` counts bytes of this host's
   * disk. Each takes something of it that bytes do not show. Absent where a machine's disk is its own.
   */
  inodes?(containers: readonly ContainerRef[]): Promise<SandboxInodes>;
  /** How many processes of this host's kernel the machine has. Absent where it has a kernel of its own. */
  processes?(): Promise<number>;

  /**
   * Puts a `files` volume in place, before the first launch and again at each update, with the atomic `..data` layout
   * (files.ts does it on a folder of this host). Needed for capability `volumes.files`; `patch_files` for updates.
   */
  applyFiles?(volume: Extract<Volume, { type: "files" }>): Promise<void>;
  /**
   * The file system on the device of a `host` volume grows to all of it. Needed for capability `volumes.host_growth`.
   * @throws ProviderError conflict where the machine has no such volume
   */
  growHostVolume?(name: string): Promise<void>;
  /**
   * What a file of an `empty_dir` has, by a path that no link leads out of the volume with. Needed for capability
   * `env_files`. Containers may write to the volume meanwhile.
   * @throws Error, which tells the pod's author why, when it is no regular file or has more than `maxBytes`
   */
  readVolumeFile?(volume: string, path: string, maxBytes: number): Promise<Buffer>;
  /** Capability `resize`. Rejects with ProviderError `invalid` when it can never fit (kubelet: Infeasible). */
  resize?(container: ContainerRef, resources: ContainerResources): Promise<void>;
  /**
   * Capability `resize_machine`: the machine's own limits, which the spec has already. `containers` changes those of
   * its containers, in between: nothing has more than the machine at any time. May be repeated.
   * @throws ProviderError conflict when it uses more memory; then nothing is changed
   */
  resizeMachine?(
    change: { from: ContainerResources | undefined; to: ContainerResources },
    containers: () => Promise<void>,
  ): Promise<void>;
  /** Releases handles; the sandbox lives on. */
  close(): Promise<void>;
}

export interface SandboxStats extends Pick<MachineStats, "network" | "pressure" | "volumes"> {
  /** The supervisor adds when the container started, the size of its log and how its probes came out. */
  containers: Omit<ContainerStats, "started_at" | "logs_used_bytes" | "probes">[];
}

/** By name. */
export interface SandboxInodes {
  containers: ReadonlyMap<string, number>;
  volumes: ReadonlyMap<string, number>;
}

/** `unknown`: it does not answer just now, or stands still. `reason` is one word for the pod's event. */
export type SandboxHealth = { state: "ok" } | { state: "unknown"; reason: string; message: string };

export interface SandboxLoss {
  /** One word for the machine's status: `SandboxLost`, `GuestPanic`, `OutOfMemory`... */
  reason: string;
  message: string;
}

/** One instance of a container: a restart makes a new one. */
export interface ContainerRef {
  readonly name: string;
  /** 0, 1, 2... */
  readonly attempt: number;
  /** Unique in the backend and legal as an OCI container id and as a cgroup name. */
  readonly id: string;
  /** Folder of this instance: the shim's files are in it (`shim-*`), the engine may put its own beside them. */
  readonly dir: string;
  /**
   * Process id, on this host, of the command that the shim runs, or the one that `pidFile` of the plan named; once
   * started.
   */
  readonly pid?: number;
}

export interface ContainerLaunch extends ContainerRef {
  kind: ContainerState["kind"];
  /**
   * Address tokens are replaced already, and the values of files are in their places. `env` is the container's own; the
   * image's is in `image.config`.
   */
  spec: ContainerSpec;
  image: PreparedImage | undefined;
  /** Volume name -> image, for volumes of type `image`. */
  imageVolumes: Readonly<Record<string, PreparedImage>>;
  /** What it gets of the host's devices. */
  devices?: DeviceGrant | undefined;
  /** The running container that `spec.target` names: its processes are to be seen. */
  target: ContainerRef | undefined;
}

/** What the shim has to run. */
export type LaunchPlan = (HostPlan | GuestPlan | RuntimePlan) & {
  /** The user as the container's status shows it. */
  user?: NonNullable<ContainerState["user"]>;
  /** An event for the pod that the engine chose something by itself. */
  notice?: { reason: string; message: string };
};

/** A command of this host. */
export interface HostPlan {
  /** `argv[0]` is an absolute path or found on the PATH of `env`. */
  argv: string[];
  env: Record<string, string>;
  cwd: string;
  /** User and group that the shim changes to before it runs argv. Absent: those of the backend. */
  uid?: number;
  gid?: number;
  /**
   * Written by argv with the container's process id once the container runs (`runc --pid-file`). Until then the
   * container does not count as started. Absent: started as soon as argv was executed.
   */
  pidFile?: string;
}

export interface GuestCommandPlace {
  /** Unix socket of the port. */
  socket: string;
  /** 32 characters that cannot be guessed. */
  token: string;
}

/** A command that waits in a guest for the host's word. */
export interface GuestPlan {
  guest: GuestCommandPlace;
}

/** A container that a runtime has made and starts when it is told to. */
interface RuntimePlan {
  /** Its id there. */
  runtimeId: string;
}

/** With which streams a command runs, and the path of a socket for who keeps it. */
export interface ShimStreams {
  tty: boolean;
  stdin: boolean;
  stdinOnce: boolean;
  socket: string;
}

/** What is to be run, and with which streams. */
export type StartCommand = (HostPlan | GuestPlan | RuntimePlan) & ShimStreams;

export interface ShimEvents {
  /** At most once. `user` as the container's status shows it, where the launch plan could not tell. */
  started(status: {
    pid?: number | undefined;
    startedAt?: number;
    user?: NonNullable<ContainerState["user"]> | undefined;
  }): void;
  /** Exactly once, unless `close` came first: the command's end; its streams may still be open. */
  exited(exit: ShimExit & { startedAt?: number | undefined; finishedAt: number }): void;
  /** Exactly once, unless `close` came first, after `exited`: the log is complete. */
  gone(): void;
}

export interface ShimWatch {
  close(): void;
}

/**
 * Who keeps containers' commands, their streams, logs and exit codes while there is no backend: shims, processes of our
 * own, or a container runtime. `socket` is for its own use, for the same container the same path each time.
 */
export interface Shims {
  /**
   * @param launchFile where to keep what it is told, with the environment of its command
   * @throws NeverBegunError when it was never begun; any other Error says how the command ended at once
   */
  start(container: ContainerRef, launch: StartCommand, launchFile: string): Promise<void>;
  watch(container: ContainerRef, socket: string, events: ShimEvents): ShimWatch;
  /** True when the instance was started; false when it never will be. */
  everStarted(container: ContainerRef): boolean;
  /**
   * How the command ended, when that was written down: asked when its sandbox is gone, and nobody else knows. Absent:
   * it never is.
   * @throws what the system says when that cannot be known just now
   */
  recorded?(container: ContainerRef): RecordedExit | undefined;
  attach(container: ContainerRef, socket: string, options: StreamOptions): Promise<ProcessStreams>;
}

/** Times are wall-clock milliseconds. */
export type RecordedExit = ShimExit & { startedAt?: number | undefined; finishedAt: number };

/** Of a command that SIGKILL ended. */
export const KILLED_EXIT = 128 + constants.signals.SIGKILL;

/** What the shim saw. */
export interface ShimExit {
  /** 0-255; 128 + signal when a signal ended it. */
  exitCode: number;
  signal?: number | undefined;
  /** argv could not be executed, or it ended before the container had started. */
  startError?: string | undefined;
  /** The shim itself vanished: how the container ended is unknown. */
  lost?: boolean | undefined;
}

export interface ContainerConclusion {
  /** Replaces the shim's code, when the engine knows better. */
  exitCode?: number;
  oomKilled?: boolean;
  /** The command never ran: reason `StartError` with this message. */
  startError?: string | undefined;
  /** Content of the termination message file; at most 4096 bytes are used. Capability `termination_message`. */
  terminationMessage?: string;
}

/** Images of one host. Pull policy, back-off and events are the supervisor's. */
export interface ImageStore {
  /**
   * The image when it is complete on this host, for use by a container that is about to start. With `auth`, only when
   * the registry gave it out without credentials or for one of these: an image is not for a machine that could not pull
   * it.
   */
  find(image: string, auth?: readonly RegistryAuth[]): Promise<FoundImage | undefined>;
  /**
   * Fetches what is missing. Concurrent pulls of one image share the work. Credentials are used, never stored. One
   * `tenant`'s pulls leave others room for theirs, however slow its registries are.
   * @throws ContainerError with reason ErrImagePull, InvalidImageName, RegistryUnavailable, SignatureValidationFailed
   * or ImageInspectError.
   */
  pull(
    image: string,
    options: { auth: readonly RegistryAuth[]; tenant: string; signal: AbortSignal },
  ): Promise<FoundImage>;
  /** Tells which images machines still need, by `PreparedImage.location`, so that garbage collection spares them. */
  retain?(locations: ReadonlySet<string>): void;
  /** Frees disk of all images that no machine needs, whatever there is left of it. */
  removeUnused?(): Promise<void>;
  /** A folder on the file system that they are on. */
  place?(): Promise<string>;
}

/** JSON only: it is kept in the machine's state. */
export interface PreparedImage {
  /** `repo@sha256:...`, else `sha256:...`: kubelet's imageID. */
  imageId: string;
  /** The full name that the reference resolved to (`docker.io/library/busybox:1.36`). */
  image: string;
  config: ImageConfig;
  /** Where the engine finds the content: a folder or file of this host. */
  location: string;
}

/** As the store has it. */
export interface FoundImage extends PreparedImage {
  sizeBytes: number;
}

export interface ImageConfig {
  entrypoint?: string[];
  cmd?: string[];
  env?: string[];
  user?: string;
  workingDir?: string;
  stopSignal?: string;
}

/**
 * Why a container cannot start (yet): `reason` is one of kubelet's waiting reasons, `message` is for the pod's author.
 */
export class ContainerError extends VmletError {
  readonly code = "CONTAINER";
  readonly reason: ContainerErrorReason;

  constructor(reason: ContainerErrorReason, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.reason = reason;
  }
}

/**
 * The host could not begin a container (no descriptors, no memory, no room): nothing of it runs or ever will, and it is
 * tried again. It is no end of the container.
 */
export class NeverBegunError extends ContainerError {
  constructor(message: string, options?: { cause?: unknown }) {
    super("RunContainerError", message, options);
  }
}

export type ContainerErrorReason =
  | "ErrImagePull"
  | "ErrImageNeverPull"
  | "InvalidImageName"
  | "ImageInspectError"
  | "RegistryUnavailable"
  | "SignatureValidationFailed"
  | "ImageVolumeMountFailed"
  | "CreateContainerConfigError"
  | "CreateContainerError"
  | "RunContainerError";
