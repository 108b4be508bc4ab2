import { beforeEach, describe, expect, test } from "vitest";
import { LossBrake } from "../../../src/pods/loss-brake.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

let clock: VirtualClock;
beforeEach(() => {
  clock = new VirtualClock();
});
const uids = (count: number) => Array.from({ length: count }, (_, i) => `u${i}`);
/** Of those that are missing, the ones that may not be called lost yet. */
const ask = (brake: LossBrake, missing: readonly string[]) => missing.filter((uid) => !brake.mayLose(uid));

/** Minutes until all machines of a node with so many pods are believed to be lost. */
async function minutesToLoseAll(pods: number): Promise<number> {
  const brake = new LossBrake({ clock, pods: () => pods });
  let left = ask(brake, uids(pods));
  for (let minutes = 0; ; minutes++) {
    if (left.length === 0) return minutes;
    await clock.advance(60_000);
    left = ask(brake, left);
  }
}

describe("a backend that answers and has lost", () => {
  test("a few machines is believed at once", () => {
    const brake = new LossBrake({ clock, pods: () => 1000 });
    expect(ask(brake, uids(50))).toEqual([]);
    expect(brake.missing).toBe(0);
  });

  test("everything is believed a twentieth of it, and ten at the least, in the first minute", () => {
    const big = new LossBrake({ clock, pods: () => 1000 });
    expect(ask(big, uids(1000))).toHaveLength(950);
    expect(big.missing).toBe(950);
    const small = new LossBrake({ clock, pods: () => 40 });
    expect(ask(small, uids(40))).toHaveLength(30);
  });

  test("everything is believed at last, however much it is", async () => {
    expect(await minutesToLoseAll(40)).toBe(3);
    expect(await minutesToLoseAll(1_000)).toBe(11);
    expect(await minutesToLoseAll(10_000)).toBe(11);
  });

  test("and has what was missing again is doubted no more", async () => {
    const brake = new LossBrake({ clock, pods: () => 100 });
    ask(brake, uids(100));
    for (const uid of uids(100)) brake.settled(uid);
    expect(brake.missing).toBe(0);
    await clock.advance(3_600_000);
    // The next time begins slowly, too.
    expect(ask(brake, uids(100))).toHaveLength(90);
    await clock.advance(60_000);
    expect(ask(brake, uids(90))).toHaveLength(80);
  });
});
