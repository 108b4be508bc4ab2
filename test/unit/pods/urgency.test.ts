import { describe, expect, test } from "vitest";
import type { Machine } from "../../../src/provider/machine.ts";
import { isUrgent } from "../../../src/pods/urgency.ts";
import { containerState as container, pod } from "../../support/builders.ts";
import { exited, machine, running } from "./fixtures.ts";

const told = (change: object = {}) => [
  { name: "app", ready: true, restartCount: 0, state: { running: {} }, ...change },
];
const runningPod = (status: Record<string, unknown> = {}, metadata: Record<string, unknown> = {}) =>
  pod({ metadata, status: { phase: "Running", containerStatuses: told(), ...status } });
const found = (change: Partial<Machine> = {}) => ({ kind: "found" as const, machine: machine(change) });

describe("somebody waits", () => {
  test.each([
    ["for a pod that does not run yet", pod(), { kind: "absent" as const }],
    ["for a pod that starts", pod(), found({ state: "starting" })],
    ["for a pod that is being deleted", runningPod({}, { deletionTimestamp: "2026-06-01T12:00:00Z" }), found()],
    ["to hear that the machine is gone", runningPod(), { kind: "absent" as const }],
    ["to hear that the machine has stopped", runningPod(), found({ state: "stopped" })],
    ["to hear that a container has ended", runningPod(), found({ containers: [exited("app", 1)] })],
    ["to hear that a container is not ready", runningPod(), found({ containers: [running("app", { ready: false })] })],
    [
      "to hear that a container started again",
      runningPod(),
      found({ containers: [running("app", { restart_count: 1 })] }),
    ],
    ["to hear of a container", runningPod({ containerStatuses: [] }), found({ containers: [container("app")] })],
  ])("%s", (_name, given, observed) => expect(isUrgent(given, observed)).toBe(true));
});

describe("nobody waits", () => {
  test.each([
    ["while a pod runs as its status says", runningPod(), found()],
    ["while the machine is not known", runningPod(), { kind: "unknown" as const }],
    ["for a pod that is over", pod({ status: { phase: "Succeeded" } }), { kind: "absent" as const }],
  ])("%s", (_name, given, observed) => expect(isUrgent(given, observed)).toBe(false));
});
