/**
 * The contract between the agent and a backend that runs machines. A provider is dumb on purpose: it creates, lists,
 * stops and deletes machines by id, and says what it sees. Deciding belongs to the agent.
 *
 * What every provider must keep (the conformance kit checks it):
 * - createPod with the same id and spec, any number of times and concurrently, makes one machine.
 * - Only `not_found` means absent. Whatever is uncertain is `unavailable`.
 * - deletePod of an unknown id succeeds and leaves a tombstone, so that a late create answers `gone`.
 * - A machine that is `stopped` has nothing running. It stays readable until it is deleted.
 * - getPods returns what createPod just made (read your writes).
 * - A call that gives back a value does so within 60 s; what takes longer goes on behind it. After that the agent
 *   aborts its signal, takes the answer for `unavailable` and asks again, maybe while the first call still runs.
 */
import type { Duplex, Readable } from "node:stream";
import type { Capability } from "./capabilities.ts";
import type { Schemas } from "./contract/document.ts";
import type {
  Machine,
  MachinePatch,
  MachineSpec,
  ReservedCapabilities,
  RuntimeHandler,
  UnknownMachine,
} from "./machine.ts";
import type { ImageProvider } from "./image.ts";
import type { PodRangesProvider } from "./pod-ranges.ts";
import type { ServicesProvider } from "./services.ts";
import type { VolumeClass, VolumeProvider } from "./volume.ts";

/** Every call takes a signal; when it aborts, the call rejects soon and whatever it held is released. */
export interface CallOptions {
  signal: AbortSignal;
}

export interface ProviderInfo {
  name: string;
  version: string;
  capabilities: readonly Capability[];
  /**
   * What the machines' programs are built for, in Go's words (GOOS, GOARCH): `linux`, `arm64`. Absent: it does not say.
   */
  os?: string;
  architecture?: string;
  /** Whether its machines' host is inside a user namespace. Absent: it does not say. */
  runningInUserNamespace?: boolean;
  /** What a machine's `runtime_handler` may name. Absent: there is no choice. */
  runtimeHandlers?: readonly RuntimeHandler[];
  /** What a volume's `class` may name; the first is that of volumes which name none. Absent: there is no choice. */
  volumeClasses?: readonly VolumeClass[];
  /** Where its machines are, for volumes that are in one zone. Absent: there are no zones. */
  zone?: string;
  /** Most volumes that all machines together may have. Absent: no such limit. */
  maxAttachedVolumes?: number;
  /** Which of the capabilities only machines of some namespaces have. Absent: none. */
  reserved?: ReservedCapabilities;
  /** What it declares besides: names that are misspelt, or newer than this version. Absent: none. */
  unknownCapabilities?: readonly string[];
}

export interface MachineList {
  items: Machine[];
  /**
   * Machines that the backend has and of which it said nothing that can be believed: unknown, each for itself. Absent:
   * none.
   */
  unknown?: UnknownMachine[];
  /** Revision at which the list was true: watchPods from here misses nothing. */
  revision: number;
}

/** With the whole machine after the change. `deleted` machines come once, as their tombstone. */
export type MachineEvent = Schemas["MachineEvent"];

/** An event that says no more than that this machine changed into something that cannot be understood. */
export interface UnknownMachineEvent {
  revision: number;
  machine?: undefined;
  unknown: UnknownMachine;
}

export type ProviderCapacity = Schemas["ProviderCapacity"];
export type ProbeTally = Schemas["ProbeTally"];
export type ContainerStats = Schemas["ContainerStats"];
export type MachineStats = Schemas["MachineStats"];
export type Pressure = Schemas["Pressure"];
export type Stall = Schemas["Stall"];

export interface LogOptions extends CallOptions {
  follow?: boolean | undefined;
  previous?: boolean | undefined;
  /** Lines from the end; 0 gives none of the past. */
  tail?: number | undefined;
  /** RFC 3339. */
  since?: string | undefined;
  stream?: "stdout" | "stderr" | undefined;
  limitBytes?: number | undefined;
}

/**
 * One log line. A part of a line that was written without its newline has `partial` true; the rest follows.
 * `at` has nine decimals.
 */
export interface LogLine {
  at: string;
  stream: "stdout" | "stderr";
  partial: boolean;
  /** Without the newline. */
  content: Buffer;
}

export interface StreamOptions extends CallOptions {
  stdin: boolean;
  stdout: boolean;
  stderr: boolean;
  tty: boolean;
}

/** A command's streams. With `tty`, stderr is null and everything comes on stdout. */
export interface ProcessStreams {
  stdin: NodeJS.WritableStream | null;
  stdout: Readable | null;
  stderr: Readable | null;
  resize(columns: number, rows: number): void;
  /** Resolves when the command ended and its output was handed over; rejects with a ProviderError. */
  readonly exit: Promise<{ exitCode: number }>;
  /** Ends the session; a command that runs is killed, an attached process lives on. */
  close(): void;
}

export interface DeleteOptions extends CallOptions {
  force: boolean;
  /**
   * Nothing but a tombstone for an id that has no machine: an agent that has seen none must not take away what another
   * one makes at this moment. Capability delete_if_absent; a provider without it deletes what it finds.
   */
  ifAbsent?: boolean | undefined;
}

export interface Provider {
  /** Short and stable: it becomes part of labels and of the node's providerID. */
  readonly name: string;
  getInfo(options: CallOptions): Promise<ProviderInfo>;

  /**
   * Idempotent.
   * @throws ProviderError invalid, unsupported, conflict, gone, in_use, out_of_zone, not_found (of a volume that it
   *   names, as `field` says), quota, rate_limited, unauthorized, unavailable
   */
  createPod(id: string, spec: MachineSpec, options: CallOptions): Promise<Machine>;
  /**
   * A tombstone is found with state `deleted`.
   * @throws ProviderError not_found when absent, unavailable when unknown
   */
  getPod(id: string, options: CallOptions): Promise<Machine>;
  /** All machines that carry every one of `labels`; with `includeDeleted`, tombstones too. */
  getPods(
    options: CallOptions & { labels: Record<string, string>; includeDeleted?: boolean | undefined },
  ): Promise<MachineList>;
  /**
   * Returns at once; the machine goes to `stopping`, then `stopped`. A shorter grace than that of a stop under way
   * shortens it, a longer one changes nothing: an agent that was restarted says the whole grace again. Undefined when
   * the stop was accepted but the reply's machine could not be read: the stop holds all the same.
   */
  stopPod(id: string, options: CallOptions & { graceSeconds: number }): Promise<Machine | undefined>;
  /**
   * Idempotent, leaves a tombstone. `force` kills what still runs; without it, a running machine is stopped first.
   *
   * @throws ProviderError conflict when `ifAbsent` was asked and there is a machine, which is then left as it is
   */
  deletePod(id: string, options: DeleteOptions): Promise<void>;
  getLogs(id: string, container: string, options: LogOptions): AsyncIterable<LogLine>;

  /**
   * Capability patch_files, patch_image, patch_registry_auth, resize, ephemeral_containers or volumes.csi_growth, by
   * what the patch holds.
   */
  updatePod?(id: string, patch: MachinePatch, options: CallOptions): Promise<Machine>;
  /**
   * Capability `events`. Ends when the signal aborts.
   * @throws ProviderError gone when `since` is too old: list again
   */
  watchPods?(
    since: number,
    options: CallOptions & { labels: Record<string, string> },
  ): AsyncIterable<MachineEvent | UnknownMachineEvent>;
  /** Capability `capacity`. */
  getCapacity?(options: CallOptions): Promise<ProviderCapacity>;
  /** Capability `stats`: one call for all machines that carry the labels. A machine without a sample is left out. */
  getStats?(options: CallOptions & { labels: Record<string, string> }): Promise<MachineStats[]>;
  /** Capability `exec`. */
  exec?(id: string, container: string, command: string[], options: StreamOptions): Promise<ProcessStreams>;
  /** Capability `attach`. */
  attach?(id: string, container: string, options: StreamOptions): Promise<ProcessStreams>;
  /** Capability `port_forward`: a byte stream to a TCP port inside the machine. */
  portForward?(id: string, port: number, options: CallOptions): Promise<Duplex>;
  /** Capability `volumes.persistent`. */
  readonly volumes?: VolumeProvider;
  /** Capability `images.prewarm`. */
  readonly images?: ImageProvider | undefined;
  /** Capability `pod_ranges`. */
  readonly podRanges?: PodRangesProvider | undefined;
  /** Capability `services`. */
  readonly services?: ServicesProvider | undefined;
  /** Releases connections and timers. Machines live on. */
  close(): Promise<void>;
}
