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

/** Between the first sight of a VM that nobody names and its end. */
const LEAK_MS = 60_000;

export class Collector {
  readonly #options: CollectorOptions;
  /** Monotonic time of the first sight, by what was seen. */
  #sights = new Map<string, number>();

  constructor(options: CollectorOptions) {
    this.#options = options;
  }

  /** One round. What fails is tried again in the next. */
  async collect(options: CallOptions): Promise<void> {
    const { cloud, scope } = this.#options;
    const records = await cloud.records(options);
    const vms = await cloud.vms([SCOPE_LABEL, scope], options);
    const before = this.#sights;
    this.#sights = new Map();
    for (const record of records) await this.#quietly(() => this.#collectRecord(record, before, options), options);
    const named = new Set(records.flatMap((record) => (needsVm(record) ? [record.vm] : [])));
    for (const { name, labels } of vms) {
      if (named.has(name) || labels[SCOPE_LABEL] !== scope) continue;
      if (!this.#isOld(`vm ${name}`, before, LEAK_MS)) continue;
      await this.#quietly(() => this.#collectVm(name, labels, options), options);
    }
  }

  async #collectRecord(
    record: MachineRecord,
    before: ReadonlyMap<string, number>,
    options: CallOptions,
  ): Promise<void> {
    const { cloud, work, isWanted, idleMs, tombstoneMs } = this.#options;
    const { id, version, phase } = record;
    switch (phase) {
      case "ending":
      case "burying":
        await work.look(id, undefined, options);
        return;
      case "made":
        // Its VM, if there is one, is then one that nobody names.
        if (!isWanted(id) && this.#isOld(`made ${id} ${version}`, before, idleMs))
          await cloud.withdraw(record, options);
        return;
      case "buried":
        if (this.#isOld(`buried ${id} ${version}`, before, tombstoneMs)) await cloud.withdraw(record, options);
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

  #isOld(what: string, before: ReadonlyMap<string, number>, ageMs: number): boolean {
    const now = this.#options.clock.monotonic();
    const since = before.get(what) ?? now;
    this.#sights.set(what, since);
    return now - since >= ageMs;
  }

  async #quietly(work: () => Promise<unknown>, { signal }: CallOptions): Promise<void> {
    try {
      await work();
    } catch (thrown) {
      if (signal.aborted) throw thrown;
      this.#options.logger.debug({ err: thrown }, "Something of the cloud could not be collected");
    }
  }
}
