/** Agents whose machines are VMs of one simulated cloud, with guests that are remembered, under a virtual clock. */
import type { Vm } from "../../providers/cloud/cloud.ts";
import { CloudProvider, type CloudProviderOptions } from "../../providers/cloud/provider.ts";
import { MemoryProvider } from "../../providers/memory/index.ts";
import { ProviderError } from "../../src/provider/errors.ts";
import type { Provider } from "../../src/provider/provider.ts";
import { type CloudState, type CloudStateOptions, LARGE, SMALL } from "./cloud-state.ts";
import { type CloudCall, SimulatedCloud } from "./simulated-cloud.ts";
import { settle, VirtualClock } from "./virtual-clock.ts";

/** What the guest of this VM finds on the volumes that it has. */
export const givenIn =
  (state: CloudState, { name: vm }: Pick<Vm, "name">) =>
  (name: string) =>
    state.vms.get(vm)?.volumes.includes(name) === true ? state.volumes.get(name)?.texts : undefined;

export const unavailable = () => new ProviderError("unavailable", "no answer");

export class CloudAgents {
  static readonly #open: CloudProvider[] = [];
  readonly clock = new VirtualClock();
  readonly cloud: SimulatedCloud;
  /** By the VM's birth: what a guest has dies with its VM. */
  readonly guests = new Map<string, MemoryProvider>();
  /** Called before a guest is asked. */
  ask: ((vm: Vm, call: string) => void | Promise<void>) | undefined;

  constructor(options: CloudStateOptions = {}) {
    this.cloud = new SimulatedCloud(options);
  }

  /** Another process of an agent. */
  agent(options: Partial<CloudProviderOptions> = {}): CloudProvider {
    const provider = new CloudProvider({
      cloud: this.cloud,
      scope: "test",
      types: [SMALL, LARGE],
      openGuest: (vm) => this.#guest(vm),
      clock: this.clock,
      ...options,
    });
    CloudAgents.#open.push(provider);
    return provider;
  }

  #guest(vm: Vm): Provider {
    const birth = vm.labels["vmlet-birth"]!;
    const guest =
      this.guests.get(birth) ?? new MemoryProvider({ clock: this.clock, given: givenIn(this.cloud.state, vm) });
    this.guests.set(birth, guest);
    return new Proxy(guest, {
      get: (target, key) => {
        if (key === "close") return () => Promise.resolve();
        const value: unknown = Reflect.get(target, key, target);
        if (typeof value !== "function") return value;
        if (key === "watchPods") return value.bind(target) as unknown;
        return async (...args: unknown[]) => {
          await this.ask?.(vm, String(key));
          if (this.cloud.state.vms.get(vm.name)?.request.labels["vmlet-birth"] !== birth) throw unavailable();
          return await (value.apply(target, args) as Promise<unknown>);
        };
      },
    });
  }

  static async closeAll(): Promise<void> {
    await Promise.all(CloudAgents.#open.splice(0).map((provider) => provider.close()));
  }

  /** The next call of this kind has its effect, and its answer is lost. */
  loseAnswer(lost: CloudCall): void {
    this.cloud.after = (call) => {
      if (call !== lost) return;
      this.cloud.after = undefined;
      throw unavailable();
    };
  }

  get vmNames(): string[] {
    return [...this.cloud.state.vms.keys()];
  }

  /** Time passes, and everything that it sets off. */
  async pass(ms: number): Promise<void> {
    const step = Math.min(ms, 1000);
    for (let left = ms; left > 0; left -= step) await this.clock.advance(step);
    await settle();
  }
}
