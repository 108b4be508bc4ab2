/** A cloud's functions as the rest of this folder uses them: with deadlines, and with what a refusal means. */
import {
  type CallOptions,
  type Clock,
  isProviderError,
  linkAbort,
  ProviderError,
  type ProviderErrorCode,
  unlessAborted,
} from "../../src/provider/kit/index.ts";
import type { CloudVolume, CloudVolumes, Entry, Vm, VmCloud, VmRequest, VolumeRef } from "./cloud.ts";
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
  async record(id: string, options: CallOptions): Promise<MachineRecord | undefined> {
    const entry = await this.entry(id, options);
    return entry && this.#believe(entry);
  }

  /** Those of this scope that make sense. May lag. */
  async records(options: CallOptions): Promise<MachineRecord[]> {
    return sensible(await this.entries([SCOPE, this.#scope], options), recordOf);
  }

  /** What stands there now: the new one, or that of who was faster. */
  async write(id: string, record: Omit<MachineRecord, "id" | "version">, options: CallOptions): Promise<MachineRecord> {
    const entry = await this.createEntry(id, wordsOf(record, this.#scope), options);
    if (entry !== undefined) return this.#believe(entry);
    const written = await this.record(id, options);
    if (written !== undefined) return written;
    throw new ProviderError("unavailable", `the entry of machine ${id} came and went`);
  }

  /** Changes the record, unless somebody else has: look again. */
  async advance(record: MachineRecord, change: Partial<MachineRecord>, options: CallOptions): Promise<void> {
    const words = wordsOf({ ...record, ...change }, this.#scope);
    await this.swapEntry(record.id, words, record.version, options);
  }

  /** Removes it if it is still the same. */
  async withdraw({ id, version }: Pick<MachineRecord, "id" | "version">, options: CallOptions): Promise<void> {
    await this.removeEntry(id, version, options);
  }

  /** Undefined when there certainly is none. */
  entry(name: string, options: CallOptions): Promise<Entry | undefined> {
    return this.#unless(["not_found"], options, (inner) => this.#cloud.entries.get(name, inner));
  }

  /** May lag. */
  entries(word: readonly [string, string], options: CallOptions): Promise<Entry[]> {
    return this.#within(options, (inner) => this.#cloud.entries.list(word, inner));
  }

  /** Undefined when the name is taken. */
  createEntry(name: string, words: Entry["words"], options: CallOptions): Promise<Entry | undefined> {
    return this.#unless(["conflict"], options, (inner) => this.#cloud.entries.create(name, words, inner));
  }

  /** Undefined when it is another by now. */
  swapEntry(name: string, words: Entry["words"], version: string, options: CallOptions): Promise<Entry | undefined> {
    return this.#unless(["conflict", "not_found"], options, (inner) =>
      this.#cloud.entries.swap(name, words, version, inner),
    );
  }

  /** Unless it is another by now. */
  async removeEntry(name: string, version: string, options: CallOptions): Promise<void> {
    await this.#unless(["conflict", "not_found"], options, (inner) => this.#cloud.entries.remove(name, version, inner));
  }

  /** Undefined when there certainly is none. */
  vm(name: string, options: CallOptions): Promise<Vm | undefined> {
    return this.#unless(["not_found"], options, (inner) => this.#cloud.getVm(name, inner));
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

  /** One of the functions of the cloud's volumes. */
  onVolumes<T>(options: CallOptions, work: (volumes: CloudVolumes, inner: CallOptions) => Promise<T>): Promise<T> {
    const { volumes, name } = this.#cloud;
    if (volumes === undefined) throw new ProviderError("unsupported", `the cloud ${name} has no volumes`);
    return this.#within(options, (inner) => work(volumes, inner));
  }

  /** Undefined when there certainly is none. */
  async volume(volume: VolumeRef, options: CallOptions): Promise<CloudVolume | undefined> {
    try {
      return await this.onVolumes(options, (volumes, inner) => volumes.get(volume, inner));
    } catch (thrown) {
      if (isProviderError(thrown, "not_found")) return undefined;
      throw thrown;
    }
  }

  #believe(entry: Entry): MachineRecord {
    try {
      return recordOf(entry);
    } catch (thrown) {
      throw new ProviderError("unavailable", `the entry ${entry.name} makes no sense`, { cause: thrown });
    }
  }

  /** Undefined when it fails in one of these ways. */
  async #unless<T>(
    codes: readonly ProviderErrorCode[],
    options: CallOptions,
    work: (inner: CallOptions) => Promise<T>,
  ): Promise<T | undefined> {
    try {
      return await this.#within(options, work);
    } catch (thrown) {
      if (codes.some((code) => isProviderError(thrown, code))) return undefined;
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

/** Of those that make no sense nothing is known. */
export function sensible<T>(entries: readonly Entry[], read: (entry: Entry) => T): T[] {
  return entries.flatMap((entry) => {
    try {
      return [read(entry)];
    } catch {
      return [];
    }
  });
}
