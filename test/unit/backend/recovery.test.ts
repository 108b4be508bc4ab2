import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { LocalProvider } from "../../../providers/local/provider.ts";
import { FolderVolumes } from "../../../providers/local/volumes/folders.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { main, sidecar, World } from "./world.ts";

test("a new backend finds running containers, with ids and counts unchanged", async () => {
  const world = await World.create();
  await world.create({});
  await world.exit("a", 1);
  const before = await world.machine();
  await world.restart();
  expect((await world.machine()).containers).toEqual(before.containers);
  expect(world.starts("a")).toHaveLength(2);
});

test("an end that happened while no backend ran is seen by the next one", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never" });
  const instance = world.instance("a");
  await world.restart(() => {
    instance.running = false;
    instance.exit = { exitCode: 7, startedAt: world.clock.now(), finishedAt: world.clock.now() };
  });
  expect(await world.machine()).toMatchObject({ state: "stopped", containers: [{ terminated: { exit_code: 7 } }] });
});

test("init containers that have passed are not run again", async () => {
  const world = await World.create();
  await world.create({ init_containers: [main("i"), sidecar("s")] });
  await world.exit("i", 0);
  await world.restart();
  expect(world.starts("i")).toHaveLength(1);
  expect(world.running().toSorted()).toEqual(["a", "s"]);
});

test("a post_start hook that was under way is run again, and then the container is shown as running", async () => {
  const world = await World.create();
  await world.create({ containers: [main("a", { hooks: { post_start: { sleep: { seconds: 5 } } } }), main("b")] });
  // Any other change of the machine writes its record.
  await world.provider.updatePod("m1", { registry_auth: [] }, { signal: world.signal });
  await world.restart();
  expect(await world.container("a")).toMatchObject({ state: "waiting" });
  await world.advance(5_000);
  expect(world.running()).toEqual(["a", "b"]);
  expect((await world.container("a")).state).toBe("running");
});

test("what was found is not looked for again when finding the rest is tried anew", async () => {
  const world = await World.create();
  world.exec = () => undefined;
  await world.create({ containers: [main("a", { hooks: { post_start: { exec: { command: ["hook"] } } } })] });
  await world.provider.updatePod("m1", { ephemeral_containers: [main("debug")] }, { signal: world.signal });
  await world.advance(0);
  await world.restart(() => {
    world.findErrors.set("debug", new Error("disk full"));
    world.journal.length = 0;
  });
  expect((await world.machine()).reachability).toBe("unknown");
  await world.advance(5_000);
  expect((await world.machine()).reachability).toBe("ok");
  expect(world.journal).toEqual(["exec a: hook"]);
  expect(world.recovered).toBe(1);
});

test("a start that was decided but never begun is begun by the next backend, and not counted as a restart", async () => {
  const world = await World.create((fresh) => fresh.stuck.add("a"));
  await world.create({});
  await world.restart(() => world.stuck.clear());
  expect(await world.container("a")).toMatchObject({ state: "running", restart_count: 0 });
});

test.each([
  ["was decided", (world: World) => void world.stuck.add("a")],
  ["was being prepared", (world: World) => void (world.launching = new Promise(() => {}))],
])("nothing stays in place for a start that %s but never begun", async (_title, hold) => {
  const world = await World.create(hold);
  await world.create({});
  await world.restart(() => {
    world.stuck.clear();
    world.launching = Promise.resolve();
  });
  expect(world.running()).toEqual(["a"]);
  expect([...world.prepared]).toEqual([world.instance("a").launch.id]);
  expect(readdirSync(join(world.stateDir, "machines/m1/containers/a"))).toHaveLength(1);
});

test("a back-off goes on where it stood", async () => {
  const world = await World.create();
  await world.create({});
  await world.exit("a", 1);
  await world.exit("a", 1);
  await world.advance(4_000);
  await world.restart();
  await world.advance(5_999);
  expect(world.running()).toEqual([]);
  await world.advance(1);
  expect(world.running()).toEqual(["a"]);
});

test("a stop goes on with the time that is left", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({});
  await world.stop(30);
  await world.advance(10_000);
  await world.restart();
  await world.advance(19_999);
  expect(world.running()).toEqual(["a"]);
  await world.advance(1);
  expect((await world.machine()).state).toBe("stopped");
});

test("a delete is finished by the next backend", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({});
  await world.provider.deletePod("m1", { force: false, signal: world.signal });
  await world.restart();
  await world.advance(30_000);
  expect((await world.machine()).state).toBe("deleted");
});

test("a sandbox that is gone after a restart is made anew", async () => {
  const world = await World.create();
  await world.create({});
  await world.restart(() => {
    world.alive = false;
    world.instance("a").running = false;
  });
  expect(world.sandboxes).toBe(2);
  expect(await world.container("a")).toMatchObject({
    state: "running",
    restart_count: 1,
    last: { reason: "ContainerStatusUnknown" },
  });
});

test("tombstones outlive a restart", async () => {
  const world = await World.create();
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.restart();
  await expect(world.create({})).rejects.toMatchObject({ code: "gone" });
});

test("revisions grow over a restart, and a watch from before it is gone", async () => {
  const world = await World.create();
  await world.create({});
  const before = await world.provider.getPods({ labels: {}, signal: world.signal });
  await world.restart();
  const after = await world.provider.getPods({ labels: {}, signal: world.signal });
  expect(after.revision).toBeGreaterThanOrEqual(before.revision);
  const watch = world.provider.watchPods(before.revision, { labels: {}, signal: world.signal });
  await expect(watch.next()).rejects.toMatchObject({ code: "gone" });
});

test("registry credentials never reach the disk, and only the owner may read the state", async () => {
  const world = await World.create();
  await world.create({ registry_auth: [{ registry: "r", username: "u", password: "hunter2" }] });
  const files = readdirSync(world.stateDir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  for (const file of files) expect(readFileSync(join(file.parentPath, file.name), "utf8")).not.toContain("hunter2");
  expect(statSync(world.stateDir).mode & 0o077).toBe(0);
});

test("nothing of a deleted machine is left but its tombstone", async () => {
  const world = await World.create();
  await world.create({});
  await world.provider.deletePod("m1", { force: true, signal: world.signal });
  await world.advance(0);
  expect(existsSync(join(world.stateDir, "machines", "m1"))).toBe(false);
});

test("two backends cannot share one state directory", async () => {
  const world = await World.create();
  const second = LocalProvider.open({
    engine: {} as never,
    stateDir: world.stateDir,
    clock: world.clock,
    logger: silentLogger,
    host: "h",
    version: "0",
  });
  await expect(second).rejects.toThrow(/in use by another backend/);
});

test("a container whose new image waits for the old one's end gets it though the backend restarts meanwhile", async () => {
  const world = await World.create((fresh) => fresh.deaf.add("a"));
  await world.create({ restart_policy: "never" });
  await world.provider.updatePod("m1", { containers: [{ name: "a", image: "j" }] }, { signal: world.signal });
  await world.restart();
  await world.advance(30_000);
  expect(await world.container("a")).toMatchObject({ state: "running", image: "j", restart_count: 1 });
});

test("a start with a new image that was decided but never begun is begun by the next backend, whatever the policy", async () => {
  const world = await World.create();
  await world.create({ restart_policy: "never" });
  world.stuck.add("a");
  await world.provider.updatePod("m1", { containers: [{ name: "a", image: "j" }] }, { signal: world.signal });
  await world.advance(0);
  world.stuck.clear();
  await world.restart();
  await world.advance(10_000);
  expect(await world.container("a")).toMatchObject({ state: "running", image: "j" });
});

test("how a container ended is not lost when the backend ends while it is told", async () => {
  const world = await World.create((fresh) => fresh.conclusions.set("a", { oomKilled: true, terminationMessage: "m" }));
  await world.create({ restart_policy: "never" });
  const { promise, resolve } = Promise.withResolvers<void>();
  world.concluding = promise;
  await world.exit("a", 137);
  const restarted = world.restart();
  resolve();
  await restarted;
  expect((await world.container("a")).terminated).toMatchObject({ reason: "OOMKilled", message: "m" });
});

test("how a container ended is told though the engine fails to say so at first", async () => {
  const world = await World.create((fresh) => fresh.conclusions.set("a", { oomKilled: true }));
  world.concludeErrors = [new Error("busy"), new Error("busy")];
  await world.create({ restart_policy: "never" });
  await world.exit("a", 137);
  await world.advance(2_000);
  expect((await world.container("a")).terminated).toMatchObject({ reason: "OOMKilled" });
  expect([...world.prepared]).toEqual([]);
});

test("what an engine does not say in time is not waited for, and nothing stays in place for the container", async () => {
  const world = await World.create();
  world.concludeErrors = Array.from({ length: 5 }, () => new Error("busy"));
  await world.create({});
  const { id } = world.instance("a").launch;
  await world.exit("a", 1);
  await world.advance(2_000);
  expect(await world.container("a")).toMatchObject({ state: "running", last: { exit_code: 1, id } });
  expect([...world.prepared]).toContain(id);
  await world.advance(3_000);
  expect([...world.prepared]).toEqual([world.instance("a").launch.id]);
});

test("what a former backend did not remove when a container had ended is removed by the next one", async () => {
  const world = await World.create();
  world.concludeErrors = Array.from({ length: 4 }, () => new Error("busy"));
  await world.create({ restart_policy: "on_failure", containers: [main("a"), main("b")] });
  await world.exit("a", 0);
  await world.advance(2_000);
  await world.restart(() => (world.concludeErrors = []));
  expect([...world.prepared]).toEqual([world.instance("b").launch.id]);
});

test("a container that a patch has added is told in a version of its own by the next backend", async () => {
  const world = await World.create();
  await world.create({});
  const before = await world.machine();
  const mend = world.breakFile("machines", "m1", "state.json");
  await world.provider.updatePod("m1", { ephemeral_containers: [main("debug")] }, { signal: world.signal });
  await world.restart(mend);
  const after = await world.machine();
  expect(after.containers.map(({ name }) => name)).toEqual(["a", "debug"]);
  expect(after.version).toBeGreaterThan(before.version);
});

test("a machine's version grows with each backend: what a loss of power took back may have been told", async () => {
  const world = await World.create();
  await world.create({});
  const before = await world.machine();
  await world.restart();
  const first = await world.machine();
  await world.restart();
  const second = await world.machine();
  expect(first.version).toBeGreaterThan(before.version);
  expect(second.version).toBeGreaterThan(first.version);
  expect(second.revision).toBeGreaterThan(first.revision);
});

test("nothing is left on the disk of a machine that could not be created", async () => {
  const world = await World.create();
  const mend = world.breakFile("revision.json");
  await expect(world.create({})).rejects.toMatchObject({ code: "unavailable" });
  expect(existsSync(join(world.stateDir, "machines", "m1"))).toBe(false);
  mend();
  await world.create({});
  expect(world.running()).toEqual(["a"]);
});

describe("a machine that runs, and whose volumes cannot be had again", () => {
  /** As of a host whose disk is full, or of one that answers nothing. */
  async function restarted(attach: () => Promise<void>) {
    const world = await World.create();
    await world.provider.volumes!.create("disk", { labels: {}, size_bytes: 1024, mode: "filesystem" }, world);
    await world.create({ volumes: [{ name: "v", type: "persistent", volume: "disk" }], containers: [main("a")] });
    const attaching = vi.spyOn(FolderVolumes.prototype, "attach").mockImplementation(attach);
    onTestFinished(() => attaching.mockRestore());
    const restart = world.restart();
    await vi.waitUntil(() => attaching.mock.calls.length > 0);
    await world.advance(30_000);
    await restart;
    return { world, mend: () => attaching.mockRestore() };
  }
  const full = () => Promise.reject(new ProviderError("quota", "the host's disk has no room"));

  test("is in sight, and is stopped", async () => {
    const { world } = await restarted(full);
    expect(await world.machine()).toMatchObject({ state: "running", reachability: "ok" });
    expect(world.running()).toEqual(["a"]);
    await world.stop(1);
    expect((await world.machine()).state).toBe("stopped");
    expect(world.running()).toEqual([]);
  });

  test("is deleted by force", async () => {
    const { world } = await restarted(full);
    await world.provider.deletePod("m1", { force: true, signal: world.signal });
    await world.advance(0);
    expect((await world.machine()).state).toBe("deleted");
  });

  test("begins no container before it has them, and says why", async () => {
    const { world, mend } = await restarted(full);
    await world.exit("a", 1);
    await world.advance(0);
    expect(world.running()).toEqual([]);
    expect(await world.container("a")).toMatchObject({
      state: "waiting",
      message: expect.stringContaining("no room") as string,
    });
    mend();
    await world.advance(10_000);
    expect(world.running()).toEqual(["a"]);
  });

  test("is in sight though nobody answers", async () => {
    const { world } = await restarted(() => new Promise(() => {}));
    expect(await world.machine()).toMatchObject({ state: "running", reachability: "ok" });
  });
});
