/**
 * Looks after the host while machines run: evicts them, one at a time, before it runs out of memory, disk, inodes or
 * process numbers. The backend does it, not an agent: it measures, it acts within seconds whether or not an agent is
 * there, and it may serve several of them, each of which sees its own machines only.
 */
import { type Clock, type Logger, pause } from "../../../src/provider/kit/index.ts";
import {
  type Candidate,
  chooseVictim,
  evictionGraceMs,
  evictionMessage,
  look,
  type Look,
  NO_PRESSURE,
  type PressureState,
} from "./eviction.ts";
import { isMet, type Observations, type Pressure, resourceOf, type Threshold } from "./thresholds.ts";

/** kubelet: the eviction manager's monitoring interval. */
const LOOK_EVERY_MS = 10_000;
/** kubelet: podCleanupTimeout and podCleanupPollFreq. */
const CLEANUP_MS = 30_000;
const CLEANUP_POLL_MS = 1_000;

/** A machine that runs. */
export interface Evictable extends Candidate {
  readonly id: string;
  readonly graceMs: number;
  evict(message: string, graceMs: number): void;
  /** Nothing of it runs any more. */
  isOver(): boolean;
}

interface HostGuardOptions {
  clock: Clock;
  logger: Logger;
  thresholds: readonly Threshold[];
  maxPodGraceMs: number;
  transitionMs: number;
  observe(): Promise<Observations>;
  /** Measures all machines that run: asked only when one of them has to go. */
  candidates(): Promise<Evictable[]>;
  /** Frees disk that no machine needs. */
  removeUnusedImages(): Promise<void>;
}

export class HostGuard {
  readonly #options: HostGuardOptions;
  #state: PressureState = NO_PRESSURE;
  #pressures: ReadonlySet<Pressure> = new Set();

  constructor(options: HostGuardOptions) {
    this.#options = options;
  }

  /** For the Node's conditions. */
  get pressures(): ReadonlySet<Pressure> {
    return this.#pressures;
  }

  /** Resolves when the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, logger } = this.#options;
    while (!signal.aborted) {
      try {
        const evicted = await this.check();
        // What it held is not free before it is gone; another one might go for nothing.
        for (let waited = 0; evicted?.isOver() === false && waited < CLEANUP_MS; waited += CLEANUP_POLL_MS)
          await pause(clock, CLEANUP_POLL_MS, signal);
      } catch (thrown) {
        logger.error({ err: thrown }, "Cannot look after this host's memory and disk just now");
      }
      await pause(clock, LOOK_EVERY_MS, signal);
    }
  }

  /** One look. @returns the machine that was evicted, if any */
  async check(): Promise<Evictable | undefined> {
    const { logger } = this.#options;
    const observed = await this.#observe();
    const { reclaim } = observed;
    if (reclaim === undefined) return undefined;
    const resource = resourceOf(reclaim.signal);
    logger.warn({ resource, signal: reclaim.signal }, "This host is low on a resource");
    if (await this.#reclaimDisk(reclaim)) return undefined;
    const { candidates, maxPodGraceMs } = this.#options;
    const victim = chooseVictim(resource, await candidates());
    if (victim === undefined) {
      logger.error({ resource }, "This host is low on a resource, and there is no machine that may be evicted");
      return undefined;
    }
    const message = evictionMessage(reclaim, observed.observations, victim);
    logger.warn({ machine: victim.id, message }, "Evicting a machine");
    victim.evict(message, evictionGraceMs(reclaim, victim.graceMs, maxPodGraceMs));
    return victim;
  }

  async #observe(): Promise<Look & { observations: Observations }> {
    const { observe, thresholds, clock, transitionMs } = this.#options;
    const observations = await observe();
    const seen = look(this.#state, thresholds, observations, clock.monotonic(), transitionMs);
    this.#state = seen.state;
    this.#pressures = seen.pressures;
    return { ...seen, observations };
  }

  /** @returns whether that was enough */
  async #reclaimDisk({ signal }: Threshold): Promise<boolean> {
    const resource = resourceOf(signal);
    if (resource !== "ephemeral-storage" && resource !== "inodes") return false;
    const { removeUnusedImages, observe, thresholds, logger } = this.#options;
    try {
      await removeUnusedImages();
    } catch (thrown) {
      logger.warn({ err: thrown }, "Cannot remove unused images just now");
    }
    const observed = await observe();
    return !thresholds.some((threshold) => isMet(threshold, observed, true));
  }
}
