import { expect, test } from "vitest";
import { settle } from "../../support/virtual-clock.ts";
import { main, sidecar, World } from "./world.ts";

test("a container that stops at its signal is stopped at once", async () => {
  const world = await World.create();
  await world.create({});
  await world.stop(30);
  expect((await world.machine()).state).toBe("stopped");
  expect(await world.container("a")).toMatchObject({ state: "terminated", terminated: { exit_code: 143 } });
});

test("a container that ignores its signal is killed at the deadline", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({});
  await world.stop(30);
  await world.advance(29_999);
  expect((await world.machine()).state).toBe("stopping");
  await world.advance(1);
  expect(world.instance("a").signals).toEqual([
    { signal: "SIGTERM", at: 0 },
    { signal: "SIGKILL", at: 30_000 },
  ]);
  expect((await world.machine()).state).toBe("stopped");
});

test.each([
  ["SIGUSR1", "SIGUSR1"],
  ["usr1", "SIGUSR1"],
  ["none such", "SIGTERM"],
])("of stop signal %s the container gets %s", async (signal, delivered) => {
  const world = await World.create();
  await world.create({ containers: [main("a", { stop: { signal } })] });
  await world.stop(30);
  expect(world.instance("a").signals[0]!.signal).toBe(delivered);
});

test("pre_stop runs before the signal and inside the grace period", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({ containers: [main("a", { hooks: { pre_stop: { sleep: { seconds: 10 } } } })] });
  await world.stop(30);
  await world.advance(60_000);
  expect(world.instance("a").signals).toEqual([
    { signal: "SIGTERM", at: 10_000 },
    { signal: "SIGKILL", at: 30_000 },
  ]);
});

test("a pre_stop hook that uses up the grace leaves the container two seconds", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({ containers: [main("a", { hooks: { pre_stop: { sleep: { seconds: 60 } } } })] });
  await world.stop(5);
  await world.advance(60_000);
  expect(world.instance("a").signals).toEqual([
    { signal: "SIGTERM", at: 5_000 },
    { signal: "SIGKILL", at: 7_000 },
  ]);
});

test("a failed pre_stop hook is told and does not hinder the stop", async () => {
  const world = await World.create((fresh) => (fresh.exec = () => 1));
  await world.create({ containers: [main("a", { hooks: { pre_stop: { exec: { command: ["hook"] } } } })] });
  await world.stop(30);
  expect((await world.machine()).state).toBe("stopped");
  expect(await world.notices()).toContain("FailedPreStopHook: PreStopHook failed");
});

test("sidecars get their signal after the main containers are gone, in reverse order", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({ init_containers: [sidecar("s1"), sidecar("s2")] });
  await world.stop(10);
  await world.advance(9_000);
  await world.exit("a", 0);
  expect(world.journal.filter((entry) => /SIGTERM|exit/.test(entry))).toEqual([
    "SIGTERM a",
    "exit a 0",
    "SIGTERM s2",
    "exit s2 143",
    "SIGTERM s1",
    "exit s1 143",
  ]);
});

test("once the grace period is over, all sidecars have their last two seconds together", async () => {
  const world = await World.create((fresh) => ["a", "s1", "s2"].forEach((name) => fresh.deaf.add(name)));
  await world.create({ init_containers: [sidecar("s1"), sidecar("s2")] });
  await world.stop(10);
  await world.advance(60_000);
  for (const name of ["s1", "s2"])
    expect(world.instance(name).signals).toEqual([
      { signal: "SIGTERM", at: 10_000 },
      { signal: "SIGKILL", at: 12_000 },
    ]);
});

test("sidecars do not wait for the end of an ephemeral container", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("debug"));
  await world.create({ init_containers: [sidecar("s")] });
  await world.provider.updatePod("m1", { ephemeral_containers: [main("debug")] }, { signal: world.signal });
  await settle(20);
  await world.stop(10);
  expect(world.running()).toEqual(["debug"]);
});

test("a sidecar's pre_stop hook runs at once, with everybody else's", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({ init_containers: [sidecar("s", { hooks: { pre_stop: { exec: { command: ["hook"] } } } })] });
  await world.stop(10);
  expect(world.journal).toContain("exec s: hook");
  expect(world.journal).not.toContain("SIGTERM s");
});

test("sidecars are stopped when the main containers have come to their end", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never", init_containers: [sidecar("s")] });
  await world.exit("a", 0);
  expect((await world.machine()).state).toBe("stopped");
  expect(world.instance("s").signals).toHaveLength(1);
});

test("a stop with a shorter grace shortens the one under way", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({});
  await world.stop(600);
  await world.advance(1_000);
  await world.stop(3);
  await world.advance(3_000);
  expect(world.instance("a").signals.at(-1)).toEqual({ signal: "SIGKILL", at: 4_000 });
});

test("a stop with a longer grace does not lengthen the one under way", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({});
  await world.stop(5);
  await world.stop(600);
  await world.advance(5_000);
  expect((await world.machine()).state).toBe("stopped");
});

test("a forced delete kills without hook or grace and leaves a tombstone", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({ containers: [main("a", { hooks: { pre_stop: { sleep: { seconds: 60 } } } })] });
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await settle(30);
  expect(world.instance("a").signals.map(({ signal }) => signal)).toEqual(["SIGKILL"]);
  expect((await world.machine()).state).toBe("deleted");
});

test("a delete stops a running machine with its grace before the tombstone", async () => {
  const world = await World.create();
  await world.create({});
  await world.provider.deletePod("m1", { force: false, signal: world.signal });
  await settle(30);
  expect(world.instance("a").signals.map(({ signal }) => signal)).toEqual(["SIGTERM"]);
  expect((await world.machine()).state).toBe("deleted");
});

test("no container of a machine that is being stopped is restarted", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("b"));
  await world.create({ containers: [main("a"), main("b")] });
  await world.stop(30);
  await world.advance(15_000);
  expect(world.starts("a")).toHaveLength(1);
});

test("a machine that is stopped before its sandbox exists never starts a container", async () => {
  const world = await World.create((fresh) => fresh.openErrors.push(new Error("no room")));
  await world.create({});
  await world.stop(30);
  await world.advance(60_000);
  expect(world.starts("a")).toEqual([]);
  expect((await world.machine()).state).toBe("stopped");
});

test("each container's stop is told once", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({});
  await world.stop(30);
  await world.stop(20);
  expect((await world.notices()).filter((text) => text.startsWith("Killing"))).toEqual([
    "Killing: Stopping container a",
  ]);
});

test("a machine is not stopped before its sandbox is gone, and that is tried until it succeeds", async () => {
  const world = await World.create((fresh) => fresh.destroyErrors.push(new Error("busy"), new Error("busy")));
  await world.create({});
  await world.stop(30);
  // Something else happens meanwhile.
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  expect((await world.machine()).state).toBe("stopping");
  await world.advance(3_000);
  expect((await world.machine()).state).toBe("deleted");
});

test("a container that never comes to start is killed when the grace period is over", async () => {
  const world = await World.create((fresh) => fresh.silent.add("a"));
  await world.create({});
  await world.stop(30);
  expect(world.running()).toEqual(["a"]);
  await world.advance(32_000);
  expect((await world.machine()).state).toBe("stopped");
});

test("pre_stop is not begun when there is no time for it", async () => {
  const world = await World.create();
  await world.create({ containers: [main("a", { hooks: { pre_stop: { exec: { command: ["hook"] } } } })] });
  await world.stop(0);
  expect(world.journal).not.toContain("exec a: hook");
  expect(world.instance("a").signals).toEqual([{ signal: "SIGTERM", at: 0 }]);
});

test("a clock that is set back while no backend runs does not lengthen a stop", async () => {
  const world = await World.create();
  world.deaf.add("a");
  await world.create({});
  await world.stop(5);
  await world.restart(() => world.clock.step(-86_400_000));
  await world.advance(5_000);
  expect((await world.machine()).state).toBe("stopped");
});

test("a clock that is set back does not lengthen a stop", async () => {
  const world = await World.create();
  world.deaf.add("a");
  await world.create({});
  await world.stop(5);
  world.clock.step(-86_400_000);
  await world.advance(5_000);
  expect((await world.machine()).state).toBe("stopped");
});
