/** Which VM a machine is to have, and its order. */
import {
  type CallOptions,
  isProviderError,
  type Logger,
  type MachineSpec,
  ProviderError,
  type Random,
} from "../../src/provider/kit/index.ts";
import type { CloudCalls } from "./cloud-calls.ts";
import type { InstanceType } from "./cloud.ts";
import { fittingTypes, type Quarantine } from "./instance-types.ts";
import { BIRTH_LABEL, MACHINE_LABEL, newVmName, SCOPE_LABEL } from "./labels.ts";
import type { Pool } from "./pool.ts";
import type { MachineRecord } from "./record.ts";
import type { Views } from "./views.ts";

interface VmOrdersOptions {
  readonly cloud: CloudCalls;
  readonly types: (options: CallOptions) => Promise<readonly InstanceType[]>;
  readonly pool: Pool;
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
    const { types, pool } = this.#options;
    const type = this.#firstFree(fittingTypes(spec, await types(options)));
    const warm = pool.take(type);
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
    const { cloud, quarantine, types, logger, scope, views } = this.#options;
    const fitting = fittingTypes(spec, await types(options));
    const type = fitting.find(({ name, zone }) => name === record.type && zone === record.zone);
    if (type === undefined || quarantine.has(type)) {
      // The name goes with the type: an order that is still under way makes none of another size.
      const { name, zone, price } = this.#firstFree(fitting);
      views.notice(record.id, "InstanceTypeSoldOut", `no room for ${record.type}; ${name} is taken instead`);
      return { vm: this.newName(), type: name, zone, price, pool: undefined };
    }
    const labels = { [SCOPE_LABEL]: scope, [MACHINE_LABEL]: record.id, [BIRTH_LABEL]: this.newName() };
    try {
      await cloud.createVm({ name: record.vm!, type, labels }, options);
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
