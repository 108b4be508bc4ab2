/** A patch of several parts of which one fails: those before it are done, written down and shown. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { MachinePatch, MachineSpec } from "../../../src/provider/machine.ts";
import { main, World } from "./world.ts";

const MIB = 1 << 20;
const limits = { limits: { memory_bytes: 64 * MIB } };
const files = (version: string) => ({ version, files: [{ path: "f", content_b64: "", mode: 0o644 }] });
const resize: MachinePatch = { resources: [{ container: "a", resources: limits }] };

const create = async (setUp: (world: World) => void = () => {}) => {
  const world = await World.create(setUp);
  await world.create({ volumes: [{ name: "v", type: "files", ...files("1") }] });
  return world;
};
const patch = (world: World, change: MachinePatch) => world.provider.updatePod("m1", change, { signal: world.signal });
const written = (world: World) =>
  JSON.parse(readFileSync(join(world.stateDir, "machines/m1/spec.json"), "utf8")) as MachineSpec;

test("limits that the engine has taken stand, though files of the same patch cannot be put in place", async () => {
  const world = await create();
  world.refusals.set("applyFiles", new Error("no room"));
  await expect(patch(world, { ...resize, files: [{ volume: "v", ...files("2") }] })).rejects.toThrow("no room");
  expect((await world.container("a")).resources).toEqual(limits);
  expect(written(world).containers[0]!.resources).toEqual(limits);
});

test("files that could not be put in place are put there when the patch is repeated", async () => {
  const world = await create();
  world.refusals.set("applyFiles", new Error("no room"));
  const change = { files: [{ volume: "v", ...files("2") }] };
  await expect(patch(world, change)).rejects.toThrow("no room");
  world.refusals.clear();
  await patch(world, change);
  expect((await world.machine()).file_versions).toEqual([{ volume: "v", version: "2" }]);
});

test("limits that the engine refuses are not written down", async () => {
  const world = await create();
  world.refusals.set("resize", new Error("below what it uses"));
  await expect(patch(world, resize)).rejects.toThrow("below");
  expect(written(world).containers[0]!.resources).toBeUndefined();
});

test("nothing is done of a patch that names what the machine has not", async () => {
  const world = await create();
  const change = { ...resize, files: [{ volume: "other", ...files("2") }] };
  await expect(patch(world, change)).rejects.toMatchObject({ code: "invalid" });
  expect(world.journal).not.toContain("resize a");
});

test("a new image that cannot be written down does not stop its container, and does when the patch is repeated", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({ containers: [main("a")] });
  const mend = world.breakFile("machines", "m1", "spec.json");
  const change = { containers: [{ name: "a", image: "j" }] };
  await expect(patch(world, change)).rejects.toThrow();
  expect(world.instance("a").signals).toEqual([]);
  mend();
  await patch(world, change);
  await world.advance(0);
  expect(world.instance("a").signals.map(({ signal }) => signal)).toEqual(["SIGTERM"]);
});
