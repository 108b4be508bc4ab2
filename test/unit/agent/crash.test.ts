/** An agent that dies at any of its effects leaves nothing that the next does not put right. */
import { describe, expect, test } from "vitest";
import { NODE, World } from "./world.ts";

const MINUTES = 60_000;

/** Pods of all kinds of moments: one to be made, one that runs, one to be deleted, and a machine whose pod is gone. */
async function furnished(): Promise<World> {
  const world = new World();
  const first = world.agent().start();
  world.createPod("runs");
  world.createPod("to-be-deleted");
  world.createPod("gone");
  await world.clock.advance(5_000);
  first.kill();
  world.cluster.storage.delete("/pods", "default/gone");
  world.deletePod("to-be-deleted");
  world.createPod("new");
  return world;
}

/** The effects that an agent has on this world when nothing disturbs it. */
async function undisturbed(build: () => World | Promise<World>, among: RegExp): Promise<string[]> {
  const world = await build();
  world.effects.length = 0;
  const agent = world.agent().start();
  await world.clock.advance(10 * MINUTES);
  await agent.stop();
  return world.effects.filter((effect) => among.test(effect));
}

const OF_NODE = /burst-0|nodes|leases/;
const OF_PODS = /Pod |pods/;

describe.each(["before", "after"] as const)("an agent that dies %s", (when) => {
  test("each effect of its registration leaves one Node and one lease, which the next keeps", async () => {
    const effects = await undisturbed(() => new World(), OF_NODE);
    expect(effects.slice(0, 8).filter((each) => each.startsWith("POST"))).toHaveLength(2);
    for (let at = 1; at <= 8; at++) {
      const world = new World();
      const doomed = world.agent({ dies: { at, when, among: OF_NODE } }).start();
      await world.clock.advance(MINUTES);
      expect(doomed.isDead).toBe(true);
      const [before] = world.cluster.list("nodes");
      const next = world.agent().start();
      await world.clock.advance(MINUTES);
      const nodes = world.cluster.list("nodes");
      expect(nodes.map(({ metadata }) => metadata.name)).toEqual([NODE]);
      if (before !== undefined) expect(nodes[0]!.metadata.uid).toBe(before.metadata.uid);
      expect(nodes[0]!.status.conditions.find(({ type }: { type: string }) => type === "Ready").status).toBe("True");
      const leases = world.cluster.list("leases", "coordination.k8s.io");
      expect(leases.map(({ metadata, spec }) => [metadata.name, spec.holderIdentity])).toEqual([[NODE, NODE]]);
      expect(leases[0]!.metadata.ownerReferences?.[0]?.uid).toBe(nodes[0]!.metadata.uid);
      expect(world.clock.now() - Date.parse(leases[0]!.spec.renewTime)).toBeLessThan(15_000);
      await next.stop();
    }
  });

  test("each effect on pods and machines, the sweep's among them, loses, doubles and forgets none", async () => {
    const effects = await undisturbed(furnished, OF_PODS);
    expect(new Set(effects.map((each) => each.split(" ")[0]))).toEqual(
      new Set(["DELETE", "PATCH", "createPod", "deletePod", "stopPod"]),
    );
    for (let at = 1; at <= effects.length; at++) {
      const world = await furnished();
      world.effects.length = 0;
      const doomed = world.agent({ dies: { at, when, among: OF_PODS } }).start();
      for (let minute = 0; minute < 12 && !doomed.isDead; minute++) await world.clock.advance(MINUTES);
      expect(doomed.isDead).toBe(true);
      const next = world.agent().start();
      await world.clock.advance(10 * MINUTES);
      await next.stop();
      expect(world.phases()).toEqual({ runs: "Running", new: "Running" });
      expect(world.machines()).toEqual(world.uids());
      const made = world.effects.filter((each) => each.startsWith("createPod")).map((each) => each.split(" ")[1]!);
      // A create is repeated under the same id; what ran before is never made again.
      expect(new Set(made).size).toBe(1);
      for (const gone of world.effects.filter((each) => each.startsWith("deletePod")))
        expect(world.uids().filter((uid) => gone.includes(uid))).toEqual([]);
    }
  });
});
