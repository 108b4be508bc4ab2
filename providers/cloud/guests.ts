/** The guests of VMs: a Machine API for each. */
import type { CallOptions, Clock, Provider } from "../../src/provider/kit/index.ts";
import { HttpVmProvider } from "../http-vm/index.ts";
import type { Vm, VmCloud } from "./cloud.ts";

/** Reaches the guest of this very VM. Cheap: nothing is dialled before a call. */
export type OpenGuest = (vm: Vm) => Provider;

export class Guests {
  readonly #open: OpenGuest;
  /** By the VM's name; the key tells VMs of one name apart. */
  readonly #opened = new Map<string, { key: string; guest: Provider }>();

  constructor(open: OpenGuest) {
    this.#open = open;
  }

  of(vm: Vm): Provider {
    const key = JSON.stringify([vm.labels, vm.addresses]);
    const known = this.#opened.get(vm.name);
    if (known?.key === key) return known.guest;
    void known?.guest.close().catch(() => undefined);
    const guest = this.#open(vm);
    this.#opened.set(vm.name, { key, guest });
    return guest;
  }

  /**
   * True when the guest of this VM answers anything.
   * @throws what the call was ended with, when it was
   */
  async answers(vm: Vm, options: CallOptions): Promise<boolean> {
    try {
      await this.of(vm).getInfo(options);
      return true;
    } catch (thrown) {
      if (options.signal.aborted) throw thrown;
      return false;
    }
  }

  /** The VM is no more. */
  forget(vm: string): void {
    const known = this.#opened.get(vm);
    this.#opened.delete(vm);
    void known?.guest.close().catch(() => undefined);
  }

  async close(): Promise<void> {
    const open = [...this.#opened.values()];
    this.#opened.clear();
    await Promise.allSettled(open.map(({ guest }) => guest.close()));
  }
}

/** The address says only that it is plain HTTP: what is dialled is the cloud's to protect. */
export const dialledGuest =
  (cloud: VmCloud, clock: Clock): OpenGuest =>
  (vm) =>
    new HttpVmProvider({
      url: "http://localhost",
      dial: (signal) => cloud.dial(vm, { signal }),
      // Of this very VM, for as long as it is open.
      keepDialled: true,
      clock,
    });
