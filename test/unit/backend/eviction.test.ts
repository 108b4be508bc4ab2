/** A host that runs out of something: who goes, when, and what is said of it, as by a kubelet's eviction manager. */
import { stat } from "node:fs/promises";
import { describe, expect, test } from "vitest";
import type { ImageStore } from "../../../providers/local/engine.ts";
import { type EvictionConfig, type Observations, thresholdsOf } from "../../../providers/local/pressure/thresholds.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { settle } from "../../support/virtual-clock.ts";
import { main, World } from "./world.ts";

const MIB = 1024 ** 2;
const ample = (more: Record<string, number> = {}): Observations =>
  new Map(
    Object.entries({
      "memory.available": 1000 * MIB,
      "nodefs.available": 500,
      "nodefs.inodesFree": 500,
      "imagefs.available": 500,
      "imagefs.inodesFree": 500,
      "pid.available": 500,
      ...more,
    }).map(([signal, available]) => [signal, { available, capacity: signal.startsWith("memory") ? 4000 * MIB : 1000 }]),
  ) as Observations;

const scarceMemory = ample({ "memory.available": 50 * MIB });

const world = (config: Partial<EvictionConfig> = {}, setUp: (each: World) => void = () => {}) =>
  World.create((each) => {
    const amounts = { hard: {}, soft: {}, softGraceSeconds: {}, minimumReclaim: {}, ...config };
    each.eviction = { thresholds: thresholdsOf(amounts), maxPodGraceMs: 20_000, transitionMs: 300_000 };
    each.observed = ample();
    setUp(each);
  });

const container = (name: string, memory = 0) => main(name, { resources: { requests: { memory_bytes: memory } } });
const spec = (name: string, more: Partial<MachineSpec> = {}): Partial<MachineSpec> => ({
  containers: [container(name)],
  ...more,
});
const conditions = async ({ provider, signal }: World) =>
  ((await provider.getCapacity({ signal })).conditions ?? []).filter(({ status }) => status === "True");

/** Machines are measured with real files, which take their turn with these looks: none of them may seem to hang. */
const filesHaveTheirTurn = async () => {
  for (let looks = 0; looks < 50; looks++) await stat(import.meta.dirname);
};
const passUntil = async (host: World, isTrue: () => boolean | Promise<boolean>) => {
  for (let seconds = 0; seconds < 120 && !(await isTrue()); seconds++) {
    await host.advance(1_000);
    await filesHaveTheirTurn();
    await settle();
  }
};
/** One machine's end is decided, and those that take no notice are dead. */
const passUntilEvicted = async (host: World, ...names: string[]) =>
  await passUntil(host, async () => {
    const all = await Promise.all(names.map((name) => host.machine(name)));
    return all.some(({ state }) => state === "failed");
  });

describe("a host that runs out of memory", () => {
  test("loses a machine that takes more than it asked for, with a kubelet's reason and words", async () => {
    const host = await world();
    await host.create(spec("modest", { containers: [container("modest", 500 * MIB)] }), "modest");
    await host.create(spec("greedy", { containers: [container("greedy", 100 * MIB)] }), "greedy");
    host.memory.set("modest", 400 * MIB).set("greedy", 300 * MIB);
    host.observed = scarceMemory;
    await passUntilEvicted(host, "greedy", "modest");
    expect(await host.machine("greedy")).toMatchObject({
      state: "failed",
      reason: "Evicted",
      message:
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container greedy was using 300Mi, request is 100Mi, has larger consumption of memory. ",
    });
    expect((await host.machine("greedy")).notices).toContainEqual(expect.objectContaining({ reason: "Evicted" }));
    expect((await host.machine("modest")).state).toBe("running");
  });

  test("loses one machine at a time, and none while what the last one held is not free", async () => {
    const host = await world();
    for (const name of ["a", "b", "c"]) await host.create(spec(name), name);
    host.deaf.add("a").add("b").add("c");
    host.observed = scarceMemory;
    const ending = async () => {
      const all = await Promise.all(["a", "b", "c"].map((name) => host.machine(name)));
      return all.filter(({ state }) => state !== "running").length;
    };
    await passUntil(host, async () => (await ending()) > 0);
    expect(await ending()).toBe(1);
    host.observed = ample();
    await host.advance(60_000);
    expect(await ending()).toBe(1);
  });

  test("gives it a second, not its own grace", async () => {
    const host = await world();
    await host.create({ ...spec("a"), termination_grace_s: 3600 });
    host.deaf.add("a");
    host.observed = scarceMemory;
    await passUntilEvicted(host, "m1");
    expect(host.instance("a").signals.at(-1)?.signal).toBe("SIGKILL");
  });

  test("looks again when it could not measure, and evicts nobody for it", async () => {
    const host = await world();
    await host.create(spec("a"));
    host.observed = new Map();
    await host.advance(60_000);
    expect(host.running()).toEqual(["a"]);
  });

  test("does not wait for a machine that cannot be measured", async () => {
    const host = await world();
    await host.create(spec("hung"), "hung");
    await host.create(spec("well"), "well");
    host.unmeasurable.add("hung");
    host.observed = scarceMemory;
    await passUntilEvicted(host, "hung", "well");
    expect((await host.machine("hung")).reason).toBe("Evicted");
    expect((await host.machine("well")).state).toBe("running");
  });
});

describe("who goes first", () => {
  const evictedOf = async (host: World, names: readonly string[]) => {
    await passUntilEvicted(host, ...names);
    const all = await Promise.all(names.map((name) => host.machine(name)));
    return all.filter(({ reason }) => reason === "Evicted").map(({ id }) => id);
  };
  test("of those that take more than they asked for: the lowest priority", async () => {
    const host = await world();
    await host.create(spec("low", { priority: -5 }), "low");
    await host.create(spec("high", { priority: 1000 }), "high");
    host.memory.set("low", 1 * MIB).set("high", 900 * MIB);
    host.observed = scarceMemory;
    expect(await evictedOf(host, ["low", "high"])).toEqual(["low"]);
  });
  test("of those of one priority: who takes most beyond what it asked for", async () => {
    const host = await world();
    await host.create(spec("a", { containers: [container("a", 500 * MIB)] }), "a");
    await host.create(spec("b"), "b");
    host.memory.set("a", 600 * MIB).set("b", 200 * MIB);
    host.observed = scarceMemory;
    expect(await evictedOf(host, ["a", "b"])).toEqual(["b"]);
  });
  test("never one that the cluster depends on", async () => {
    const host = await world();
    await host.create(spec("critical", { priority: 2_000_000_000 }), "critical");
    host.memory.set("critical", 900 * MIB);
    host.observed = scarceMemory;
    await host.advance(60_000);
    expect(host.running()).toEqual(["critical"]);
  });
  test("for process numbers, priority alone, then how many it has", async () => {
    const host = await world();
    await host.create(spec("low", { priority: 1 }), "low");
    await host.create(spec("high", { priority: 2 }), "high");
    host.observed = ample({ "pid.available": 20 });
    expect(await evictedOf(host, ["low", "high"])).toEqual(["low"]);
    expect((await host.machine("low")).message).toBe(
      "The node was low on resource: pids. Threshold quantity: 100, available: 20. ",
    );
  });
  test("for inodes, who has most of them", async () => {
    const host = await world();
    await host.create(spec("many"), "many");
    host.inodes.containers.set("many", 100_000);
    host.observed = ample({ "nodefs.inodesFree": 20 });
    expect(await evictedOf(host, ["many"])).toEqual(["many"]);
    expect((await host.machine("many")).message).toContain("low on resource: inodes");
  });
});

describe("a disk that runs full", () => {
  const image = { imageId: "i", image: "i", config: {}, location: "/i", sizeBytes: 1 };
  const images = (removeUnused: () => Promise<void>): ImageStore => ({
    find: () => Promise.resolve(image),
    pull: () => Promise.resolve(image),
    removeUnused,
  });
  const scarce = ample({ "nodefs.available": 50 });

  test("is freed of unused images first, and if that is enough, no machine goes", async () => {
    const host: World = await world({}, (each) => {
      each.images = images(async () => void (each.observed = ample()));
    });
    await host.create(spec("a"));
    host.observed = scarce;
    await passUntil(host, () => host.observed !== scarce);
    await host.advance(30_000);
    expect(host.running()).toEqual(["a"]);
  });

  test("takes the machine that has most on it, when unused images were not enough", async () => {
    const host = await world({}, (each) => {
      each.images = images(() => Promise.reject(new Error("EIO")));
    });
    for (const name of ["small", "large"]) await host.create(spec(name), name);
    host.layers.set("small", 10).set("large", 10_000);
    host.observed = scarce;
    await passUntilEvicted(host, "large", "small");
    expect(await host.machine("large")).toMatchObject({
      reason: "Evicted",
      message: expect.stringContaining("low on resource: ephemeral-storage"),
    });
    expect((await host.machine("small")).state).toBe("running");
  });

  test("takes what would free most of it: what is on a disk that outlives its machine would not", async () => {
    const host = await world({}, (each) => {
      each.images = images(() => Promise.reject(new Error("EIO")));
    });
    host.volumes = [{ name: "data", used_bytes: 5_000 }];
    const disk = { name: "data", type: "host", path: "/mnt/disk", fs_type: "ext4" } as const;
    await host.create(spec("kept", { volumes: [disk] }), "kept");
    await host.create(spec("freed", { volumes: [{ name: "data", type: "empty_dir", medium: "disk" }] }), "freed");
    host.layers.set("kept", 6_000).set("freed", 2_000);
    host.observed = scarce;
    await passUntilEvicted(host, "freed", "kept");
    expect((await host.machine("freed")).reason).toBe("Evicted");
  });

  test("takes no more machines for as long as the pressure is shown, but those of the cluster itself", async () => {
    const host = await world();
    await host.create(spec("first"), "first");
    host.observed = scarce;
    await passUntilEvicted(host, "first");
    host.observed = ample();
    await host.advance(20_000);
    await host.create(spec("late"), "late");
    expect(await host.machine("late")).toMatchObject({
      state: "failed",
      reason: "Evicted",
      message: "Pod was rejected: The node had condition: [DiskPressure]. ",
    });
    expect(host.starts("late")).toEqual([]);
    await host.create(spec("critical", { priority: 2_000_001_000 }), "critical");
    expect(host.running()).toEqual(["critical"]);
    await host.advance(300_000);
    await host.create(spec("later"), "later");
    expect(host.running()).toEqual(["critical", "later"]);
  });
});

describe("soft amounts", () => {
  const soft = { soft: { "memory.available": "500Mi" }, softGraceSeconds: { "memory.available": 60 } } as const;
  const scarce = ample({ "memory.available": 400 * MIB });

  test("count when there was too little for the whole grace", async () => {
    const host = await world(soft);
    await host.create(spec("a"));
    host.observed = scarce;
    await host.advance(50_000);
    host.observed = ample();
    await host.advance(10_000);
    host.observed = scarce;
    await host.advance(55_000);
    expect(host.running()).toEqual(["a"]);
    await passUntilEvicted(host, "m1");
    expect((await host.machine()).reason).toBe("Evicted");
  });

  test("leave a machine its grace, up to the longest one", async () => {
    const host = await world(soft);
    await host.create({ ...spec("a"), termination_grace_s: 3600 });
    host.deaf.add("a");
    host.observed = scarce;
    await passUntil(host, () => host.instance("a").signals.length > 0);
    await host.advance(15_000);
    expect(host.instance("a").signals.map(({ signal }) => signal)).toEqual(["SIGTERM"]);
    await passUntilEvicted(host, "m1");
    expect(host.instance("a").signals.at(-1)?.signal).toBe("SIGKILL");
  });
});

test("evictions go on until there is as much more as is to be reclaimed", async () => {
  const host = await world({ minimumReclaim: { "memory.available": "200Mi" } });
  await host.create(spec("a"), "a");
  await host.create(spec("b"), "b");
  host.observed = scarceMemory;
  await passUntilEvicted(host, "a", "b");
  host.observed = ample({ "memory.available": 250 * MIB });
  await passUntil(host, () => host.running().length === 0);
  expect(host.running()).toEqual([]);
});

test("an amount of nothing turns a signal off", async () => {
  const host = await world({ hard: { "memory.available": "0" } });
  await host.create(spec("a"));
  host.observed = ample({ "memory.available": 0 });
  await host.advance(60_000);
  expect(host.running()).toEqual(["a"]);
});

test("a host that is told to evict nothing evicts nothing", async () => {
  const host = await World.create((each) => void (each.observed = scarceMemory));
  await host.create(spec("a"));
  await host.advance(60_000);
  expect(host.running()).toEqual(["a"]);
});

describe("what the Node shows", () => {
  const told = (each: World) =>
    void (each.capacity = {
      allocatable: { cpu_millis: 1000, memory_bytes: 3800 * MIB, ephemeral_bytes: 1000 },
      total: { cpu_millis: 1000, memory_bytes: 4000 * MIB, ephemeral_bytes: 1000 },
    });

  test("a pressure, and that for a while after it was last seen, whatever the wall clock does", async () => {
    const host = await world({}, told);
    expect(await conditions(host)).toEqual([]);
    host.observed = scarceMemory;
    await host.advance(10_000);
    host.observed = ample();
    host.clock.step(86_400_000);
    await host.advance(280_000);
    expect(await conditions(host)).toEqual([
      {
        type: "MemoryPressure",
        status: "True",
        reason: "KubeletHasInsufficientMemory",
        message: "kubelet has insufficient memory available",
      },
    ]);
    await host.advance(30_000);
    expect(await conditions(host)).toEqual([]);
  });

  test("as allocatable what is left beside what is never machines'", async () => {
    const host = await world({}, told);
    const { allocatable, total } = await host.provider.getCapacity({ signal: host.signal });
    expect(allocatable).toEqual({ cpu_millis: 1000, memory_bytes: 3700 * MIB, ephemeral_bytes: 900 });
    expect(total?.memory_bytes).toBe(4000 * MIB);
  });
});
