import { expect, test } from "vitest";
import { removeNode, requireDrained } from "../../../src/cli/node.ts";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { Kube } from "../../../src/kube/kube.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

/** Deletes as the API server does, where an agent registers the node again until `registered` runs out. */
function kubeWith(registered: number): Kube & { deleted: number } {
  const kube = {
    deleted: 0,
    request() {
      if (kube.deleted < registered) {
        kube.deleted++;
        return Promise.resolve({});
      }
      return Promise.reject(new KubeApiError("not found", { status: 404, reason: "NotFound" }));
    },
  };
  return kube as unknown as Kube & { deleted: number };
}

test("a node is removed once it has stayed away for a while", async () => {
  const clock = new VirtualClock();
  const kube = kubeWith(3);
  const removing = removeNode(kube, "burst-0", { clock, mayBeAbsent: false });
  await clock.advance(30_000);
  await removing;
  expect(kube.deleted).toBe(3);
});

test("a node that comes back again and again is told, with the cure", async () => {
  const clock = new VirtualClock();
  const removing = expect(removeNode(kubeWith(Infinity), "burst-0", { clock, mayBeAbsent: false })).rejects.toThrow(
    "node burst-0 came back each time that it was deleted, for 240 s: an agent that has it still runs; stop it first",
  );
  await clock.advance(300_000);
  await removing;
});

test("a Node that was never there is no Node removed, unless it may be absent", async () => {
  const clock = new VirtualClock();
  await expect(removeNode(kubeWith(0), "nope", { clock, mayBeAbsent: false })).rejects.toThrow(
    "there is no Node nope: kubectl get nodes lists those that there are",
  );
  const removing = removeNode(kubeWith(0), "nope", { clock, mayBeAbsent: true });
  await clock.advance(30_000);
  await removing;
});

/** Answers a read of the Node with this status, and lists these pods. */
function kubeOf(status: number, pods: string[] = []): Kube {
  const items = pods.map((name) => ({ metadata: { namespace: "default", name } }));
  const request = ({ path }: { path: string }) =>
    path.includes("/nodes/") && status !== 200
      ? Promise.reject(new KubeApiError("no", { status, reason: status === 403 ? "Forbidden" : "NotFound" }))
      : Promise.resolve({ items });
  return { request } as unknown as Kube;
}

test("a Node that is not there is not drained, unless it may be absent", async () => {
  await expect(requireDrained(kubeOf(404), "nope", false)).rejects.toThrow("there is no Node nope");
  await expect(requireDrained(kubeOf(404), "nope", true)).resolves.toBeUndefined();
});

test("who may list pods and not read Nodes can ask whether one is drained", async () => {
  await expect(requireDrained(kubeOf(403), "burst-0", false)).resolves.toBeUndefined();
});

test.each([
  [["web"], "still has 1 pod (default/web)"],
  [["web", "db"], "still has 2 pods (default/web, default/db)"],
])("the pods %j that are left are named", async (pods, told) => {
  await expect(requireDrained(kubeOf(200, pods), "burst-0", false)).rejects.toThrow(told);
});
