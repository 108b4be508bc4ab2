/**
 * A VM cloud in memory: names that are unique, entries with compare-and-swap, lists that lag, hosts that go out of sight, sizes that are
 * sold out. What a VM's guest is, whoever makes it says. Faults are told call by call.
 */
import type { Duplex } from "node:stream";
import type { Entry, EntryStore, InstanceType, Vm, VmCloud, VmRequest, VmState } from "../../providers/cloud/cloud.ts";
import { ProviderError } from "../../src/provider/errors.ts";

export interface CloudVm {
  readonly request: VmRequest;
  state: VmState;
  isSeen: boolean;
  /** Tells VMs of one name apart. */
  readonly serial: number;
}

/** The name of a function of the cloud, such as `createVm` or `entries.swap`. */
export type CloudCall = "createVm" | "getVm" | "listVms" | "deleteVm" | `entries.${keyof EntryStore}`;

export interface SimulatedCloudOptions {
  /** Told of each VM that is no more. */
  onGone?: ((vm: CloudVm) => void) | undefined;
  /** A VM runs as soon as it is ordered. Default true. */
  bootsAtOnce?: boolean | undefined;
  /** A VM that is deleted stays for some time. Default false. */
  deletesSlowly?: boolean | undefined;
}

export class SimulatedCloud implements VmCloud {
  readonly name = "simulated";
  readonly vms = new Map<string, CloudVm>();
  readonly words = new Map<string, { words: Entry["words"]; version: number }>();
  /** Types that are sold out. */
  readonly soldOut = new Set<string>();
  /** Every VM that was ever ordered, in order. */
  readonly ordered: VmRequest[] = [];
  /** Called before a call has its effect, and after it; what it throws is the call's answer. */
  before: ((call: CloudCall, name: string) => void) | undefined;
  after: ((call: CloudCall, name: string) => void) | undefined;
  /** What lists say, when that is not what is true. */
  staleEntries: Entry[] | undefined;
  readonly #options: SimulatedCloudOptions;
  #version = 0;
  #serial = 0;

  constructor(options: SimulatedCloudOptions = {}) {
    this.#options = options;
  }

  readonly entries: EntryStore = {
    get: (name) => this.#call("entries.get", name, () => this.#entry(name)),
    list: ([key, value]) =>
      this.#call("entries.list", "", () =>
        (this.staleEntries ?? this.allEntries()).filter(({ words }) => words[key] === value),
      ),
    create: (name, words) =>
      this.#call("entries.create", name, () => {
        if (this.words.has(name)) throw new ProviderError("conflict", `UNIQUE constraint failed: ${name}`);
        this.words.set(name, { words, version: ++this.#version });
        return this.#entry(name);
      }),
    swap: (name, words, version) =>
      this.#call("entries.swap", name, () => {
        if (this.#entry(name).version !== version) throw new ProviderError("conflict", "ETag doesn't match");
        this.words.set(name, { words, version: ++this.#version });
        return this.#entry(name);
      }),
    remove: (name, version) =>
      this.#call("entries.remove", name, () => {
        if (this.#entry(name).version !== version) throw new ProviderError("conflict", "ETag doesn't match");
        this.words.delete(name);
      }),
  };

  allEntries(): Entry[] {
    return [...this.words.keys()].map((name) => this.#entry(name));
  }

  #entry(name: string): Entry {
    const known = this.words.get(name);
    if (known === undefined) throw new ProviderError("not_found", `no entry ${name}`);
    return { name, words: known.words, version: String(known.version) };
  }

  createVm(request: VmRequest): Promise<void> {
    return this.#call("createVm", request.name, () => {
      if (this.vms.has(request.name)) throw new ProviderError("conflict", `Instance ${request.name} already exists`);
      if (this.soldOut.has(request.type.name)) throw new ProviderError("quota", `no room for ${request.type.name}`);
      this.ordered.push(request);
      const state = this.#options.bootsAtOnce === false ? "booting" : "running";
      this.vms.set(request.name, { request, state, isSeen: true, serial: ++this.#serial });
    });
  }

  getVm(name: string): Promise<Vm> {
    return this.#call("getVm", name, () => {
      const vm = this.vms.get(name);
      if (vm === undefined) throw new ProviderError("not_found", `no VM ${name}`);
      return shown(vm);
    });
  }

  listVms([key, value]: readonly [string, string]): Promise<Vm[]> {
    return this.#call("listVms", "", () =>
      [...this.vms.values()].map(shown).filter(({ labels }) => labels[key] === value),
    );
  }

  deleteVm(name: string): Promise<void> {
    return this.#call("deleteVm", name, () => {
      const vm = this.vms.get(name);
      if (vm === undefined) return;
      if (!vm.isSeen) throw new ProviderError("unavailable", "Server isn't ready yet");
      if (this.#options.deletesSlowly === true) vm.state = "deleting";
      else this.lose(name);
    });
  }

  /** It is gone, by whomever. */
  lose(name: string): void {
    const vm = this.vms.get(name);
    this.vms.delete(name);
    if (vm !== undefined) this.#options.onGone?.(vm);
  }

  dial(): Promise<Duplex> {
    throw new Error("not simulated");
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  async #call<T>(call: CloudCall, name: string, work: () => T): Promise<T> {
    await Promise.resolve();
    this.before?.(call, name);
    const value = work();
    this.after?.(call, name);
    return value;
  }
}

const shown = ({ request, state, isSeen }: CloudVm): Vm => ({
  name: request.name,
  labels: request.labels,
  state,
  isSeen,
  type: request.type.name,
  zone: request.type.zone,
  host: "host-1",
  addresses: [],
});

export const SMALL: InstanceType = { name: "small", resources: { cpu_millis: 1000, memory_bytes: 2 ** 30 }, price: 1 };
export const LARGE: InstanceType = { name: "large", resources: { cpu_millis: 8000, memory_bytes: 2 ** 34 }, price: 8 };
