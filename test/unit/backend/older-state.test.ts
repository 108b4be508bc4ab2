/** The state directory of a backend of version 0.1.0, frozen: whatever comes after goes on with the machines that it finds there. */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import type { MachineRecord } from "../../../providers/local/machine/record.ts";
import type { ContainerLaunch } from "../../../providers/local/engine.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { World } from "./world.ts";

const fixture = (name: string): unknown =>
  JSON.parse(readFileSync(join(import.meta.dirname, `../../fixtures/0.1.0/${name}`), "utf8"));
const files = fixture("backend.json") as { "revision.json": object; "spec.json": object; "state.json": MachineRecord };
const { id, spec } = (fixture("agent.json") as { machine: { id: string; spec: MachineSpec } }).machine;
const record = files["state.json"];

/** Writes the state directory, and has the containers run that it tells of. */
function inherit(world: World): void {
  const home = join(world.stateDir, "machines", id);
  const write = (path: string, content: object) => {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, JSON.stringify(content));
  };
  write(join(world.stateDir, "revision.json"), files["revision.json"]);
  write(join(home, "spec.json"), files["spec.json"]);
  write(join(home, "state.json"), record);
  mkdirSync(join(home, "engine"));
  world.alive = true;
  for (const [name, { id: instance, folder, attempt }] of Object.entries(record.containers)) {
    const dir = join(home, "containers", name, folder!);
    mkdirSync(dir, { recursive: true });
    const launch = { id: instance, name, attempt, dir } as unknown as ContainerLaunch;
    world.instances.push({ name, attempt, launch, running: true, startedAt: 0, signals: [] });
  }
}

test("a backend finds the machines of version 0.1.0 running, with ids, counts and files unchanged", async () => {
  const world = await World.create(inherit);
  const { version: _version, revision: _revision, host: _host, notices: _notices, ...found } = await world.machine(id);
  const { version, revision, host, notices, ...before } = record.machine;
  // It was not shown by that release.
  const { resources } = JSON.parse(
    readFileSync(join(world.stateDir, "machines", id, "spec.json"), "utf8"),
  ) as MachineSpec;
  expect(found).toEqual({ ...before, resources });
  expect(world.journal).toEqual([]);
  expect([version > 0, revision > 0, host, notices?.length]).toEqual([true, true, "test", 6]);
});

test("a create that version 0.1.0 was asked for is the same one, and no conflict", async () => {
  const world = await World.create(inherit);
  await world.create(spec, id);
  expect(world.running().toSorted()).toEqual(["app", "side"]);
  await expect(world.create({ ...spec, hostname: "another" }, id)).rejects.toMatchObject({ code: "conflict" });
});

test("a machine of version 0.1.0 is restarted, stopped and deleted as one of this version", async () => {
  const world = await World.create(inherit);
  await world.exit("side", 1);
  await world.advance(0);
  expect((await world.container("side", id)).restart_count).toBe(1);
  await world.provider.deletePod(id, { force: false, signal: world.signal });
  await world.advance(30_000);
  expect((await world.machine(id)).state).toBe("deleted");
});
