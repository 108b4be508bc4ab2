import { describe, expect, test } from "vitest";
import { backOffTexts, nextRestart, restartDecision } from "../../../src/provider/container-rules.ts";
import type { RestartPolicy } from "../../../src/provider/machine.ts";
import { main, World } from "./world.ts";

test("restarts wait 0, 10, 20, 40, 80, 160, 300, 300 seconds after each end", async () => {
  const world = await World.create();
  await world.create({});
  const waits: number[] = [];
  for (let crash = 0; crash < 8; crash++) {
    const ended = world.sinceBegin();
    await world.exit("a", 1);
    while (world.running().length === 0) await world.advance(1_000);
    waits.push((world.instance("a").startedAt - ended) / 1_000);
  }
  expect(waits).toEqual([0, 10, 20, 40, 80, 160, 300, 300]);
});

test("a container that ran longer than twice the maximum starts over with an immediate restart", async () => {
  const world = await World.create();
  await world.create({});
  await world.exit("a", 1);
  await world.exit("a", 1);
  await world.advance(10_000);
  expect(world.running()).toEqual(["a"]);
  await world.advance(601_000);
  await world.exit("a", 1);
  expect(world.running()).toEqual(["a"]);
});

test("a container in back-off says CrashLoopBackOff with kubelet's message, keeps its last end, and is not counted yet", async () => {
  const world = await World.create();
  await world.create({ labels: { "vmlet.dev/pod": "web", "vmlet.dev/namespace": "shop", "vmlet.dev/uid": "u-1" } });
  await world.exit("a", 1);
  await world.exit("a", 2);
  expect(await world.container("a")).toMatchObject({
    state: "waiting",
    reason: "CrashLoopBackOff",
    message: "back-off 10s restarting failed container=a pod=web_shop(u-1)",
    restart_count: 1,
    last: { exit_code: 2, reason: "Error" },
  });
  expect(await world.notices()).toContain("BackOff: Back-off restarting failed container a in pod web_shop(u-1)");
});

test("a restarted container has a new id, a higher count, and its previous end as last", async () => {
  const world = await World.create();
  await world.create({});
  const before = await world.container("a");
  await world.exit("a", 3);
  const after = await world.container("a");
  expect(after).toMatchObject({ state: "running", restart_count: 1, last: { exit_code: 3, id: before.id } });
  expect(after.id).not.toBe(before.id);
});

test.each<[RestartPolicy, number, "no" | "restart"]>([
  ["always", 0, "restart"],
  ["always", 1, "restart"],
  ["on_failure", 0, "no"],
  ["on_failure", 1, "restart"],
  ["never", 0, "no"],
  ["never", 1, "no"],
])("policy %s after exit code %i: %s", (policy, exitCode, expected) => {
  expect(restartDecision(main("a"), policy, exitCode)).toBe(expected);
});

test("the first restart rule that fits wins over the policy", () => {
  const container = main("a", {
    restart_rules: [
      { action: "restart", exit_codes: { operator: "in", values: [42] } },
      { action: "restart_all", exit_codes: { operator: "not_in", values: [0, 1] } },
    ],
  });
  expect([42, 7, 1].map((code) => restartDecision(container, "never", code))).toEqual(["restart", "restart_all", "no"]);
});

test("a container's own restart policy overrides the machine's", async () => {
  const world = await World.create();
  await world.create({ containers: [main("a", { restart_policy: "never" }), main("b")] });
  await world.exit("a", 1);
  await world.advance(600_000);
  expect(world.starts("a")).toHaveLength(1);
  expect((await world.machine()).state).toBe("running");
});

test("rule restart_all restarts every container, init containers included", async () => {
  const world = await World.create();
  const rule = { action: "restart_all" as const, exit_codes: { operator: "in" as const, values: [9] } };
  await world.create({
    restart_policy: "never",
    init_containers: [main("i")],
    containers: [main("a", { restart_rules: [rule] }), main("b")],
  });
  await world.exit("i", 0);
  await world.exit("a", 9);
  expect(world.running()).toEqual(["i"]);
  await world.exit("i", 0);
  expect(world.running()).toEqual(["a", "b"]);
  expect(world.sandboxes).toBe(1);
});

test("containers that are restarted together say so, and that this is why the last instances ended", async () => {
  const world = await World.create();
  const rule = { action: "restart_all" as const, exit_codes: { operator: "in" as const, values: [9] } };
  await world.create({ init_containers: [main("i")], containers: [main("a", { restart_rules: [rule] }), main("b")] });
  await world.exit("i", 0);
  await world.exit("a", 9);
  const why = {
    reason: "RestartingAllContainers",
    message: "The container is removed because RestartAllContainers in place",
  };
  expect(await world.container("b")).toMatchObject({ state: "waiting", ...why, last: { exit_code: 137, ...why } });
});

test("a machine whose main containers have all ended for good is stopped", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "on_failure", containers: [main("a"), main("b")] });
  await world.exit("a", 0);
  expect((await world.machine()).state).toBe("running");
  await world.exit("b", 0);
  expect(await world.machine()).toMatchObject({ state: "stopped", sandbox_ready: false });
  expect(world.journal.at(-1)).toBe("destroy");
});

test("the spec may shorten the back-off", () => {
  const limits = { initialMs: 100, maxMs: 150 };
  const first = nextRestart({ finishedAt: 0 }, limits, 0);
  expect(first).toEqual({ backoff: { ms: 100, updatedAt: 0 } });
  expect(nextRestart({ finishedAt: 10, backoff: { ms: 100, updatedAt: 0 } }, limits, 110)).toEqual({
    backoff: { ms: 150, updatedAt: 110 },
  });
});

test.each([
  [10_000, "10s"],
  [80_000, "1m20s"],
  [300_000, "5m0s"],
  [500, "500ms"],
])("%i ms is printed as Go prints it: %s", (ms, text) => {
  expect(backOffTexts({ id: "m1", labels: {} }, "a", ms).message).toMatch(`back-off ${text} restarting`);
});

test("a new image restarts the container at once, whatever its policy, and says why", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never" });
  await world.provider.updatePod("m1", { containers: [{ name: "a", image: "j" }] }, { signal: world.signal });
  await world.advance(0);
  expect(await world.container("a")).toMatchObject({ state: "running", image: "j", restart_count: 1 });
  expect(await world.notices()).toContain("Killing: Container a definition changed, will be restarted");
});

test("a new image does not run again what its policy says is over", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never", containers: [main("a"), main("b")] });
  await world.exit("a", 0);
  await world.provider.updatePod("m1", { containers: [{ name: "a", image: "j" }] }, { signal: world.signal });
  await world.advance(0);
  expect(world.starts("a")).toHaveLength(1);
  expect(await world.container("a")).toMatchObject({ state: "terminated", terminated: { exit_code: 0 } });
});

test("a container that is stopped for a new image waits for it: it is not shown to have come to its end", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never" });
  world.launching = new Promise(() => {});
  await world.provider.updatePod("m1", { containers: [{ name: "a", image: "j" }] }, { signal: world.signal });
  await world.advance(0);
  const container = await world.container("a");
  expect(container).toMatchObject({ state: "waiting", reason: "ContainerCreating", last: { exit_code: 143 } });
  expect(container.terminated).toBeUndefined();
});

test("a back-off is over when the clock was set back behind its beginning", async () => {
  const world = await World.create();
  await world.create({});
  await world.exit("a", 1);
  await world.exit("a", 1);
  world.clock.step(-86_400_000);
  await world.advance(10_000);
  expect(world.running()).toEqual(["a"]);
});

describe("a change of resources", () => {
  const limited = (memory_bytes: number) => ({ limits: { memory_bytes } });

  async function resized(memory_bytes: number, restart: boolean) {
    const world = await World.create();
    await world.create({ restart_policy: "on_failure", containers: [main("a", { resources: limited(100) })] });
    const resources = [{ container: "a", resources: limited(memory_bytes), restart }];
    const change = () => world.provider.updatePod("m1", { resources }, { signal: world.signal });
    await change();
    return { world, change };
  }

  test("is made in place", async () => {
    const { world } = await resized(200, false);
    expect(world.journal).toContain("resize a");
    expect(await world.container("a")).toMatchObject({ restart_count: 0, resources: limited(200) });
  });

  test("restarts the container where that is asked for, and says why", async () => {
    const { world } = await resized(50, true);
    await world.advance(0);
    expect(await world.container("a")).toMatchObject({ state: "running", restart_count: 1, resources: limited(50) });
    expect(world.journal).not.toContain("resize a");
    expect(await world.notices()).toContain("Killing: Container a resize requires restart");
  });

  test("restarts the container only once, however often it is asked for", async () => {
    const { world, change } = await resized(50, true);
    await change();
    await world.advance(0);
    await change();
    await world.advance(0);
    expect((await world.container("a")).restart_count).toBe(1);
  });

  test("that restarts the container shows when the container has started again", async () => {
    const world = await World.create();
    world.deaf.add("a");
    await world.create({ containers: [main("a", { resources: limited(100) })] });
    const resources = [{ container: "a", resources: limited(50), restart: true }];
    await world.provider.updatePod("m1", { resources }, { signal: world.signal });
    expect((await world.container("a")).resources).toEqual(limited(100));
  });

  test("that does not fit is refused before the container is stopped", async () => {
    const { world } = await resized(200, true);
    await world.advance(0);
    expect(world.journal.indexOf("resize a")).toBeLessThan(world.journal.indexOf("SIGTERM a"));
  });
});

test("a lost sandbox is made anew and everything starts again, init containers included", async () => {
  const world = await World.create();
  await world.create({ init_containers: [main("i")] });
  await world.exit("i", 0);
  await world.lose({ reason: "GuestPanic", message: "the guest is gone" });
  expect(world.running()).toEqual(["i"]);
  expect(world.sandboxes).toBe(2);
  expect((await world.container("a")).last).toMatchObject({ exit_code: 137, reason: "ContainerStatusUnknown" });
  expect(await world.notices()).toContain("SandboxChanged: Pod sandbox changed, it will be killed and re-created.");
});

test("volumes outlive a lost sandbox, and one that could not be made, and go with the machine", async () => {
  const world = await World.create();
  await world.create({});
  world.openErrors.push(new Error("no bridge"));
  await world.lose({ reason: "GuestPanic", message: "the guest is gone" });
  await world.advance(1_000);
  expect(world.running()).toEqual(["a"]);
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  expect(world.journal.filter((entry) => entry.startsWith("destroy"))).toEqual([
    "destroy all but volumes",
    "destroy all but volumes",
    "destroy",
  ]);
});

test("what has done its work is not done again when a lost sandbox is made anew", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "on_failure", containers: [main("done"), main("failed"), main("running")] });
  await world.exit("done", 0);
  await world.lose({ reason: "GuestPanic", message: "the guest is gone" });
  expect(world.running()).toEqual(["failed", "running"]);
  expect(await world.container("done")).toMatchObject({ state: "terminated", terminated: { exit_code: 0 } });
});

test("a lost sandbox fails a machine under policy never", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never" });
  await world.lose({ reason: "GuestPanic", message: "the guest is gone" });
  expect(await world.machine()).toMatchObject({ state: "failed", reason: "GuestPanic", message: "the guest is gone" });
});

test("a container whose shim could not be started is started again once", async () => {
  const world = await World.create((fresh) => fresh.shimErrors.set("a", new Error("no memory")));
  await world.create({});
  await world.advance(0);
  expect(world.instances.map(({ attempt }) => attempt)).toEqual([0, 1]);
});
