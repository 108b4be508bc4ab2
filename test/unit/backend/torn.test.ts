/** What a loss of power leaves of the backend's records: empty files, files that are cut short, older ones. */
import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { main, World } from "./world.ts";

const record = (world: World, ...path: string[]) => join(world.stateDir, ...path);
const stateOf = (world: World, id = "m1") => record(world, "machines", id, "state.json");

/** The host loses power: what was not flushed is gone from the files, and nothing runs. */
async function losePower(world: World, tear: () => void = () => {}): Promise<void> {
  await world.restart(() => {
    world.alive = false;
    for (const instance of world.instances) instance.running = false;
    for (const id of readdirSync(record(world, "machines"))) {
      const light = record(world, "machines", id, "state.next.json");
      if (existsSync(light)) writeFileSync(light, "");
    }
    tear();
  });
}

describe.each([
  ["empty", ""],
  ["cut short", '{"machine":{"id":"m1"'],
  ["of zeros", "\0\0\0\0"],
  ["another thing", "{}"],
])("a record that is %s", (_title, torn) => {
  test("does not make its machine vanish: it is told as failed, and why", async () => {
    const world = await World.create();
    await world.create({ labels: { whose: "theirs" } });
    await losePower(world, () => writeFileSync(stateOf(world), torn));
    expect(await world.machine()).toMatchObject({
      state: "failed",
      reason: "MachineLost",
      message: expect.stringContaining("torn"),
      labels: { whose: "theirs" },
    });
  });

  test("keeps no other machine from going on", async () => {
    const world = await World.create();
    await world.create({});
    await world.create({}, "m2");
    await losePower(world, () => writeFileSync(stateOf(world), torn));
    expect((await world.machine("m2")).state).toBe("running");
  });

  test("that is a tombstone still keeps its id from being used again", async () => {
    const world = await World.create();
    await world.provider.deletePod("m1", { force: true, signal: world.signal });
    await losePower(world, () => writeFileSync(record(world, "tombstones", "m1.json"), torn));
    await expect(world.create({})).rejects.toMatchObject({ code: "gone" });
    expect((await world.machine()).state).toBe("deleted");
  });

  test("of the revisions lets none be used again", async () => {
    const world = await World.create();
    await world.create({});
    const { revision } = await world.machine();
    await losePower(world, () => writeFileSync(record(world, "revision.json"), torn));
    await world.create({}, "m2");
    expect((await world.machine("m2")).revision).toBeGreaterThan(revision);
  });

  test("that is the specification fails the machine, and says so", async () => {
    const world = await World.create();
    await world.create({});
    await losePower(world, () => writeFileSync(record(world, "machines", "m1", "spec.json"), torn));
    expect(await world.machine()).toMatchObject({
      state: "failed",
      reason: "MachineLost",
      message: expect.stringContaining("disk"),
    });
  });
});

test("a machine of which nothing is whole is told of by its id", async () => {
  const world = await World.create();
  await world.create({});
  await losePower(world, () => {
    writeFileSync(stateOf(world), "");
    writeFileSync(record(world, "machines", "m1", "spec.json"), "");
  });
  expect(await world.machine()).toMatchObject({ state: "failed", reason: "MachineLost", containers: [] });
  await world.provider.deletePod("m1", { force: false, signal: world.signal });
  await world.advance(0);
  expect((await world.machine()).state).toBe("deleted");
});

test("a machine that is told as lost has a higher version than before", async () => {
  const world = await World.create();
  await world.create({});
  const before = await world.machine();
  await losePower(world, () => writeFileSync(stateOf(world), ""));
  const after = await world.machine();
  expect([after.version > before.version, after.revision > before.revision]).toEqual([true, true]);
});

test("a machine whose record is torn runs no more, though its sandbox was found", async () => {
  const world = await World.create();
  await world.create({});
  await world.restart(() => {
    world.journal.length = 0;
    writeFileSync(stateOf(world), "");
    writeFileSync(record(world, "machines", "m1", "state.next.json"), "");
  });
  expect(world.journal).toContain("destroy");
});

test("what was torn is kept for a person to look at, and not without end", async () => {
  const world = await World.create();
  const ids = Array.from({ length: 40 }, (_, index) => `m${index}`);
  for (const id of ids) await world.provider.deletePod(id, { force: true, signal: world.signal });
  await losePower(world, () => ids.forEach((id) => writeFileSync(record(world, "tombstones", `${id}.json`), "torn")));
  const kept = readdirSync(record(world, "torn"));
  expect(kept.length).toBe(32);
  expect(kept[0]).toMatch(/^tombstones_m\d+\.json\./);
});

test("how a container ended is still known after a loss of power", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "on_failure", containers: [main("a"), main("b")] });
  await world.exit("a", 0);
  await losePower(world);
  expect(world.starts("a")).toHaveLength(1);
  expect(world.starts("b")).toHaveLength(2);
});

test("a delete that was answered is still known after a loss of power", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({});
  await world.provider.deletePod("m1", { force: false, signal: world.signal });
  await losePower(world);
  await world.advance(0);
  expect((await world.machine()).state).toBe("deleted");
});

test("what was told last, and not flushed, is taken when it is whole", async () => {
  const world = await World.create();
  await world.create({});
  const { started_at: startedAt } = await world.container("a");
  await world.advance(5_000);
  await world.restart();
  expect((await world.container("a")).started_at).toBe(startedAt);
});
