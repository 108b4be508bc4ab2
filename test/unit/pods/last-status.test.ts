/** What a kubelet says last of a pod (status_manager.go: TerminatePod), above all of one that never started. */
import { describe, expect, test } from "vitest";
import type { StatusInput } from "../../../src/pods/status/input.ts";
import { podStatus } from "../../../src/pods/status/pod-status.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { containerState as container, pod } from "../../support/builders.ts";
import { exited, machine, NOW } from "./fixtures.ts";

const last = (p: Pod, m: Machine | undefined, change: Partial<StatusInput> = {}) =>
  podStatus({ pod: p, machine: m, hostIPs: ["10.1.0.1"], now: NOW, ended: true, ...change });
const UNSEEN = {
  terminated: {
    exitCode: 137,
    reason: "ContainerStatusUnknown",
    message: "The container could not be located when the pod was terminated",
    startedAt: null,
    finishedAt: null,
  },
};
const going = { metadata: { deletionTimestamp: "2026-06-01T12:00:30Z", deletionGracePeriodSeconds: 30 } };
const tombstone = machine({ state: "deleted", deleted_at: "2026-06-01T12:00:00.000Z", addresses: [], containers: [] });
const init = (name: string, change = {}) => ({ ...container(name), kind: "init" as const, ...change });
const completed = (name: string) => ({ ...exited(name, 0), kind: "init" as const });
const withInits = (...names: string[]) => ({ initContainers: names.map((name) => ({ name, image: "i" })) });
const states = (list: readonly { state?: object }[] | undefined) => (list ?? []).map(({ state }) => state);

describe("a pod that is deleted before it started", () => {
  const pulling = machine({
    state: "stopped",
    containers: [container("app", { reason: "ImagePullBackOff" })],
    addresses: [],
  });

  test("has failed, for no reason of the node's, with containers of which nobody saw the end", () => {
    const s = last(pod(going), pulling);
    expect([s.phase, s.reason, s.message]).toEqual(["Failed", undefined, undefined]);
    expect(states(s.containerStatuses)).toEqual([UNSEEN]);
  });

  test("has not lost the machine that it never had: the tombstone is the agent's own", () => {
    const s = last(pod(going), tombstone);
    expect([s.phase, s.reason, s.message]).toEqual(["Failed", undefined, undefined]);
    expect(states(s.containerStatuses)).toEqual([UNSEEN]);
  });

  test("has not lost a machine that had to be killed to be rid of it", () => {
    const s = last(pod({ ...going, status: { phase: "Running" } }), { ...tombstone, containers: [exited("app", 137)] });
    expect([s.phase, s.reason]).toEqual(["Failed", undefined]);
  });

  test("keeps the backend's reason for the end of its machine", () => {
    const s = last(pod(going), { ...tombstone, reason: "HostLost", message: "host h3 is gone" });
    expect([s.phase, s.reason, s.message]).toEqual(["Failed", "HostLost", "host h3 is gone"]);
  });
});

test("a live pod whose machine somebody else deleted has lost it", () => {
  expect(last(pod(), tombstone).reason).toBe("MachineLost");
});

describe("a pod with init containers", () => {
  test("that ends before any began has a failed first one, and the others never were", () => {
    const s = last(
      pod({ ...going, spec: withInits("one", "two") }),
      machine({ state: "stopped", containers: [init("one"), init("two"), container("app")] }),
    );
    expect(states(s.initContainerStatuses)).toEqual([UNSEEN, { waiting: { reason: "ContainerCreating" } }]);
    expect(states(s.containerStatuses)).toEqual([{ waiting: { reason: "ContainerCreating" } }]);
  });

  test("that ends in the middle of them has failed ones up to the last that began", () => {
    const retried = init("two", { last: exited("two", 1).terminated!, reason: "CrashLoopBackOff", restart_count: 3 });
    const s = last(
      pod({ ...going, spec: withInits("one", "two", "three") }),
      machine({ state: "stopped", containers: [completed("one"), retried, init("three"), container("app")] }),
    );
    expect(states(s.initContainerStatuses)).toEqual([
      expect.objectContaining({ terminated: expect.objectContaining({ exitCode: 0 }) }),
      UNSEEN,
      { waiting: { reason: "ContainerCreating" } },
    ]);
    expect(states(s.containerStatuses)).toEqual([{ waiting: { reason: "ContainerCreating" } }]);
  });

  test("that ends after the last of them has failed main containers, though none of them began", () => {
    const s = last(
      pod({ ...going, spec: withInits("one") }),
      machine({ state: "stopped", containers: [completed("one"), container("app")] }),
    );
    expect(states(s.containerStatuses)).toEqual([UNSEEN]);
  });

  test("of which the last is a sidecar that runs has initialised", () => {
    const sidecar = { name: "side", image: "i", restartPolicy: "Always" };
    const running = init("side", { state: "running", started: true, id: "side-0" });
    const m = machine({ state: "stopped", containers: [running, container("app")] });
    expect(states(last(pod({ ...going, spec: { initContainers: [sidecar] } }), m).containerStatuses)).toEqual([UNSEEN]);
    const unstarted = { ...m, containers: [{ ...running, started: false }, container("app")] };
    expect(states(last(pod({ ...going, spec: { initContainers: [sidecar] } }), unstarted).containerStatuses)).toEqual([
      { waiting: { reason: "ContainerCreating" } },
    ]);
  });
});

test("a pod that was taken in keeps its containers when its deadline passes before it started", () => {
  const waiting = [{ name: "app", state: { waiting: { reason: "ContainerCreating" } }, restartCount: 0 }];
  const p = pod({ status: { startTime: "2026-06-01T11:59:00Z", containerStatuses: waiting } });
  const s = last(p, undefined, { verdict: { reason: "DeadlineExceeded", message: "too long" } });
  expect([s.phase, s.reason]).toEqual(["Failed", "DeadlineExceeded"]);
  expect(states(s.containerStatuses)).toEqual([UNSEEN]);
});
