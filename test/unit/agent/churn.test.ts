/** Pods that come and go leave nothing behind in an agent: a thousand of them, or `CHURN_PODS=50000`. */
import { expect, test } from "vitest";
import { World } from "./world.ts";

const PODS = Number(process.env["CHURN_PODS"] ?? 1_000);
const AT_ONCE = 500;

test(
  "an agent remembers nothing of thousands of pods that came and went",
  { timeout: 60_000 + 20 * PODS },
  async () => {
    const world = new World();
    const agent = world.agent().start();
    await world.clock.advance(1_000);
    let ran = 0;
    for (let made = 0; made < PODS; made += AT_ONCE) {
      for (let i = 0; i < AT_ONCE; i++) world.createPod(`p-${made + i}`);
      await world.clock.advance(2_000);
      ran += Object.values(world.phases()).filter((phase) => phase === "Running").length;
      for (const { metadata } of world.pods()) world.deletePod(metadata.name as string);
      await world.clock.advance(5_000);
    }
    expect(ran).toBe(PODS);
    // Longer than tombstones are remembered.
    await world.clock.advance(2 * 3_600_000);
    const { store, working, queue, machines } = agent.pods;
    expect({ pods: store.size, working, queued: queue.depth, machines: [...machines.ids()].length }).toEqual({
      pods: 0,
      working: 0,
      queued: 0,
      machines: 0,
    });
    await agent.stop();
  },
);
