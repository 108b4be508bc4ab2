/**
 * The real provider of machines that are VMs, between a cloud and guests that answer when and how the schedule likes. Each of its
 * requests is a choice point.
 */
import type { EntryStore, Vm, VmCloud } from "../../../providers/cloud/cloud.ts";
import { MACHINE_LABEL } from "../../../providers/cloud/labels.ts";
import { CloudProvider } from "../../../providers/cloud/provider.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import type { Random } from "../../../src/util/random.ts";
import type { Fault } from "../network.ts";
import type { Sender } from "../invariants/sender.ts";
import { type CloudWorld, SCOPE } from "../world/cloud.ts";
import type { Agent } from "./agent.ts";
import { BACKEND } from "./renderer.ts";

/** Sends a request about a machine, and answers what its server does. */
type Send = <T>(name: string, id: string, changes: boolean, exec: (sender: Sender) => T) => Promise<T>;

export function cloudProviderOf(
  agent: Agent,
  options: { uidOf: (id: string) => string; fault: (kind: Fault) => Error; random: Random },
): Provider {
  const cloud = agent.world.cloud!;
  const { uidOf, fault, random } = options;
  /** What the agent knew when it asked for the end of a machine, as long as that takes several requests. */
  const asked = new Map<string, Sender>();
  const send: Send = (name, id, changes, exec) => {
    const uid = id === "" ? undefined : uidOf(id);
    const sender = asked.get(id) ?? agent.knows(uid ?? "");
    return agent.network.send({ agent, name, uid, changes, exec: () => exec(sender), fault });
  };
  const vms = vmsOf(agent, cloud, send);
  const real = new CloudProvider({
    cloud: agent.mutant?.cloud?.(vms) ?? vms,
    openGuest: (vm) => guestOf(vm, agent, cloud, send),
    scope: SCOPE,
    types: cloud.types,
    name: "toy",
    capabilities: [...BACKEND.capabilities],
    makeEveryMs: 5_000,
    lookEveryMs: 15_000,
    collectEveryMs: 60_000,
    poolEveryMs: 15_000,
    bootMs: 60_000,
    clock: agent.clock,
    random,
  });
  const asking = async <T>(id: string, ask: () => Promise<T>): Promise<T> => {
    asked.set(id, agent.knows(uidOf(id)));
    try {
      return await ask();
    } finally {
      asked.delete(id);
    }
  };
  const ends: Pick<Provider, "stopPod" | "deletePod"> = {
    stopPod: (id, how) => asking(id, () => real.stopPod(id, how)),
    deletePod: (id, how) => asking(id, () => real.deletePod(id, how)),
  };
  return new Proxy<Provider>(real, {
    get: (target, key) => {
      if (key in ends) return ends[key as keyof typeof ends];
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
  });
}

function vmsOf({ network }: Agent, cloud: CloudWorld, send: Send): VmCloud {
  const { state } = cloud;
  const machineOf = (name: string) => cloud.machineOf(name);
  const idOf = (entry: string) => (entry.startsWith("_pool.") ? "" : entry);
  const entries: EntryStore = {
    get: (name) => send("entry.get", idOf(name), false, () => state.entry(name)),
    list: ([key, value]) =>
      send("entry.list", "", false, () =>
        cloud.listEntries(network.isFair).filter(({ words }) => words[key] === value),
      ),
    create: (name, words) => send("entry.create", idOf(name), true, () => state.createEntry(name, words)),
    swap: (name, words, version) =>
      send(cloud.isRenewal(name, words) ? "entry.renew" : "entry.swap", idOf(name), true, (sender) =>
        cloud.swap(name, words, version, sender),
      ),
    remove: (name, version) => send("entry.remove", idOf(name), true, () => state.removeEntry(name, version)),
  };
  return {
    name: "toy",
    entries,
    createVm: (request) => send("vm.create", request.labels[MACHINE_LABEL] ?? "", true, () => state.createVm(request)),
    getVm: (name) => send("vm.get", machineOf(name), false, () => state.vm(name)),
    listVms: ([key, value]) =>
      send("vm.list", "", false, () => cloud.listVms(network.isFair).filter(({ labels }) => labels[key] === value)),
    deleteVm: (name) => send("vm.delete", machineOf(name), true, (sender) => cloud.deleteVm(name, sender)),
    dial: () => Promise.reject(new Error("not simulated")),
    close: () => Promise.resolve(),
  };
}

function guestOf(vm: Vm, { world }: Agent, cloud: CloudWorld, send: Send): Provider {
  const { backend } = world;
  const ask = <T>(name: string, id: string, changes: boolean, exec: (sender: Sender) => T): Promise<T> =>
    send(name, id, changes, (sender) => {
      cloud.guest(vm);
      return exec(sender);
    });
  const refuse = () => {
    throw new Error("not simulated");
  };
  return {
    name: "guest",
    getInfo: () =>
      ask("guest.info", cloud.machineOf(vm.name), false, () => ({ name: "guest", version: "0", capabilities: [] })),
    createPod: (id, spec) => ask("be.create", id, true, (sender) => cloud.put(vm, id, spec, sender)),
    getPod: (id) => ask("be.get", id, false, () => backend.get(id)),
    stopPod: (id, { graceSeconds }) => ask("be.stop", id, true, (sender) => backend.stop(id, graceSeconds, sender)),
    deletePod: (id, how) => ask("be.delete", id, true, (sender) => backend.delete(id, how, sender)),
    updatePod: (id, patch) => ask("be.update", id, true, () => backend.update(id, patch)),
    getPods: refuse,
    getLogs: refuse,
    close: () => Promise.resolve(),
  };
}

export interface Ears {
  /** The agent is told of this machine. */
  tell(machine: Machine | undefined): void;
  /** It asks for a change. */
  change(): void;
  /** It asks for the end of a machine. */
  end(id: string): void;
}

/** The provider, with everything that the agent asks and is told heard. */
export function asTold(real: Provider, ears: Ears): Provider {
  const told = async <T extends Machine | undefined>(answer: Promise<T>): Promise<T> => {
    const machine = await answer;
    ears.tell(machine);
    return machine;
  };
  const ends = <T>(id: string, answer: Promise<T>): Promise<T> => {
    ears.change();
    ears.end(id);
    return answer;
  };
  return {
    name: real.name,
    getInfo: (options) => real.getInfo(options),
    createPod: (id, spec, options) => {
      ears.change();
      return told(real.createPod(id, spec, options));
    },
    getPod: (id, options) => told(real.getPod(id, options)),
    async getPods(options) {
      const list = await real.getPods(options);
      for (const machine of list.items) ears.tell(machine);
      return list;
    },
    stopPod: (id, options) => ends(id, told(real.stopPod(id, options))),
    deletePod: (id, options) => ends(id, real.deletePod(id, options)),
    updatePod: (id, patch, options) => told(real.updatePod!(id, patch, options)),
    async *watchPods(since, options) {
      for await (const event of real.watchPods!(since, options)) {
        ears.tell(event.machine);
        yield event;
      }
    },
    getLogs: (id, container, options) => real.getLogs(id, container, options),
    close: () => real.close(),
  };
}
