/** A VM's network: on a bridge of ours, or on that of the host's cluster (network/cni). */
import type { Capability, Clock, Logger, MachineSpec } from "../../../../src/provider/kit/index.ts";
import type { CniAttachment } from "../../network/cni/network.ts";
import { containerPorts } from "../../network/host-ports.ts";
import type { Attachment, HostNetwork } from "../../network/network.ts";

export type VmAttachment = Attachment | CniAttachment;

export interface VmNetwork {
  /** What machines have by it. */
  readonly capabilities: readonly Capability[];
  /** Ports of the host may be of an IPv6 address. */
  readonly hasIpv6: boolean;
  /** Before anything else. */
  begin(clock: Clock, logger: Logger): Promise<void>;
  /** Why it is not there yet; undefined when it is. Looks, too, at what it can do. */
  lack(): Promise<string | undefined>;
  /** @param spec of the machine, where the VM has one already */
  attach(key: string, spec: MachineSpec | undefined, signal: AbortSignal): Promise<VmAttachment>;
  /** Has the rules in force that hold the VM, to its machine's limits too. Repeating it is safe. */
  hold(key: string, spec: MachineSpec): Promise<void>;
  /** Gives the VM the ports of the host that its machine asks for. Repeating it is safe. */
  openHostPorts(key: string, spec: MachineSpec): Promise<void>;
  detach(key: string): Promise<void>;
  counters(key: string): Promise<{ rx_bytes: number; tx_bytes: number } | undefined>;
  sweep(known: ReadonlySet<string>): Promise<void>;
  /** VMs keep what they have. */
  leave(): Promise<void>;
}

export function bridgeNetwork(network: HostNetwork): VmNetwork {
  return {
    get capabilities() {
      return network.limits.capabilities;
    },
    get hasIpv6() {
      return network.range.hasIpv6;
    },
    async begin(clock, logger) {
      await network.claim();
      network.lookAfter(clock, logger);
    },
    async lack() {
      await network.limits.look();
      return undefined;
    },
    attach: async (key) => await network.attachTap(key),
    async hold(key, spec) {
      await network.ensure();
      await network.limits.hold(key, spec.bandwidth);
    },
    openHostPorts: async (key, spec) => await network.openHostPorts(key, containerPorts(spec)),
    detach: async (key) => await network.detach(key),
    counters: async (key) => await network.counters(key),
    sweep: async (known) => await network.sweep(known),
    leave: async () => await network.leave(),
  };
}
