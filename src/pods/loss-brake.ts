/**
 * Believes a few lost machines at once and many only little by little: the brake on failing pods when a backend
 * forgets.
 */
import type { Clock } from "../util/clock.ts";

/**
 * This many machines may be lost in a minute without doubt: a share of the node's pods, and never fewer than `least`.
 */
const UNDOUBTED = { share: 0.05, least: 10 };
const MINUTE_MS = 60_000;
/** For as long as machines are missing, twice as many are believed to be lost in each minute after every such time. */
const DOUBLING_MS = 300_000;

/**
 * Doubts a backend that answers and has lost nearly everything at once: it was restored, or its address leads somewhere
 * else, and failing all pods would end what runs well. A few losses are believed at once; of many, so many in a minute,
 * more and more while nothing comes back. So a real loss of everything is over after some ten minutes at most, and in
 * the meantime the node's condition BackendReady tells operators, who can mend the backend or delete the pods.
 */
export class LossBrake {
  readonly #clock: Clock;
  readonly #pods: () => number;
  /** Pods whose machines are missing and not believed to be lost yet. */
  readonly #missing = new Set<string>();
  /** Since when there are such; monotonic. */
  #since = 0;
  /** The present minute: when it began, and how many losses were believed in it. */
  #minute = { since: -Infinity, believed: 0 };

  /** @param options `pods`: how many pods the node has */
  constructor(options: { clock: Clock; pods: () => number }) {
    this.#clock = options.clock;
    this.#pods = options.pods;
  }

  /** Pods whose machines are missing without being believed to be lost. */
  get missing(): number {
    return this.#missing.size;
  }

  /**
   * Whether the machine of this pod, which the backend says it does not have, may be called lost now; if not, ask again
   * later.
   */
  mayLose(podUid: string): boolean {
    const now = this.#clock.monotonic();
    if (now - this.#minute.since >= MINUTE_MS) this.#minute = { since: now, believed: 0 };
    const doublings = this.#missing.size === 0 ? 0 : Math.floor((now - this.#since) / DOUBLING_MS);
    const undoubted = Math.max(UNDOUBTED.least, Math.ceil(this.#pods() * UNDOUBTED.share));
    if (this.#minute.believed < undoubted * 2 ** doublings) {
      this.#minute.believed++;
      this.#missing.delete(podUid);
      return true;
    }
    if (this.#missing.size === 0) this.#since = now;
    this.#missing.add(podUid);
    return false;
  }

  /** The machine is there again, or its pod is gone. */
  settled(podUid: string): void {
    this.#missing.delete(podUid);
  }
}
