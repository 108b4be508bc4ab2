/** The guests of VMs: a Machine API for each. */
import type { CallOptions, Clock, Provider, Tracing } from "../../src/provider/kit/index.ts";
import { HttpVmProvider } from "../http-vm/index.ts";
import type { Vm, VmCloud } from "./cloud.ts";

/**
 * Reaches the guest of this very VM. Cheap: nothing is dialled before a call.
 *
 * @param now the VM as it was last seen: an address may come, or change, while its guest is spoken to
 */
export type OpenGuest = (vm: Vm, now: () => Vm) => Provider;

interface Opened {
  readonly key: string;
  readonly guest: Provider;
  vm: Vm;
}

export class Guests {
  readonly #open: OpenGuest;
  /** By the VM's name; the key tells VMs of one name apart. */
  readonly #opened = new Map<string, Opened>();

  constructor(open: OpenGuest) {
    this.#open = open;
  }

  of(vm: Vm): Provider {
    const key = JSON.stringify(vm.labels);
    const known = this.#opened.get(vm.name);
    if (known?.key === key) {
      known.vm = vm;
      return known.guest;
    }
    void known?.guest.close().catch(() => undefined);
    const opened: Opened = { key, vm, guest: this.#open(vm, () => opened.vm) };
    this.#opened.set(vm.name, opened);
    return opened.guest;
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
  (cloud: VmCloud, clock: Clock, tracing?: Pick<Tracing, "active">): OpenGuest =>
  (_vm, now) =>
    new HttpVmProvider({
      url: "http://localhost",
      dial: (signal) => cloud.dial(now(), { signal }),
      // Of this very VM, for as long as it is open.
      keepDialled: true,
      clock,
      tracing,
    });
