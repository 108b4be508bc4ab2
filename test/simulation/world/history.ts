/** What really happened to each pod: what the invariants are judged by, and no agent can see. */
export interface PodHistory {
  namespace: string;
  name: string;
  /** Grace periods that the pod was ever to have, in seconds. */
  readonly graces: Set<number>;
  /** A user, or the garbage collection, removed the object without waiting for the machine. */
  removedByForce: boolean;
  /** An agent removed the object. */
  finalized: boolean;
  /** When its machine must have stopped, by the least grace that it was told; infinite while nobody told it to. */
  stopBy: number;
  /** Machines that creates of agents gave birth to. */
  born: number;
  /** The backend lost the machine, or its tombstone. */
  lost: boolean;
  /** Version of the machine from which on the backend ran again what was over; undefined when it never did. */
  revivedAt: number | undefined;
  /** It was to make room for another pod. */
  preempted: boolean;
  /** What of its status the API server refuses for good: a field that it names, or all but phase and conditions. */
  refuses: Refusal;
  /** Whatever the backend says of its machine makes no sense, but for its state. */
  isNonsense: boolean;
  /** How each instance of a container ended, by its id. */
  readonly exits: Map<string, { exitCode: number; finishedAt: string }>;
}

export const REFUSALS = ["nothing", "hostIPs", "annotations", "all"] as const;
export type Refusal = (typeof REFUSALS)[number];

export class History {
  readonly #pods = new Map<string, PodHistory>();

  /** Of pods that never were, such as those of machines of a former cluster, as well. */
  of(uid: string): PodHistory {
    let known = this.#pods.get(uid);
    if (known === undefined) {
      known = {
        namespace: "",
        name: "",
        graces: new Set(),
        removedByForce: false,
        finalized: false,
        stopBy: Infinity,
        born: 0,
        lost: false,
        revivedAt: undefined,
        preempted: false,
        refuses: "nothing",
        isNonsense: false,
        exits: new Map(),
      };
      this.#pods.set(uid, known);
    }
    return known;
  }
}
