import { readdirSync, readlinkSync } from "node:fs";
import { expect, test, vi } from "vitest";
import { ContainerError } from "../../../providers/local/engine.ts";
import { settled } from "../../e2e/harness/wait.ts";
import { main, World } from "./world.ts";

const never = { restart_policy: "never" as const };

test.each([
  [0, "Completed"],
  [3, "Error"],
])("exit code %i ends a container with reason %s", async (exitCode, reason) => {
  const world = await World.create();
  await world.create(never);
  await world.exit("a", exitCode);
  expect((await world.container("a")).terminated).toMatchObject({ exit_code: exitCode, reason });
});

test("a container that the kernel killed for its memory says OOMKilled", async () => {
  const world = await World.create((fresh) => fresh.conclusions.set("a", { oomKilled: true }));
  await world.create(never);
  await world.exit("a", 137);
  expect((await world.container("a")).terminated).toMatchObject({ reason: "OOMKilled", oom_killed: true });
});

test("a command that could not be run ends with StartError and code 128", async () => {
  const world = await World.create((fresh) => fresh.conclusions.set("a", { startError: "no such file" }));
  await world.create(never);
  await world.exit("a", 1);
  expect((await world.container("a")).terminated).toMatchObject({
    exit_code: 128,
    reason: "StartError",
    message: "no such file",
  });
});

test("the termination message file becomes the message, cut at 4096 bytes", async () => {
  const world = await World.create((fresh) => fresh.conclusions.set("a", { terminationMessage: "x".repeat(5000) }));
  await world.create(never);
  await world.exit("a", 0);
  expect((await world.container("a")).terminated?.message).toBe("x".repeat(4096));
});

test("policy fallback_to_logs takes the last 80 lines of a failed container's log", async () => {
  const world = await World.create();
  await world.create({
    ...never,
    containers: [main("a", { termination_message: { path: "/t", policy: "fallback_to_logs" } })],
  });
  const lines = Array.from({ length: 100 }, (_, index) => `line ${index}`);
  world.writeLog("a", lines);
  await world.exit("a", 1);
  // The log is read from a real file.
  await vi.waitFor(async () =>
    expect((await world.container("a")).terminated?.message).toBe(`${lines.slice(20).join("\n")}\n`),
  );
});

test("policy fallback_to_logs is silent after success", async () => {
  const world = await World.create();
  await world.create({
    ...never,
    containers: [main("a", { termination_message: { path: "/t", policy: "fallback_to_logs" } })],
  });
  world.writeLog("a", ["fine"]);
  await world.exit("a", 0);
  expect((await world.container("a")).terminated?.message).toBeUndefined();
});

const MIB = 1024 * 1024;
/** Logs are read from a real disk, so a measurement is over when the next one has begun, or the machine is. */
async function measureTwice(world: World) {
  const before = world.measured;
  await expect
    .poll(async () => {
      await world.advance(10_000);
      return world.measured >= before + 2 || (await world.machine()).state === "failed";
    })
    .toBe(true);
}

test("a machine whose empty_dir grows above its limit fails with kubelet's eviction message", async () => {
  const world = await World.create();
  await world.create({ volumes: [{ name: "tmp", type: "empty_dir", medium: "disk", size_bytes: 10 * 1024 * 1024 }] });
  world.volumes = [{ name: "tmp", used_bytes: 10 * 1024 * 1024 }];
  await measureTwice(world);
  expect((await world.machine()).state).toBe("running");
  world.volumes = [{ name: "tmp", used_bytes: 10 * 1024 * 1024 + 1 }];
  await measureTwice(world);
  expect(await world.machine()).toMatchObject({
    state: "failed",
    reason: "Evicted",
    message: 'Usage of EmptyDir volume "tmp" exceeds the limit "10Mi". ',
  });
});

const limited = (name: string, bytes: number) => main(name, { resources: { limits: { ephemeral_bytes: bytes } } });

test("a machine whose containers and volumes together outgrow their limits fails with kubelet's message", async () => {
  const world = await World.create();
  await world.create({
    containers: [limited("a", 10 * MIB), main("b")],
    volumes: [
      { name: "disk", type: "empty_dir", medium: "disk" },
      { name: "memory", type: "empty_dir", medium: "memory" },
    ],
  });
  world.layers.set("a", 4 * MIB).set("b", 4 * MIB);
  world.volumes = [
    { name: "disk", used_bytes: 2 * MIB },
    { name: "memory", used_bytes: 90 * MIB },
  ];
  await measureTwice(world);
  expect((await world.machine()).state).toBe("running");
  world.layers.set("b", 4 * MIB + 1);
  await measureTwice(world);
  expect(await world.machine()).toMatchObject({
    state: "failed",
    reason: "Evicted",
    message: "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
  });
});

test("one container that outgrows its own limit is enough, and its log counts", async () => {
  const world = await World.create();
  await world.create({ containers: [limited("a", 1_000_000), limited("b", 100 * MIB)] });
  world.layers.set("a", 999_990);
  await measureTwice(world);
  expect((await world.machine()).state).toBe("running");
  world.writeLog("a", ["more than ten bytes"]);
  await measureTwice(world);
  expect(await world.machine()).toMatchObject({
    reason: "Evicted",
    message: 'Container a exceeded its local ephemeral storage limit "1M". ',
  });
});

test.each(["containers", "volumes"] as const)("files without a byte in them count, too: in %s", async (place) => {
  const world = await World.create();
  await world.create({
    containers: [limited("a", 10 * MIB)],
    volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
  });
  world.layers.set("a", 4096);
  world.volumes = [{ name: "v", used_bytes: 4096 }];
  const name = place === "containers" ? "a" : "v";
  world.inodes[place].set(name, 2000);
  await measureTwice(world);
  expect((await world.machine()).state).toBe("running");
  world.inodes[place].set(name, 3000);
  await measureTwice(world);
  expect(await world.machine()).toMatchObject({ state: "failed", reason: "Evicted" });
});

test("a container that cannot be configured waits with the reason and is tried again", async () => {
  const world = await World.create((fresh) =>
    fresh.launchErrors.set("a", new ContainerError("CreateContainerConfigError", "no such user")),
  );
  await world.create({});
  expect(await world.container("a")).toMatchObject({
    state: "waiting",
    reason: "CreateContainerConfigError",
    message: "no such user",
  });
  expect(await world.notices()).toContain("Failed: Error: no such user");
  world.launchErrors.clear();
  await world.advance(10_000);
  expect(await world.container("a")).toMatchObject({ state: "running", restart_count: 0 });
});

test("a container that cannot start does not hold up the one after it", async () => {
  const world = await World.create((fresh) =>
    fresh.launchErrors.set("a", new ContainerError("CreateContainerConfigError", "no such user")),
  );
  await world.create({ containers: [main("a"), main("b")] });
  expect(world.running()).toEqual(["b"]);
});

test("what a machine says of itself stays short, however much its container prints", async () => {
  const world = await World.create((fresh) => fresh.launchErrors.set("a", new Error("\u0001".repeat(100_000))));
  await world.create({});
  const { notices, containers } = await world.machine();
  const longest = Math.max(...[...notices!, ...containers].map(({ message }) => message?.length ?? 0));
  expect(longest).toBe(1024);
});

/** What this process has open. */
const openFiles = (): string[] =>
  readdirSync("/proc/self/fd").flatMap((fd) => {
    try {
      return [readlinkSync(`/proc/self/fd/${fd}`)];
    } catch {
      return []; // closed in the meantime
    }
  });

test("an end whose log is still being read when the sandbox is lost does not end the next instance", async () => {
  const world = await World.create();
  const lines = Array.from({ length: 80_000 }, () => "x".repeat(100));
  await world.create({ containers: [main("a", { termination_message: { path: "/t", policy: "fallback_to_logs" } })] });
  world.writeLog("a", lines);
  await world.exit("a", 1);
  await world.lose({ reason: "SandboxLost", message: "gone" });
  const state = await world.container("a");
  expect(state).toMatchObject({ state: "running", restart_count: 1 });
  // Whoever still reads the log has it open.
  await settled(() => openFiles().filter((file) => file.includes("/log.")).length);
  expect(await world.container("a")).toEqual(state);
  expect(world.running()).toEqual(["a"]);
});

test("a container that ends at once is shown with its image and user all the same", async () => {
  const image = { imageId: "r/i@sha256:0", image: "r/i:1", config: {}, location: "/i", sizeBytes: 1 };
  const world = await World.create((fresh) => {
    fresh.hasty.add("a");
    fresh.images = { find: () => Promise.resolve(image), pull: () => Promise.reject(new Error("not asked for")) };
  });
  await world.create({ restart_policy: "never", containers: [main("a", { pull_policy: "if_not_present" })] });
  expect(await world.container("a")).toMatchObject({
    state: "terminated",
    image: "r/i:1",
    image_id: "r/i@sha256:0",
    user: { uid: 7 },
  });
});
