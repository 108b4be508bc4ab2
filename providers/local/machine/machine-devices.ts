/** The devices that one machine's containers have: what its record says of them, and what clients see. */
import { isDeepStrictEqual } from "node:util";
import type { DeviceHealth, DeviceHolding, HeldDevices } from "../devices.ts";
import type { MachineRecord } from "./record.ts";

type Health = (resource: string, id: string) => DeviceHealth;

export class MachineDevices {
  readonly #state: { write(): void; commit(): void };
  readonly #record: MachineRecord;

  constructor(state: { write(): void; commit(): void }, record: MachineRecord) {
    this.#state = state;
    this.#record = record;
  }

  /** Which ones they are is decided, or lost. */
  get areGiven(): boolean {
    return this.#record.devices !== undefined;
  }

  /**
   * Its containers have these from now on.
   * @throws when it cannot be written: then they have none, and must not be given any
   */
  keep(held: HeldDevices, health: Health): void {
    this.#record.devices = held;
    this.#list(health);
    try {
      this.#state.write();
    } catch (thrown) {
      delete this.#record.devices;
      for (const shown of this.#record.machine.containers) delete shown.devices;
      throw thrown;
    }
  }

  of(container: string): readonly DeviceHolding[] {
    const { devices } = this.#record;
    return devices === undefined || devices === "lost" ? [] : (devices[container] ?? []);
  }

  /** Commits, unless that is what is shown already. */
  show(health: Health): void {
    if (this.#list(health)) this.#state.commit();
  }

  /** @returns whether anything has changed */
  #list(health: Health): boolean {
    let hasChanged = false;
    for (const shown of this.#record.machine.containers) {
      const devices = this.of(shown.name).flatMap(({ resource, devices: own }) =>
        own.map(({ id }) => ({ resource, id, health: health(resource, id) })),
      );
      if (devices.length === 0 || isDeepStrictEqual(shown.devices, devices)) continue;
      shown.devices = devices;
      hasChanged = true;
    }
    return hasChanged;
  }
}
