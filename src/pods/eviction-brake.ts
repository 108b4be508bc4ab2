/**
 * Evicts pods whose machines nobody can see a few at a time, and none while everything is out of sight: then it is more
 * likely the backend that is blind than all its hosts that are gone. By the rules of Kubernetes' controller of the life
 * of nodes (node_lifecycle_controller.go), to which a zone is what a node is here, and a node what a machine is here.
 */
import type { Clock } from "../util/clock.ts";

/** How many machines of a node can be seen, and how many cannot. */
export interface Sights {
  readonly seen: number;
  readonly unseen: number;
}

type ZoneState = "normal" | "partial" | "full" | "empty";

/** That controller's defaults: --unhealthy-zone-threshold, --large-cluster-size-threshold, both rates. */
const UNHEALTHY_SHARE = 0.55;
/** More than so many have to be out of sight before it is anything else than hosts that went. */
const FEW = 2;
const LARGE = 50;
const EVERY_MS = { normal: 10_000, slow: 100_000 };

/** The nodes of one process. */
export class EvictionZones {
  readonly #clock: Clock;
  readonly #zones = new Set<EvictionBrake>();

  constructor({ clock }: { clock: Clock }) {
    this.#clock = clock;
  }

  /** @param sights of one node's machines. `close` it when the node is served no more */
  zone(sights: () => Sights): EvictionBrake {
    const zone = new EvictionBrake(this.#clock, sights, {
      isAllDark: () => [...this.#zones].every(({ state }) => state === "full" || state === "empty"),
      close: () => void this.#zones.delete(zone),
    });
    this.#zones.add(zone);
    return zone;
  }
}

/** Why a pod may not be evicted now: `doubt` is for its user, and absent where it is only not its turn. */
interface Hold {
  readonly afterMs: number;
  readonly doubt?: string | undefined;
}

/** How soon a pod that is held is asked for again. */
const HELD_MS = 10_000;
const COUNT_MS = 1_000;

export class EvictionBrake {
  readonly #clock: Clock;
  readonly #sights: () => Sights;
  readonly #others: { readonly isAllDark: () => boolean; readonly close: () => void };
  /** As they were at `at`, monotonic: each pod of a node asks, and counting takes a look at all of its machines. */
  #last: { readonly at: number; readonly sights: Sights } | undefined;
  /** Monotonic time before which no further pod is evicted. */
  #notBefore = -Infinity;

  constructor(clock: Clock, sights: () => Sights, others: { isAllDark: () => boolean; close: () => void }) {
    this.#clock = clock;
    this.#sights = sights;
    this.#others = others;
  }

  get state(): ZoneState {
    const { seen, unseen } = this.#look();
    if (seen + unseen === 0) return "empty";
    if (unseen <= FEW) return "normal";
    if (seen === 0) return "full";
    return unseen / (seen + unseen) >= UNHEALTHY_SHARE ? "partial" : "normal";
  }

  /** Takes the next turn of a pod whose machine cannot be seen. @returns undefined when it is its turn now */
  take(): Hold | undefined {
    const { seen, unseen } = this.#look();
    const { state } = this;
    const isHeld = state === "full" ? this.#others.isAllDark() : state === "partial" && seen + unseen <= LARGE;
    if (isHeld)
      return {
        afterMs: HELD_MS,
        doubt: `${unseen} of the node's ${seen + unseen} machines are out of sight, which may be the backend's own fault`,
      };
    const now = this.#clock.monotonic();
    if (now < this.#notBefore) return { afterMs: this.#notBefore - now };
    this.#notBefore = now + (state === "partial" ? EVERY_MS.slow : EVERY_MS.normal);
    return undefined;
  }

  #look(): Sights {
    const now = this.#clock.monotonic();
    if (this.#last === undefined || now - this.#last.at >= COUNT_MS) this.#last = { at: now, sights: this.#sights() };
    return this.#last.sights;
  }

  /** The turn was not used: a budget stood against it. */
  giveBack(): void {
    this.#notBefore = -Infinity;
  }

  /** The node is served no more. */
  close(): void {
    this.#others.close();
  }
}
