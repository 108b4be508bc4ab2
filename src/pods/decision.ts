/** What the planner is asked, and what it answers. */
import type { Pod } from "../kube/wire.ts";
import type { Machine, UnknownMachine } from "../provider/machine.ts";
import type { Verdict } from "./status/input.ts";

/** What the API server wants for a UID, by this process's cache. */
export type Desired =
  | { kind: "pod"; pod: Pod }
  /** The cache is complete and holds no pod of this UID. */
  | { kind: "none" }
  /** The cache is not complete: nothing may be concluded. */
  | { kind: "unknown" };

/** The three values of a read of the backend. */
export type Observed =
  | { kind: "found"; machine: Machine }
  /** The backend itself said that there is no such machine. */
  | { kind: "absent" }
  /** With `machine`, the backend has it, and what it says of it cannot be believed. */
  | { kind: "unknown"; machine?: UnknownMachine };

export type Action =
  /** Nothing to do now; look again after `afterMs` if that is given. */
  | { do: "wait"; afterMs?: number }
  /** Everything of this UID is over on both sides: forget it. */
  | { do: "forget" }
  /** Ask the backend about this one machine. */
  | { do: "look" }
  /** Quorum GET of the pod, render its spec, PUT the machine. */
  | { do: "create" }
  /** Have the API server evict the pod, if its budgets allow that now. */
  | { do: "evict" }
  | { do: "stop"; graceSeconds: number; verdict?: Verdict }
  /** DELETE the machine, whether it exists or not, and confirm that nothing runs. */
  /** With `ifAbsent` only what is not there: a tombstone that keeps a late create away. */
  | { do: "bury"; force: boolean; ifAbsent?: true; verdict?: Verdict }
  | {
      do: "status";
      /** Fields of the status, as a JSON merge patch. */
      patch: Readonly<Record<string, unknown>>;
      annotations?: Readonly<Record<string, string>> | undefined;
      verdict?: Verdict;
    }
  /** Bring the running machine to the pod's newer spec or references. */
  | { do: "update" }
  /** DELETE the pod object: grace 0, UID precondition. */
  | { do: "finalize" }
  /** Quorum GET of the pod; only if it is gone, stop and bury the machine. */
  | { do: "reap" };

export interface PlanContext {
  /** Wall clock, for what is compared with the API server's times. */
  now: number;
  /** For spans: everything that `PodMemory` holds. */
  monotonic: number;
  hostIPs: readonly string[];
  /** Changes when the spec or an object it refers to changed; undefined when not known yet. */
  version: string | undefined;
  /** Annotate pods of ReplicaSets so that scale-in removes them before pods of other nodes. */
  markCheapToDelete?: boolean | undefined;
}
