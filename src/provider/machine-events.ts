/** What has become of the machines of one backend, change by change, for those who follow them (`watchPods`). */
import { bisect } from "../util/bisect.ts";
import { Pulse } from "../util/pulse.ts";
import { ProviderError } from "./errors.ts";
import type { Machine } from "./machine.ts";
import type { MachineEvent } from "./provider.ts";

interface MachineEventsOptions {
  /** How many changes a watcher may be behind. */
  limit: number;
  /** The revision at which it begins: no change before it is known. Default 0. */
  revision?: number | undefined;
}

export class MachineEvents {
  readonly #limit: number;
  /** In the order of their revisions, from #oldest on and around. */
  readonly #ring: MachineEvent[] = [];
  #oldest = 0;
  /** All changes after this revision are remembered. */
  #forgotten: number;
  #revision: number;
  readonly #changed = new Pulse();

  constructor({ limit, revision = 0 }: MachineEventsOptions) {
    this.#limit = limit;
    this.#forgotten = revision;
    this.#revision = revision;
  }

  /** Of the last change. */
  get revision(): number {
    return this.#revision;
  }

  /** @param machine after a change, under a higher revision than any before; watchers keep it, so it must not change */
  publish(machine: Machine): void {
    const event = { revision: machine.revision, machine };
    if (this.#ring.length < this.#limit) this.#ring.push(event);
    else {
      this.#forgotten = this.#ring[this.#oldest]!.revision;
      this.#ring[this.#oldest] = event;
      this.#oldest = (this.#oldest + 1) % this.#limit;
    }
    this.#revision = event.revision;
    this.#changed.fire();
  }

  /**
   * Changes after `since`, in order, until the signal aborts.
   * @throws ProviderError gone when `since` is older than what is remembered, or of another life of the backend
   */
  async *watch(since: number, signal: AbortSignal): AsyncGenerator<MachineEvent> {
    for (let seen = since; !signal.aborted;) {
      if (seen < this.#forgotten || seen > this.#revision)
        throw new ProviderError("gone", `revision ${seen} is not remembered: list again`);
      const event = this.#firstAfter(seen);
      if (event === undefined) {
        await this.#changed.wait(signal);
        continue;
      }
      seen = event.revision;
      yield event;
    }
  }

  /** By bisection: a revision whose change could not be written has no event. */
  #firstAfter(revision: number): MachineEvent | undefined {
    const count = this.#ring.length;
    const at = (index: number) => this.#ring[(this.#oldest + index) % count]!;
    const first = bisect(count, (index) => at(index).revision > revision);
    return first < count ? at(first) : undefined;
  }
}
