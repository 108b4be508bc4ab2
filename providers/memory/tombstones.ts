/** The ids of deleted machines, for as long as a create that was under way may still arrive. */
import type { Clock, Machine } from "../../src/provider/kit/index.ts";

const DEFAULT_AGE_MS = 3_600_000;

export class Tombstones {
  readonly #clock: Clock;
  readonly #ageMs: number;
  /** In the order in which they were made, which is that in which they expire. */
  readonly #byId = new Map<string, { machine: Machine; expiresAt: number }>();

  constructor(clock: Clock, ageMs = DEFAULT_AGE_MS) {
    this.#clock = clock;
    this.#ageMs = ageMs;
  }

  add(machine: Machine): void {
    this.#byId.set(machine.id, { machine, expiresAt: this.#clock.monotonic() + this.#ageMs });
  }

  get(id: string): Machine | undefined {
    this.#dropOld();
    return this.#byId.get(id)?.machine;
  }

  all(): Machine[] {
    this.#dropOld();
    return [...this.#byId.values()].map(({ machine }) => machine);
  }

  #dropOld(): void {
    const now = this.#clock.monotonic();
    for (const [id, { expiresAt }] of this.#byId) {
      if (expiresAt > now) return;
      this.#byId.delete(id);
    }
  }
}
