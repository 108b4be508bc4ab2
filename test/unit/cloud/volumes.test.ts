/** Volumes of a cloud: none is lost, doubled or given to two machines, whatever is late, lost, or done by two agents. */
import { afterEach, expect, test } from "vitest";
import { recordOf } from "../../../providers/cloud/record.ts";
import { volumeEntryOf, volumeRecordOf } from "../../../providers/cloud/volume-record.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import { machineSpec, script } from "../../support/builders.ts";
import { CloudAgents, unavailable } from "../../support/cloud-agents.ts";

const signal = new AbortController().signal;
const MIB = 2 ** 20;
const MINUTE_MS = 60_000;

afterEach(() => CloudAgents.closeAll());

const code = (expected: string): unknown => expect.objectContaining({ code: expected });

const using = (volume: string, text = "sleep 3600", rest: Partial<MachineSpec> = {}): MachineSpec =>
  machineSpec({
    labels: { node: "n" },
    volumes: [{ name: "data", type: "persistent", volume }],
    containers: [{ ...script(text), mounts: [{ volume: "data", path: "/data" }] }],
    ...rest,
  });

const make = (agent: Provider, id: string, sizeBytes = 64 * MIB) =>
  agent.volumes!.create(id, { labels: {}, size_bytes: sizeBytes, mode: "filesystem" }, { signal });
const attachments = async (agent: Provider, id: string) =>
  (await agent.volumes!.get(id, { signal })).attachments.map(({ machine, state }) => `${machine} ${state}`);
const recordIn = ({ cloud }: CloudAgents, id: string) => volumeRecordOf(cloud.state.entry(volumeEntryOf(id)));

test.each(["entries.create", "volumes.create", "volumes.get", "entries.swap"] as const)(
  "one volume is made though the answer to %s is lost",
  async (call) => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    setup.loseAnswer(call);
    await expect(make(agent, "v")).rejects.toEqual(code("unavailable"));
    expect(await make(agent, "v")).toMatchObject({ state: "available" });
    expect([...setup.cloud.state.volumes.keys()]).toEqual([recordIn(setup, "v").content!.name]);
  },
);

test("two agents that make one volume at the same time make one", async () => {
  const setup = new CloudAgents();
  await Promise.all([make(setup.agent(), "v"), make(setup.agent(), "v")]);
  expect(setup.cloud.state.volumes.size).toBe(1);
});

test("of machines that two agents make at the same time one gets the volume, and no VM is made for the other", async () => {
  const setup = new CloudAgents();
  const agents = [setup.agent(), setup.agent(), setup.agent()];
  await make(agents[0]!, "v");
  const made = await Promise.allSettled(agents.map((agent, i) => agent.createPod(`m${i}`, using("v"), { signal })));
  expect(made.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
  expect(setup.cloud.state.ordered).toHaveLength(1);
  expect([...setup.cloud.state.words.keys()].filter((name) => name.startsWith("m"))).toHaveLength(1);
});

test("a claim whose agent was killed before the machine had all is no claim once the machine is withdrawn", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent();
  await make(agent, "v");
  const claimed = { ...recordIn(setup, "v") };
  // The claim is written; that it is granted is not.
  setup.cloud.before = (call, name) => {
    if (call === "entries.swap" && name === "m") throw unavailable();
  };
  await expect(agent.createPod("m", using("v"), { signal })).rejects.toEqual(code("unavailable"));
  setup.cloud.before = undefined;
  await agent.close();
  expect(recordIn(setup, "v").claims).toHaveLength(claimed.claims.length + 1);
  expect(setup.cloud.state.ordered).toEqual([]);
  const other = setup.agent({ bootMs: MINUTE_MS, collectEveryMs: 10_000 });
  await expect(other.createPod("n", using("v"), { signal })).rejects.toEqual(code("in_use"));
  await setup.pass(5 * MINUTE_MS);
  expect(await other.createPod("n", using("v"), { signal })).toMatchObject({ state: "running" });
  expect(await attachments(other, "v")).toEqual(["n attached"]);
});

test("a claim of an earlier life of a machine's entry does not count for a later one", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent();
  await make(agent, "v");
  setup.cloud.before = (call, name) => {
    if (call === "entries.swap" && name === "m") throw unavailable();
  };
  await expect(agent.createPod("m", using("v"), { signal })).rejects.toEqual(code("unavailable"));
  setup.cloud.before = undefined;
  const { state } = setup.cloud;
  const old = recordIn(setup, "v").claims;
  state.removeEntry("m", state.entry("m").version);
  await agent.createPod("m", using("v"), { signal });
  const now = recordIn(setup, "v").claims;
  expect(now).toHaveLength(1);
  expect(now[0]!.token).not.toBe(old[0]!.token);
  expect(recordOf(state.entry("m")).token).toBe(now[0]!.token);
});

test("a machine whose host is out of sight keeps its volume, by force too, until its VM is gone", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent();
  await make(agent, "v");
  await agent.volumes!.reserve("v", "node-a", { signal });
  const spec = using("v", "sleep 3600", {
    volumes: [{ name: "data", type: "persistent", volume: "v", reservation: "node-a" }],
  });
  await agent.createPod("m", spec, { signal });
  const { state } = setup.cloud;
  const [vm] = [...state.vms.values()];
  vm!.isSeen = false;
  expect(await attachments(agent, "v")).toEqual(["m unknown"]);
  for (const force of [false, true])
    await expect(agent.volumes!.release("v", "node-a", { signal, force })).rejects.toEqual(code("in_use"));
  await expect(agent.volumes!.delete("v", { signal })).rejects.toEqual(code("in_use"));
  await expect(agent.createPod("n", spec, { signal })).rejects.toEqual(code("in_use"));
  // Also when its pod is deleted by force: nobody has seen the VM go.
  await agent.deletePod("m", { signal, force: true });
  expect(await attachments(agent, "v")).toEqual(["m unknown"]);
  state.lose(vm!.request.name);
  expect(await attachments(agent, "v")).toEqual([]);
  await agent.volumes!.release("v", "node-a", { signal });
});

test("what is over has its volume until that is taken from its VM, and then never again", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent();
  await make(agent, "v");
  await agent.createPod("m", using("v", "echo kept > /data/said"), { signal });
  setup.cloud.before = (call) => {
    if (call === "volumes.detach") throw unavailable();
  };
  expect(await agent.getPod("m", { signal })).toMatchObject({ state: "stopped" });
  expect(await attachments(agent, "v")).toEqual(["m attached"]);
  await expect(agent.createPod("n", using("v"), { signal })).rejects.toEqual(code("in_use"));
  setup.cloud.before = undefined;
  expect(await attachments(agent, "v")).toEqual([]);
  const [vm] = [...setup.cloud.state.vms.values()];
  expect(vm!.volumes).toEqual([]);
  // Whatever becomes of that VM's host afterwards.
  vm!.isSeen = false;
  expect(await agent.createPod("n", using("v"), { signal })).toMatchObject({ state: "running" });
  expect(await attachments(agent, "v")).toEqual(["n attached"]);
});

test("a guest of an earlier release, which would make an empty disk, gets no machine with volumes", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent();
  await make(agent, "v");
  setup.ask = (_vm, call) => {
    // As one that has no class `given`.
    if (call === "getInfo") for (const guest of setup.guests.values()) Reflect.set(guest, "volumes", undefined);
  };
  const refused = { state: "failed", reason: "MachineRefused" };
  expect(await agent.createPod("m", using("v"), { signal })).toMatchObject(refused);
  for (const guest of setup.guests.values()) expect((await guest.getPods({ labels: {}, signal })).items).toEqual([]);
  expect((await agent.volumes!.get("v", { signal })).attachments).toEqual([]);
});

test("a machine with volumes takes no VM that waits, for that has none", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent({ types: [{ name: "small", resources: {}, warm: 1 }] });
  await make(agent, "v");
  await agent.getPods({ labels: { "vmlet.dev/cluster": "c", "vmlet.dev/node": "n" }, signal });
  await setup.pass(20_000);
  const [waiting] = setup.vmNames;
  await agent.createPod("m", using("v"), { signal });
  const names = [recordIn(setup, "v").content!.name];
  const [own] = setup.cloud.state.ordered.filter(({ labels }) => labels["vmlet-machine"] === "m");
  expect(own).toMatchObject({ volumes: [{ name: names[0], class: "disks", readOnly: false }] });
  expect(own!.name).not.toBe(waiting);
});

test("a deletion that nobody comes back to is gone on with, and what an order made that came late is removed", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent({ collectEveryMs: 10_000 });
  await make(agent, "v");
  await make(agent, "w");
  const { state } = setup.cloud;
  const { request } = state.volumeOf(recordIn(setup, "v").content!.name);
  setup.cloud.before = (call) => {
    if (call === "volumes.delete") throw unavailable();
  };
  await expect(agent.volumes!.delete("v", { signal })).rejects.toEqual(code("unavailable"));
  await expect(make(agent, "v")).rejects.toEqual(code("gone"));
  setup.cloud.before = undefined;
  await agent.getPods({ labels: {}, signal });
  await setup.pass(30_000);
  expect(await agent.volumes!.get("v", { signal })).toMatchObject({ state: "deleted" });
  state.createVolume(request);
  await setup.pass(3 * MINUTE_MS);
  expect([...state.volumes.keys()]).toEqual([recordIn(setup, "w").content!.name]);
});

test("no volume is removed for its entry's sake being lost", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent({ collectEveryMs: 10_000 });
  await make(agent, "v");
  const { state } = setup.cloud;
  for (const { name, version } of state.entries()) state.removeEntry(name, version);
  await agent.getPods({ labels: {}, signal });
  await setup.pass(10 * MINUTE_MS);
  expect(state.volumes.size).toBe(1);
});

test("a copy of which nobody knows whether it is whole is made again under another name", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent({ collectEveryMs: 10_000 });
  await make(agent, "v");
  const { state } = setup.cloud;
  setup.cloud.after = (call, name) => {
    if (call !== "volumes.create") return;
    setup.cloud.after = undefined;
    state.volumeOf(name).state = "broken";
    throw unavailable();
  };
  const copy = () =>
    agent.volumes!.create(
      "w",
      { labels: {}, size_bytes: 64 * MIB, mode: "filesystem", source: { volume: "v" } },
      { signal },
    );
  await expect(copy()).rejects.toEqual(code("unavailable"));
  const first = recordIn(setup, "w").content!.name;
  // Nobody writes to what is being copied, and nobody removes it.
  await expect(agent.createPod("m", using("v"), { signal })).rejects.toEqual(code("in_use"));
  await expect(agent.volumes!.delete("v", { signal })).rejects.toEqual(code("in_use"));
  expect(await copy()).toMatchObject({ state: "available" });
  const second = recordIn(setup, "w").content!.name;
  expect(second).not.toBe(first);
  await agent.createPod("m", using("v"), { signal });
  await setup.pass(3 * MINUTE_MS);
  expect([...state.volumes.keys()].toSorted()).toEqual([recordIn(setup, "v").content!.name, second].toSorted());
});

test("what a machine writes to is copied where the cloud copies it as it was at one instant, and stays until then", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent();
  await make(agent, "v");
  await agent.createPod("m", using("v"), { signal });
  await setup.pass(MINUTE_MS);
  const copy = (id: string) =>
    agent.volumes!.create(
      id,
      { labels: {}, size_bytes: 64 * MIB, mode: "filesystem", source: { volume: "v" } },
      { signal },
    );
  await expect(copy("w")).rejects.toMatchObject({ code: "in_use", field: "source.volume" });
  setup.cloud.state.copiesInUse = true;
  const { state } = setup.cloud;
  setup.cloud.after = (call, name) => {
    if (call !== "volumes.create") return;
    setup.cloud.after = undefined;
    state.volumeOf(name).state = "making";
  };
  await expect(copy("w")).rejects.toEqual(code("unavailable"));
  await agent.deletePod("m", { signal, force: true });
  await setup.pass(MINUTE_MS);
  // Other machines have it meanwhile.
  await agent.createPod("n", using("v"), { signal });
  await agent.deletePod("n", { signal, force: true });
  await setup.pass(MINUTE_MS);
  await expect(agent.volumes!.delete("v", { signal })).rejects.toMatchObject({
    code: "in_use",
    message: expect.stringContaining("copied") as string,
  });
  state.volumeOf(recordIn(setup, "w").content!.name).state = "ready";
  expect(await copy("w")).toMatchObject({ state: "available" });
  await agent.volumes!.delete("v", { signal });
});

test("what there is no room for leaves nothing, and is had when there is", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent();
  setup.cloud.before = (call) => {
    if (call === "volumes.create") setup.cloud.state.roomBytes = 1;
  };
  await expect(make(agent, "v")).rejects.toEqual(code("quota"));
  await expect(agent.volumes!.get("v", { signal })).rejects.toEqual(code("not_found"));
  expect([...setup.cloud.state.words.keys()]).toEqual([]);
  setup.cloud.before = undefined;
  setup.cloud.state.roomBytes = 2 ** 40;
  expect(await make(agent, "v")).toMatchObject({ state: "available" });
});
