/** What becomes of pods whose machines their backend is about to take away. */
import { describe, expect, test } from "vitest";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { plan } from "../../../src/pods/planner.ts";
import { newMemory } from "../../../src/pods/pod-memory.ts";
import { podStatus } from "../../../src/pods/status/pod-status.ts";
import { pod } from "../../support/builders.ts";
import { apiError } from "../../support/scripted-kube.ts";
import { exited, machine, NOW } from "./fixtures.ts";
import { World } from "./world.ts";

const DISRUPTION = { reason: "HostEvacuated", message: "host h1 is emptied" };
const isEviction = ({ path }: KubeRequest) => path.endsWith("/eviction");
const evictions = (world: World) => world.requests.filter(isEviction);
const target = ({ status }: Pod) => status?.conditions?.find(({ type }) => type === "DisruptionTarget");

async function running(spec: Pod["spec"] | object = {}): Promise<World> {
  const world = new World(pod({ spec: spec as Record<string, unknown> }));
  await world.settle();
  expect(world.pod.status?.phase).toBe("Running");
  return world;
}

const disrupt = (world: World, at?: string) =>
  world.provider.setDisruption(world.provider.machines[0]!.id, at === undefined ? DISRUPTION : { ...DISRUPTION, at });

describe("a pod whose machine is about to be taken away", () => {
  test("is evicted, by its UID, and told why", async () => {
    const world = await running();
    disrupt(world);
    await world.pass(60_000);
    const [first] = evictions(world);
    expect(first).toMatchObject({
      method: "POST",
      // A budget's refusal is no overload: repeated by the transport it would hold a worker meanwhile.
      once: true,
      body: { kind: "Eviction", deleteOptions: { preconditions: { uid: world.pod.metadata!.uid } } },
    });
    expect(world.said("MachineDisruption")).toHaveLength(1);
    expect(world.said("MachineDisruption")[0]).toContain("HostEvacuated: host h1 is emptied");
  });

  test("goes on while its budget refuses, is asked for again and says what awaits it", async () => {
    const world = await running();
    world.onRequest = (request) => {
      if (isEviction(request)) throw apiError(429, "TooManyRequests");
    };
    disrupt(world);
    await world.pass(65_000);
    expect(evictions(world).length).toBeGreaterThanOrEqual(5);
    expect(evictions(world).length).toBeLessThanOrEqual(8);
    expect(world.said("FailedEviction")).toHaveLength(1);
    expect(world.pod.status?.phase).toBe("Running");
    expect(world.provider.machines[0]!.state).toBe("running");
    expect(target(world.pod)).toMatchObject({
      status: "True",
      reason: "TerminationByKubelet",
      message: "HostEvacuated: host h1 is emptied",
    });
  });

  test("says no more of it when it is called off", async () => {
    const world = await running();
    world.onRequest = (request) => {
      if (isEviction(request)) throw apiError(429, "TooManyRequests");
    };
    disrupt(world);
    await world.pass(15_000);
    expect(target(world.pod)).toBeDefined();
    world.provider.setDisruption(world.provider.machines[0]!.id, undefined);
    await world.pass(60_000);
    expect(target(world.pod)).toBeUndefined();
    const asked = evictions(world).length;
    await world.pass(60_000);
    expect(evictions(world)).toHaveLength(asked);
  });

  test("is ended with its grace, against its budget, when no more time is left", async () => {
    const world = await running({ terminationGracePeriodSeconds: 20 });
    world.onRequest = (request) => {
      if (isEviction(request)) throw apiError(429, "TooManyRequests");
    };
    disrupt(world, new Date(world.clock.now() + 60_000).toISOString());
    await world.pass(35_000);
    expect(world.pod.status?.phase).toBe("Running");
    await world.pass(40_000);
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "Terminated" });
    expect(target(world.pod)).toMatchObject({ status: "True", reason: "TerminationByKubelet" });
  });
});

test("a time that is none counts as one that nobody knows, and keeps no other pod of the node waiting", async () => {
  const world = await running();
  world.onRequest = (request) => {
    if (isEviction(request)) throw apiError(429, "TooManyRequests");
  };
  disrupt(world, "2016-12-31T23:59:60Z");
  await world.pass(65_000);
  expect(evictions(world).length).toBeGreaterThanOrEqual(5);
  expect(world.pod.status?.phase).toBe("Running");
  const observed = { kind: "found", machine: world.provider.machines[0]! } as const;
  const context = { now: world.clock.now(), monotonic: NOW, hostIPs: ["10.1.0.1"], version: undefined };
  const memory = { ...newMemory(), evictAgainAt: NOW + 4_000 };
  expect(plan({ kind: "pod", pod: world.pod }, observed, memory, context)).toEqual({ do: "wait", afterMs: 4_000 });
});

test("a pod whose machine nobody can see is evicted when the backend says that it is lost for too long", () => {
  const memory = { ...newMemory() };
  const context = { now: NOW, monotonic: NOW, hostIPs: [], version: undefined };
  const desired = { kind: "pod", pod: pod() } as const;
  const unknown = { id: "m", reason: "out of sight" };
  expect(plan(desired, { kind: "unknown", machine: unknown }, memory, context)).toEqual({ do: "wait" });
  const observed = { kind: "unknown", machine: { ...unknown, disruption: DISRUPTION } } as const;
  expect(plan(desired, observed, memory, context)).toEqual({ do: "evict" });
  expect(plan(desired, observed, { ...memory, evictAgainAt: NOW + 4_000 }, context)).toEqual({
    do: "wait",
    afterMs: 4_000,
  });
});

describe("a pod whose machine is out of sight for too long", () => {
  const OUT = { reason: "HostOutOfSight", message: "out of sight for 300 s" };

  test("is evicted while most others can be seen", async () => {
    const world = await running();
    world.loseSight(OUT);
    await world.pass(5_000);
    expect(evictions(world)).toHaveLength(1);
    expect(world.said("EvictionHeld")).toEqual([]);
  });

  test("stays and says why while all are out of sight, and is evicted when others can be seen again", async () => {
    const world = await running();
    world.loseSight(OUT);
    world.sights = { seen: 0, unseen: 12 };
    await world.pass(600_000);
    expect(evictions(world)).toEqual([]);
    expect(world.said("EvictionHeld")).toEqual([
      "Pod is not evicted for now: 12 of the node's 12 machines are out of sight, which may be the backend's own fault",
    ]);
    expect(world.said("MachineDisruption")).toEqual([]);
    world.sights = { seen: 11, unseen: 1 };
    await world.pass(15_000);
    expect(evictions(world).length).toBeGreaterThan(0);
    expect(world.said("MachineDisruption")).toHaveLength(1);
  });
});

describe("a machine that has ended, as another agent's stop or by itself, with its end announced", () => {
  const at = new Date(NOW).toISOString();
  const told = { type: "DisruptionTarget", status: "True", reason: "TerminationByKubelet", message: "..." };
  const ended = (stoppedMs: number) =>
    machine({
      state: "stopped",
      stopped_at: new Date(stoppedMs).toISOString(),
      containers: [exited("app", 0)],
      disruption: { ...DISRUPTION, at },
    });
  const decided = (stoppedMs: number, conditions: readonly object[] = [told]) => {
    const spec = { restartPolicy: "OnFailure", terminationGracePeriodSeconds: 30 };
    const desired = { kind: "pod", pod: pod({ spec, status: { phase: "Running", conditions } }) } as const;
    const context = { now: NOW, monotonic: NOW, hostIPs: [], version: undefined };
    return plan(desired, { kind: "found", machine: ended(stoppedMs) }, newMemory(), context);
  };

  test("was ended when no more time than its grace was left: its pod has not succeeded", () => {
    expect(decided(NOW - 29_000)).toMatchObject({ do: "status", patch: { phase: "Failed", reason: "Terminated" } });
  });

  test("had finished when it ended before that", () => {
    expect(decided(NOW - 31_000)).toMatchObject({ do: "status", patch: { phase: "Succeeded" } });
  });

  test("had finished when no agent had seen the notice", () => {
    expect(decided(NOW - 29_000, [])).toMatchObject({ do: "status", patch: { phase: "Succeeded" } });
  });
});

test("what the API server says of an eviction stands", () => {
  const theirs = { type: "DisruptionTarget", status: "True", reason: "EvictionByEvictionAPI", message: "evicting" };
  const p = pod({ status: { conditions: [theirs] } });
  const status = podStatus({
    pod: p,
    machine: { ...machine(), disruption: DISRUPTION },
    hostIPs: [],
    now: NOW,
    ended: false,
  });
  expect(status.conditions?.find(({ type }) => type === "DisruptionTarget")).toEqual(theirs);
});
