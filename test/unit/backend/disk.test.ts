/** A disk that cannot be written, and ends of the backend between two writes. */
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { TornFiles } from "../../../providers/local/host/torn-files.ts";
import { MachineStore } from "../../../providers/local/machine/machine-store.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { main, World } from "./world.ts";

test("a machine whose state cannot be written does not run, and its id stays free", async () => {
  const world = await World.create();
  const mend = world.breakFile("machines", "m1", "state.json");
  await expect(world.create({})).rejects.toMatchObject({ code: "unavailable" });
  expect(world.running()).toEqual([]);
  mend();
  await world.create({});
  expect(world.running()).toEqual(["a"]);
});

test("a container is not started before that is written, and is started once it can be", async () => {
  const world = await World.create();
  await world.create({});
  const mend = world.breakFile("machines", "m1", "state.json");
  await world.exit("a", 1);
  expect(world.running()).toEqual([]);
  mend();
  await world.advance(10_000);
  expect(world.running()).toEqual(["a"]);
  expect((await world.container("a")).restart_count).toBe(1);
});

test("clients see only what a next backend would know", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never" });
  const mend = world.breakFile("machines", "m1", "state.json");
  await world.exit("a", 0);
  expect((await world.machine()).state).toBe("running");
  mend();
  await world.advance(1_000);
  expect((await world.machine()).state).toBe("stopped");
});

test("a stop that cannot be written is refused, and done all the same", async () => {
  const world = await World.create();
  await world.create({});
  const mend = world.breakFile("machines", "m1", "state.json");
  await expect(world.stop(30)).rejects.toMatchObject({ code: "unavailable" });
  await expect(world.stop(30)).rejects.toMatchObject({ code: "unavailable" });
  mend();
  await world.advance(1_000);
  expect((await world.machine()).state).toBe("stopped");
});

test("a delete that could not be written is done when it is repeated", async () => {
  const world = await World.create();
  await world.create({});
  const mend = world.breakFile("machines", "m1", "state.json");
  const remove = () => world.provider.deletePod("m1", { force: false, signal: world.signal });
  await expect(remove()).rejects.toMatchObject({ code: "unavailable" });
  mend();
  await world.advance(1_000);
  await remove();
  await world.advance(0);
  expect((await world.machine()).state).toBe("deleted");
});

test("a machine whose tombstone cannot be written is not forgotten", async () => {
  const world = await World.create();
  await world.create({});
  const mend = world.breakFile("tombstones", "m1.json");
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  expect((await world.machine()).state).toBe("stopped");
  await expect(world.create({})).rejects.toMatchObject({ code: "gone" });
  mend();
  await world.advance(5_000);
  expect((await world.machine()).state).toBe("deleted");
});

test("the tombstone holds the last status of the containers", async () => {
  const world = await World.create();
  await world.create({});
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  expect((await world.machine()).containers[0]).toMatchObject({ state: "terminated", terminated: { exit_code: 137 } });
});

test("a revision that could not be reserved is reserved before the next one is used", async () => {
  const world = await World.create();
  const mend = world.breakFile("revision.json");
  await expect(world.create({})).rejects.toMatchObject({ code: "unavailable" });
  mend();
  await world.create({});
  const { revision } = await world.machine();
  const { next } = JSON.parse(readFileSync(join(world.stateDir, "revision.json"), "utf8")) as { next: number };
  expect(next).toBeGreaterThan(revision);
});

test("revisions grow over restarts", async () => {
  const world = await World.create();
  await world.create({});
  const before = (await world.provider.getPods({ labels: {}, signal: world.signal })).revision;
  await world.restart();
  expect((await world.provider.getPods({ labels: {}, signal: world.signal })).revision).toBeGreaterThan(before);
});

test("a folder that was left beside its tombstone brings no machine back to life", async () => {
  const world = await World.create();
  await world.create({});
  await world.restart(() => storeOf(world).bury(machineOf(world)));
  expect((await world.machine()).state).toBe("deleted");
  expect(existsSync(join(world.stateDir, "machines", "m1"))).toBe(false);
});

test("a clock that is a day ahead takes no tombstone that was not known for a while", async () => {
  const world = await World.create();
  await world.create({});
  await world.restart(() => storeOf(world).bury(machineOf(world)));
  const store = storeOf(world);
  store.load();
  const prune = () => {
    store.pruneTombstones(24 * 3_600_000);
    return store.tombstone("m1") === undefined ? "gone" : "kept";
  };
  world.clock.step(2 * 24 * 3_600_000);
  const atFirst = prune();
  await world.clock.advance(3_600_000);
  expect([atFirst, prune()]).toEqual(["kept", "gone"]);
});

const storeOf = ({ stateDir, clock }: World) =>
  new MachineStore(stateDir, clock, new TornFiles(stateDir, silentLogger));

const machineOf = (world: World) =>
  (JSON.parse(readFileSync(join(world.stateDir, "machines", "m1", "state.json"), "utf8")) as { machine: never })
    .machine;

test("a state file that a loss of power has torn does not keep the other machines from being found", async () => {
  const world = await World.create();
  await world.create({});
  await world.create({}, "m2");
  await world.restart(() => writeFileSync(join(world.stateDir, "machines", "m2", "state.json"), '{"mach'));
  expect((await world.machine()).state).toBe("running");
});

test("an ephemeral container whose patch was only half written is started by the next backend", async () => {
  const world = await World.create();
  await world.create({});
  const path = join(world.stateDir, "machines", "m1", "spec.json");
  await world.restart(() => {
    const spec = JSON.parse(readFileSync(path, "utf8")) as object;
    writeFileSync(path, JSON.stringify({ ...spec, ephemeral_containers: [main("debug")] }));
  });
  expect(world.running().toSorted()).toEqual(["a", "debug"]);
});

test("a sandbox that can neither be made nor removed is tried again", async () => {
  const world = await World.create((fresh) => {
    fresh.openErrors = [new Error("no bridge")];
    fresh.destroyErrors = [new Error("no bridge either")];
  });
  await world.create({});
  await world.advance(10_000);
  expect((await world.machine()).state).toBe("running");
});

test("a machine that cannot be found again at once is out of sight until it is", async () => {
  const world = await World.create();
  await world.create({});
  await world.restart(() => (world.recoverErrors = [new Error("runtime is busy")]));
  expect((await world.machine()).reachability).toBe("unknown");
  await world.advance(5_000);
  expect((await world.machine()).reachability).toBe("ok");
  expect(world.starts("a")).toHaveLength(1);
});

test("a stop of a machine that is out of sight is done once it is found", async () => {
  const world = await World.create();
  await world.create({});
  await world.restart(() => (world.recoverErrors = [new Error("runtime is busy")]));
  await world.stop(30);
  await world.advance(5_000);
  expect((await world.machine()).state).toBe("stopped");
});

test("a change of a machine that is out of sight is refused for now, not forgotten", async () => {
  const world = await World.create();
  await world.create({ volumes: [{ name: "f", type: "files", version: "0", files: [] }] });
  world.recoverErrors = [new Error("the guest does not answer")];
  await world.restart();
  const patch = () =>
    world.provider.updatePod("m1", { files: [{ volume: "f", version: "1", files: [] }] }, { signal: world.signal });
  await expect(patch()).rejects.toMatchObject({ code: "unavailable" });
  await world.advance(10_000);
  await patch();
  expect(world.patched).toEqual(["f=0", "f=1"]);
});

test("a delete of which only the half was written is finished when it is repeated", async () => {
  const world = await World.create();
  await world.create({});
  const path = join(world.stateDir, "machines", "m1", "state.json");
  await world.restart(() => {
    const record = JSON.parse(readFileSync(path, "utf8")) as object;
    writeFileSync(path, JSON.stringify({ ...record, deleted: true }));
  });
  await world.provider.deletePod("m1", { force: false, signal: world.signal });
  await world.advance(0);
  expect((await world.machine()).state).toBe("deleted");
});

test("an ephemeral container that could not be written is added when its patch is repeated, and only once", async () => {
  const world = await World.create();
  await world.create({});
  const mend = world.breakFile("machines", "m1", "spec.json");
  const patch = () =>
    world.provider.updatePod("m1", { ephemeral_containers: [main("debug")] }, { signal: world.signal });
  await expect(patch()).rejects.toThrow();
  await world.advance(0);
  expect(world.starts("debug")).toEqual([]);
  mend();
  await patch();
  await patch();
  await world.advance(0);
  expect(world.starts("debug")).toHaveLength(1);
});

test("close waits for the engine, and writes nothing after it", async () => {
  const world = await World.create();
  await world.create({});
  const engine = Promise.withResolvers<void>();
  world.destroying = engine.promise;
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  let closed = false;
  const closing = world.provider.close().then(() => (closed = true));
  await world.advance(0);
  expect(closed).toBe(false);
  engine.resolve();
  await closing;
  await world.advance(0);
  expect(readdirSync(join(world.stateDir, "tombstones"))).toEqual([]);
});

test("a delete that close interrupted is finished by the next backend", async () => {
  const world = await World.create();
  await world.create({});
  const engine = Promise.withResolvers<void>();
  world.destroying = engine.promise;
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  const restarted = world.restart();
  engine.resolve();
  await restarted;
  await world.advance(0);
  expect((await world.machine()).state).toBe("deleted");
});

test("nothing of the backend waits for anything after close", async () => {
  const world = await World.create((fresh) => (fresh.openErrors = [new Error("no bridge")]));
  await world.create({});
  await world.provider.close();
  expect(world.clock.pending).toBe(0);
});

test("starts that fail leave no folders behind", async () => {
  const world = await World.create((fresh) => fresh.launchErrors.set("a", new Error("no such user")));
  await world.create({});
  await world.advance(60_000);
  expect(readdirSync(join(world.stateDir, "machines", "m1", "containers", "a"))).toEqual([]);
});

test("the previous log is that of the last instance, however often a start failed in between", async () => {
  const world = await World.create();
  await world.create({});
  world.writeLog("a", ["first"]);
  world.launchErrors.set("a", new Error("no such user"));
  await world.exit("a", 1);
  await world.advance(20_000);
  world.launchErrors.clear();
  await world.advance(10_000);
  const lines = await Array.fromAsync(world.provider.getLogs("m1", "a", { previous: true, signal: world.signal }));
  expect(lines.map(({ content }) => content.toString())).toEqual(["first"]);
});

test.each(["..", ".", "a/b", "../tombstones", "", "-a"])("an id %j that is no file name is refused", async (id) => {
  const world = await World.create();
  const options = { force: true, signal: world.signal };
  await expect(world.provider.deletePod(id, options)).rejects.toMatchObject({ code: "invalid", field: "id" });
});

test("a volume's name that is no file name is refused", async () => {
  const world = await World.create();
  const volumes = [{ name: "../../../etc", type: "empty_dir" as const, medium: "disk" as const }];
  await expect(world.create({ volumes })).rejects.toMatchObject({ code: "invalid", field: "volumes.name" });
});

describe("patches of files", () => {
  async function withFiles() {
    const world = await World.create();
    await world.create({ volumes: [{ name: "f", type: "files", version: "0", files: [] }] });
    const { promise, resolve } = Promise.withResolvers<void>();
    world.applying = promise;
    const patch = (version: string) =>
      world.provider.updatePod("m1", { files: [{ volume: "f", version, files: [] }] }, { signal: world.signal });
    return { world, patch, resolve };
  }

  test("are made one after the other, whoever asks meanwhile", async () => {
    const { world, patch, resolve } = await withFiles();
    const both = [patch("1"), patch("2")];
    await world.advance(0);
    expect(world.patched).toEqual(["f=0", "f=1"]);
    resolve();
    await Promise.all(both);
    expect(world.patched).toEqual(["f=0", "f=1", "f=2"]);
    expect((await world.machine()).file_versions).toEqual([{ volume: "f", version: "2" }]);
  });

  test("are in place at the start though they come while the sandbox is made", async () => {
    const world = await World.create();
    const { promise, resolve } = Promise.withResolvers<void>();
    world.applying = promise;
    await world.create({ volumes: [{ name: "f", type: "files", version: "0", files: [] }] });
    await world.provider.updatePod(
      "m1",
      { files: [{ volume: "f", version: "1", files: [] }] },
      { signal: world.signal },
    );
    resolve();
    await world.advance(0);
    expect(world.patched).toEqual(["f=0", "f=1"]);
    expect(await world.machine()).toMatchObject({ state: "running", file_versions: [{ volume: "f", version: "1" }] });
  });

  test("leave nothing of a machine that was deleted meanwhile", async () => {
    const { world, patch, resolve } = await withFiles();
    const patched = patch("1").catch((thrown: unknown) => thrown);
    await world.provider.deletePod("m1", { force: true, signal: world.signal });
    await world.advance(0);
    expect((await world.machine()).state).toBe("deleted");
    resolve();
    expect(await patched).toMatchObject({ code: "conflict" });
    expect(existsSync(join(world.stateDir, "machines", "m1"))).toBe(false);
  });
});
