/** Where what machines are told in confidence lies: in memory, bounded, and known to be lost when that is lost. */
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { memoryFolder, memoryPlace } from "../../../providers/local/host/memory-folder.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { main, World } from "./world.ts";

const SECRET = "the word that is nowhere on the disk";
const secretive: Partial<MachineSpec> = {
  labels: { "vmlet.dev/namespace": "a", "vmlet.dev/pod": "p" },
  containers: [main("a", { env: [{ name: "TOKEN", value: SECRET }] })],
  volumes: [
    {
      type: "files",
      name: "secret",
      version: "1",
      files: [{ path: "word", mode: 0o400, content_b64: Buffer.from(SECRET).toString("base64") }],
    },
  ],
};

let memory: string;
beforeEach(() => {
  memory = mkdtempSync(join(tmpdir(), "vmlet-memory-"));
});
afterEach(() => rmSync(memory, { recursive: true, force: true }));

const inMemory = (maxBytes = 1e9) =>
  World.create((world) => {
    world.secrets = { dir: memory, maxBytes };
  });
const wipe = () => {
  for (const name of readdirSync(memory)) rmSync(join(memory, name), { recursive: true });
};
const onDisk = (world: World) => {
  const found = [];
  for (const entry of readdirSync(world.stateDir, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const text = readFileSync(join(entry.parentPath, entry.name), "latin1");
    if (text.includes(SECRET) || text.includes(Buffer.from(SECRET).toString("base64"))) found.push(entry.name);
  }
  return found;
};

describe("a machine's secrets", () => {
  test("are in no file of the state directory", async () => {
    const world = await inMemory();
    await world.create(secretive);
    expect(await world.container("a")).toMatchObject({ state: "running" });
    expect(onDisk(world)).toEqual([]);
    expect(statSync(join(memory, "m1/spec.json")).mode & 0o777).toBe(0o600);
  });

  test("are there for the next backend, which restarts containers with them", async () => {
    const world = await inMemory();
    await world.create(secretive);
    await world.restart();
    await world.exit("a", 1);
    await world.advance(0);
    expect(world.instance("a").launch.spec.env).toEqual([{ name: "TOKEN", value: SECRET }]);
    expect(world.starts("a")).toHaveLength(2);
  });

  test("go with it", async () => {
    const world = await inMemory();
    await world.create(secretive);
    await world.provider.deletePod("m1", { force: true, signal: world.signal });
    await world.advance(0);
    expect(readdirSync(memory)).toEqual([]);
  });

  test("that a backend has left without a machine are removed by the next one", async () => {
    const world = await inMemory();
    await world.restart(() => mkdirSync(join(memory, "unanswered")));
    expect(readdirSync(memory)).toEqual([]);
  });

  test("of an earlier version leave the disk", async () => {
    const world = await World.create();
    await world.create(secretive);
    await world.restart(() => {
      world.secrets = { dir: memory, maxBytes: 1e9 };
    });
    expect(onDisk(world)).toEqual([]);
    expect(await world.container("a")).toMatchObject({ state: "running", restart_count: 0 });
    await world.restart();
    expect(world.running()).toEqual(["a"]);
  });
});

describe("a machine whose secrets are lost with the host's memory", () => {
  test("fails, and says why", async () => {
    const world = await inMemory();
    await world.create(secretive);
    await world.restart(() => {
      world.alive = false;
      for (const instance of world.instances) instance.running = false;
      wipe();
    });
    await world.advance(0);
    expect(await world.machine()).toMatchObject({
      state: "failed",
      reason: "MachineLost",
      message: expect.stringContaining("the host has restarted"),
      labels: secretive.labels,
    });
    expect(world.starts("a")).toHaveLength(1);
  });

  test("does not run on, even if it does", async () => {
    const world = await inMemory();
    await world.create(secretive);
    await world.restart(wipe);
    await world.advance(10_000);
    expect(world.running()).toEqual([]);
    expect((await world.machine()).state).toBe("failed");
  });

  test("is the same one when it is created again, and can be deleted", async () => {
    const world = await inMemory();
    await world.create(secretive);
    await world.restart(wipe);
    await world.advance(10_000);
    await world.create(secretive);
    expect((await world.machine()).state).toBe("failed");
    await world.provider.deletePod("m1", { force: false, signal: world.signal });
    await world.advance(0);
    expect((await world.machine()).state).toBe("deleted");
  });

  test("stays what it was if it was over", async () => {
    const world = await inMemory();
    await world.create({ ...secretive, restart_policy: "never" });
    await world.exit("a", 0);
    await world.advance(0);
    const { state, containers } = await world.machine();
    await world.restart(wipe);
    expect(await world.machine()).toMatchObject({ state, containers });
  });
});

describe("the memory that secrets take", () => {
  const large = (namespace: string, bytes: number): Partial<MachineSpec> => ({
    labels: { "vmlet.dev/namespace": namespace },
    containers: [main("a", { env: [{ name: "X", value: "x".repeat(bytes) }] })],
  });
  const full = { code: "quota", message: expect.stringContaining("secrets.maxBytes") };

  test("is no more than half for one namespace, and leaves the next one its own", async () => {
    const world = await inMemory(1_000_000);
    for (let index = 0; index < 4; index++) await world.create(large("greedy", 30_000), `g${index}`);
    await expect(world.create(large("greedy", 30_000), "g4")).rejects.toMatchObject(full);
    expect(existsSync(join(memory, "g4"))).toBe(false);
    await world.create(large("modest", 30_000), "m");
    expect((await world.machine("m")).state).toBe("running");
  });

  test("is given back", async () => {
    const world = await inMemory(1_000_000);
    for (let index = 0; index < 4; index++) await world.create(large("greedy", 30_000), `g${index}`);
    await world.provider.deletePod("g0", { force: true, signal: world.signal });
    await world.advance(0);
    await world.create(large("greedy", 30_000), "g4");
  });

  test("is counted again by the next backend", async () => {
    const world = await inMemory(1_000_000);
    for (let index = 0; index < 4; index++) await world.create(large("greedy", 30_000), `g${index}`);
    await world.restart();
    await expect(world.create(large("greedy", 30_000), "g4")).rejects.toMatchObject(full);
  });

  test("does not grow by changes beyond it, and a change to less is always taken", async () => {
    const world = await inMemory(100_000);
    const files = (bytes: number, version: string) => ({
      files: [
        {
          volume: "secret",
          version,
          files: [{ path: "f", mode: 0o400, content_b64: Buffer.alloc(bytes).toString("base64") }],
        },
      ],
    });
    await world.create(secretive);
    const update = (bytes: number, version: string) =>
      world.provider.updatePod("m1", files(bytes, version), { signal: world.signal });
    await update(5_000, "2");
    await expect(update(50_000, "3")).rejects.toMatchObject(full);
    await update(4_000, "4");
    expect((await world.machine()).file_versions).toEqual([{ volume: "secret", version: "4" }]);
  });
});

describe("a folder in memory", () => {
  const place = "/dev/shm";
  let stateDir: string;
  beforeEach(() => {
    stateDir = mkdtempSync(join(tmpdir(), "vmlet-state-"));
  });
  afterEach(() => {
    const folder = memoryFolder(place, stateDir);
    rmSync(folder, { recursive: true, force: true });
    rmSync(stateDir, { recursive: true, force: true });
  });

  test("is this user's alone, and the same the next time", () => {
    const folder = memoryFolder(place, stateDir);
    expect(folder.startsWith("/dev/shm/vmlet-")).toBe(true);
    expect(statSync(folder).mode & 0o777).toBe(0o700);
    expect(memoryFolder(place, stateDir)).toBe(folder);
  });

  test("is not taken over from somebody who may read it", () => {
    const folder = memoryFolder(place, stateDir);
    chmodSync(folder, 0o755);
    expect(() => memoryFolder(place, stateDir)).toThrow("is not this user's alone");
    chmodSync(folder, 0o700);
  });

  test("is removed when its state directory is gone", () => {
    const other = mkdtempSync(join(tmpdir(), "vmlet-state-"));
    const folder = memoryFolder(place, other);
    rmSync(other, { recursive: true });
    memoryFolder(place, stateDir);
    expect(existsSync(folder)).toBe(false);
  });

  test("is not made on a disk, nor where the owner has not said", () => {
    expect(memoryPlace(false, stateDir)).toBeUndefined();
    expect(memoryPlace(false, "/proc")).toBeUndefined();
    expect(memoryPlace(false, "/nonexistent")).toBeUndefined();
    expect(memoryPlace(false, place)).toBe(place);
  });

  test("is made where programs may be started from, if they have to be", () => {
    const mounts = readFileSync("/proc/self/mountinfo", "utf8").split("\n");
    const options = mounts.findLast((line) => line.split(" ")[4] === place)!.split(" ")[5]!;
    expect(memoryPlace(true, place)).toBe(options.split(",").includes("noexec") ? undefined : place);
  });
});
