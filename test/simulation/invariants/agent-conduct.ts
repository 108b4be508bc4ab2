/** What an agent must keep whatever comes of it: lead, patience with strangers' machines. Judged when a request is sent. */
import type { Agent } from "../agent/agent.ts";
import type { Network } from "../network.ts";
import { Violation } from "../violation.ts";
import type { Clock } from "../../../src/util/clock.ts";

/** S14: without the lead, nothing is changed. */
export function judgeLead({ isLeader, name }: Agent, network: Network): void {
  if (!isLeader) network.violation ??= new Violation("S14", `${name} changes something without the lead`);
}

const PATIENCE_MS = 60_000;

/** S15: a machine of a pod that this process never saw is ended at the second sight, a minute later, and only so many a minute. */
export class Sweeps {
  readonly #clock: Clock;
  readonly #sightedAt = new Map<string, number>();
  readonly #knownPods = new Set<string>();
  readonly #begun = new Set<string>();
  readonly #bornAt: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#bornAt = clock.monotonic();
  }

  sighted(uid: string): void {
    if (!this.#sightedAt.has(uid)) this.#sightedAt.set(uid, this.#clock.monotonic());
  }

  /** The process was told of a pod of this UID. */
  met(uid: string): void {
    this.#knownPods.add(uid);
  }

  metPods(): ReadonlySet<string> {
    return this.#knownPods;
  }

  judge(uid: string, network: Network): void {
    if (this.#knownPods.has(uid) || this.#begun.has(uid)) return;
    const now = this.#clock.monotonic();
    const seenAt = this.#sightedAt.get(uid);
    if (seenAt === undefined || now - seenAt < PATIENCE_MS - 1)
      network.violation ??= new Violation("S15", "ended a stranger's machine at first sight");
    this.#begun.add(uid);
    const allowed = 1 + Math.floor((now - this.#bornAt + 10) / 60_000);
    if (this.#begun.size > allowed)
      network.violation ??= new Violation(
        "S15",
        `ended ${this.#begun.size} machines of strangers, by now ${allowed} may be`,
      );
  }
}
