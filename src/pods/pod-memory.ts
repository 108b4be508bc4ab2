/**
 * What this process remembers of a pod between steps. Losing it (a crash) must cost nothing but repeated work: whatever
 * has to survive lives in the API server or in the backend. All times are monotonic milliseconds.
 */
import type { ResizeState, Verdict } from "./status/input.ts";
import type { Unwritable } from "./status-write.ts";

/** Something that is done again, later and later, until it is seen to have worked. */
interface Retry {
  since: number;
  /** The last pause. */
  pauseMs: number;
  retryAt: number;
}

export interface PodMemory {
  /** The first look at the pod. */
  seenAt: number | undefined;
  /** A create was sent, whatever came of it: until a tombstone is confirmed, a machine may appear. */
  created: boolean;
  /** Why the pod must end, decided here: refused at admission, or gone for good. */
  verdict: Verdict | undefined;
  /** Containers that wait for a reference. */
  waiting: ReadonlyMap<string, { reason: string; message: string }> | undefined;
  /** Times at which a direct read of the backend said "absent" while the pod should have a machine. */
  missedAt: readonly number[];
  /** Version of the machine at the last direct read: what contradicts it is not the cache's lag. */
  confirmedVersion: number | undefined;
  /** The pod's resourceVersion at that read: what is written to it later may come from an agent that has seen more. */
  confirmedFor: string | undefined;
  /** When the machine must have ended by the last stop that was accepted; grace included. */
  stopDeadline: number | undefined;
  /** When the pod's eviction is to be asked for again. */
  evictAgainAt: number | undefined;
  /** What the pod's user was told of that: that it is asked for, or that it is held back. */
  evictionTold: "asked" | "held" | undefined;
  /**
   * The backend accepted a DELETE while the machine stayed: since when, and when, after how long a pause, it is due
   * again.
   */
  burial: Retry | undefined;
  /** The backend confirmed: nothing runs, and a tombstone keeps it so. */
  buried: boolean;
  /**
   * The final DELETE of the pod object was accepted; if the object stays, for a finalizer or another's fault, it is
   * sent again.
   */
  finalized: Retry | undefined;
  /** The pod object was seen to go (a DELETED event, or missing from a complete list). */
  podSeenGone: boolean;
  /** First time that the machine was seen without a pod, for UIDs of which this process never saw a pod. */
  orphanSince: number | undefined;
  /** The sweep's budget has paid for this one, however many steps and tries it takes. */
  mayBeReaped: boolean;
  /**
   * The version of what the running machine was last brought to, as it was when that was read: pod, references, tokens.
   */
  appliedVersion: string | undefined;
  /** The pod's generation in it. */
  appliedGeneration: number | undefined;
  /** What became of the last change of resources; undefined until it has been looked at once. */
  resize: ResizeState | undefined;
  /** When a change that could not be made yet is to be tried again. */
  retryUpdateAt: number | undefined;
  /** Fields of the status that the API server does not take or keep as they are. */
  unwritable: Unwritable;
  /** Since when the API server has forbidden every status of this pod. */
  statusDeniedSince: number | undefined;
  /** Until when the statuses that were written use up what one pod may write. */
  statusPaidUntil: number;
}

export const newMemory = (): PodMemory => ({
  seenAt: undefined,
  created: false,
  verdict: undefined,
  waiting: undefined,
  missedAt: [],
  confirmedVersion: undefined,
  confirmedFor: undefined,
  stopDeadline: undefined,
  evictAgainAt: undefined,
  evictionTold: undefined,
  burial: undefined,
  buried: false,
  finalized: undefined,
  podSeenGone: false,
  orphanSince: undefined,
  mayBeReaped: false,
  appliedVersion: undefined,
  appliedGeneration: undefined,
  resize: undefined,
  retryUpdateAt: undefined,
  unwritable: new Map(),
  statusDeniedSince: undefined,
  statusPaidUntil: 0,
});
