/** A cloud's functions as the rest of this folder uses them: with deadlines, and with what a refusal means. */
import {
  type CallOptions,
  type Clock,
  isProviderError,
  linkAbort,
  ProviderError,
  unlessAborted,
} from "../../src/provider/kit/index.ts";
import type { Entry, Vm, VmCloud, VmRequest } from "./cloud.ts";
import { type MachineRecord, recordOf, SCOPE, wordsOf } from "./record.ts";

/** After this, a call's answer is unknown. */
const CALL_MS = 20_000;

interface CloudCallsOptions {
  readonly cloud: VmCloud;
  readonly scope: string;
  readonly clock: Clock;
}

export class CloudCalls {
  readonly #cloud: VmCloud;
  readonly #scope: string;
  readonly #clock: Clock;

  constructor({ cloud, scope, clock }: CloudCallsOptions) {
    this.#cloud = cloud;
    this.#scope = scope;
    this.#clock = clock;
  }

  /** Undefined when there certainly is none. */
  record(id: string, options: CallOptions): Promise<MachineRecord | undefined> {
    return this.#orAbsent(options, async (inner) => this.#believe(await this.#cloud.entries.get(id, inner)));
  }

  /** Those of this scope that make sense. May lag. */
  async records(options: CallOptions): Promise<MachineRecord[]> {
    const entries = await this.#within(options, (inner) => this.#cloud.entries.list([SCOPE, this.#scope], inner));
    return entries.flatMap((entry) => {
      try {
        return [recordOf(entry)];
      } catch {
        return [];
      }
    });
  }

  /** What stands there now: the new one, or that of who was faster. */
  async write(id: string, record: Omit<MachineRecord, "id" | "version">, options: CallOptions): Promise<MachineRecord> {
    const words = wordsOf(record, this.#scope);
    try {
      return this.#believe(await this.#within(options, (inner) => this.#cloud.entries.create(id, words, inner)));
    } catch (thrown) {
      if (!isProviderError(thrown, "conflict")) throw thrown;
    }
    const written = await this.record(id, options);
    if (written !== undefined) return written;
    throw new ProviderError("unavailable", `the entry of machine ${id} came and went`);
  }

  /** Changes the record, unless somebody else has: look again. */
  async advance(record: MachineRecord, change: Partial<MachineRecord>, options: CallOptions): Promise<void> {
    const words = wordsOf({ ...record, ...change }, this.#scope);
    try {
      await this.#within(options, (inner) => this.#cloud.entries.swap(record.id, words, record.version, inner));
    } catch (thrown) {
      if (!isProviderError(thrown, "conflict") && !isProviderError(thrown, "not_found")) throw thrown;
    }
  }

  /** Removes it if it is still the same. */
  async withdraw({ id, version }: MachineRecord, options: CallOptions): Promise<void> {
    try {
      await this.#within(options, (inner) => this.#cloud.entries.remove(id, version, inner));
    } catch (thrown) {
      if (!isProviderError(thrown, "conflict") && !isProviderError(thrown, "not_found")) throw thrown;
    }
  }

  /** Undefined when there certainly is none. */
  vm(name: string, options: CallOptions): Promise<Vm | undefined> {
    return this.#orAbsent(options, (inner) => this.#cloud.getVm(name, inner));
  }

  vms(label: readonly [string, string], options: CallOptions): Promise<Vm[]> {
    return this.#within(options, (inner) => this.#cloud.listVms(label, inner));
  }

  createVm(request: VmRequest, options: CallOptions): Promise<void> {
    return this.#within(options, (inner) => this.#cloud.createVm(request, inner));
  }

  deleteVm(name: string, options: CallOptions): Promise<void> {
    return this.#within(options, (inner) => this.#cloud.deleteVm(name, inner));
  }

  #believe(entry: Entry): MachineRecord {
    try {
      return recordOf(entry);
    } catch (thrown) {
      throw new ProviderError("unavailable", `the entry ${entry.name} makes no sense`, { cause: thrown });
    }
  }

  async #orAbsent<T>(options: CallOptions, read: (inner: CallOptions) => Promise<T>): Promise<T | undefined> {
    try {
      return await this.#within(options, read);
    } catch (thrown) {
      if (isProviderError(thrown, "not_found")) return undefined;
      throw thrown;
    }
  }

  async #within<T>({ signal }: CallOptions, work: (inner: CallOptions) => Promise<T>): Promise<T> {
    signal.throwIfAborted();
    const late = new AbortController();
    const cancel = this.#clock.after(CALL_MS, () =>
      late.abort(new ProviderError("unavailable", `the cloud ${this.#cloud.name} did not answer within ${CALL_MS} ms`)),
    );
    using linked = linkAbort(signal, late.signal);
    try {
      return await unlessAborted(work({ signal: linked.signal }), linked.signal);
    } finally {
      cancel();
    }
  }
}
