/**
 * What the reconciler of pods is made with, and what it answers: its collaborators as it sees them.
 */
import type { Kube } from "../kube/kube.ts";
import type { Pod } from "../kube/wire.ts";
import type { MachineChange, PodEvent, Rendered } from "../podspec/types.ts";
import type { Machine } from "../provider/machine.ts";
import type { Provider } from "../provider/provider.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import type { Clock } from "../util/clock.ts";
import type { PodHooks } from "./hooks.ts";
import type { EvictionBrake } from "./eviction-brake.ts";
import type { LossBrake } from "./loss-brake.ts";
import type { MachineCache } from "./machines.ts";
import type { plan } from "./planner.ts";

/** The pods that the API server wants on this node, by UID. */
export interface PodSource {
  readonly synced: boolean;
  get(uid: string): Pod | undefined;
}

/** Says which containers of a machine are ready where the backend itself cannot tell. */
export interface ReadinessSource {
  /** The machine with `ready` filled in. Called at each look at a pod; begins and ends whatever it takes to know. */
  apply(pod: Pod, machine: Machine): Machine;
  release(podUid: string): void;
}

/** Turns pods into machine specs: admission, references, capabilities. */
export interface Renderer {
  render(pod: Pod, signal: AbortSignal): Promise<Rendered>;
  /** Changes whenever `diff` might find something to do; undefined when not known. */
  version(pod: Pod, machine: Machine): string | undefined;
  diff(pod: Pod, machine: Machine, signal: AbortSignal): Promise<MachineChange>;
  /** True when `withoutSecrets` needs `learn` first. */
  mustLearn?(pod: Pod, machine: Machine): boolean;
  /** Reads what the pod keeps secret. @throws the signal's reason */
  learn?(pod: Pod, signal: AbortSignal): Promise<void>;
  /** The machine, whose texts quote nothing that the pod keeps secret: they go into its status and its events. */
  withoutSecrets?(pod: Pod, machine: Machine): Machine;
  /** A text about a pod, likewise. */
  redact?(podUid: string, text: string): string;
  /** Holds nothing of this pod any more. */
  release?(podUid: string): void;
}

export interface ReconcilerOptions {
  kube: Kube;
  provider: Provider;
  pods: PodSource;
  machines: MachineCache;
  renderer: Renderer;
  machineId: (podUid: string) => string;
  /** Labels that mark a machine as this cluster's and this node's. */
  ownerLabels: Readonly<Record<string, string>>;
  nodeName: string;
  hostIPs: () => readonly string[];
  /** Called before each look at what both sides have: whatever had come by then, it sees. */
  onLook?: ((uid: string) => void) | undefined;
  /** Looks at another pod soon, because something was decided about it. */
  requeue?: ((uid: string) => void) | undefined;
  /** Says something about a pod to its user. Must not block. */
  event: (pod: Pod, event: PodEvent) => void;
  /** Orphans of which this process never saw a pod: true when one more may be removed in this sweep. */
  mayReap: () => boolean;
  /** Doubts the backend when it has lost too much at once. */
  losses?: LossBrake | undefined;
  /** Doubts it when too many of its machines are out of sight at once. */
  evictions?: EvictionBrake | undefined;
  /**
   * Throws when this agent may not act any more (lost leadership). Called before each effect that changes something.
   */
  guard?: (() => void) | undefined;
  /** The decision; a simulation puts a broken one here to see it caught. Default: the planner's. */
  plan?: typeof plan | undefined;
  readiness?: ReadinessSource | undefined;
  /** Annotate pods of ReplicaSets so that scale-in removes them before pods of other nodes. */
  markCheapToDelete?: boolean | undefined;
  hooks?: PodHooks | undefined;
  /** Absent: nothing is traced. */
  tracing?: Tracing | undefined;
  clock: Clock;
  logger: Logger;
}

/**
 * What is to be done with a UID after a call: nothing until something changes, another look after a while, or another
 * try.
 */
export type Outcome =
  | { kind: "settled" }
  | { kind: "after"; ms: number }
  | { kind: "retry"; error: Error; afterMs?: number };
