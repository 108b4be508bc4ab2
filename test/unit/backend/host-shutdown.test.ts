/** A host that goes down: which machines end when, and what their owners are told. */
import { expect, test } from "vitest";
import { main, World } from "./world.ts";

const GRACE = { graceMs: 30_000, criticalGraceMs: 10_000 };
const critical = { priority: 2_000_000_000 };
const spec = (name: string) => ({ containers: [main(name)], termination_grace_s: 3600 });

test("those that the cluster depends on end last, each within its part of the grace", async () => {
  const world = await World.create();
  await world.create({ ...spec("dns"), ...critical }, "dns");
  await world.create(spec("web"), "web");
  world.deaf.add("dns").add("web");
  const done = world.provider.shutDown(GRACE);
  await world.advance(19_000);
  expect(world.running()).toEqual(["dns", "web"]);
  expect(world.instance("dns").signals).toEqual([]);
  await world.advance(2_000);
  expect(world.running()).toEqual(["dns"]);
  expect(world.instance("dns").signals.map(({ signal }) => signal)).toEqual(["SIGTERM"]);
  await world.advance(11_000);
  await done;
  expect(world.running()).toEqual([]);
});

test("the second group does not wait when the first has ended", async () => {
  const world = await World.create();
  await world.create({ ...spec("dns"), ...critical }, "dns");
  await world.create(spec("web"), "web");
  const done = world.provider.shutDown(GRACE);
  await world.advance(2_000);
  await done;
  expect(world.journal.filter((line) => line.startsWith("SIGTERM"))).toEqual(["SIGTERM web", "SIGTERM dns"]);
});

test("their owners are told in a kubelet's words, also by the next backend", async () => {
  const world = await World.create();
  await world.create(spec("web"));
  const done = world.provider.shutDown(GRACE);
  await world.advance(2_000);
  await done;
  const told = {
    state: "failed",
    reason: "Terminated",
    message: "Pod was terminated in response to imminent node shutdown.",
  };
  expect(await world.machine()).toMatchObject(told);
  await world.restart();
  expect(await world.machine()).toMatchObject(told);
});

test("a machine that is being stopped keeps its reason, and has no more time than the others", async () => {
  const world = await World.create();
  await world.create(spec("web"));
  world.deaf.add("web");
  await world.stop(3600);
  const done = world.provider.shutDown(GRACE);
  await world.advance(22_000);
  await done;
  expect((await world.machine()).state).toBe("stopped");
});

test("no machine is made meanwhile; it may be when the host is up again", async () => {
  const world = await World.create();
  await world.provider.shutDown(GRACE);
  await expect(world.create({})).rejects.toMatchObject({ code: "unavailable" });
  await world.restart();
  await world.create({});
  expect(world.running()).toEqual(["a"]);
});

test("the end of the host does not wait for a machine whose disk is full", async () => {
  const world = await World.create();
  await world.create(spec("web"));
  const mend = world.breakFile("machines", "m1", "state.json");
  const done = world.provider.shutDown(GRACE);
  await world.advance(31_000);
  await done;
  expect(world.running()).toEqual([]);
  mend();
});
