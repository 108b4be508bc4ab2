/**
 * What a status is made from, and the bounds of what of it may be quoted.
 */
import { cutBytes } from "../../util/text.ts";
import type { Container, ContainerStatus, Pod } from "../../kube/wire.ts";
import type { ContainerState, Machine } from "../../provider/machine.ts";

/** What became of a change of resources that a running pod asked for; both absent when there is none under way. */
export interface ResizeState {
  /** It was not begun: it can never fit here, or it does not fit now. */
  pending?: { reason: "Infeasible" | "Deferred"; message: string } | undefined;
  /** It was asked of the backend and is not in effect yet. */
  inProgress?: { error?: string } | undefined;
}

/** Why a pod ends that its machine did not end by itself: becomes phase Failed with this reason and message. */
export interface Verdict {
  reason: string;
  message: string;
  /** It is about a pod without a machine: one that has one all the same, because another agent took it in, runs on. */
  ofNoMachine?: true;
}

export interface StatusInput {
  pod: Pod;
  /** The machine as last seen; undefined when there is none (not created yet, refused, lost). */
  machine: Machine | undefined;
  /** The node's addresses, primary first. */
  hostIPs: readonly string[];
  now: number;
  /** True when nothing of the pod can run any more: its machine is over, was never made, or is gone. */
  ended: boolean;
  verdict?: Verdict | undefined;
  /** Containers that wait for something that only the agent knows of (a missing ConfigMap). */
  waiting?: ReadonlyMap<string, { reason: string; message: string }> | undefined;
  /** Undefined while it has not been looked at: what the status says already then stands. */
  resize?: ResizeState | undefined;
  /**
   * The machine has not been brought to this generation yet: clients that wait for `observedGeneration` must go on
   * waiting.
   */
  behind?: boolean;
}

export type ContainerKind = ContainerState["kind"];

/** What the three kinds of containers in a pod's spec have in common. */
export type SpecContainer = Pick<Container, "name" | "image" | "resources" | "volumeMounts"> & {
  readonly restartPolicy?: string | undefined;
};

/** The statuses of a pod's containers; `init` in the order of the spec, the others by name. */
export interface ContainerStatuses {
  readonly init: readonly ContainerStatus[];
  readonly main: readonly ContainerStatus[];
  readonly ephemeral: readonly ContainerStatus[];
}

/**
 * What a backend says is bounded before it is written into a pod: a status has room for all that is in it, or none is
 * written.
 */
export const toldReason = (reason: string | undefined) => reason && cutBytes(reason, 256);
export const toldMessage = (message: string | undefined) => message && cutBytes(message, 4096);
