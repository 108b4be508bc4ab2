import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { SharedPlaces } from "../../../src/queue/shared-places.ts";
import { runs } from "../../support/runs.ts";
import { settle } from "../../support/virtual-clock.ts";

/** Work that ends when the test says so. */
function labour(places: SharedPlaces) {
  const inside: { group: string; end: () => void }[] = [];
  const start = (group: string, signal?: AbortSignal) =>
    places.run(
      group,
      () => {
        const { promise, resolve } = Promise.withResolvers<void>();
        const one = { group, end: () => (inside.splice(inside.indexOf(one), 1), resolve()) };
        inside.push(one);
        return promise;
      },
      signal,
    );
  return { inside, start, count: (group: string) => inside.filter((one) => one.group === group).length };
}

describe("shared places", () => {
  test("are half of a group that is alone, however much it has to do", async () => {
    const { inside, start } = labour(new SharedPlaces(8));
    for (let index = 0; index < 30; index++) void start("a");
    await settle();
    expect(inside).toHaveLength(8);
  });

  test("are there at once for another group while one's work does not end", async () => {
    const { start, count } = labour(new SharedPlaces(2));
    for (let index = 0; index < 30; index++) void start("hung");
    for (let index = 0; index < 30; index++) void start("other");
    await settle();
    expect([count("hung"), count("other")]).toEqual([2, 1]);
    void start("third");
    await settle();
    expect(count("third")).toBe(1);
  });

  test("go round: a group of much work keeps none of those that become free from another's first", async () => {
    const { inside, start, count } = labour(new SharedPlaces(4));
    for (let index = 0; index < 30; index++) void start("a");
    for (let index = 0; index < 30; index++) void start("b");
    await settle();
    for (let round = 0; round < 20; round++) {
      inside[0]!.end();
      await settle();
      expect(count("b")).toBeGreaterThan(0);
      expect(count("a")).toBeGreaterThan(0);
    }
  });

  test("are one at least, for a group that is alone and for one more", async () => {
    const { start, count } = labour(new SharedPlaces(1));
    for (const group of ["a", "a", "b", "b"]) void start(group);
    await settle();
    expect([count("a"), count("b")]).toEqual([1, 1]);
  });

  test("are given back by work that fails", async () => {
    const places = new SharedPlaces(1);
    await expect(places.run("a", () => Promise.reject(new Error("no")))).rejects.toThrow("no");
    expect(await places.run("a", () => Promise.resolve("yes"))).toBe("yes");
  });

  test("are not waited for any longer by what was called off, nor kept for it", async () => {
    const { inside, start } = labour(new SharedPlaces(1));
    const stop = new AbortController();
    void start("a");
    const waiting = start("a", stop.signal);
    void start("a");
    stop.abort(new Error("called off"));
    await expect(waiting).rejects.toThrow("called off");
    await expect(start("a", stop.signal)).rejects.toThrow("called off");
    inside[0]!.end();
    await settle();
    expect(inside).toHaveLength(1);
  });

  test("are never more than twice those of one group, and none stays free while the first of a group waits", async () => {
    const step = fc.record({ group: fc.constantFrom("a", "b", "c", "d", "e"), ends: fc.nat(20) });
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 4 }), fc.array(step, { maxLength: 60 }), async (perGroup, steps) => {
        const { inside, start, count } = labour(new SharedPlaces(perGroup));
        const started = new Map<string, number>();
        const ended = new Map<string, number>();
        const add = (counts: Map<string, number>, group: string) => counts.set(group, (counts.get(group) ?? 0) + 1);
        for (const { group, ends } of steps) {
          void start(group);
          add(started, group);
          await settle(2);
          const leaving = inside[ends];
          if (leaving !== undefined) {
            add(ended, leaving.group);
            leaving.end();
          }
          await settle(2);
          expect(inside.length).toBeLessThanOrEqual(perGroup * 2);
          for (const [each, all] of started) {
            expect(count(each)).toBeLessThanOrEqual(perGroup);
            const waits = all - (ended.get(each) ?? 0) - count(each);
            if (waits > 0 && count(each) === 0) expect(inside).toHaveLength(perGroup * 2);
          }
        }
      }),
      { numRuns: runs(50) },
    );
  });
});
