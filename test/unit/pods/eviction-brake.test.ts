/** How many pods leave machines that nobody can see. */
import { beforeEach, describe, expect, test } from "vitest";
import { type EvictionBrake, EvictionZones, type Sights } from "../../../src/pods/eviction-brake.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

let clock: VirtualClock;
let zones: EvictionZones;
beforeEach(() => {
  clock = new VirtualClock();
  zones = new EvictionZones({ clock });
});
const node = (seen: number, unseen: number): EvictionBrake => zones.zone(() => ({ seen, unseen }));

/** Pods of a node that are evicted within so many minutes. */
async function evicted(brake: EvictionBrake, minutes: number): Promise<number> {
  let count = 0;
  for (let second = 0; second < minutes * 60; second++) {
    if (brake.take() === undefined) count++;
    await clock.advance(1_000);
  }
  return count;
}

describe("of a node whose machines are out of sight", () => {
  test.each<[string, Sights, number]>([
    ["some, one pod leaves every ten seconds", { seen: 50, unseen: 10 }, 30],
    ["one or two, these leave, though there are no others", { seen: 0, unseen: 2 }, 30],
    ["most of few, none leaves", { seen: 4, unseen: 5 }, 0],
    ["most of many, one leaves every hundred seconds", { seen: 40, unseen: 60 }, 3],
    ["all, none leaves", { seen: 0, unseen: 100 }, 0],
  ])("%s", async (_what, { seen, unseen }, expected) => {
    expect(await evicted(node(seen, unseen), 5)).toBe(expected);
  });

  test("all, pods leave while a machine of another node can be seen: it is this node's hosts that went", async () => {
    const dark = node(0, 100);
    node(0, 0);
    expect(await evicted(dark, 1)).toBe(0);
    const other = node(3, 0);
    expect(await evicted(dark, 5)).toBe(30);
    other.close();
    expect(await evicted(dark, 1)).toBe(0);
  });
});

test("a pod that its budget keeps takes no other's turn", () => {
  const brake = node(50, 10);
  expect(brake.take()).toBeUndefined();
  expect(brake.take()).toEqual({ afterMs: 10_000 });
  brake.giveBack();
  expect(brake.take()).toBeUndefined();
});

test("who waits is told how many machines are out of sight", () => {
  expect(node(1, 3).take()).toMatchObject({ afterMs: 10_000, doubt: expect.stringContaining("3 of the node's 4") });
});
