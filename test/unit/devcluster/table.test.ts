import { describe, expect, test } from "vitest";
import { humanDuration } from "../../../src/util/human-duration.ts";
import { podSummary } from "../../../src/kube/pod-summary.ts";

const NOW = Date.parse("2026-01-01T01:00:00Z");

const container = (name: string, state: object, more: object = {}) => ({
  name,
  state,
  lastState: {},
  ready: false,
  restartCount: 0,
  ...more,
});
const running = { running: { startedAt: "2026-01-01T00:00:00Z" } };
const ended = (exitCode: number, reason?: string) => ({ terminated: { exitCode, ...(reason && { reason }) } });

function pod(status: object, spec: object = {}, metadata: object = {}) {
  return {
    metadata: { name: "p", ...metadata },
    spec: { containers: [{ name: "a" }], ...spec },
    status: { phase: "Running", ...status },
  };
}

describe("kubectl's columns of a pod", () => {
  test.for([
    ["the phase when nothing else is known", pod({ phase: "Pending" }), "0/1", "Pending"],
    ["the pod's own reason before its phase", pod({ phase: "Failed", reason: "Evicted" }), "0/1", "Evicted"],
    [
      "a waiting reason",
      pod({ containerStatuses: [container("a", { waiting: { reason: "ErrImagePull" } })] }),
      "0/1",
      "ErrImagePull",
    ],
    ["a running container", pod({ containerStatuses: [container("a", running, { ready: true })] }), "1/1", "Running"],
    [
      "an exit code without a reason",
      pod({ phase: "Failed", containerStatuses: [container("a", ended(3))] }),
      "0/1",
      "ExitCode:3",
    ],
    [
      "completion",
      pod({ phase: "Succeeded", containerStatuses: [container("a", ended(0, "Completed"))] }),
      "0/1",
      "Completed",
    ],
    [
      "NotReady when one completed and another runs",
      pod(
        { containerStatuses: [container("a", ended(0, "Completed")), container("b", running, { ready: true })] },
        { containers: [{ name: "a" }, { name: "b" }] },
      ),
      "1/2",
      "NotReady",
    ],
    [
      "the progress of init containers",
      pod(
        { phase: "Pending", initContainerStatuses: [container("i", ended(0)), container("j", running)] },
        { initContainers: [{ name: "i" }, { name: "j" }] },
      ),
      "0/1",
      "Init:1/2",
    ],
    [
      "a failing init container",
      pod(
        { phase: "Pending", initContainerStatuses: [container("i", ended(1, "Error"))] },
        { initContainers: [{ name: "i" }] },
      ),
      "0/1",
      "Init:Error",
    ],
    [
      "a sidecar among the ready ones",
      pod(
        {
          initContainerStatuses: [container("s", running, { started: true, ready: true })],
          containerStatuses: [container("a", running, { ready: true })],
        },
        { initContainers: [{ name: "s", restartPolicy: "Always" }] },
      ),
      "2/2",
      "Running",
    ],
    [
      "Terminating while it is being deleted",
      pod({}, {}, { deletionTimestamp: "2026-01-01T00:00:00Z" }),
      "0/1",
      "Terminating",
    ],
    [
      "the end of a pod that is being deleted",
      pod({ phase: "Failed" }, {}, { deletionTimestamp: "2026-01-01T00:00:00Z" }),
      "0/1",
      "Failed",
    ],
  ] as const)("show %s", ([, object, ready, status]) => {
    expect(podSummary(object, NOW)).toMatchObject({ ready, status });
  });

  test("say when the last restart was", () => {
    const lastState = { terminated: { exitCode: 1, finishedAt: "2026-01-01T00:58:20Z" } };
    const object = pod({ containerStatuses: [container("a", running, { ready: true, restartCount: 4, lastState })] });
    expect(podSummary(object, NOW).restarts).toBe("4 (100s ago)");
  });
});

test.for([
  [1000, "1s"],
  [119_000, "119s"],
  [120_000, "2m"],
  [125_000, "2m5s"],
  [11 * 60_000, "11m"],
  [179 * 60_000, "179m"],
  [190 * 60_000, "3h10m"],
  [47 * 3_600_000, "47h"],
  [50 * 3_600_000, "2d2h"],
  [30 * 24 * 3_600_000, "30d"],
  [3 * 365 * 24 * 3_600_000, "3y"],
] as const)("an age of %d ms prints as %s", ([ms, text]) => {
  expect(humanDuration(ms)).toBe(text);
});
