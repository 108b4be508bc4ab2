/**
 * A VM cloud in memory, without time and without faults: names that are unique, entries with compare-and-swap, sizes that are sold out,
 * hosts that are out of sight.
 */
import type { Entry, InstanceType, Vm, VmNotice, VmRequest, VmState } from "../../providers/cloud/cloud.ts";
import { ProviderError } from "../../src/provider/errors.ts";

export interface CloudVm {
  readonly request: VmRequest;
  state: VmState;
  isSeen: boolean;
  notice?: VmNotice | undefined;
}

export interface CloudStateOptions {
  /** Told of each VM that is no more. */
  onGone?: ((vm: CloudVm) => void) | undefined;
  /** A VM runs as soon as it is ordered. Default true. */
  bootsAtOnce?: boolean | undefined;
  /** A VM that is deleted stays for some time. Default false. */
  deletesSlowly?: boolean | undefined;
}

export class CloudState {
  readonly vms = new Map<string, CloudVm>();
  readonly words = new Map<string, { words: Entry["words"]; version: number }>();
  /** Types that are sold out. */
  readonly soldOut = new Set<string>();
  /** Every VM that was ever ordered, in order. */
  readonly ordered: VmRequest[] = [];
  readonly #options: CloudStateOptions;
  #version = 0;

  constructor(options: CloudStateOptions) {
    this.#options = options;
  }

  entry(name: string): Entry {
    const known = this.words.get(name);
    if (known === undefined) throw new ProviderError("not_found", `no entry ${name}`);
    return { name, words: known.words, version: String(known.version) };
  }

  entries(): Entry[] {
    return [...this.words.keys()].map((name) => this.entry(name));
  }

  createEntry(name: string, words: Entry["words"]): Entry {
    if (this.words.has(name)) throw new ProviderError("conflict", `UNIQUE constraint failed: ${name}`);
    return this.#write(name, words);
  }

  swapEntry(name: string, words: Entry["words"], version: string): Entry {
    this.#require(name, version);
    return this.#write(name, words);
  }

  removeEntry(name: string, version: string): void {
    this.#require(name, version);
    this.words.delete(name);
  }

  #write(name: string, words: Entry["words"]): Entry {
    this.words.set(name, { words, version: ++this.#version });
    return this.entry(name);
  }

  #require(name: string, version: string): void {
    if (this.entry(name).version !== version) throw new ProviderError("conflict", "ETag doesn't match");
  }

  createVm(request: VmRequest): void {
    if (this.vms.has(request.name)) throw new ProviderError("conflict", `Instance ${request.name} already exists`);
    if (this.soldOut.has(request.type.name)) throw new ProviderError("quota", `no room for ${request.type.name}`);
    this.ordered.push(request);
    const state = this.#options.bootsAtOnce === false ? "booting" : "running";
    this.vms.set(request.name, { request, state, isSeen: true });
  }

  vm(name: string): Vm {
    const vm = this.vms.get(name);
    if (vm === undefined) throw new ProviderError("not_found", `no VM ${name}`);
    return shown(vm);
  }

  allVms(): Vm[] {
    return [...this.vms.values()].map(shown);
  }

  deleteVm(name: string): void {
    const vm = this.vms.get(name);
    if (vm === undefined) return;
    if (!vm.isSeen) throw new ProviderError("unavailable", "Server isn't ready yet");
    if (this.#options.deletesSlowly === true) vm.state = "deleting";
    else this.lose(name);
  }

  /** It is gone, by whomever. */
  lose(name: string): void {
    const vm = this.vms.get(name);
    this.vms.delete(name);
    if (vm !== undefined) this.#options.onGone?.(vm);
  }
}

const shown = ({ request, state, isSeen, notice }: CloudVm): Vm => ({
  notice,
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
