import { expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { newTerminations } from "../../../src/pods/terminations.ts";

type Statuses = NonNullable<NonNullable<Pod["status"]>["containerStatuses"]>;

const container = (name: string, state: NonNullable<Statuses[number]["state"]>): Statuses => [
  { name, state, image: "nginx", imageID: "", ready: false, restartCount: 0 },
];
const running = { running: { startedAt: "2026-01-01T00:00:00Z" } };
const over = (exitCode: number, reason?: string) => ({ terminated: { exitCode, ...(reason && { reason }) } });

test("a container that ran and is over has ended", () => {
  const [before, after] = [running, over(139, "Error")].map((state) => ({ containerStatuses: container("a", state) }));
  expect(newTerminations(before, after)).toEqual([{ containerType: "container", exitCode: 139, reason: "Error" }]);
});

test("one that was over is not counted again", () => {
  const status = { containerStatuses: container("a", over(0, "Completed")) };
  expect(newTerminations(status, status)).toEqual([]);
});

test("one that runs again has not ended by that", () => {
  const after = { containerStatuses: [{ ...container("a", running)[0]!, lastState: over(1, "Error") }] };
  expect(newTerminations({ containerStatuses: container("a", running) }, after)).toEqual([]);
});

test("each kind of container has its name, also where nothing was told before", () => {
  const after = {
    initContainerStatuses: container("i", over(0, "Completed")),
    containerStatuses: container("a", over(1)),
    ephemeralContainerStatuses: container("e", over(2, "Error")),
  };
  expect(newTerminations(undefined, after)).toEqual([
    { containerType: "init_container", exitCode: 0, reason: "Completed" },
    { containerType: "container", exitCode: 1, reason: "" },
    { containerType: "ephemeral_container", exitCode: 2, reason: "Error" },
  ]);
});
