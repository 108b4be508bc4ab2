/** The devices that one machine's containers have: what its record says of them, and what clients see. */
import { isDeepStrictEqual } from "node:util";
import { type ContainerState, containersOf, type MachineSpec } from "../../../src/provider/kit/index.ts";
import { claimedDevices, type ClaimSource } from "../claims.ts";
import type { DeviceHolding, DeviceSource, HeldDevices } from "../devices.ts";
import type { MachineRecord } from "./record.ts";

/** Who knows how devices are. Absent: there are no plugins of the kind. */
interface HealthSources {
  devices?: Pick<DeviceSource, "health"> | undefined;
  claims?: Pick<ClaimSource, "health"> | undefined;
}

type Shown = NonNullable<ContainerState["devices"]>;

/** Of a device's name in the Machine API. */
const MAX_ID_CHARS = 256;

export class MachineDevices {
  readonly #state: { readonly spec: MachineSpec; write(): void; commit(): void };
  readonly #record: MachineRecord;

  constructor(state: { readonly spec: MachineSpec; write(): void; commit(): void }, record: MachineRecord) {
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
  keep(held: HeldDevices, sources: HealthSources): void {
    this.#record.devices = held;
    this.#list(sources);
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
  show(sources: HealthSources): void {
    if (this.#list(sources)) this.#state.commit();
  }

  /** @returns whether anything has changed */
  #list(sources: HealthSources): boolean {
    let hasChanged = false;
    const claimed = this.#claimed(sources);
    for (const shown of this.#record.machine.containers) {
      const own = this.of(shown.name).flatMap(({ resource, devices: held }) =>
        held.map(({ id }) => ({ resource, id, health: sources.devices?.health(resource, id) ?? "unknown" })),
      );
      const devices = [...own, ...(claimed.get(shown.name) ?? [])];
      if (devices.length === 0 || isDeepStrictEqual(shown.devices, devices)) continue;
      shown.devices = devices;
      hasChanged = true;
    }
    return hasChanged;
  }

  /** By container, each device once under each name. */
  #claimed({ claims }: HealthSources): Map<string, Shown> {
    const { prepared } = this.#record;
    if (prepared === undefined) return new Map();
    const shownOf = (container: Parameters<typeof claimedDevices>[1]): Shown => {
      const found = claimedDevices(prepared, container).map(({ resource, driver, pool, device, cdi: [name] }) => {
        const told = claims?.health(driver, pool, device) ?? { health: "unknown" };
        return { resource, id: name ?? `${driver}/${pool}/${device}`, ...told };
      });
      return [...new Map(found.map((each) => [JSON.stringify([each.resource, each.id]), each])).values()].filter(
        ({ id }) => id.length <= MAX_ID_CHARS,
      );
    };
    return new Map(containersOf(this.#state.spec).map(({ spec }) => [spec.name, shownOf(spec)]));
  }
}
