/** Backends that forget, go back in time, or make machines in part; and pods that changed while no agent ran. */
import { describe, expect, test } from "vitest";
import type { Machine } from "../../../src/provider/machine.ts";
import { pod as basePod } from "../../support/builders.ts";
import { SPEC, World } from "./world.ts";

const signal = new AbortController().signal;
/** The phases that were written, in their order. */
const phases = (world: World) =>
  world.requests.flatMap(({ method, body }) =>
    method === "PATCH" ? ((body as { status: { phase?: string } }).status.phase ?? []) : [],
  );
const isRemoved = (world: World) => world.requests.some(({ method }) => method === "DELETE");
const count = (world: World, operation: "createPod" | "stopPod") => {
  let calls = 0;
  const real = world.provider[operation].bind(world.provider) as (...args: never[]) => never;
  Object.assign(world.provider, {
    [operation]: (...args: never[]) => {
      calls++;
      return real(...args);
    },
  });
  return () => calls;
};

describe("a machine that runs again after its pod was over", () => {
  test("is stopped, and the pod stays what it became", async () => {
    const world = new World(basePod({ spec: { restartPolicy: "Never" } }));
    await world.settle();
    const bringBack = world.loseMachine();
    await world.pass(60_000);
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "MachineLost" });
    const { status } = world.pod;
    const stops = count(world, "stopPod");
    bringBack();
    await world.pass(120_000);
    expect(stops()).toBe(1);
    expect(world.provider.machines.map(({ state }) => state)).toEqual(["stopped"]);
    expect(world.pod.status).toEqual(status);
  });
});

describe("a machine of an older backup, which knows of fewer restarts,", () => {
  test("leaves its pod running, and the count does not fall", async () => {
    const world = new World(basePod());
    await world.settle();
    const { containerStatuses } = world.pod.status!;
    world.change({
      status: { ...world.pod.status, containerStatuses: [{ ...containerStatuses![0]!, restartCount: 3 }] },
    });
    const creates = count(world, "createPod");
    const stops = count(world, "stopPod");
    await world.pass(600_000);
    expect(world.pod.status).toMatchObject({ phase: "Running", containerStatuses: [{ restartCount: 3 }] });
    expect([creates(), stops()]).toEqual([0, 0]);
  });
});

describe("a machine that was made in part", () => {
  const partly: Partial<Machine> = {
    state: "starting",
    sandbox_ready: false,
    addresses: [],
    containers: [],
  };

  test("leaves its pod Pending, however long it takes, and is not made twice", async () => {
    const world = new World(basePod(), { startDelayMs: 86_400_000 });
    const creates = count(world, "createPod");
    await world.settle();
    world.hideMachines();
    await world.hear(partly);
    await world.pass(600_000);
    expect(world.pod.status?.phase).toBe("Pending");
    expect(world.condition("PodReadyToStartContainers")?.status).toBe("False");
    expect(world.condition("Ready")?.status).toBe("False");
    expect(creates()).toBe(1);
  });

  test("and that the backend gives up fails its pod with the backend's reason", async () => {
    const world = new World(basePod(), { startDelayMs: 86_400_000 });
    await world.settle();
    world.hideMachines();
    await world.hear({ ...partly, state: "failed", reason: "NoNetwork", message: "no address left" });
    await world.settle();
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "NoNetwork", message: "no address left" });
    expect(phases(world)).not.toContain("Running");
  });
});

describe("a pod that was evicted while no agent ran", () => {
  const longGone = { deletionTimestamp: "2025-12-31T23:50:00Z", deletionGracePeriodSeconds: 30 };
  const conditions = [{ type: "DisruptionTarget", status: "True", reason: "DeletionByTaintManager" }];

  test("has its machine stopped and goes, and is not started again", async () => {
    const world = new World(basePod({ metadata: longGone, status: { phase: "Running", conditions } }));
    await world.provider.createPod("m-u1", SPEC, { signal });
    const creates = count(world, "createPod");
    await world.pass(120_000);
    expect([creates(), isRemoved(world)]).toEqual([0, true]);
    expect(world.provider.machines.map(({ state }) => state)).toEqual([]);
    expect(world.condition("DisruptionTarget")?.reason).toBe("DeletionByTaintManager");
  });

  test("gets no machine when it had none", async () => {
    const world = new World(basePod({ metadata: longGone, status: { conditions } }));
    const creates = count(world, "createPod");
    await world.pass(120_000);
    expect([creates(), isRemoved(world)]).toEqual([0, true]);
  });

  test("and was called failed for that has its machine stopped, and stays failed", async () => {
    const status = { phase: "Failed", reason: "NodeLost", conditions };
    const world = new World(basePod({ status }));
    await world.provider.createPod("m-u1", SPEC, { signal });
    await world.pass(120_000);
    expect(world.provider.machines.map(({ state }) => state)).toEqual(["stopped"]);
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "NodeLost" });
  });
});

describe("a pod whose namespace goes, with all that it refers to", () => {
  test("is stopped and removed without being rendered", async () => {
    const world = new World(basePod());
    await world.settle();
    world.onRender = world.onDiff = () => expect.fail("a pod that goes needs no secret");
    world.deletePod();
    await world.pass(60_000);
    expect(isRemoved(world)).toBe(true);
    expect(world.provider.machines.map(({ state }) => state)).toEqual([]);
  });

  test("goes as well when it waited for a secret that never came", async () => {
    const world = new World(basePod());
    const why = { reason: "CreateContainerConfigError", message: 'secret "s" not found' };
    world.rendered = { kind: "wait", waiting: new Map([["app", why]]), events: [] };
    await world.settle();
    expect(world.pod.status?.containerStatuses?.[0]?.state?.waiting).toEqual(why);
    world.deletePod();
    await world.pass(60_000);
    expect(isRemoved(world)).toBe(true);
  });
});
