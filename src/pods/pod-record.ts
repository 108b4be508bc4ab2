/**
 * All that this process holds of a pod, in one record that is dropped in one place.
 */
import type { Pod } from "../kube/wire.ts";
import { newMemory, type PodMemory } from "./pod-memory.ts";

/** A newer copy of a pod than the cache holds, known from a reply. */
interface Overlay {
  /** What the cache held when the newer object became known, and versions in between. */
  olderVersions: Set<string>;
  pod: Pod;
}

/** What is known of a create that waits. All times monotonic. */
export interface HeldCreate {
  /** When kubelet's worker began to wait for volumes that are still away. */
  mountingSince: number | undefined;
  /** The events that were sent last, how often, and when they are worth sending again. */
  eventsText: string;
  times: number;
  retryAt: number;
}

/** One for all: an error of its own for each pod that goes would cost more than all else that is dropped. */
const DROPPED = new Error("the pod is forgotten");

class PodRecord {
  #memory: PodMemory = newMemory();
  overlay: Overlay | undefined;
  /** The pod as it was when it went. */
  lastSeen: Pod | undefined;
  /** The newest notice of its machine that was passed on or is old news. */
  noticeSeq: number | undefined;
  /**
   * Monotonic time of the first look at the pod, until it has been measured how soon it ran; undefined when it had run
   * before.
   */
  firstLook: number | undefined;
  held: HeldCreate | undefined;
  /** Its refusal was counted: a pod that is held is refused again and again. */
  isRefusalCounted = false;
  readonly #dropping = new AbortController();

  /** What the planner decides by. */
  get memory(): PodMemory {
    return this.#memory;
  }

  /** Aborted when the pod is forgotten: what is held on its account anywhere hangs on this. */
  get dropped(): AbortSignal {
    return this.#dropping.signal;
  }

  update(change: Partial<PodMemory>): void {
    this.#memory = { ...this.#memory, ...change };
  }

  drop(): void {
    this.#dropping.abort(DROPPED);
  }
}

/** The records by pod UID. */
export class PodRecords {
  readonly #records = new Map<string, PodRecord>();
  readonly #onOpen: (uid: string, record: PodRecord) => void;

  /** @param onOpen called with each new record; what it hangs on the record's signal is released with it */
  constructor(onOpen: (uid: string, record: PodRecord) => void) {
    this.#onOpen = onOpen;
  }

  uids(): IterableIterator<string> {
    return this.#records.keys();
  }

  find(uid: string): PodRecord | undefined {
    return this.#records.get(uid);
  }

  /** The record of this UID, a new one if there is none. */
  of(uid: string): PodRecord {
    let record = this.#records.get(uid);
    if (record === undefined) {
      this.#records.set(uid, (record = new PodRecord()));
      this.#onOpen(uid, record);
    }
    return record;
  }

  memory(uid: string): PodMemory {
    return this.of(uid).memory;
  }

  update(uid: string, change: Partial<PodMemory>): void {
    this.of(uid).update(change);
  }

  drop(uid: string): void {
    const record = this.#records.get(uid);
    this.#records.delete(uid);
    record?.drop();
  }
}
