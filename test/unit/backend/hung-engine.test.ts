/** An engine that does not answer: a guest that hangs, a runtime in an endless wait, a disk that is gone. */
import { describe, expect, test, vi } from "vitest";
import { settle } from "../../support/virtual-clock.ts";
import { World } from "./world.ts";

const END_MS = 60_000;

async function isSettled(work: Promise<unknown>): Promise<boolean> {
  const pending = Symbol("pending");
  return (await Promise.race([work, settle(20).then(() => pending)])) !== pending;
}

test("a stop signal that the engine cannot deliver takes nothing of the grace", async () => {
  const world = await World.create((fresh) => fresh.hung.add("signal"));
  await world.create({});
  await world.stop(2);
  await world.advance(2_000);
  expect((await world.machine()).state).toBe("stopped");
});

test("force ends a container at once whose stop signal is being delivered", async () => {
  const world = await World.create((fresh) => fresh.hung.add("signal"));
  await world.create({});
  await world.stop(30);
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  expect((await world.machine()).state).toBe("deleted");
});

describe.each(["kill", "conclude"] as const)("where the engine does not answer to %s", (call) => {
  test("a machine that is deleted by force is gone after seconds, with its sandbox", async () => {
    const world = await World.create((fresh) => {
      fresh.hung.add(call);
      fresh.deaf.add("a");
    });
    await world.create({});
    await world.provider.deletePod("m1", { force: true, signal: world.signal });
    await world.advance(5_000);
    expect(world.journal.at(-1)).toBe("destroy");
    expect((await world.machine()).state).toBe("deleted");
  });

  test("a machine that is stopped is stopped a minute after its grace, and not shown as stopped before", async () => {
    const world = await World.create((fresh) => fresh.hung.add(call));
    world.deaf.add("a");
    await world.create({});
    await world.stop(10);
    await world.advance(10_000 + END_MS - 1);
    expect((await world.machine()).state).toBe("stopping");
    await world.advance(1);
    expect(world.journal.at(-1)).toBe("destroy");
    expect((await world.machine()).state).toBe("stopped");
  });

  test("the same for a next backend", async () => {
    const world = await World.create((fresh) => fresh.hung.add(call));
    world.deaf.add("a");
    await world.create({});
    await world.stop(10);
    await world.advance(10_000);
    const restarted = world.restart();
    // The call that is open ends with its time.
    while (!(await isSettled(restarted))) await world.advance(10_000);
    await world.advance(END_MS);
    expect((await world.machine()).state).toBe("stopped");
  });
});

test("what the engine does not prepare in ten minutes has failed, and is tried again", async () => {
  const world = await World.create((fresh) => fresh.hung.add("launch"));
  await world.create({});
  await world.advance(600_000);
  expect((await world.container("a")).message).toContain("not answered within 600 s");
  world.hung.clear();
  await world.advance(10_000);
  expect((await world.container("a")).state).toBe("running");
});

test("a sandbox that the engine never makes keeps no machine from its end", async () => {
  const world = await World.create((fresh) => fresh.hung.add("open"));
  await world.create({});
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(10_000);
  expect((await world.machine()).state).toBe("deleted");
});

test("nor when the end comes after the engine has used up its time for the sandbox", async () => {
  const world = await World.create((fresh) => fresh.hung.add("open"));
  await world.create({});
  await world.advance(300_000 + 10_000);
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(10_000);
  expect((await world.machine()).state).toBe("deleted");
});

test("a sandbox that the engine makes after it was given up is removed again", async () => {
  const world = await World.create();
  const { promise, resolve } = Promise.withResolvers<void>();
  world.opening = promise;
  await world.create({});
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(10_000);
  resolve();
  await world.advance(0);
  expect(world.alive).toBe(false);
  expect(world.journal.at(-1)).toBe("destroy");
});

test("a sandbox that does not close keeps no machine from its end", async () => {
  const world = await World.create((fresh) => fresh.hung.add("close"));
  await world.create({});
  await world.stop(0);
  await world.advance(130_000);
  expect(world.journal.at(-1)).toBe("destroy");
  expect((await world.machine()).state).toBe("stopped");
});

test("a backend starts although an engine does not find a machine again, which is told as out of sight", async () => {
  const world = await World.create();
  await world.create({});
  world.hung.add("recover");
  const restarted = world.restart();
  await vi.waitUntil(() => world.hanging > 0);
  await world.advance(30_000);
  await restarted;
  expect((await world.machine()).reachability).toBe("unknown");
  world.hung.clear();
  await world.advance(5_000);
  expect(await world.machine()).toMatchObject({ state: "running", reachability: "ok" });
});
