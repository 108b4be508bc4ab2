/** A machine's own resources change as it runs, whatever ends in the middle. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { MachinePatch, MachineSpec } from "../../../src/provider/machine.ts";
import { main, World } from "./world.ts";

const MIB = 1 << 20;
const limits = (mib: number) => ({ limits: { cpu_millis: 500, memory_bytes: mib * MIB } });
const size = (mib: number): MachinePatch => ({ machine_resources: limits(mib) });

const create = async (spec: Partial<MachineSpec> = {}, setUp?: (world: World) => void) => {
  const world = await World.create(setUp);
  await world.create({ resources: limits(64), containers: [main("a")], ...spec });
  return world;
};
const patch = (world: World, change: MachinePatch) => world.provider.updatePod("m1", change, { signal: world.signal });
const written = (world: World) =>
  (JSON.parse(readFileSync(join(world.stateDir, "machines/m1/spec.json"), "utf8")) as MachineSpec).resources;
const resized = (world: World) => world.journal.filter((line) => line.startsWith("resize"));

test("they are shown, and containers without a limit have the new one", async () => {
  const world = await create({ containers: [main("a"), main("b", { resources: limits(32) })] });
  expect((await world.machine()).resources).toEqual(limits(64));
  await patch(world, size(128));
  expect((await world.machine()).resources).toEqual(limits(128));
  expect(resized(world)).toEqual([`resize to ${128 * MIB}`, "resize a"]);
});

test("what the engine refuses is neither written down nor shown", async () => {
  const world = await create();
  world.refusals.set("resizeMachine", new Error("below what it uses"));
  await expect(patch(world, size(1))).rejects.toThrow("below");
  expect([written(world), (await world.machine()).resources]).toEqual([limits(64), limits(64)]);
});

test("a backend that ends in the middle leaves it to the next one, which shows it when it is done", async () => {
  const world = await create();
  world.hung.add("resizeMachine");
  const asked = patch(world, size(128));
  asked.catch(() => {});
  await world.advance(0);
  expect([written(world), (await world.machine()).resources]).toEqual([limits(128), limits(64)]);
  await world.restart(() => world.hung.clear());
  expect((await world.machine()).resources).toEqual(limits(128));
  expect(resized(world)).toEqual([`resize to ${128 * MIB}`, `resize to ${128 * MIB}`, "resize a"]);
});

test("what the next backend cannot do any more is taken back", async () => {
  const world = await create();
  world.hung.add("resizeMachine");
  patch(world, size(1)).catch(() => {});
  await world.advance(0);
  await world.restart(() => {
    world.hung.clear();
    world.refusals.set("resizeMachine", new Error("below what it uses"));
  });
  expect([written(world), (await world.machine()).resources]).toEqual([limits(64), limits(64)]);
});

test("a container whose limit it is starts again where it asks for that, once", async () => {
  const world = await create({}, (fresh) => fresh.deaf.add("a"));
  const change = { ...size(128), resources: [{ container: "a", resources: {}, restart: true }] };
  await patch(world, change);
  await world.advance(0);
  const stops = world.instance("a").signals.length;
  expect(stops).toBe(1);
  await patch(world, change);
  await world.advance(0);
  expect(world.instance("a").signals).toHaveLength(stops);
});

test("a machine that is at its end cannot change any more", async () => {
  const world = await create({}, (fresh) => fresh.deaf.add("a"));
  await world.provider.stopPod("m1", { graceSeconds: 30, signal: world.signal });
  await expect(patch(world, size(128))).rejects.toMatchObject({ code: "conflict" });
  expect(resized(world)).toEqual([]);
});

test("while it is being made, it is too early", async () => {
  const opening = Promise.withResolvers<void>();
  const world = await create({}, (fresh) => void (fresh.opening = opening.promise));
  await expect(patch(world, size(128))).rejects.toMatchObject({ code: "unavailable" });
  opening.resolve();
  expect(written(world)).toEqual(limits(64));
});

test("who changes containers alone, and says nothing of the machine, is not held back by their former sum", async () => {
  const world = await create({ containers: [main("a", { resources: limits(64) })] });
  await patch(world, { resources: [{ container: "a", resources: limits(128) }] });
  expect(resized(world)).toEqual(["resize to no limit", "resize a"]);
  expect((await world.machine()).resources).toEqual(limits(64));
});
