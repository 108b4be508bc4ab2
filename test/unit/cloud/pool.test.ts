import { afterEach, describe, expect, test, vi } from "vitest";
import type { InstanceType } from "../../../providers/cloud/cloud.ts";
import type { CloudProviderOptions } from "../../../providers/cloud/provider.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { machineSpec, script } from "../../support/builders.ts";
import { CloudAgents, unavailable } from "../../support/cloud-agents.ts";
import { type CloudStateOptions, LARGE, SMALL } from "../../support/cloud-state.ts";
import type { SimulatedCloud } from "../../support/simulated-cloud.ts";

const signal = new AbortController().signal;
const MINUTE_MS = 60_000;
const spec = (rest: Partial<MachineSpec> = {}) =>
  machineSpec({ labels: { node: "n" }, containers: [script("sleep 3600")], ...rest });
const warm = (count: number): InstanceType[] => [{ ...SMALL, warm: count }, LARGE];

afterEach(() => CloudAgents.closeAll());

/** One agent whose pool has been filled. */
async function filled(count: number, options: CloudStateOptions = {}, more: Partial<CloudProviderOptions> = {}) {
  const setup = new CloudAgents(options);
  const agent = setup.agent({ types: warm(count), ...more });
  await agent.getPods({ signal, labels: {} });
  await setup.pass(16_000);
  expect(setup.vmNames).toHaveLength(count);
  return { setup, agent };
}

/** Entries of the pool, by what they say. */
const phases = ({ state }: SimulatedCloud): (string | undefined)[] =>
  [...state.words.values()].flatMap(({ words }) => (words["vmlet-pool"] === undefined ? [] : [words["phase"]]));

describe("a machine", () => {
  test("gets a VM that runs already, and another takes its place", async () => {
    const { setup, agent } = await filled(1);
    const [waiting] = setup.vmNames;
    expect(await agent.createPod("m", spec(), { signal })).toMatchObject({ state: "running", instance_type: "small" });
    expect(setup.vmNames).toEqual([waiting]);
    await setup.pass(16_000);
    expect(setup.vmNames).toHaveLength(2);
    expect(phases(setup.cloud)).toEqual(["claimed", "warm"]);
  });

  test("gets a VM whose guest knows the cluster's Services already", async () => {
    const { setup, agent } = await filled(1, {}, { capabilities: ["services"] });
    const put = vi.spyOn([...setup.guests.values()][0]!.services, "put");
    const port = { address: "10.0.0.1", port: 80, protocol: "TCP" as const, endpoints: [] };
    await agent.services!.put({ labels: { node: "n" }, revision: "1", services: [port] }, { signal });
    await setup.pass(6000);
    expect(put).toHaveBeenCalledOnce();
    await agent.createPod("m", spec(), { signal });
    expect(put).toHaveBeenCalledOnce();
  });

  test("gets a VM that waits from the moment that its entry says so", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent({ types: warm(1) });
    await agent.getPods({ signal, labels: {} });
    for (let steps = 0; phases(setup.cloud)[0] !== "warm" && steps < 200; steps++) await setup.pass(100);
    const [waiting] = setup.vmNames;
    await agent.createPod("m", spec(), { signal });
    expect(setup.vmNames).toEqual([waiting]);
  });

  test("of another size gets one of its own", async () => {
    const { setup, agent } = await filled(1);
    await agent.createPod("m", spec({ instance_type: "large" }), { signal });
    expect(setup.cloud.state.ordered.map(({ type }) => type.name)).toEqual(["small", "large"]);
  });

  test("gets one of its own when the VM that waited has gone meanwhile", async () => {
    const { setup, agent } = await filled(1);
    setup.cloud.state.lose(setup.vmNames[0]!);
    expect(await agent.createPod("m", spec(), { signal })).toMatchObject({ state: "running" });
    expect(setup.cloud.state.ordered.at(-1)!.labels).toMatchObject({ "vmlet-machine": "m" });
  });

  test("shares its VM with no other, when two agents take it at the same time", async () => {
    const { setup, agent } = await filled(1);
    const other = setup.agent({ types: warm(1) });
    await other.getPods({ signal, labels: {} });
    await setup.pass(6000);
    const made = await Promise.all([
      agent.createPod("a", spec(), { signal }),
      other.createPod("b", spec(), { signal }),
    ]);
    expect(made.map(({ state }) => state)).toEqual(["running", "running"]);
    const held = await Promise.all(
      [...setup.guests.values()].map(async (guest) => (await guest.getPods({ signal, labels: {} })).items.length),
    );
    expect(held.filter((count) => count > 0)).toEqual([1, 1]);
  });

  test("that never claimed the VM of its entry leaves it alone when it is deleted", async () => {
    const { setup, agent } = await filled(1);
    const other = setup.agent({ types: warm(1) });
    await other.getPods({ signal, labels: {} });
    await setup.pass(6000);
    // The other agent names the same VM, and does not live to claim it.
    setup.cloud.before = (call, name) => {
      if (call === "entries.swap" && name.startsWith("_pool")) throw unavailable();
    };
    await expect(other.createPod("b", spec(), { signal })).rejects.toMatchObject({ code: "unavailable" });
    await other.close();
    setup.cloud.before = undefined;
    await agent.createPod("a", spec(), { signal });
    expect(setup.cloud.state.words.get("b")!.words["vm"]).toBe(setup.cloud.state.words.get("a")!.words["vm"]);
    await agent.deletePod("b", { signal, force: true });
    expect(await agent.getPod("b", { signal })).toMatchObject({ state: "deleted" });
    expect(await agent.getPod("a", { signal })).toMatchObject({ state: "running" });
  });

  test("takes its VM with it when it is deleted, and the pool stays as large as it was", async () => {
    const { setup, agent } = await filled(1);
    await agent.createPod("m", spec(), { signal });
    await agent.deletePod("m", { signal, force: true });
    await setup.pass(2 * MINUTE_MS);
    expect(setup.vmNames).toHaveLength(1);
    expect(phases(setup.cloud)).toEqual(["warm"]);
    expect(setup.guests.size).toBeGreaterThan(1);
  });
});

describe("a VM that waits", () => {
  test("goes when it is old, and another takes its place", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent({ types: warm(1), poolMaxAgeMs: 10 * MINUTE_MS });
    await agent.getPods({ signal, labels: {} });
    await setup.pass(MINUTE_MS);
    const [first] = setup.vmNames;
    await setup.pass(11 * MINUTE_MS);
    expect(setup.vmNames).toHaveLength(1);
    expect(setup.vmNames).not.toEqual([first]);
  });

  test("goes when VMs are made of something else now", async () => {
    const setup = new CloudAgents();
    let version = "one";
    Object.assign(setup.cloud, { version: () => Promise.resolve(version) });
    await setup.agent({ types: warm(1) }).getPods({ signal, labels: {} });
    await setup.pass(16_000);
    const [first] = setup.vmNames;
    version = "two";
    await setup.pass(MINUTE_MS);
    expect(setup.vmNames).toHaveLength(1);
    expect(setup.vmNames).not.toEqual([first]);
  });

  test("goes when none is wanted any more", async () => {
    const { setup, agent } = await filled(2);
    await agent.close();
    await setup.agent({ types: warm(0) }).getPods({ signal, labels: {} });
    await setup.pass(MINUTE_MS);
    expect(setup.vmNames).toEqual([]);
    expect(setup.cloud.state.words.size).toBe(0);
  });

  test("gives way when its guest never answers", async () => {
    const setup = new CloudAgents();
    setup.ask = () => {
      throw unavailable();
    };
    await setup.agent({ types: warm(1), bootMs: MINUTE_MS }).getPods({ signal, labels: {} });
    await setup.pass(90_000);
    expect(setup.cloud.state.ordered.length).toBeGreaterThan(1);
  });

  test("is not ordered again and again while the cloud has no room", async () => {
    const setup = new CloudAgents();
    setup.cloud.state.soldOut.add("small");
    let orders = 0;
    setup.cloud.before = (call) => {
      if (call === "createVm") orders++;
    };
    await setup.agent({ types: warm(3) }).getPods({ signal, labels: {} });
    await setup.pass(2 * MINUTE_MS);
    expect(orders).toBe(1);
    await setup.pass(2 * MINUTE_MS);
    expect(setup.cloud.state.words.size).toBeLessThan(3);
  });

  test("whose order came after nobody wanted it any more is removed", async () => {
    const { setup, agent } = await filled(1);
    await agent.close();
    const heir = setup.agent({ types: warm(0) });
    await heir.getPods({ signal, labels: {} });
    await setup.pass(MINUTE_MS);
    expect(setup.cloud.state.words.size).toBe(0);
    await setup.cloud.createVm(setup.cloud.state.ordered[0]!);
    await setup.pass(3 * MINUTE_MS);
    expect(setup.vmNames).toEqual([]);
  });

  test("stays while its host is out of sight", async () => {
    const { setup } = await filled(1);
    for (const vm of setup.cloud.state.vms.values()) vm.isSeen = false;
    const before = setup.vmNames;
    await setup.pass(MINUTE_MS);
    expect(setup.vmNames).toEqual(before);
  });
});

describe("nodes of one scope", () => {
  const labels = (node: string) => ownerLabels("cluster", node);

  /** An agent of that node, with its pool filled. */
  async function node(setup: CloudAgents, name: string, types: InstanceType[]) {
    const agent = setup.agent({ types });
    await agent.getPods({ signal, labels: labels(name) });
    await setup.pass(16_000);
    return agent;
  }

  test.each([
    ["sizes", [SMALL, { ...LARGE, warm: 1 }]],
    ["counts", warm(1)],
    ["content", [{ ...SMALL, resources: { ...SMALL.resources, memory_bytes: 1 }, warm: 1 }, LARGE]],
  ])("that want other %s leave each other's VMs alone", async (_what, others) => {
    const setup = new CloudAgents();
    await node(setup, "a", warm(2));
    await node(setup, "b", others);
    await setup.pass(10 * MINUTE_MS);
    expect(setup.cloud.state.ordered.map(({ name }) => name)).toEqual(setup.vmNames);
    expect(setup.vmNames).toHaveLength(3);
  });

  test("of the same name in two clusters leave each other's VMs alone", async () => {
    const setup = new CloudAgents();
    await node(setup, "a", warm(2));
    await setup.agent({ types: warm(0) }).getPods({ signal, labels: ownerLabels("another cluster", "a") });
    await setup.pass(10 * MINUTE_MS);
    expect(setup.cloud.state.ordered).toHaveLength(2);
  });

  test("give machines no VM of another's pool", async () => {
    const setup = new CloudAgents();
    await node(setup, "a", warm(1));
    const other = await node(setup, "b", warm(0));
    await other.createPod("m", spec({ labels: labels("b") }), { signal });
    expect(setup.cloud.state.ordered.at(-1)!.labels).toMatchObject({ "vmlet-machine": "m" });
  });

  test("leave a VM that waits alone for as long as its node has an agent", async () => {
    const setup = new CloudAgents();
    await node(setup, "a", warm(1));
    await node(setup, "b", warm(0));
    await setup.pass(120 * MINUTE_MS);
    expect(setup.cloud.state.ordered).toHaveLength(1);
  });

  test("remove what a node without an agent has left, half an hour after it", async () => {
    const setup = new CloudAgents();
    const gone = await node(setup, "a", warm(1));
    await node(setup, "b", warm(0));
    await gone.close();
    await setup.pass(24 * MINUTE_MS);
    expect(setup.vmNames).toHaveLength(1);
    await setup.pass(8 * MINUTE_MS);
    expect(setup.vmNames).toEqual([]);
    expect(setup.cloud.state.words.size).toBe(0);
  });

  test("take no node for gone because the cloud could not be asked for long", async () => {
    const setup = new CloudAgents();
    await node(setup, "a", warm(1));
    await node(setup, "b", warm(0));
    await setup.pass(MINUTE_MS);
    setup.cloud.before = () => {
      throw unavailable();
    };
    await setup.pass(60 * MINUTE_MS);
    // What is listed first is what was there before.
    setup.cloud.before = (call) => {
      if (call === "entries.swap") throw unavailable();
    };
    await setup.pass(MINUTE_MS);
    setup.cloud.before = undefined;
    await setup.pass(10 * MINUTE_MS);
    expect(setup.cloud.state.ordered).toHaveLength(1);
  });

  test("claim a VM whose entry was written again just then", async () => {
    const setup = new CloudAgents();
    const agent = await node(setup, "a", warm(1));
    const { state } = setup.cloud;
    let renewals = 0;
    setup.cloud.before = (call, name) => {
      if (call !== "entries.swap" || !name.startsWith("_pool") || renewals++ > 0) return;
      const { words, version } = state.entry(name);
      state.swapEntry(name, words, version);
    };
    await agent.createPod("m", spec({ labels: labels("a") }), { signal });
    expect(state.ordered).toHaveLength(1);
    expect(renewals).toBe(2);
  });
});

/** How many calls of the cloud the life of an agent takes here, at most. */
const CALLS = 48;

describe.each(["before", "after"] as const)("an agent that dies at any instant, %s a call", (when) => {
  const quick = { bootMs: MINUTE_MS, tombstoneMs: 2 * MINUTE_MS, poolEveryMs: 20_000, lookEveryMs: 20_000 };

  test.each(Array.from({ length: CALLS }, (_, i) => i))(
    "number %i, leaves no VM and no entry behind",
    async (fatal) => {
      const setup = new CloudAgents();
      const doomed = setup.agent({ types: warm(1), ...quick, poolEveryMs: 5000 });
      let calls = 0;
      setup.cloud[when] = () => {
        if (calls++ >= fatal) throw unavailable();
      };
      // From that call on nothing of what it asks arrives any more.
      if (when === "after")
        setup.cloud.before = () => {
          if (calls > fatal) throw unavailable();
        };
      const live = async () => {
        await doomed.getPods({ signal, labels: {} });
        await setup.pass(11_000);
        await doomed.createPod("m", spec(), { signal });
        await setup.pass(6000);
        await doomed.deletePod("m", { signal, force: true });
      };
      await live().catch(() => undefined);
      await doomed.close();
      setup.cloud.before = undefined;
      setup.cloud.after = undefined;
      const heir = setup.agent({ types: warm(0), ...quick, makeEveryMs: MINUTE_MS });
      // What was told is seen through to its end, which is its pod's agent's to ask for.
      await heir.deletePod("m", { signal, force: true });
      for (let minute = 0; minute < 8; minute++) await setup.clock.advance(MINUTE_MS);
      expect(setup.vmNames).toEqual([]);
      expect([...setup.cloud.state.words.keys()]).toEqual([]);
    },
  );
});
