/** Devices of the host's plugins, from what a plugin says to what a container gets; the plugins do what the test says. */
import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import {
  type ContainerAllocateResponse,
  ContainerAllocateResponseSchema,
  ListAndWatchResponseSchema,
} from "../../../providers/local/plugins/api/device-plugin/api.gen.js";
import type { DevicePlugin } from "../../../providers/local/plugins/device-plugin.ts";
import type { ContainerSpec, MachineSpec } from "../../../src/provider/machine.ts";
import { settle } from "../../support/virtual-clock.ts";
import { World } from "./world.ts";

const GPU = "vendor.example/gpu";

/** A plugin without a socket. */
class FakePlugin {
  readonly allocated: string[][] = [];
  readonly prepared: string[][] = [];
  options = { preStart: false, preferred: false };
  optionsError: Error | undefined;
  allocateError: Error | undefined;
  preStartError: Error | undefined;
  preferred: readonly string[] = [];
  asked: unknown;
  /** Set: it takes as long as this to allocate. */
  allocating: Promise<void> = Promise.resolve();
  answer: Partial<ContainerAllocateResponse> = {};
  isClosed = false;
  #onList: ((list: never) => void) | undefined;
  #end!: (thrown?: Error) => void;

  connect(): DevicePlugin {
    const ended = Promise.withResolvers<void>();
    this.#end = (thrown) => (thrown === undefined ? ended.resolve() : ended.reject(thrown));
    return {
      options: () => (this.optionsError ? Promise.reject(this.optionsError) : Promise.resolve(this.options)),
      watch: (onList) => {
        this.#onList = onList as never;
        return ended.promise;
      },
      preferred: (choice) => {
        this.asked = choice;
        return Promise.resolve(this.preferred);
      },
      allocate: async (ids, signal) => {
        this.allocated.push([...ids]);
        const { promise, reject } = Promise.withResolvers<never>();
        signal.addEventListener("abort", () => reject(signal.reason as Error));
        await Promise.race([this.allocating, promise]);
        if (this.allocateError) throw this.allocateError;
        return create(ContainerAllocateResponseSchema, { envs: { GPUS: ids.join(",") }, ...this.answer } as never);
      },
      preStart: (ids) => {
        this.prepared.push([...ids]);
        return this.preStartError ? Promise.reject(this.preStartError) : Promise.resolve();
      },
      close: () => {
        this.isClosed = true;
        ended.resolve();
      },
    };
  }

  /** Says which devices there are. */
  async list(...devices: (string | { ID: string; health?: string; numa?: number[] })[]): Promise<void> {
    const all = devices.map((each) => (typeof each === "string" ? { ID: each } : each));
    const list = create(ListAndWatchResponseSchema, {
      devices: all.map(({ ID, health = "Healthy", numa = [] }: { ID: string; health?: string; numa?: number[] }) => ({
        ID,
        health,
        topology: { nodes: numa.map((node) => ({ ID: BigInt(node) })) },
      })),
    });
    this.#onList?.(list as never);
    await settle(20);
  }

  async die(): Promise<void> {
    this.#end(new Error("connection reset"));
    await settle(20);
  }
}

async function worldWith(...ids: string[]): Promise<{ world: World; plugin: FakePlugin }> {
  const plugin = new FakePlugin();
  const world = await World.create((made) => {
    made.plugins = { connect: () => plugin.connect() };
    made.capacity = { allocatable: { cpu_millis: 1000 } };
  });
  if (ids.length > 0) await register(world, plugin, ...ids);
  return { world, plugin };
}

async function register(world: World, plugin: FakePlugin, ...ids: string[]): Promise<void> {
  await world.devices.register(GPU, "/run/gpu.sock");
  await plugin.list(...ids);
}

const asking = (name: string, count: number, resource = GPU): ContainerSpec => ({
  name,
  image: "i",
  resources: { limits: { extended: [{ name: resource, count }] } },
});

const one = (count = 1): Partial<MachineSpec> => ({ containers: [asking("a", count)] });

async function devicesOf(world: World, id = "m1", container = "a"): Promise<string[]> {
  return ((await world.container(container, id)).devices ?? []).map((device) => device.id);
}

async function capacity(world: World) {
  const { allocatable, total } = await world.provider.getCapacity({ signal: world.signal });
  return [allocatable.extended, total?.extended];
}

const counted = (count: number) => [{ name: GPU, count }];

describe("a machine that asks for devices", () => {
  test("gets as many as it asks for, and its container what the plugin gives", async () => {
    const { world } = await worldWith("g0", "g1", "g2");
    await world.create(one(2));
    expect(await devicesOf(world)).toEqual(["g0", "g1"]);
    expect(world.instance("a").launch.devices?.env).toEqual({ GPUS: "g0,g1" });
  });

  test("is judged by what the backend tells, also when a container joins it", async () => {
    const { world } = await worldWith("g0");
    const { capabilities } = await world.provider.getInfo({ signal: world.signal });
    expect(capabilities).toContain("devices");
    await world.create(one());
    const debug = { ephemeral_containers: [{ name: "debug", image: "i" }] };
    await world.provider.updatePod("m1", debug, { signal: world.signal });
    expect(await devicesOf(world)).toEqual(["g0"]);
  });

  test("gets none that another machine has", async () => {
    const { world } = await worldWith("g0", "g1");
    await world.create(one(), "m1");
    await world.create(one(), "m2");
    expect([await devicesOf(world, "m1"), await devicesOf(world, "m2")]).toEqual([["g0"], ["g1"]]);
  });

  test("gets none that another machine is just being given", async () => {
    const { world, plugin } = await worldWith("g0", "g1");
    plugin.allocating = new Promise(() => {});
    await world.create(one(), "m1");
    plugin.allocating = Promise.resolve();
    await world.create(one(), "m2");
    expect(await devicesOf(world, "m2")).toEqual(["g1"]);
  });

  test("is refused in a kubelet's words when there are too few", async () => {
    const { world } = await worldWith("g0");
    await world.create(one(), "m1");
    await world.create(one(), "m2");
    const machine = await world.machine("m2");
    expect([machine.state, machine.reason, machine.message]).toEqual([
      "failed",
      "UnexpectedAdmissionError",
      `Pod was rejected: Allocate failed due to requested number of devices unavailable for ${GPU}. Requested: 1, Available: 0, which is unexpected`,
    ]);
  });

  test("is refused when there is no healthy one", async () => {
    const { world, plugin } = await worldWith("g0");
    await plugin.list({ ID: "g0", health: "Unhealthy" });
    await world.create(one());
    expect((await world.machine()).message).toContain(
      `no healthy devices present; cannot allocate unhealthy devices ${GPU}`,
    );
  });

  test("has no sandbox when it is refused", async () => {
    const { world, plugin } = await worldWith("g0");
    plugin.allocateError = new Error("the device is on fire");
    await world.create(one());
    expect((await world.machine()).message).toContain("Allocate failed due to the device is on fire");
    expect(world.journal).not.toContain("open");
  });

  test("leaves what it was refused with to others", async () => {
    const { world, plugin } = await worldWith("g0");
    plugin.allocateError = new Error("not now");
    await world.create(one(), "m1");
    plugin.allocateError = undefined;
    await world.create(one(), "m2");
    expect(await devicesOf(world, "m2")).toEqual(["g0"]);
  });

  test("gives its devices back when it is over", async () => {
    const { world } = await worldWith("g0");
    await world.create({ ...one(), restart_policy: "never" }, "m1");
    await world.exit("a", 0);
    await world.create(one(), "m2");
    expect(await devicesOf(world, "m2")).toEqual(["g0"]);
  });

  test("keeps its devices while it is being stopped", async () => {
    const { world } = await worldWith("g0");
    world.deaf.add("a");
    await world.create(one(), "m1");
    await world.stop(30);
    await world.create(one(), "m2");
    expect((await world.machine("m2")).reason).toBe("UnexpectedAdmissionError");
  });

  test("runs without when nobody has ever had a plugin for it: somebody else counts that", async () => {
    const { world } = await worldWith("g0");
    await world.create({ containers: [asking("a", 1, "vendor.example/license")] });
    expect([(await world.machine()).state, await devicesOf(world)]).toEqual(["running", []]);
  });

  test("has its init containers' devices again in its main ones, and a sidecar's not", async () => {
    const { world } = await worldWith("g0", "g1", "g2");
    await world.create({
      init_containers: [asking("i", 2), { ...asking("s", 1), restart_policy: "always" }],
      containers: [asking("a", 1)],
    });
    expect(await Promise.all(["i", "s", "a"].map((name) => devicesOf(world, "m1", name)))).toEqual([
      ["g0", "g1"],
      ["g0"],
      ["g1"],
    ]);
  });

  test("gets those that the plugin prefers", async () => {
    const { world, plugin } = await worldWith();
    plugin.options = { preStart: false, preferred: true };
    plugin.preferred = ["g2", "nobody's", "g1"];
    await register(world, plugin, "g0", "g1", "g2");
    await world.create(one(2));
    expect(await devicesOf(world)).toEqual(["g2", "g1"]);
    expect(plugin.asked).toEqual({ available: ["g0", "g1", "g2"], mustInclude: [], size: 2 });
  });

  test("is refused what an engine cannot give, by its name", async () => {
    const { world, plugin } = await worldWith("g0");
    plugin.answer = { cdiDevices: [{ name: "vendor.example/gpu=g0" }] as never };
    await world.create(one());
    expect((await world.machine()).message).toContain(
      "gives vendor.example/gpu=g0, and engine process knows no CDI devices",
    );
  });
});

describe("a container with devices", () => {
  test("has the same ones after a restart, without a further word with the plugin", async () => {
    const { world, plugin } = await worldWith("g0", "g1");
    await world.create(one());
    await world.exit("a", 1);
    await world.advance(11_000);
    expect(world.instance("a").launch).toMatchObject({ attempt: 1, devices: { env: { GPUS: "g0" } } });
    expect(plugin.allocated).toEqual([["g0"]]);
  });

  test("has the same ones in a new sandbox", async () => {
    const { world, plugin } = await worldWith("g0", "g1");
    await world.create(one());
    await world.lose({ reason: "SandboxLost", message: "gone" });
    await world.advance(11_000);
    expect(world.sandboxes).toBe(2);
    expect([world.instance("a").launch.devices?.env, plugin.allocated]).toEqual([{ GPUS: "g0" }, [["g0"]]]);
  });

  test("starts only when the plugin has made its devices ready", async () => {
    const { world, plugin } = await worldWith();
    plugin.options = { preStart: true, preferred: false };
    plugin.preStartError = new Error("still warm");
    await register(world, plugin, "g0");
    await world.create(one());
    expect(await world.container("a")).toMatchObject({
      state: "waiting",
      reason: "CreateContainerConfigError",
      message: "device plugin PreStartContainer rpc failed with err: still warm",
    });
    plugin.preStartError = undefined;
    await world.advance(11_000);
    expect([(await world.container("a")).state, plugin.prepared]).toEqual(["running", [["g0"], ["g0"]]]);
  });

  test("does not start while its plugin, which has to make them ready, is away", async () => {
    const { world, plugin } = await worldWith();
    plugin.options = { preStart: true, preferred: false };
    await register(world, plugin, "g0");
    await world.create(one());
    await plugin.die();
    await world.exit("a", 1);
    await world.advance(11_000);
    expect((await world.container("a")).message).toContain(`the plugin of ${GPU} is away`);
  });

  test("shows that one of them has failed", async () => {
    const { world, plugin } = await worldWith("g0", "g1");
    await world.create(one(2));
    await plugin.list("g0", { ID: "g1", health: "Unhealthy" });
    expect((await world.container("a")).devices).toEqual([
      { resource: GPU, id: "g0", health: "healthy" },
      { resource: GPU, id: "g1", health: "unhealthy" },
    ]);
  });

  test("does not know of them while the plugin is away, and runs on", async () => {
    const { world, plugin } = await worldWith("g0");
    await world.create(one());
    await plugin.die();
    expect(await world.container("a")).toMatchObject({ state: "running", devices: [{ health: "unknown" }] });
  });
});

describe("what there is", () => {
  test("is told with the healthy ones as what machines may have", async () => {
    const { world, plugin } = await worldWith("g0");
    await plugin.list("g0", { ID: "g1", health: "Unhealthy" });
    expect(await capacity(world)).toEqual([counted(1), counted(2)]);
  });

  test("is nothing to be had while the plugin is away, and is there again with it", async () => {
    const { world, plugin } = await worldWith("g0");
    await plugin.die();
    expect(await capacity(world)).toEqual([counted(0), counted(1)]);
    await register(world, plugin, "g0", "g1");
    expect(await capacity(world)).toEqual([counted(2), counted(2)]);
  });

  test("stands beside what the owner of the host counts", async () => {
    const { world } = await worldWith("g0");
    world.capacity = { allocatable: { extended: [{ name: "vendor.example/license", count: 3 }, ...counted(9)] } };
    expect((await capacity(world))[0]).toEqual([{ name: "vendor.example/license", count: 3 }, ...counted(1)]);
  });

  test("is by its new plugin's word, and the former one is not asked any more", async () => {
    const { world, plugin } = await worldWith("g0");
    const before = plugin.connect.bind(plugin);
    const next = new FakePlugin();
    plugin.connect = () => next.connect();
    await world.devices.register(GPU, "/run/next.sock");
    await next.list("n0");
    expect([plugin.isClosed, await capacity(world)]).toEqual([true, [counted(1), counted(1)]]);
    plugin.connect = before;
  });

  test("stays its new plugin's when the former one is found to be gone", async () => {
    const { world, plugin } = await worldWith();
    const forgetFormer = await world.devices.register(GPU, "/run/gpu.sock");
    await register(world, plugin, "g0");
    forgetFormer();
    expect(await capacity(world)).toEqual([counted(1), counted(1)]);
  });
});

describe("after the backend was killed", () => {
  test("a machine has the devices that it had", async () => {
    const { world, plugin } = await worldWith("g0", "g1");
    await world.create(one());
    await world.restart();
    await register(world, plugin, "g0", "g1");
    await world.create(one(), "m2");
    expect([await devicesOf(world), await devicesOf(world, "m2")]).toEqual([["g0"], ["g1"]]);
  });

  test("a machine that was being given devices is given some again", async () => {
    const { world, plugin } = await worldWith("g0");
    plugin.allocating = new Promise(() => {});
    await world.create(one());
    plugin.allocating = Promise.resolve();
    await world.restart();
    await register(world, plugin, "g0");
    expect(await devicesOf(world)).toEqual(["g0"]);
  });

  test("a machine waits for the plugins to come back", async () => {
    const { world, plugin } = await worldWith("g0");
    await world.restart();
    await world.create(one());
    await world.advance(15_000);
    expect((await world.machine()).state).toBe("pending");
    await register(world, plugin, "g0");
    expect(await devicesOf(world)).toEqual(["g0"]);
  });

  test("a machine never runs without devices whose plugin does not come back", async () => {
    const { world } = await worldWith("g0");
    await world.restart();
    await world.create(one());
    await world.advance(61_000);
    expect(await world.machine()).toMatchObject({ state: "failed", reason: "UnexpectedAdmissionError" });
    expect(world.instances).toEqual([]);
  });

  test("a container whose devices were a plugin's does not start when plugins are not served any more", async () => {
    const { world } = await worldWith("g0");
    await world.create(one());
    world.plugins = undefined;
    await world.restart();
    await world.exit("a", 1);
    await world.advance(11_000);
    expect((await world.container("a")).message).toContain("engine.plugins is not set any more");
  });
});

describe("a plugin of bad manners", () => {
  test.each(["cpu", "kubernetes.io/x", "a.kubernetes.io/x", "requests.example.com/x", "/x", "a/b/c", "e x/y"])(
    "has no resource %s",
    async (name) => {
      const { world } = await worldWith();
      await expect(world.devices.register(name, "/run/x.sock")).rejects.toThrow(/the ResourceName ".*" is invalid/);
    },
  );

  test("is not taken when it does not say its options", async () => {
    const { world, plugin } = await worldWith();
    plugin.optionsError = new Error("no");
    await expect(world.devices.register(GPU, "/run/x.sock")).rejects.toThrow("failed to get device plugin options: no");
    expect([plugin.isClosed, await capacity(world)]).toEqual([true, [undefined, undefined]]);
  });

  test("that names one device twice has it once, and unhealthy if it says so once", async () => {
    const { world, plugin } = await worldWith("g0");
    await plugin.list({ ID: "g0", health: "Unhealthy" }, "g0", "g1", "g1", "");
    expect(await capacity(world)).toEqual([counted(1), counted(2)]);
  });

  test("that never answers delays nobody who asks for something else", async () => {
    const { world, plugin } = await worldWith("g0");
    plugin.allocating = new Promise(() => {});
    for (let i = 0; i < 20; i++) await world.create(one(), `hung${i}`);
    await world.create({ containers: [{ name: "a", image: "i" }] });
    expect((await world.machine()).state).toBe("running");
  });

  test("that never answers keeps no machine from its end", async () => {
    const { world, plugin } = await worldWith("g0");
    plugin.allocating = new Promise(() => {});
    await world.create(one());
    await world.stop(0);
    expect((await world.machine()).state).toBe("stopped");
    plugin.allocating = Promise.resolve();
    await world.create(one(), "m2");
    expect(await devicesOf(world, "m2")).toEqual(["g0"]);
  });

  test.each([
    [{ mounts: [{ containerPath: "/lib/../..", hostPath: "/a" }] }, '"/lib/../..", which is no absolute path'],
    [{ mounts: [{ containerPath: "/a", hostPath: "lib" }] }, '"lib", which is no absolute path'],
    [{ mounts: [{ containerPath: "/", hostPath: "/a" }] }, '"/", which is no absolute path'],
    [{ devices: [{ containerPath: "/dev/a", hostPath: "/dev/a", permissions: "rwx" }] }, '"rwx": only r, w and m'],
    [{ envs: { "A=B": "" } }, '"A=B", which is no environment variable'],
    [{ envs: { A: "x".repeat(70_000) } }, "at most 65536 are taken"],
    [{ cdiDevices: [{ name: "gpu" }] }, '"gpu", which is no CDI device'],
  ])("gives nothing by %o", async (answer, told) => {
    const { world, plugin } = await worldWith("g0");
    plugin.answer = answer as never;
    await world.create(one());
    expect((await world.machine()).message).toContain(told);
  });

  test("cannot have more resources remembered than 256", async () => {
    const { world, plugin } = await worldWith();
    for (let i = 0; i < 300; i++) {
      await world.devices.register(`junk.example/r${i}`, "/run/x.sock");
      await plugin.die();
    }
    expect((await capacity(world))[0]).toHaveLength(256);
  });
});
