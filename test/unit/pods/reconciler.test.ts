import { beforeEach, describe, expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/provider.ts";
import type { PodEvent, ResizeOutlook } from "../../../src/podspec/types.ts";
import { LOST_DEBOUNCE_MS } from "../../../src/pods/planner.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { MachineNotice } from "../../../src/provider/machine.ts";
import { pod as basePod } from "../../support/builders.ts";
import { SPEC, World } from "./world.ts";

const resources = (cpu: string) => ({
  containers: [{ name: "app", image: "app:1", resources: { requests: { cpu } } }],
});

describe("a pod whose volume cannot be mounted", () => {
  let world: World;
  beforeEach(() => {
    world = new World(basePod());
    const events: PodEvent[] = [{ type: "Warning", reason: "FailedMount", message: 'secret "x" not found' }];
    world.rendered = { kind: "wait", waiting: new Map(), unmountedVolumes: ["v", "w"], events };
  });

  test("says so less and less often", async () => {
    await world.pass(60_000);
    // After 0, 5, 15 and 35 seconds.
    expect(world.said("FailedMount")).toHaveLength(4);
  });

  test("gets kubelet's second event after two minutes and three seconds, and again after as long", async () => {
    const text =
      "Unable to attach or mount volumes: unmounted volumes=[v w], unattached volumes=[], failed to process volumes=[]: context deadline exceeded";
    await world.pass(122_999);
    expect(world.said("FailedMount")).not.toContain(text);
    await world.pass(1);
    expect(world.said("FailedMount").filter((each) => each === text)).toHaveLength(1);
    await world.pass(123_000);
    expect(world.said("FailedMount").filter((each) => each === text)).toHaveLength(2);
  });

  test("runs as soon as the volume can be mounted", async () => {
    await world.settle();
    world.rendered = { kind: "ready", spec: SPEC };
    await world.settle();
    expect(world.pod.status?.phase).toBe("Running");
  });
});

describe("a pod that the node's policy holds back", () => {
  test("stays Pending without a machine, and is told of now and then, not in a loop", async () => {
    const world = new World(basePod());
    const message = "DaemonSet pods get no machine on this node";
    const events: PodEvent[] = [{ type: "Warning", reason: "DaemonSetNotSupported", message }];
    world.rendered = { kind: "wait", waiting: new Map(), unmountedVolumes: [], events };
    await world.pass(600_000);
    expect(world.pod.status?.phase).toBe("Pending");
    expect(world.provider.machines).toEqual([]);
    // After 0, 5, 15, 35, 75 and 155 seconds, then every 122.
    expect(world.said("DaemonSetNotSupported")).toHaveLength(9);
  });
});

describe("the active deadline", () => {
  test("is told by one event when it stops the machine", async () => {
    const world = new World(basePod({ spec: { activeDeadlineSeconds: 10, terminationGracePeriodSeconds: 1 } }));
    await world.pass(30_000);
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "DeadlineExceeded" });
    expect(world.events.filter(({ reason }) => reason === "DeadlineExceeded")).toEqual([
      {
        type: "Normal",
        reason: "DeadlineExceeded",
        message: "Pod was active on the node longer than the specified deadline",
      },
    ]);
  });
});

describe("events that rendering brings", () => {
  test("are told once, when the machine is made", async () => {
    const world = new World(basePod());
    world.rendered = {
      kind: "ready",
      spec: SPEC,
      events: [{ type: "Warning", reason: "ResourceLimitsNotEnforced", message: "m" }],
    };
    await world.settle();
    world.version = "2";
    await world.settle();
    expect(world.said("ResourceLimitsNotEnforced")).toEqual(["m"]);
  });
});

describe("events that the backend brings", () => {
  const notice = (seq: number): MachineNotice => ({
    at: "2020-01-01T00:00:00Z",
    type: "Warning",
    reason: "BackOff",
    message: `notice ${seq}`,
    seq,
  });

  test("are told once, by a backend whose clock is behind as well", async () => {
    const world = new World(basePod());
    await world.settle();
    await world.hear({ notices: [notice(7)] });
    await world.settle();
    await world.hear({ notices: [notice(7), notice(8)] });
    await world.settle();
    expect(world.said("BackOff")).toEqual(["notice 7", "notice 8"]);
  });

  test("are not told again by an agent that has just been started", async () => {
    const world = new World(basePod());
    await world.provider.createPod("m-u1", SPEC, { signal: AbortSignal.timeout(1_000) });
    await world.hear({ notices: [notice(7)] });
    await world.settle();
    expect(world.said("BackOff")).toEqual([]);
    await world.hear({ notices: [notice(7), notice(8)] });
    await world.settle();
    expect(world.said("BackOff")).toEqual(["notice 8"]);
  });

  test("are told from the first on when the machine had none at the agent's start", async () => {
    const world = new World(basePod());
    await world.provider.createPod("m-u1", SPEC, { signal: AbortSignal.timeout(1_000) });
    await world.hear({ notices: [] });
    await world.settle();
    await world.hear({ notices: [notice(1)] });
    await world.settle();
    expect(world.said("BackOff")).toEqual(["notice 1"]);
  });
});

describe("a change of resources", () => {
  let world: World;
  beforeEach(async () => {
    world = new World(basePod({ spec: resources("500m") }));
    await world.settle();
    world.pod = { ...world.pod, spec: { ...world.pod.spec!, ...(resources("700m") as object) } };
    world.version = "2";
  });
  const patch = { resources: [{ container: "app", resources: { requests: { cpu_millis: 700 } } }] };
  const go: ResizeOutlook = { kind: "go", text: '{"generation":2}' };
  const deferred: ResizeOutlook = { kind: "pending", reason: "Deferred", message: "no room", text: "{}" };

  test("that the backend makes shows in the status, with events for begin and end", async () => {
    world.difference = { patch, resize: go };
    await world.settle();
    expect(world.provider.machines[0]!.containers[0]!.resources).toEqual({ requests: { cpu_millis: 700 } });
    expect(world.pod.status?.containerStatuses?.[0]).toMatchObject({
      resources: { requests: { cpu: "700m" } },
      allocatedResources: { cpu: "700m" },
    });
    expect(world.condition("PodResizeInProgress")).toBeUndefined();
    expect(world.said("ResizeStarted")).toEqual(['Pod resize started: {"generation":2}']);
    expect(world.said("ResizeCompleted")).toEqual(['Pod resize completed: {"generation":2}']);
  });

  test("of the machine as a whole begins and ends in the same way", async () => {
    const machine_resources = { limits: { cpu_millis: 700 } };
    world.difference = { patch: { machine_resources }, resize: go };
    await world.settle();
    expect(world.provider.machines[0]!.resources).toEqual(machine_resources);
    expect([world.said("ResizeStarted"), world.said("ResizeCompleted")].map(({ length }) => length)).toEqual([1, 1]);
  });

  test("that can never be made is Infeasible at once, and the status keeps what the container has", async () => {
    world.difference = {
      patch: undefined,
      resize: { kind: "pending", reason: "Infeasible", message: "too much", text: '{"error":"too much"}' },
    };
    await world.settle();
    expect(world.condition("PodResizePending")).toMatchObject({
      status: "True",
      reason: "Infeasible",
      message: "too much",
    });
    expect(world.pod.status?.containerStatuses?.[0]).toMatchObject({ allocatedResources: { cpu: "500m" } });
    expect(world.said("ResizeInfeasible")).toEqual(['Pod resize Infeasible: {"error":"too much"}']);
  });

  test("that the backend refuses for good is Infeasible with the backend's words", async () => {
    world.difference = { patch: { resources: [{ container: "app", resources: {} }] }, resize: go };
    world.provider.updatePod = () => Promise.reject(new ProviderError("invalid", "memory cannot shrink"));
    await world.settle();
    expect(world.condition("PodResizePending")).toMatchObject({
      reason: "Infeasible",
      message: "memory cannot shrink",
    });
  });

  test("that does not fit now is tried again until it does, and says so once", async () => {
    world.difference = { patch: undefined, resize: deferred };
    await world.pass(60_000);
    expect(world.condition("PodResizePending")).toMatchObject({ reason: "Deferred", message: "no room" });
    expect(world.said("ResizeDeferred")).toHaveLength(1);
    world.difference = { patch, resize: go };
    await world.pass(10_000);
    expect(world.condition("PodResizePending")).toBeUndefined();
    expect(world.pod.status?.containerStatuses?.[0]).toMatchObject({ allocatedResources: { cpu: "700m" } });
    expect(world.counted.filter(([name]) => name === "deferral")).toEqual([
      ["deferral", { resolution: "accepted", seconds: 70, priority: undefined }],
    ]);
  });

  test("that the backend cannot make just now shows the error until it is made", async () => {
    const { updatePod } = world.provider;
    world.difference = { patch, resize: go };
    world.provider.updatePod = () => Promise.reject(new ProviderError("unavailable", "busy"));
    await world.settle();
    expect(world.condition("PodResizeInProgress")).toMatchObject({ status: "True", reason: "Error", message: "busy" });
    world.provider.updatePod = updatePod;
    await world.pass(10_000);
    expect(world.condition("PodResizeInProgress")).toBeUndefined();
    expect(world.said("ResizeCompleted")).toHaveLength(1);
  });

  test("that waits is not forgotten by an agent that has just been started", async () => {
    world.difference = { patch: undefined, resize: deferred };
    await world.settle();
    const { lastTransitionTime } = world.condition("PodResizePending")!;
    const successor = new World(world.pod);
    await successor.provider.createPod("m-u1", SPEC, { signal: AbortSignal.timeout(1000) });
    successor.difference = world.difference;
    await successor.settle();
    expect(successor.condition("PodResizePending")).toMatchObject({ reason: "Deferred", lastTransitionTime });
    expect(successor.said("ResizeDeferred")).toEqual([]);
  });
});

describe("what is counted", () => {
  test("a start: the request, and the time to Running without the machine's own boot", async () => {
    const world = new World(basePod(), { startDelayMs: 4_000 });
    await world.pass(10_000);
    expect(world.counted[0]).toEqual(["create", { ok: true }]);
    const [, times] = world.counted.find(([name]) => name === "running")!;
    expect(times).toMatchObject({ withoutBoot: expect.closeTo((times as { sinceSeen: number }).sinceSeen - 4, 1) });
    expect(world.counted.filter(([name]) => name === "running")).toHaveLength(1);
  });

  test("the end of a container, once", async () => {
    const world = new World(basePod());
    await world.settle();
    await world.provider.stopPod("m-u1", { graceSeconds: 0, signal: AbortSignal.timeout(1000) });
    await world.pass(60_000);
    expect(world.counted.filter(([name]) => name === "terminated")).toEqual([
      ["terminated", { containerType: "container", exitCode: expect.any(Number) as number, reason: "Error" }],
    ]);
  });

  test("a refusal, with the capabilities that the backend lacks", async () => {
    const world = new World(basePod());
    world.rendered = { kind: "reject", reason: "UnsupportedFeature", message: "tty", missing: ["tty"] };
    await world.settle();
    expect(world.counted).toEqual([["rejected", "UnsupportedFeature"]]);
  });
});

describe("something that a pod refers to", () => {
  test("and that changes while the machine is created is applied afterwards", async () => {
    const world = new World(basePod());
    const createPod = world.provider.createPod.bind(world.provider);
    world.provider.createPod = async (...args) => {
      world.version = "2";
      return await createPod(...args);
    };
    await world.settle();
    expect(world.diffs).toBe(1);
  });

  test("and that changes while its last change is applied is applied again", async () => {
    const world = new World(basePod());
    await world.settle();
    world.version = "2";
    world.onDiff = () => {
      world.version = "3";
      world.onDiff = () => undefined;
    };
    await world.settle();
    expect(world.diffs).toBe(2);
  });

  test("and that does not change costs nothing after the create", async () => {
    const world = new World(basePod());
    await world.settle();
    expect(world.diffs).toBe(0);
  });
});

describe("the deletion cost of a pod", () => {
  const COST = "controller.kubernetes.io/pod-deletion-cost";
  const ownedBy = (kind: string) => [{ apiVersion: "apps/v1", kind, name: "web", uid: "o", controller: true }];
  const costOf = async (metadata: object, options: { markCheapToDelete?: boolean }) => {
    const pod = basePod();
    const world = new World({ ...pod, metadata: { ...pod.metadata, ...metadata } }, options);
    await world.settle();
    return world.pod.metadata!.annotations?.[COST];
  };

  test("is low where the node asks for it, so that a ReplicaSet removes it first", async () => {
    expect(await costOf({ ownerReferences: ownedBy("ReplicaSet") }, { markCheapToDelete: true })).toBe("-1000000");
  });

  test("is left alone unless the node asks for it", async () => {
    expect(await costOf({ ownerReferences: ownedBy("ReplicaSet") }, {})).toBeUndefined();
  });

  test("is left as its owner wrote it", async () => {
    const metadata = { ownerReferences: ownedBy("ReplicaSet"), annotations: { [COST]: "5" } };
    expect(await costOf(metadata, { markCheapToDelete: true })).toBe("5");
  });

  test.each(["Job", "StatefulSet"])("means nothing to a %s, and is not written", async (kind) => {
    expect(await costOf({ ownerReferences: ownedBy(kind) }, { markCheapToDelete: true })).toBeUndefined();
  });
});

describe("an API server that drops a field of the status", () => {
  let world: World;
  beforeEach(async () => {
    world = new World(basePod({ spec: { ...resources("500m"), terminationGracePeriodSeconds: 1 } }));
    // As one before 1.33 does, without the feature gate of in-place resize.
    world.keep = (status) => ({
      ...status!,
      containerStatuses: status!.containerStatuses!.map((each) => ({
        ...each,
        resources: undefined!,
        allocatedResources: undefined!,
      })),
    });
    await world.settle();
  });
  const patches = () => world.requests.filter(({ method }) => method === "PATCH").length;

  test("is not told again and again", async () => {
    const before = patches();
    await world.pass(60_000);
    expect(patches()).toBe(before);
  });

  test("keeps nothing else from being done", async () => {
    world.version = "2";
    world.difference = { patch: { files: [{ volume: "v", version: "2", files: [] }] } };
    await world.settle();
    expect(world.provider.machines[0]!.file_versions).toEqual([{ volume: "v", version: "2" }]);
  });

  test("does not keep a pod from going", async () => {
    world.deletePod();
    await world.pass(10_000);
    expect(world.requests.filter(({ method }) => method === "DELETE")).toHaveLength(1);
  });
});

describe("a pod whose machine is gone", () => {
  test("fails, and the log says so too: who runs the agent may never look at the pod", async () => {
    const world = new World(basePod());
    await world.settle();
    world.loseMachine();
    await world.pass(20_000);
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "MachineLost" });
    expect(world.warnings).toEqual(["The machine that ran this pod is gone from the backend"]);
  });

  test("is not probed any more", async () => {
    const world = new World(basePod());
    await world.settle();
    const before = world.released.length;
    await world.settle();
    expect(world.released).toHaveLength(before);
    world.loseMachine();
    await world.settle();
    expect(world.released.length).toBeGreaterThan(before);
  });

  test("for the second time is missed anew: what was seen in between is not lost at a glance", async () => {
    const world = new World(basePod());
    await world.settle();
    const bringBack = world.loseMachine();
    await world.settle();
    bringBack();
    await world.settle();
    await world.clock.advance(86_400_000);
    world.loseMachine();
    expect(await world.settle()).toEqual({ kind: "after", ms: LOST_DEBOUNCE_MS });
    expect(world.pod.status?.phase).toBe("Running");
  });
});

describe("a machine that is missing with many others at once", () => {
  let world: World;
  beforeEach(async () => {
    world = new World(basePod());
    await world.settle();
    for (let i = 0; i < 10; i++) world.losses.mayLose(`other-${i}`);
  });

  test("is looked for again before its pod fails for it", async () => {
    world.loseMachine();
    await world.pass(59_000);
    expect(world.pod.status?.phase).toBe("Running");
    expect(world.losses.missing).toBe(1);
    await world.pass(30_000);
    expect(world.pod.status).toMatchObject({ phase: "Failed", reason: "MachineLost" });
    expect(world.losses.missing).toBe(0);
    expect(world.events.filter(({ reason }) => reason === "MachineLost")).toEqual([
      { type: "Warning", reason: "MachineLost", message: "The machine that ran this pod is gone from the backend" },
    ]);
  });

  test("and comes back leaves its pod as it was", async () => {
    const bringBack = world.loseMachine();
    await world.pass(30_000);
    bringBack();
    await world.pass(600_000);
    expect(world.pod.status?.phase).toBe("Running");
    expect(world.losses.missing).toBe(0);
  });

  test("holds up no deletion", async () => {
    world.loseMachine();
    await world.pass(30_000);
    world.deletePod();
    await world.settle();
    expect(world.losses.missing).toBe(0);
  });
});

describe("a machine that the backend takes its time to delete", () => {
  const STUCK = "Machine was deleted 51 s ago and is still there: stopped";
  let world: World;
  let deletes: number;
  let isStuck: boolean;
  beforeEach(async () => {
    world = new World(basePod());
    await world.settle();
    const deletePod = world.provider.deletePod.bind(world.provider);
    deletes = 0;
    isStuck = true;
    world.provider.deletePod = (id, options) => {
      deletes++;
      return isStuck ? Promise.resolve() : deletePod(id, options);
    };
    world.deletePod();
    await world.settle();
  });
  const finalized = () => world.requests.filter(({ method }) => method === "DELETE").length;

  test("is asked for less and less often", async () => {
    await world.pass(60_000);
    // After 0, 0.2, 0.6, 1.4, 3, 6.2, 12.6, 25.4 and 51 seconds.
    expect(deletes).toBe(9);
    await world.pass(300_000);
    expect(deletes).toBe(19);
  });

  test("is not asked for more often because it is looked at more often", async () => {
    await world.settle();
    const before = deletes;
    for (let i = 0; i < 20; i++) await world.settle();
    expect(deletes).toBe(before);
  });

  test("is told of once", async () => {
    await world.pass(50_000);
    expect(world.said("FailedKillPod")).toEqual([]);
    await world.pass(600_000);
    expect(world.said("FailedKillPod")).toEqual([STUCK]);
  });

  test("leaves its pod until it is gone", async () => {
    await world.pass(120_000);
    expect(finalized()).toBe(0);
    isStuck = false;
    await world.pass(30_000);
    expect(finalized()).toBe(1);
  });

  test("lets its pod go at once when it is seen to be gone", async () => {
    await world.pass(60_000);
    isStuck = false;
    await world.provider.deletePod("m-u1", { force: false, signal: AbortSignal.timeout(1_000) });
    await world.hear();
    await world.settle();
    expect(finalized()).toBe(1);
  });
});

describe("a pod that is deleted while it is rendered", () => {
  test("leaves nothing with the renderer", async () => {
    const world = new World(basePod());
    const events: PodEvent[] = [{ type: "Warning", reason: "FailedMount", message: 'secret "x" not found' }];
    world.rendered = { kind: "wait", waiting: new Map(), unmountedVolumes: ["v"], events };
    world.onRender = () => {
      // The release of the pod comes at once with its deletion; a read afterwards is made all the same.
      world.isDeleted = true;
    };
    await world.settle();
    await world.settle();
    expect(world.letGo).toContain("u1");
  });
});

describe("an ephemeral container that cannot be started", () => {
  const why = { reason: "UnsupportedFeature", message: "no such thing" };

  test("says so in its status", async () => {
    const world = new World(basePod());
    await world.settle();
    world.pod = { ...world.pod, spec: { ...world.pod.spec!, ephemeralContainers: [{ name: "debug", image: "b" }] } };
    world.version = "2";
    world.difference = { patch: undefined, waiting: new Map([["debug", why]]) };
    await world.settle();
    expect(world.pod.status?.ephemeralContainerStatuses).toMatchObject([{ name: "debug", state: { waiting: why } }]);
  });

  test("says so when it was there before the machine", async () => {
    const world = new World(
      basePod({
        spec: { ephemeralContainers: [{ name: "debug", image: "b" }] },
      }),
    );
    world.rendered = { kind: "ready", spec: SPEC, waiting: new Map([["debug", why]]) };
    await world.settle();
    expect(world.pod.status?.phase).toBe("Running");
    expect(world.pod.status?.ephemeralContainerStatuses).toMatchObject([{ name: "debug", state: { waiting: why } }]);
  });
});

describe("a change of which the backend refuses a part for good", () => {
  const debuggers = ["privileged", "plain"].map((name) => ({ name, image: "busybox" }));
  const files = { volume: "v", version: "2", files: [] };

  test("is made but for that part, which is told", async () => {
    const world = new World(basePod());
    await world.settle();
    const updatePod = world.provider.updatePod.bind(world.provider);
    world.provider.updatePod = async (id, patch, options) => {
      if (patch.ephemeral_containers?.some(({ name }) => name === "privileged"))
        throw new ProviderError("unsupported", "privileged containers are not supported");
      return await updatePod(id, patch, options);
    };
    world.version = "2";
    world.difference = { patch: { files: [files], ephemeral_containers: debuggers } };
    await world.settle();
    const machine = world.provider.machines[0]!;
    expect(machine.file_versions).toEqual([{ volume: "v", version: "2" }]);
    expect(machine.containers.map(({ name }) => name)).toEqual(["app", "plain"]);
    expect(world.said("FailedUpdate")).toEqual(["privileged containers are not supported"]);
  });
});

describe("a machine of which the backend says what makes no sense", () => {
  test("is not made twice, and its pod is not told that it could not be made", async () => {
    const world = new World(basePod());
    world.confuse();
    let creates = 0;
    const { createPod } = world.provider;
    world.provider.createPod = (...args) => {
      creates++;
      return createPod(...args);
    };
    await world.pass(300_000);
    expect(creates).toBe(1);
    expect(world.said("FailedCreate")).toEqual([]);
    expect(world.pod.status?.phase).toBe("Pending");
  });

  test("leaves the status of its pod as it was", async () => {
    const world = new World(basePod());
    await world.settle();
    world.confuse();
    world.confused();
    const before = world.pod.status;
    await world.pass(300_000);
    expect(world.pod.status).toEqual(before);
  });

  test("is stopped and deleted, and its pod removed, when that is all that can be told of it", async () => {
    const world = new World(basePod());
    await world.settle();
    world.confuse();
    world.confused();
    world.deletePod();
    for (let second = 0; second < 5; second++) {
      await world.pass(1_000);
      world.confused();
    }
    expect(world.requests.some(({ method }) => method === "DELETE")).toBe(true);
  });

  test("is stopped and deleted though nothing can be told of it", async () => {
    const world = new World(basePod());
    await world.settle();
    world.confuse({ hidden: true });
    world.confused();
    world.deletePod();
    await world.pass(30_000);
    const { signal } = new AbortController();
    expect(await MemoryProvider.prototype.getPod.call(world.provider, "m-u1", { signal })).toMatchObject({
      state: "deleted",
    });
  });

  test("keeps its pod while nobody can say that it is gone, and the user is told", async () => {
    const world = new World(basePod());
    await world.settle();
    world.confuse({ hidden: true });
    world.confused();
    world.deletePod();
    await world.pass(300_000);
    expect(world.requests.some(({ method }) => method === "DELETE")).toBe(false);
    expect(world.said("FailedKillPod")[0]).toContain("still there: in a state that cannot be told");
  });
});

describe("a status that is ahead of what is known of the machine", () => {
  test("has the backend asked again when another agent wrote it while the question was under way", async () => {
    const world = new World(basePod());
    await world.settle();
    let askedSince = 0;
    const writtenByAnother = (restartCount: number) => {
      const [seen] = world.pod.status!.containerStatuses!;
      const ahead = { ...seen!, restartCount, containerID: `vmlet://app-${restartCount}` };
      world.change({ status: { ...world.pod.status, containerStatuses: [ahead] } });
      askedSince = 0;
    };
    const ask = world.provider.getPod.bind(world.provider);
    let isFirst = true;
    world.provider.getPod = async (id, options) => {
      askedSince++;
      const answer = await ask(id, options);
      if (isFirst) writtenByAnother(2);
      isFirst = false;
      return answer;
    };
    const askedBeforeWriting: number[] = [];
    world.onRequest = ({ method }) => void (method === "PATCH" && askedBeforeWriting.push(askedSince));
    writtenByAnother(1);
    await world.settle();
    expect(askedBeforeWriting[0]).toBe(1);
  });
});
