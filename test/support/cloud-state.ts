/**
 * A VM cloud in memory, without time and without faults: names that are unique, entries with compare-and-swap, sizes that are sold out,
 * hosts that are out of sight.
 */
import type {
  CloudVolume,
  CloudVolumeRequest,
  Entry,
  InstanceType,
  Vm,
  VmNotice,
  VmRequest,
  VmState,
} from "../../providers/cloud/cloud.ts";
import { ProviderError } from "../../src/provider/errors.ts";

export interface CloudVm {
  readonly request: VmRequest;
  state: VmState;
  isSeen: boolean;
  notice?: VmNotice | undefined;
  /** Names of those that it has. */
  volumes: readonly string[];
}

export interface HeldVolume {
  readonly request: CloudVolumeRequest;
  sizeBytes: number;
  state: CloudVolume["state"];
  /** What is on it: texts of files. */
  readonly texts: Map<string, string>;
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
  readonly volumes = new Map<string, HeldVolume>();
  /** What volumes may have together. */
  roomBytes = 2 ** 50;
  /** Whether what a VM writes to is copied as it was at one instant. */
  copiesInUse = false;
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
    const volumes = (request.volumes ?? []).map(({ name }) => name);
    const lacking = volumes.find((name) => !this.volumes.has(name));
    if (lacking !== undefined) throw new ProviderError("unavailable", `Storage volume ${lacking} not found`);
    this.vms.set(request.name, { request, state, isSeen: true, volumes });
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

  createVolume(request: CloudVolumeRequest): void {
    const { name, sizeBytes, source } = request;
    if (this.volumes.has(name)) throw new ProviderError("conflict", "Volume by that name already exists");
    if (sizeBytes > this.roomBytes) throw new ProviderError("quota", `no room for ${sizeBytes} bytes`);
    const texts = new Map(source && this.volumeOf(source.name).texts);
    this.volumes.set(name, { request, sizeBytes, state: "ready", texts });
  }

  volumeOf(name: string): HeldVolume {
    const volume = this.volumes.get(name);
    if (volume === undefined) throw new ProviderError("not_found", `no volume ${name}`);
    return volume;
  }

  volume(name: string): CloudVolume {
    const { request, sizeBytes, state } = this.volumeOf(name);
    return { name, class: request.class, labels: request.labels, sizeBytes, state };
  }

  deleteVolume(name: string): void {
    for (const vm of this.vms.values())
      if (vm.volumes.includes(name)) throw new ProviderError("in_use", "The storage volume is still in use");
    this.volumes.delete(name);
  }

  detach(name: string, volume: string): void {
    const vm = this.vms.get(name);
    if (vm === undefined) return;
    if (!vm.isSeen) throw new ProviderError("unavailable", "Server isn't ready yet");
    vm.volumes = vm.volumes.filter((each) => each !== volume);
  }

  /** It is gone, by whomever. */
  lose(name: string): void {
    const vm = this.vms.get(name);
    this.vms.delete(name);
    if (vm !== undefined) this.#options.onGone?.(vm);
  }
}

const shown = ({ request, state, isSeen, notice, volumes }: CloudVm): Vm => ({
  notice,
  volumes,
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
