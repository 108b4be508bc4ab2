import { afterEach, describe, expect, test } from "vitest";
import { ALL_CAPABILITIES } from "../../../src/provider/capabilities.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { MachineEvent } from "../../../src/provider/provider.ts";
import { machineSpec, script } from "../../support/builders.ts";
import { CloudAgents, unavailable } from "../../support/cloud-agents.ts";
import { SMALL } from "../../support/cloud-state.ts";
import { settle } from "../../support/virtual-clock.ts";

const signal = new AbortController().signal;
const LABELS = { node: "n" };
const spec = (rest: Partial<MachineSpec> = {}) =>
  machineSpec({ labels: LABELS, containers: [script("sleep 3600")], ...rest });

afterEach(() => CloudAgents.closeAll());

const code = (expected: string): unknown => expect.objectContaining({ code: expected });

test("a cloud has no volumes or images of its guests: they are gone with their VMs", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent({
    cloud: Object.assign(Object.create(setup.cloud) as typeof setup.cloud, { volumes: undefined }),
    capabilities: ALL_CAPABILITIES,
  });
  const { capabilities, volumeClasses } = await agent.getInfo();
  const guests = capabilities.filter((each) => each.startsWith("volumes.") || each.startsWith("images."));
  for (const each of ["persistent", "block", "clone", "exclusive", "force_release"] as const)
    expect(guests).not.toContain(`volumes.${each}`);
  expect(guests).not.toContain("images.prewarm");
  expect([volumeClasses, agent.volumes]).toEqual([undefined, undefined]);
});

test("a cloud that has volumes of its own offers these, and no block devices", async () => {
  const { capabilities, volumeClasses } = await new CloudAgents().agent({ capabilities: ALL_CAPABILITIES }).getInfo();
  expect(capabilities).toEqual(
    expect.arrayContaining(["volumes.persistent", "volumes.clone", "volumes.force_release"]),
  );
  for (const each of ["volumes.block", "volumes.exclusive"] as const) expect(capabilities).not.toContain(each);
  expect(volumeClasses?.[0]).toMatchObject({ name: "disks", sharing: "one" });
});

test.each(["unsupported", "invalid"] as const)(
  "a machine that its guest refuses as %s has failed, and its VM goes",
  async (refusal) => {
    const setup = new CloudAgents();
    setup.ask = (_vm, call) => {
      if (call === "createPod") throw new ProviderError(refusal, "it lacks the capability tty");
    };
    const agent = setup.agent();
    const made = await agent.createPod("m", spec(), { signal });
    expect(made).toMatchObject({ state: "failed", reason: "MachineRefused" });
    expect(made.message).toContain("it lacks the capability tty");
    expect(await agent.createPod("m", spec(), { signal })).toEqual(made);
    expect(setup.vmNames).toEqual([]);
  },
);

test("what a guest of an earlier release would leave out in silence is refused in its place", async () => {
  const agent = new CloudAgents().agent({ capabilities: ALL_CAPABILITIES });
  const strict = spec({ security: { supplemental_groups_policy: "strict" } });
  expect(await agent.createPod("m", strict, { signal })).toMatchObject({
    state: "failed",
    reason: "MachineRefused",
    message: expect.stringContaining("lacks the capability supplemental_groups_policy"),
  });
});

describe("a machine is made once", () => {
  test("and runs in a VM of the cheapest type that holds it", async () => {
    const setup = new CloudAgents();
    const machine = await setup.agent().createPod("m", spec(), { signal });
    expect(machine).toMatchObject({
      id: "m",
      state: "running",
      labels: LABELS,
      instance_type: "small",
      price: 1,
      host: "host-1",
    });
    expect(setup.vmNames).toHaveLength(1);
  });

  test.each(["entries.create", "createVm", "entries.swap"] as const)(
    "when the answer to %s is lost and the create is repeated",
    async (call) => {
      const setup = new CloudAgents();
      const agent = setup.agent();
      setup.loseAnswer(call);
      await expect(agent.createPod("m", spec(), { signal })).rejects.toEqual(code("unavailable"));
      expect(await agent.createPod("m", spec(), { signal })).toMatchObject({ state: "running" });
      expect(setup.cloud.state.ordered).toHaveLength(1);
    },
  );

  test("when two agents make it at the same time", async () => {
    const setup = new CloudAgents();
    const made = await Promise.all(
      [setup.agent(), setup.agent()].map((agent) => agent.createPod("m", spec(), { signal })),
    );
    expect(new Set(made.map(({ created_at }) => created_at)).size).toBe(1);
    expect(setup.cloud.state.ordered).toHaveLength(1);
    expect(setup.guests.size).toBe(1);
  });

  test("when the agent that made it is killed before its guest was told: the next one goes on with that VM", async () => {
    const setup = new CloudAgents({ bootsAtOnce: false });
    const first = setup.agent();
    expect(await first.createPod("m", spec(), { signal })).toMatchObject({ state: "creating" });
    await first.close();
    const second = setup.agent();
    // Without its specification nobody can make it: for this agent it is not there yet.
    await expect(second.getPod("m", { signal })).rejects.toEqual(code("not_found"));
    for (const vm of setup.cloud.state.vms.values()) vm.state = "running";
    expect(await second.createPod("m", spec(), { signal })).toMatchObject({ state: "running" });
    expect(setup.cloud.state.ordered).toHaveLength(1);
  });

  test("and the create of another specification under its id is a conflict", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    await expect(agent.createPod("m", spec({ restart_policy: "always" }), { signal })).rejects.toEqual(
      code("conflict"),
    );
  });

  test("and is not said to be gone by a guest that has not heard of it", async () => {
    const setup = new CloudAgents();
    setup.ask = (_, call) => {
      if (call === "createPod") throw unavailable();
    };
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal }).catch(() => undefined);
    const beingMade = { code: "conflict", message: "machine m is still being made" };
    await expect(
      agent.exec("m", "app", ["true"], { signal, tty: false, stdin: false, stdout: true, stderr: true }),
    ).rejects.toMatchObject(beingMade);
    await expect(agent.updatePod("m", {}, { signal })).rejects.toMatchObject(beingMade);
  });

  test("and is told to its guest when that comes up", async () => {
    const setup = new CloudAgents({ bootsAtOnce: false });
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    for (const vm of setup.cloud.state.vms.values()) vm.state = "running";
    await setup.pass(2000);
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "running" });
  });
});

describe("what is not known is not absent", () => {
  test.each(["entries.get", "getVm"] as const)("when %s is not answered", async (failing) => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    setup.cloud.before = (call) => {
      if (call === failing) throw unavailable();
    };
    await expect(agent.getPod("m", { signal })).rejects.toEqual(code("unavailable"));
    expect(await agent.getPods({ signal, labels: LABELS })).toMatchObject({ items: [], unknown: [{ id: "m" }] });
  });

  test("when the VM's host is out of sight, for who has seen the machine as for who has not", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    for (const vm of setup.cloud.state.vms.values()) vm.isSeen = false;
    // What this process has seen last may be older than what another has told of since.
    await expect(agent.getPod("m", { signal })).rejects.toEqual(code("unavailable"));
    await expect(setup.agent().getPod("m", { signal })).rejects.toEqual(code("unavailable"));
  });

  test("when the VM's host is out of sight, and its pod is to go only after the grace", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    const told = async () => (await agent.getPods({ signal, labels: LABELS })).unknown?.[0];
    const [vm] = setup.cloud.state.vms.values();
    vm!.isSeen = false;
    expect(await told()).toMatchObject({ id: "m", disruption: undefined });
    await setup.pass(299_000);
    expect(await told()).toMatchObject({ id: "m", disruption: undefined });
    await setup.pass(2_000);
    expect(await told()).toMatchObject({ id: "m", disruption: { reason: "HostOutOfSight" } });
    vm!.isSeen = true;
    expect(await told()).toBeUndefined();
    vm!.isSeen = false;
    expect(await told()).toMatchObject({ id: "m", disruption: undefined });
  });

  test("when the cloud is silent since the host was out of sight once, and its pod is not to go for that", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    const told = async () => (await agent.getPods({ signal, labels: LABELS })).unknown?.[0];
    for (const vm of setup.cloud.state.vms.values()) vm.isSeen = false;
    await told();
    setup.cloud.before = (call) => {
      if (call === "getVm") throw unavailable();
    };
    await setup.pass(600_000);
    expect(await told()).toMatchObject({ id: "m", disruption: undefined });
  });

  test("when its guest does not answer", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    setup.ask = () => {
      throw unavailable();
    };
    await expect(agent.getPod("m", { signal })).rejects.toEqual(code("unavailable"));
  });

  test("when its guest says nothing, which keeps no list from telling of the others", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    const silent = await agent.createPod("silent", spec(), { signal });
    await agent.createPod("m", spec(), { signal });
    setup.ask = (vm) =>
      vm.labels["vmlet-machine"] === silent.id ? new Promise<void>(() => undefined) : Promise.resolve();
    const listed = agent.getPods({ signal, labels: LABELS });
    await setup.pass(21_000);
    expect(await listed).toMatchObject({ items: [{ id: "m" }], unknown: [{ id: "silent" }] });
  });

  test("when the cloud says nothing at all for 20 seconds", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    const cloud = setup.cloud.entries as { get: unknown };
    cloud.get = () => new Promise(() => undefined);
    const asked = expect(agent.getPod("m", { signal })).rejects.toEqual(code("unavailable"));
    await setup.pass(21_000);
    await asked;
  });

  test("when an entry makes no sense", async () => {
    const setup = new CloudAgents();
    setup.cloud.state.words.set("m", { words: { phase: "soon" }, version: 1 });
    await expect(setup.agent().getPod("m", { signal })).rejects.toEqual(code("unavailable"));
  });
});

describe("a machine whose VM is lost", () => {
  test("has failed once its guest was told of it, and is never made again", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    setup.cloud.state.lose(setup.vmNames[0]!);
    const lost = await agent.getPod("m", { signal });
    expect(lost).toMatchObject({ state: "failed", reason: "VmLost" });
    expect(await agent.createPod("m", spec(), { signal })).toEqual(lost);
    expect(await setup.agent().getPod("m", { signal })).toMatchObject({ state: "failed", reason: "VmLost" });
    expect(setup.cloud.state.ordered).toHaveLength(1);
  });

  test("has failed when the VM has stopped, not before that is gone, and says nothing of ends that nobody saw", async () => {
    const setup = new CloudAgents({ deletesSlowly: true });
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    const [name] = setup.vmNames;
    setup.cloud.state.vms.get(name!)!.state = "stopped";
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "stopping" });
    setup.cloud.state.lose(name!);
    expect(await agent.getPod("m", { signal })).toMatchObject({
      state: "failed",
      reason: "VmStopped",
      containers: [],
    });
  });
});

describe("a deleted machine", () => {
  test("leaves a tombstone, with its exit codes, and no VM", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec({ containers: [script("exit 3")] }), { signal });
    await setup.pass(1000);
    await agent.deletePod("m", { signal, force: false });
    const tombstone = await setup.agent().getPod("m", { signal });
    expect(tombstone).toMatchObject({ state: "deleted", containers: [{ terminated: { exit_code: 3 } }] });
    expect(setup.vmNames).toEqual([]);
    await expect(setup.agent().createPod("m", spec(), { signal })).rejects.toEqual(code("gone"));
  });

  test("is not made again while it still has its grace", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    const stubborn = spec({ containers: [script("trap '' TERM; sleep 3600")], termination_grace_s: 60 });
    await agent.createPod("m", stubborn, { signal });
    await agent.deletePod("m", { signal, force: false });
    expect(setup.vmNames).toHaveLength(1);
    await expect(setup.agent().createPod("m", stubborn, { signal })).rejects.toEqual(code("gone"));
    await setup.pass(70_000);
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "deleted" });
  });

  test("that never was leaves one too", async () => {
    const setup = new CloudAgents();
    await setup.agent().deletePod("m", { signal, force: false });
    await expect(setup.agent().createPod("m", spec(), { signal })).rejects.toEqual(code("gone"));
  });

  test("is not said to be gone before its VM is", async () => {
    const setup = new CloudAgents({ deletesSlowly: true });
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    await agent.deletePod("m", { signal, force: true });
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "deleting" });
    setup.cloud.state.lose(setup.vmNames[0]!);
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "deleted" });
  });

  test("stays on its way while its host is out of sight", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    for (const vm of setup.cloud.state.vms.values()) vm.isSeen = false;
    await expect(agent.deletePod("m", { signal, force: false })).rejects.toEqual(code("unavailable"));
    await agent.deletePod("m", { signal, force: true });
    expect(setup.vmNames).toHaveLength(1);
    for (const vm of setup.cloud.state.vms.values()) vm.isSeen = true;
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "deleted" });
  });

  test("is never told to its guest by an agent that was about to", async () => {
    const setup = new CloudAgents({ bootsAtOnce: false });
    const slow = setup.agent();
    await slow.createPod("m", spec(), { signal });
    for (const vm of setup.cloud.state.vms.values()) vm.state = "running";
    // Between the sight of the VM and the word that the guest may be told.
    const other = setup.agent();
    setup.ask = async (_vm, call) => {
      if (call === "getInfo") await other.deletePod("m", { signal, force: false });
    };
    await setup.pass(3000);
    expect(await slow.getPod("m", { signal })).toMatchObject({ state: "deleted" });
    for (const guest of setup.guests.values()) expect((await guest.getPods({ labels: {}, signal })).items).toEqual([]);
  });

  test("that is on its way to its guest is kept out by the guest's own tombstone", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    const other = setup.agent();
    // The guest is told while another agent, to which it said that it has no such machine, deletes it.
    let isArmed = true;
    setup.ask = async (_vm, call) => {
      if (call !== "createPod" || !isArmed) return;
      isArmed = false;
      await other.deletePod("m", { signal, force: false });
    };
    await expect(agent.createPod("m", spec(), { signal })).rejects.toEqual(code("unavailable"));
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "deleted", containers: [] });
    for (const guest of setup.guests.values())
      expect((await guest.getPods({ labels: {}, signal, includeDeleted: true })).items).toMatchObject([
        { state: "deleted", containers: [] },
      ]);
  });

  test("stopped before its guest knew of it is over when its VM is gone", async () => {
    const setup = new CloudAgents({ bootsAtOnce: false });
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    expect(await agent.stopPod("m", { signal, graceSeconds: 30 })).toMatchObject({ state: "stopped" });
    expect(setup.vmNames).toEqual([]);
  });

  test("loses its tombstone after an hour", async () => {
    const setup = new CloudAgents();
    await setup.agent().deletePod("m", { signal, force: false });
    await setup.pass(59 * 60_000);
    expect(setup.cloud.state.words.size).toBe(1);
    await setup.pass(3 * 60_000);
    expect(setup.cloud.state.words.size).toBe(0);
  });
});

test("a notice of a machine's VM is told of the machine, for as long as it holds", async () => {
  const setup = new CloudAgents();
  const agent = setup.agent();
  await agent.createPod("m", spec(), { signal });
  const [vm] = setup.cloud.state.vms.values();
  const notice = { reason: "SpotReclaimed", message: "the cloud takes it back", at: "2026-06-01T00:02:00.000Z" };
  vm!.notice = notice;
  const before = await agent.getPod("m", { signal });
  expect(before.disruption).toEqual(notice);
  vm!.notice = undefined;
  const after = await agent.getPod("m", { signal });
  expect(after.disruption).toBeUndefined();
  expect(after.version).toBeGreaterThan(before.version);
});

describe("instance types", () => {
  test("that are sold out give way to the next that fits, which the pod is told of", async () => {
    const setup = new CloudAgents({ bootsAtOnce: false });
    setup.cloud.state.soldOut.add("small");
    const machine = await setup.agent().createPod("m", spec(), { signal });
    expect(machine).toMatchObject({
      instance_type: "large",
      notices: [
        { type: "Warning", reason: "InstanceTypeSoldOut", message: "no room for small; large is taken instead" },
      ],
    });
  });

  test("that are sold out are not asked for again for three minutes", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    setup.cloud.state.soldOut.add("small");
    await agent.createPod("a", spec(), { signal });
    setup.cloud.state.soldOut.clear();
    expect(await agent.createPod("b", spec(), { signal })).toMatchObject({ instance_type: "large" });
    await setup.pass(181_000);
    expect(await agent.createPod("c", spec(), { signal })).toMatchObject({ instance_type: "small" });
  });

  test("that are all sold out leave the pod to wait, and leave no VM", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    setup.cloud.state.soldOut.add("small").add("large");
    const refused = expect(agent.createPod("m", spec(), { signal })).rejects;
    await refused.toMatchObject({ code: "quota", retryAfterMs: 180_000 });
    await expect(agent.getPod("m", { signal })).rejects.toEqual(code("not_found"));
    setup.cloud.state.soldOut.clear();
    await setup.pass(181_000);
    expect(await agent.createPod("m", spec(), { signal })).toMatchObject({ state: "running" });
  });
});

describe("a VM that never comes up", () => {
  test("gives way to another, and after three the machine has failed", async () => {
    const setup = new CloudAgents({ bootsAtOnce: false });
    const agent = setup.agent({ bootMs: 60_000 });
    await agent.createPod("m", spec(), { signal });
    await setup.pass(65_000);
    expect(setup.cloud.state.ordered).toHaveLength(2);
    await setup.pass(180_000);
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "failed", reason: "VmNeverReady" });
    expect(setup.cloud.state.ordered).toHaveLength(3);
    await setup.pass(180_000);
    expect(setup.vmNames).toEqual([]);
  });
});

describe("what nobody needs", () => {
  const leak = async (setup: CloudAgents, labels: Record<string, string>) => {
    await setup.cloud.createVm({ name: "vmlet-leak", type: SMALL, labels });
  };

  test("a VM whose order arrived after its machine was deleted is removed", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    const [order] = setup.cloud.state.ordered;
    await agent.deletePod("m", { signal, force: true });
    await setup.cloud.createVm(order!);
    await setup.pass(59_000);
    expect(setup.vmNames).toEqual([order!.name]);
    await setup.pass(130_000);
    expect(setup.vmNames).toEqual([]);
  });

  test("a VM whose order arrived after its machine was over is removed, and its machine stays what it was", async () => {
    const setup = new CloudAgents({ bootsAtOnce: false });
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    const [order] = setup.cloud.state.ordered;
    await agent.stopPod("m", { signal, graceSeconds: 30 });
    await setup.cloud.createVm(order!);
    await setup.pass(190_000);
    expect(setup.vmNames).toEqual([]);
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "stopped" });
  });

  test.each([
    ["of another scope", { "vmlet-scope": "other", "vmlet-machine": "m" }],
    ["that says of no machine", { "vmlet-scope": "test" }],
    ["that is a stranger's", {}],
  ])("a VM %s is left alone", async (_whose, labels) => {
    const setup = new CloudAgents();
    await setup.agent().getPods({ signal, labels: {} });
    await leak(setup, labels);
    await setup.pass(600_000);
    expect(setup.vmNames).toEqual(["vmlet-leak"]);
  });

  test("a VM whose entry a list lacks is left alone, for the entry itself names it", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    setup.cloud.staleEntries = [];
    await setup.pass(600_000);
    expect(await agent.getPod("m", { signal })).toMatchObject({ state: "running" });
  });

  test("a VM whose entry cannot be read is left alone", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec(), { signal });
    setup.cloud.staleEntries = [];
    setup.cloud.before = (call) => {
      if (call === "entries.get") throw unavailable();
    };
    await setup.pass(600_000);
    expect(setup.vmNames).toHaveLength(1);
  });

  test("a machine that was never told, and that nobody goes on with, leaves neither entry nor VM", async () => {
    const setup = new CloudAgents({ bootsAtOnce: false });
    const first = setup.agent();
    await first.createPod("m", spec(), { signal });
    await first.close();
    await setup.agent().getPods({ signal, labels: {} });
    await setup.pass(25 * 60_000);
    expect(setup.vmNames).toEqual([]);
    expect(setup.cloud.state.words.size).toBe(0);
  });

  test("a burial that its agent did not live to finish is finished", async () => {
    const setup = new CloudAgents({ deletesSlowly: true });
    const first = setup.agent();
    await first.createPod("m", spec(), { signal });
    await first.deletePod("m", { signal, force: true });
    await first.close();
    const [name] = setup.vmNames;
    setup.cloud.state.lose(name!);
    await setup.agent().getPods({ signal, labels: {} });
    await setup.pass(61_000);
    expect(setup.cloud.state.words.get("m")?.words["phase"]).toBe("buried");
  });
});

describe("who watches", () => {
  test("is told as soon as a guest tells, without a look, also when the guest's stream has broken", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent({ lookEveryMs: 3_600_000 });
    const { revision } = await agent.getPods({ signal, labels: LABELS });
    const stop = new AbortController();
    const seen: string[] = [];
    const watching = (async () => {
      for await (const { machine } of agent.watchPods(revision, { signal: stop.signal, labels: LABELS }))
        seen.push(`${machine.id} ${machine.state}`);
    })();
    let isDown = true;
    setup.ask = ({ labels }, call) => {
      if (call === "getPods" && labels["vmlet-machine"] === "late" && isDown) throw unavailable();
    };
    await agent.createPod("soon", spec({ containers: [script("sleep 3; exit 0")] }), { signal });
    await agent.createPod("late", spec({ containers: [script("sleep 3; exit 0")] }), { signal });
    await setup.pass(3500);
    expect(seen).toEqual(["soon running", "late running", "soon stopped"]);
    isDown = false;
    await setup.pass(5000);
    expect(seen.at(-1)).toBe("late stopped");
    stop.abort();
    await watching;
  });

  test("is told of what changes in a guest, with versions and revisions that grow", async () => {
    const setup = new CloudAgents();
    const agent = setup.agent();
    await agent.createPod("m", spec({ containers: [script("sleep 5; exit 0")] }), { signal });
    const { revision } = await agent.getPods({ signal, labels: LABELS });
    const stop = new AbortController();
    const seen: MachineEvent[] = [];
    const watching = (async () => {
      for await (const event of agent.watchPods(revision, { signal: stop.signal, labels: LABELS })) seen.push(event);
    })();
    await setup.pass(15_000);
    await agent.deletePod("m", { signal, force: false });
    await settle();
    stop.abort();
    await watching;
    expect(seen.map(({ machine }) => machine.state)).toEqual(["stopped", "deleted"]);
    const versions = seen.map(({ machine }) => machine.version);
    expect(versions).toEqual(versions.toSorted((a, b) => a - b));
  });
});
