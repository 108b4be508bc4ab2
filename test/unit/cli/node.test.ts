import { expect, test } from "vitest";
import { removeNode } from "../../../src/cli/node.ts";
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
  const removing = removeNode(kube, "burst-0", clock);
  await clock.advance(30_000);
  await removing;
  expect(kube.deleted).toBe(3);
});

test("a node that comes back again and again is told, with the cure", async () => {
  const clock = new VirtualClock();
  const removing = expect(removeNode(kubeWith(Infinity), "burst-0", clock)).rejects.toThrow(
    "node burst-0 came back each time that it was deleted, for 240 s: an agent that has it still runs; stop it first",
  );
  await clock.advance(300_000);
  await removing;
});
