import { describe, expect, test } from "vitest";
import {
  aboutPod,
  allContainersOf,
  allContainerStatusesOf,
  containersOf,
  containerStatusesOf,
  controllerOf,
  formatPod,
  isDeleting,
  isTerminal,
  uidOf,
} from "../../../src/kube/pod.ts";
import type { Pod } from "../../../src/kube/wire.ts";

const status = (name: string) => ({ name, image: "", imageID: "", ready: false, restartCount: 0 });
const pod: Pod = {
  metadata: { name: "web", namespace: "shop", uid: "u-1" },
  spec: {
    initContainers: [{ name: "setup" }],
    containers: [{ name: "main" }, { name: "side" }],
    ephemeralContainers: [{ name: "debug" }],
  },
  status: {
    phase: "Running",
    initContainerStatuses: [status("setup")],
    containerStatuses: [status("main"), status("side")],
    ephemeralContainerStatuses: [status("debug")],
  },
};
const names = (items: readonly { readonly name: string }[]) => items.map(({ name }) => name);

describe("a pod's containers", () => {
  test("are its init containers and its main ones, in the order in which they start", () => {
    expect(names(containersOf(pod))).toEqual(["setup", "main", "side"]);
    expect(names(containerStatusesOf(pod))).toEqual(["setup", "main", "side"]);
  });

  test("are all of them only with those that were added later", () => {
    expect(names(allContainersOf(pod))).toEqual(["setup", "main", "side", "debug"]);
    expect(names(allContainerStatusesOf(pod))).toEqual(["setup", "main", "side", "debug"]);
  });

  test("are none where the pod says nothing of them", () => {
    expect([allContainersOf({}), allContainerStatusesOf({})]).toEqual([[], []]);
  });
});

test.each([
  ["Pending", false],
  ["Running", false],
  ["Unknown", false],
  ["Succeeded", true],
  ["Failed", true],
])("a pod in phase %s is over for good: %s", (phase, expected) => {
  expect(isTerminal({ status: { phase } })).toBe(expected);
});

test("a pod without a status is not over", () => {
  expect(isTerminal({})).toBe(false);
});

test("a pod is being deleted when it has a time of deletion", () => {
  expect([isDeleting(pod), isDeleting({ metadata: { deletionTimestamp: "2026-01-01T00:00:00Z" } })]).toEqual([
    false,
    true,
  ]);
});

test("a pod's controller is the one owner that says so", () => {
  const owner = { apiVersion: "apps/v1", kind: "ReplicaSet", name: "web", uid: "o-1" };
  const ownerReferences = [
    { ...owner, kind: "Other" },
    { ...owner, controller: true },
  ];
  expect(controllerOf({ metadata: { ownerReferences } })?.kind).toBe("ReplicaSet");
  expect(controllerOf({ metadata: { ownerReferences: [owner] } })).toBeUndefined();
});

test("a pod is named as logs and as a kubelet's messages name it", () => {
  expect(uidOf(pod)).toBe("u-1");
  expect(aboutPod(pod)).toEqual({ namespace: "shop", pod: "web", uid: "u-1" });
  expect(formatPod(pod)).toBe("web_shop(u-1)");
});
