/**
 * Takes away what nobody needs any more: VMs that no entry names, entries whose machine was never told and that nobody
 * goes on with, tombstones that are old. Only what is provably of this scope, only after two sights with time between
 * them, and only when the entry itself, read then, says so. A VM is named by its entry before it is ordered, and no
 * name is given twice: what is not named now never will be. An entry of what is over or buried needs its VM no more:
 * an order may come after that was seen to be gone.
 */
import type { CallOptions, Clock, Logger } from "../../src/provider/kit/index.ts";
import type { CloudCalls } from "./cloud-calls.ts";
import type { Vm } from "./cloud.ts";
import { type MachineRecord, needsVm } from "./record.ts";
import { MACHINE_LABEL, POOL_LABEL, SCOPE_LABEL } from "./labels.ts";
import type { MachineWork } from "./machine-work.ts";
import { LEAK_MS, quietly, Sights } from "./rounds.ts";

interface CollectorOptions {
  readonly cloud: CloudCalls;
  readonly work: MachineWork;
  readonly scope: string;
  /** True while this process goes on with the machine. */
  readonly isWanted: (id: string) => boolean;
  /** How long a machine that was never told may be left alone. */
  readonly idleMs: number;
  readonly tombstoneMs: number;
  readonly clock: Clock;
  readonly logger: Logger;
}

export class Collector {
  readonly #options: CollectorOptions;
  readonly #sights: Sights;

  constructor(options: CollectorOptions) {
    this.#options = options;
    this.#sights = new Sights(options.clock);
  }

  /** One round. What fails is tried again in the next. */
  async collect(options: CallOptions): Promise<void> {
    const { cloud, scope } = this.#options;
    const records = await cloud.records(options);
    const vms = await cloud.vms([SCOPE_LABEL, scope], options);
    this.#sights.begin();
    for (const record of records) await this.#quietly(() => this.#collectRecord(record, options), options);
    const named = new Set(records.flatMap((record) => (needsVm(record) ? [record.vm] : [])));
    for (const { name, labels } of vms) {
      if (named.has(name) || labels[SCOPE_LABEL] !== scope) continue;
      if (!this.#sights.isOld(`vm ${name}`, LEAK_MS)) continue;
      await this.#quietly(() => this.#collectVm(name, labels, options), options);
    }
  }

  async #collectRecord(record: MachineRecord, options: CallOptions): Promise<void> {
    const { cloud, work, isWanted, idleMs, tombstoneMs } = this.#options;
    const { id, version, phase } = record;
    switch (phase) {
      case "ending":
      case "burying":
        await work.look(id, undefined, options);
        return;
      case "made":
        // Its VM, if there is one, is then one that nobody names.
        if (!isWanted(id) && this.#sights.isOld(`made ${id} ${version}`, idleMs)) await cloud.withdraw(record, options);
        return;
      case "buried":
        if (this.#sights.isOld(`buried ${id} ${version}`, tombstoneMs)) await cloud.withdraw(record, options);
        return;
      case "told":
      case "held":
      case "over":
    }
  }

  async #collectVm(name: string, labels: Vm["labels"], options: CallOptions): Promise<void> {
    const { cloud, logger } = this.#options;
    const { [MACHINE_LABEL]: machine, [POOL_LABEL]: pool } = labels;
    if (machine !== undefined) {
      const record = await cloud.record(machine, options);
      if (record?.vm === name && needsVm(record)) return;
    } else if (pool === undefined || (await cloud.entry(pool, options)) !== undefined) return;
    logger.warn({ vm: name, machine }, "A VM that no machine has is removed");
    await cloud.deleteVm(name, options);
  }

  async #quietly(work: () => Promise<unknown>, { signal }: CallOptions): Promise<void> {
    await quietly(work, {
      signal,
      logger: this.#options.logger,
      fault: "Something of the cloud could not be collected",
    });
  }
}
