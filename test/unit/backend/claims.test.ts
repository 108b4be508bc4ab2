/** ResourceClaims of machines, from a driver's plugin to what a container gets; the plugins do what the test says. */
import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { NodePrepareResourceResponseSchema } from "../../../providers/local/plugins/api/dra/api.gen.js";
import {
  HealthStatus,
  NodeWatchResourcesResponseSchema,
} from "../../../providers/local/plugins/api/dra-health/api.gen.js";
import type { HealthReport } from "../../../providers/local/plugins/claim-health.ts";
import { capabilitiesOf } from "../../../providers/local/capabilities.ts";
import { askedClaims } from "../../../providers/local/claims.ts";
import type { DraPlugin } from "../../../providers/local/plugins/dra-plugin.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { World } from "./world.ts";

const DRIVER = "gpu.example.com";

/** A plugin without a socket. */
class FakeDriver implements DraPlugin {
  /** What it was asked, in order: `prepare uid`, `unprepare uid`. */
  readonly asked: string[] = [];
  /** What it has ready. */
  readonly ready = new Set<string>();
  prepareError = "";
  unprepareError: Error | undefined;
  /** It takes as long as this to make a claim ready, or to take it back. */
  preparing: Promise<void> = Promise.resolve();
  unpreparing: Promise<void> = Promise.resolve();
  devices: object[] | undefined;
  skips = false;
  /** It was killed, and its socket is there still. */
  isKilled = false;

  async prepare(claims: readonly { uid: string }[]) {
    const answers: Awaited<ReturnType<DraPlugin["prepare"]>> = {};
    for (const { uid } of claims) {
      this.asked.push(`prepare ${uid}`);
      this.ready.add(uid);
      await this.preparing;
      const devices = this.devices ?? [
        { requestNames: ["gpu"], poolName: "p", deviceName: "d0", cdiDeviceIds: [`example.com/gpu=${uid}`] },
      ];
      const answer = create(NodePrepareResourceResponseSchema, { devices, error: this.prepareError });
      if (!this.skips) Object.assign(answers, { [uid]: answer });
    }
    return answers;
  }

  async unprepare(claims: readonly { uid: string }[]) {
    for (const { uid } of claims) {
      this.asked.push(`unprepare ${uid}`);
      await this.unpreparing;
      if (this.unprepareError !== undefined) throw this.unprepareError;
      this.ready.delete(uid);
    }
    return Object.fromEntries(claims.map(({ uid }) => [uid, { error: "" }]));
  }

  #report: (report: HealthReport) => void = () => {};

  watchHealth(onReport: (report: HealthReport) => void): Promise<void> {
    this.#report = onReport;
    return new Promise(() => {});
  }

  /** Says how these devices of its pool are. */
  tell(devices: Readonly<Record<string, HealthStatus>>, seconds = 0, message = ""): void {
    const reported = Object.entries(devices).map(([deviceName, health]) => ({
      ...{ device: { poolName: "p", deviceName }, health, healthCheckTimeoutSeconds: BigInt(seconds), message },
    }));
    this.#report(create(NodeWatchResourcesResponseSchema, { devices: reported }));
  }

  isThere = () => Promise.resolve(!this.isKilled);

  close(): void {}
}

const BY = { claims: "v1.DRAPlugin" } as const;

async function worldWith(...drivers: string[]): Promise<{ world: World; driver: FakeDriver; forget: () => void }> {
  const driver = new FakeDriver();
  const world = await World.create((made) => (made.plugins = { connectDra: () => driver }));
  const forgets = drivers.map((name) => world.claims.register(name, "/run/driver.sock", BY));
  return { world, driver, forget: () => forgets.forEach((forget) => forget()) };
}

const claiming = (uid = "u1", claim = "gpu"): Partial<MachineSpec> => ({
  resource_claims: [{ name: "mine", namespace: "ns", claim, uid, drivers: [DRIVER] }],
  containers: [
    { name: "a", image: "i", claims: [{ name: "mine" }] },
    { name: "b", image: "i" },
  ],
});

const cdiOf = (world: World, name: string) => world.instance(name).launch.devices?.cdi;

describe("a machine with a claim", () => {
  test("has it made ready before anything of it is made, and its containers get the devices", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(claiming());
    expect([driver.asked, cdiOf(world, "a"), cdiOf(world, "b")]).toEqual([
      ["prepare u1"],
      ["example.com/gpu=u1"],
      undefined,
    ]);
  });

  test("gives a container the devices of the request that it names, and those of no request", async () => {
    const { world, driver } = await worldWith(DRIVER);
    const device = (requestNames: string[], id: string) => ({
      requestNames,
      poolName: "p",
      deviceName: id,
      cdiDeviceIds: [`example.com/gpu=${id}`],
    });
    driver.devices = [device(["big"], "d0"), device(["small"], "d1"), device([], "d2")];
    const spec = claiming();
    spec.containers![0]!.claims = [{ name: "mine", request: "small" }];
    await world.create(spec);
    expect(cdiOf(world, "a")).toEqual(["example.com/gpu=d1", "example.com/gpu=d2"]);
  });

  test("waits, and says why, while its driver's plugin is away", async () => {
    const { world, driver } = await worldWith();
    await world.create(claiming());
    expect(await world.notices()).toEqual([
      `FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: DRA driver ${DRIVER} is not registered`,
    ]);
    expect([(await world.machine()).state, world.journal]).toEqual(["pending", []]);
    world.claims.register(DRIVER, "/run/driver.sock", BY);
    await world.advance(1_000);
    expect([driver.asked, world.running()]).toEqual([["prepare u1"], ["a", "b"]]);
  });

  test.each<[string, (driver: FakeDriver) => void, string]>([
    [
      "fails",
      (driver) => (driver.prepareError = "no power"),
      "NodePrepareResources failed for ResourceClaim gpu: no power",
    ],
    ["says nothing of it", (driver) => (driver.skips = true), "NodePrepareResources skipped 1 ResourceClaims"],
    [
      "gives what is no device",
      (driver) => (driver.devices = [{ cdiDeviceIds: ["/dev/sda"] }]),
      'the plugin gives "/dev/sda", which is no CDI device',
    ],
  ])("does not run while its driver %s", async (_what, setUp, told) => {
    const { world, driver } = await worldWith(DRIVER);
    setUp(driver);
    await world.create(claiming());
    expect([(await world.machine()).message, world.running()]).toEqual([expect.stringContaining(told), []]);
  });

  test("gives it back when nothing of it runs any more, before it is said to be over", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(claiming());
    const back = Promise.withResolvers<void>();
    driver.unpreparing = back.promise;
    await world.stop(0);
    expect([world.running(), driver.asked.at(-1), (await world.machine()).state]).toEqual([
      [],
      "unprepare u1",
      "stopping",
    ]);
    back.resolve();
    await world.advance(0);
    expect([(await world.machine()).state, [...driver.ready]]).toEqual(["stopped", []]);
  });

  test("is not over until its driver has taken it back, and says why", async () => {
    const { world, driver, forget } = await worldWith(DRIVER);
    await world.create(claiming());
    forget();
    await world.stop(0);
    await world.advance(1_000);
    expect((await world.machine()).message).toBe(
      `Failed to unprepare dynamic resources: DRA driver ${DRIVER} is not registered`,
    );
    world.claims.register(DRIVER, "/run/driver.sock", BY);
    driver.unprepareError = new Error("busy");
    await world.advance(1_000);
    expect((await world.machine()).state).toBe("stopping");
    driver.unprepareError = undefined;
    await world.advance(1_000);
    expect((await world.machine()).state).toBe("stopped");
  });

  test("ends without a word with a driver that was never asked", async () => {
    const { world } = await worldWith();
    await world.create(claiming());
    await world.stop(0);
    expect((await world.machine()).state).toBe("stopped");
  });

  test("keeps it from being taken back while another machine has it", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(claiming(), "m1");
    await world.create(claiming(), "m2");
    await world.stop(0);
    expect([(await world.machine("m1")).state, [...driver.ready]]).toEqual(["stopped", ["u1"]]);
    await world.provider.stopPod("m2", { graceSeconds: 0, signal: world.signal });
    await world.advance(0);
    expect([(await world.machine("m2")).state, [...driver.ready]]).toEqual(["stopped", []]);
  });

  test("that ends with the only other one that has it leaves nothing ready", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(claiming(), "m1");
    await world.create(claiming(), "m2");
    await Promise.all(["m1", "m2"].map((id) => world.provider.stopPod(id, { graceSeconds: 0, signal: world.signal })));
    await world.advance(0);
    expect([...driver.ready]).toEqual([]);
  });

  test("has it ready though it was just being taken back for another one", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(claiming(), "m1");
    const back = Promise.withResolvers<void>();
    driver.unpreparing = back.promise;
    await world.stop(0);
    await world.create(claiming(), "m2");
    back.resolve();
    await world.advance(0);
    expect([driver.asked, [...driver.ready]]).toEqual([["prepare u1", "unprepare u1", "prepare u1"], ["u1"]]);
  });

  test("waits while another claim of the same name is not taken back", async () => {
    const { world, driver, forget } = await worldWith(DRIVER);
    await world.create(claiming("u1"), "m1");
    forget();
    await world.stop(0);
    world.claims.register(DRIVER, "/run/driver.sock", BY);
    driver.unprepareError = new Error("busy");
    await world.create(claiming("u2"), "m2");
    expect((await world.machine("m2")).message).toContain(
      "old ResourceClaim with same name gpu and different UID u1 still exists",
    );
  });

  test("is refused when a container names one that it has not", async () => {
    const { world } = await worldWith(DRIVER);
    const spec = { containers: [{ name: "a", image: "i", claims: [{ name: "mine" }] }] };
    await expect(world.create(spec)).rejects.toThrow('container "a" uses claim "mine", which does not exist');
  });
});

test("a claim is asked for whatever the word by which it is known", () => {
  const claims = ["__proto__", "constructor"].map((uid) => ({
    ...{ uid, name: uid, namespace: "n", claim: uid },
    drivers: [DRIVER],
  }));
  const asked = Object.entries(askedClaims({ resource_claims: claims })).map(([uid, { names }]) => [uid, names]);
  expect(asked).toEqual([
    ["__proto__", ["__proto__"]],
    ["constructor", ["constructor"]],
  ]);
});

describe("after the backend was killed", () => {
  test("a machine that runs keeps what it has, and gives it back at its end", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(claiming());
    await world.restart();
    await world.stop(0);
    expect([driver.asked, (await world.machine()).state]).toEqual([["prepare u1"], "stopping"]);
    world.claims.register(DRIVER, "/run/driver.sock", BY);
    await world.advance(1_000);
    expect([driver.asked, (await world.machine()).state]).toEqual([["prepare u1", "unprepare u1"], "stopped"]);
  });

  test("a claim whose driver had been asked, and had not answered, is taken back with its machine", async () => {
    const { world, driver } = await worldWith(DRIVER);
    driver.preparing = new Promise(() => {});
    await world.create(claiming());
    await world.restart();
    world.claims.register(DRIVER, "/run/driver.sock", BY);
    await world.stop(0);
    await world.advance(1_000);
    expect([(await world.machine()).state, [...driver.ready]]).toEqual(["stopped", []]);
  });

  test("a machine whose specification is lost gives back what it had", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(claiming());
    await world.restart(() => world.loseSpec());
    world.claims.register(DRIVER, "/run/driver.sock", BY);
    await world.advance(1_000);
    expect([(await world.machine()).state, [...driver.ready]]).toEqual(["failed", []]);
  });
});

describe("the health of a claim's devices", () => {
  const tells = { ...BY, health: "v1.DRAResourceHealth" } as const;
  const shown = async (world: World) => (await world.machine()).containers.map(({ devices }) => devices);
  const told = (health: string, resource = "claim:mine") => [{ resource, id: "example.com/gpu=u1", health }];

  async function reporting(spec = claiming()) {
    const { world, driver } = await worldWith();
    const forget = world.claims.register(DRIVER, "/run/driver.sock", tells);
    await world.create(spec);
    return { world, driver, forget };
  }

  test("is what its driver says, and shown of the containers that have the claim", async () => {
    const { world, driver } = await reporting();
    expect(await shown(world)).toEqual([told("unknown"), undefined]);
    driver.tell({ d0: HealthStatus.UNHEALTHY });
    await world.advance(10);
    expect(await shown(world)).toEqual([told("unhealthy"), undefined]);
    driver.tell({ d0: HealthStatus.HEALTHY, other: HealthStatus.UNHEALTHY });
    await world.advance(10);
    expect(await shown(world)).toEqual([told("healthy"), undefined]);
  });

  test("comes with what its driver says about it, of which no more than a kubelet's length is told", async () => {
    const { world, driver } = await reporting();
    driver.tell({ d0: HealthStatus.UNHEALTHY }, 0, "too hot");
    await world.advance(10);
    expect(await shown(world)).toEqual([[{ ...told("unhealthy")[0], message: "too hot" }], undefined]);
    driver.tell({ d0: HealthStatus.UNHEALTHY }, 0, "x".repeat(1_025));
    await world.advance(10);
    expect(await shown(world)).toEqual([[{ ...told("unhealthy")[0], message: `${"x".repeat(1_021)}...` }], undefined]);
    await world.advance(60_000);
    expect(await shown(world)).toEqual([told("unknown"), undefined]);
  });

  test("is unknown when it was not said again in time", async () => {
    const { world, driver } = await reporting();
    driver.tell({ d0: HealthStatus.HEALTHY });
    await world.advance(29_000);
    expect(await shown(world)).toEqual([told("healthy"), undefined]);
    await world.advance(31_000);
    expect(await shown(world)).toEqual([told("unknown"), undefined]);
  });

  test("holds for as long as its driver says", async () => {
    const { world, driver } = await reporting();
    driver.tell({ d0: HealthStatus.HEALTHY }, 600);
    await world.advance(590_000);
    expect(await shown(world)).toEqual([told("healthy"), undefined]);
  });

  test("is unknown once the driver has gone", async () => {
    const { world, driver, forget } = await reporting();
    driver.tell({ d0: HealthStatus.HEALTHY }, 600);
    await world.advance(10);
    forget();
    await world.advance(10);
    expect(await shown(world)).toEqual([told("unknown"), undefined]);
  });

  test("is told of the request that the container names, once for each device", async () => {
    const spec = claiming();
    const claims = [
      { name: "mine", request: "gpu" },
      { name: "mine", request: "gpu" },
      { name: "mine", request: "no" },
    ];
    const { world } = await reporting({ ...spec, containers: [{ name: "a", image: "i", claims }] });
    expect(await shown(world)).toEqual([told("unknown", "claim:mine/gpu")]);
  });

  test("is not listened for where a plugin has nothing to say", async () => {
    const { world, driver } = await worldWith(DRIVER);
    await world.create(claiming());
    driver.tell({ d0: HealthStatus.HEALTHY });
    await world.advance(10);
    expect(await shown(world)).toEqual([told("unknown"), undefined]);
  });
});

describe("a driver", () => {
  test("has its newest plugin asked, and the one before it when that goes", async () => {
    const [old, next] = [new FakeDriver(), new FakeDriver()];
    const world = await World.create((made) => {
      made.plugins = { connectDra: (socket) => (socket === "/run/old.sock" ? old : next) };
    });
    world.claims.register(DRIVER, "/run/old.sock", BY);
    const forget = world.claims.register(DRIVER, "/run/next.sock", BY);
    await world.create(claiming("u1", "one"), "m1");
    forget();
    await world.create(claiming("u2", "two"), "m2");
    expect([next.asked, old.asked]).toEqual([["prepare u1"], ["prepare u2"]]);
  });

  test("has its newest plugin asked, however many have left their sockets behind", async () => {
    const [former, newest] = [new FakeDriver(), new FakeDriver()];
    const world = await World.create((made) => {
      made.plugins = { connectDra: (socket) => (socket === "/run/19.sock" ? newest : former) };
    });
    for (let i = 0; i < 20; i++) world.claims.register(DRIVER, `/run/${i}.sock`, BY);
    await world.create(claiming());
    expect(newest.asked).toEqual(["prepare u1"]);
  });

  test("whose plugin was killed is told of no more until it is back, also at the same socket", async () => {
    const { world, driver } = await worldWith(DRIVER);
    driver.isKilled = true;
    await world.advance(5_000);
    expect(world.claims.drivers()).toEqual([]);
    driver.isKilled = false;
    await world.advance(5_000);
    expect(world.claims.drivers()).toEqual([DRIVER]);
  });

  test("that was there for a moment is told of for as long as an agent may look away", async () => {
    const { world, forget } = await worldWith(DRIVER);
    await world.advance(4_000);
    forget();
    expect([world.claims.drivers(), world.claims.toldDrivers()]).toEqual([[], [DRIVER]]);
    await world.advance(16_000);
    expect(world.claims.toldDrivers()).toEqual([]);
  });

  test("has the plugin asked that is there, in place of a newer one that was killed", async () => {
    const [old, next] = [new FakeDriver(), new FakeDriver()];
    const world = await World.create((made) => {
      made.plugins = { connectDra: (socket) => (socket === "/run/old.sock" ? old : next) };
    });
    world.claims.register(DRIVER, "/run/old.sock", BY);
    world.claims.register(DRIVER, "/run/next.sock", BY);
    next.isKilled = true;
    await world.advance(5_000);
    expect(world.claims.drivers()).toEqual([DRIVER]);
    await world.create(claiming());
    expect([next.asked, old.asked]).toEqual([[], ["prepare u1"]]);
  });

  test("has no second plugin at one socket", async () => {
    const { world } = await worldWith(DRIVER);
    expect(() => world.claims.register(DRIVER, "/run/driver.sock", BY)).toThrow("already registered");
  });
});

test.each<[{ plugins?: object; hasCdi: boolean }, string[]]>([
  [{ plugins: {}, hasCdi: true }, ["devices", "resource_claims"]],
  [{ plugins: {}, hasCdi: false }, ["devices"]],
  [{ hasCdi: true }, []],
])(
  "claims are offered where plugins are served, and the engine knows CDI devices: %o",
  ({ plugins, hasCdi }, offered) => {
    expect(capabilitiesOf({ engine: { capabilities: [], hasCdi }, plugins }, { tellsCapacity: false })).toEqual(
      offered,
    );
  },
);
