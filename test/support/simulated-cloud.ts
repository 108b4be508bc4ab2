/** `CloudState` as a VmCloud whose calls fail when a test says so, before their effect or after it. */
import type { Duplex } from "node:stream";
import type { CloudVolumes, Entry, EntryStore, Vm, VmCloud, VmRequest } from "../../providers/cloud/cloud.ts";
import { CloudState, type CloudStateOptions } from "./cloud-state.ts";

/** The name of a function of the cloud, such as `createVm` or `entries.swap`. */
export type CloudCall =
  | "createVm"
  | "getVm"
  | "listVms"
  | "deleteVm"
  | `entries.${keyof EntryStore}`
  | `volumes.${Exclude<keyof CloudVolumes, "zone" | "classes">}`;

export class SimulatedCloud implements VmCloud {
  readonly name = "simulated";
  readonly state: CloudState;
  /** Called before a call has its effect, and after it; what it throws is the call's answer. */
  before: ((call: CloudCall, name: string) => void) | undefined;
  after: ((call: CloudCall, name: string) => void) | undefined;
  /** What lists say, when that is not what is true. */
  staleEntries: Entry[] | undefined;

  constructor(options: CloudStateOptions = {}) {
    this.state = new CloudState(options);
  }

  readonly entries: EntryStore = {
    get: (name) => this.#call("entries.get", name, () => this.state.entry(name)),
    list: ([key, value]) =>
      this.#call("entries.list", "", () =>
        (this.staleEntries ?? this.state.entries()).filter(({ words }) => words[key] === value),
      ),
    create: (name, words) => this.#call("entries.create", name, () => this.state.createEntry(name, words)),
    swap: (name, words, version) => this.#call("entries.swap", name, () => this.state.swapEntry(name, words, version)),
    remove: (name, version) => this.#call("entries.remove", name, () => this.state.removeEntry(name, version)),
  };

  readonly volumes: CloudVolumes = {
    classes: [
      { name: "disks", sharing: "one" },
      { name: "others", sharing: "one" },
    ],
    create: (request) => this.#call("volumes.create", request.name, () => this.state.createVolume(request)),
    get: ({ name }) => this.#call("volumes.get", name, () => this.state.volume(name)),
    list: ([key, value]) =>
      this.#call("volumes.list", "", () =>
        [...this.state.volumes.keys()]
          .map((name) => this.state.volume(name))
          .filter(({ labels }) => labels[key] === value),
      ),
    grow: ({ name }, sizeBytes) =>
      this.#call("volumes.grow", name, () => {
        this.state.volumeOf(name).sizeBytes = sizeBytes;
      }),
    delete: ({ name }) => this.#call("volumes.delete", name, () => this.state.deleteVolume(name)),
    detach: (vm, volume) => this.#call("volumes.detach", vm, () => this.state.detach(vm, volume)),
    copiesInUse: (named) => this.#call("volumes.copiesInUse", named, () => this.state.copiesInUse),
    room: () => this.#call("volumes.room", "", () => this.state.roomBytes),
  };

  createVm(request: VmRequest): Promise<void> {
    return this.#call("createVm", request.name, () => this.state.createVm(request));
  }

  getVm(name: string): Promise<Vm> {
    return this.#call("getVm", name, () => this.state.vm(name));
  }

  listVms([key, value]: readonly [string, string]): Promise<Vm[]> {
    return this.#call("listVms", "", () => this.state.allVms().filter(({ labels }) => labels[key] === value));
  }

  deleteVm(name: string): Promise<void> {
    return this.#call("deleteVm", name, () => this.state.deleteVm(name));
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
