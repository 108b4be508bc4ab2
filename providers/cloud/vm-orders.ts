/** Which VM a machine is to have, and its order. */
import {
  type CallOptions,
  isProviderError,
  type Logger,
  type MachineSpec,
  ProviderError,
  type Random,
  volumeClaims,
} from "../../src/provider/kit/index.ts";
import type { CloudCalls } from "./cloud-calls.ts";
import type { InstanceType } from "./cloud.ts";
import { fittingTypes, type Quarantine } from "./instance-types.ts";
import type { MachineVolumes } from "./machine-volumes.ts";
import { BIRTH_LABEL, MACHINE_LABEL, newVmName, SCOPE_LABEL } from "./labels.ts";
import type { Pool } from "./pool.ts";
import type { MachineRecord } from "./record.ts";
import type { Views } from "./views.ts";

interface VmOrdersOptions {
  readonly cloud: CloudCalls;
  readonly types: (options: CallOptions) => Promise<readonly InstanceType[]>;
  readonly pool: Pool;
  readonly volumes: MachineVolumes;
  /** Where machines with volumes have to be. Absent: anywhere. */
  readonly volumeZone: string | undefined;
  readonly quarantine: Quarantine;
  readonly views: Views;
  readonly scope: string;
  readonly random: Random;
  readonly logger: Logger;
}

/** Where a machine goes, as its entry says it. */
type Place = Pick<MachineRecord, "vm" | "type" | "zone" | "price" | "pool">;

export class VmOrders {
  readonly #options: VmOrdersOptions;

  constructor(options: VmOrdersOptions) {
    this.#options = options;
  }

  /** One that runs already, if the pool has any of the size. @throws ProviderError quota, invalid */
  async place(spec: MachineSpec, options: CallOptions): Promise<Place & { vm: string }> {
    const { pool } = this.#options;
    const type = this.#firstFree(await this.#fitting(spec, options));
    // A VM has its volumes from its order on: of those that wait, none has any.
    const warm = volumeClaims(spec).length > 0 ? undefined : pool.take(type);
    return { type: type.name, zone: type.zone, price: type.price, vm: warm?.vm ?? this.newName(), pool: warm?.name };
  }

  newName(): string {
    return newVmName(this.#options.random);
  }

  /**
   * Orders the VM that the record names.
   * @returns the place to take instead, or undefined when it was ordered
   * @throws ProviderError quota when there is room for none that fits
   */
  async order(record: MachineRecord, spec: MachineSpec, options: CallOptions): Promise<Place | undefined> {
    const { cloud, quarantine, volumes, logger, scope, views } = this.#options;
    const fitting = await this.#fitting(spec, options);
    const type = fitting.find(({ name, zone }) => name === record.type && zone === record.zone);
    if (type === undefined || quarantine.has(type)) {
      // The name goes with the type: an order that is still under way makes none of another size.
      const { name, zone, price } = this.#firstFree(fitting);
      views.notice(record.id, "InstanceTypeSoldOut", `no room for ${record.type}; ${name} is taken instead`);
      return { vm: this.newName(), type: name, zone, price, pool: undefined };
    }
    const labels = { [SCOPE_LABEL]: scope, [MACHINE_LABEL]: record.id, [BIRTH_LABEL]: this.newName() };
    const attached = volumes.attachedTo(record, spec);
    const request = { name: record.vm!, type, labels, ...(attached.length > 0 && { volumes: attached }) };
    try {
      await cloud.createVm(request, options);
    } catch (thrown) {
      if (isProviderError(thrown, "quota")) {
        logger.warn({ type: type.name, zone: type.zone, err: thrown }, "The cloud has no room for an instance type");
        quarantine.add(type);
        return await this.order(record, spec, options);
      }
      // Taken: by another agent's order, or by one of ours whose answer was lost.
      if (!isProviderError(thrown, "conflict")) throw thrown;
    }
    return undefined;
  }

  /** @throws ProviderError invalid */
  async #fitting(spec: MachineSpec, options: CallOptions): Promise<InstanceType[]> {
    const all = await this.#options.types(options);
    const { volumeZone } = this.#options;
    if (volumeZone === undefined || volumeClaims(spec).length === 0) return fittingTypes(spec, all);
    const near = all.filter(({ zone }) => zone === undefined || zone === volumeZone);
    if (near.length > 0) return fittingTypes(spec, near);
    throw new ProviderError("invalid", `no instance type is to be had in zone ${volumeZone}, where the volumes are`, {
      field: "volumes",
    });
  }

  /** @throws ProviderError quota when all of them are in quarantine */
  #firstFree(types: readonly InstanceType[]): InstanceType {
    const { quarantine } = this.#options;
    const free = types.find((type) => !quarantine.has(type));
    if (free !== undefined) return free;
    throw new ProviderError(
      "quota",
      `the cloud has no room for any of ${[...new Set(types.map(({ name }) => name))].join(", ")}`,
      { retryAfterMs: Math.min(...types.map((type) => quarantine.leftMs(type))) },
    );
  }
}
