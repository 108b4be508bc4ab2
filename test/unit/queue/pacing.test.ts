import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { Backoff, backoffMs } from "../../../src/queue/backoff.ts";
import { DelayHeap } from "../../../src/queue/delay-heap.ts";
import { TokenBucket } from "../../../src/queue/rate-limit.ts";
import { runs } from "../../support/runs.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";

describe("backoff", () => {
  const base = { initialMs: 100, maxMs: 1000 };

  test("doubles up to the limit without jitter", () => {
    const delays = [0, 1, 2, 3, 4, 500].map((n) => backoffMs({ ...base, jitter: "none", random: () => 0.5 }, n));
    expect(delays).toEqual([100, 200, 400, 800, 1000, 1000]);
  });

  test("stays within the bounds of its jitter", () => {
    fc.assert(
      fc.property(fc.nat(100), fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }), (failures, r) => {
        const random = () => r;
        const exact = backoffMs({ ...base, jitter: "none", random }, failures);
        const full = backoffMs({ ...base, jitter: "full", random }, failures);
        const up = backoffMs({ ...base, jitter: "up", random }, failures);
        return full >= 0 && full < exact && up >= exact && up <= Math.min(base.maxMs, 2 * exact);
      }),
    );
  });

  test("starts anew after a reset and after a long time without failure", async () => {
    const clock = new VirtualClock();
    const backoff = new Backoff({ ...base, jitter: "none", resetAfterMs: 5000, clock, random: () => 0 });
    expect([backoff.next(), backoff.next(), backoff.next()]).toEqual([100, 200, 400]);
    await clock.advance(5001);
    expect([backoff.next(), backoff.next()]).toEqual([100, 200]);
    backoff.reset();
    expect(backoff.next()).toBe(100);
  });
});

describe("TokenBucket", () => {
  const live = () => new AbortController().signal;

  test("lets a burst through and then its rate", async () => {
    const clock = new VirtualClock();
    const bucket = new TokenBucket({ perSecond: 10, burst: 3, clock });
    const at: number[] = [];
    for (let i = 0; i < 6; i++) void bucket.take(live()).then(() => at.push(clock.monotonic()));
    await clock.advance(1000);
    expect(at.map(Math.round)).toEqual([0, 0, 0, 100, 200, 300]);
  });

  test("gives a place back when its waiter is aborted", async () => {
    const clock = new VirtualClock();
    const bucket = new TokenBucket({ perSecond: 1, burst: 1, clock });
    await bucket.take(live());
    const abort = new AbortController();
    const waiting = bucket.take(abort.signal);
    abort.abort(new Error("stop"));
    await expect(waiting).rejects.toThrow("stop");
    let taken = false;
    void bucket.take(live()).then(() => (taken = true));
    await clock.advance(1000);
    await settle();
    expect(taken).toBe(true);
  });

  test("says whether a token is there, and never hoards more than its burst", async () => {
    const clock = new VirtualClock();
    const bucket = new TokenBucket({ perSecond: 1, burst: 2, clock });
    await clock.advance(60_000);
    expect([bucket.tryTake(), bucket.tryTake(), bucket.tryTake()]).toEqual([true, true, false]);
  });

  test("never lets more through in any window than burst plus rate allow", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 0, max: 400 }), { maxLength: 30 }), async (pauses) => {
        const clock = new VirtualClock();
        const bucket = new TokenBucket({ perSecond: 10, burst: 4, clock });
        const at: number[] = [];
        for (const pause of pauses) {
          await clock.advance(pause);
          void bucket.take(live()).then(() => at.push(clock.monotonic()));
        }
        await clock.advance(60_000);
        expect(at).toHaveLength(pauses.length);
        for (let i = 0; i < at.length; i++) {
          // A timer may be early by a part of a millisecond.
          for (let j = i; j < at.length; j++) expect(j - i + 1).toBeLessThanOrEqual(4 + (at[j]! - at[i]! + 1) / 100);
        }
      }),
      { numRuns: runs(50) },
    );
  });
});

describe("DelayHeap", () => {
  test("agrees with a sorted list after any history", () => {
    const key = fc.constantFrom("a", "b", "c", "d", "e", "f", "g", "h");
    const step = fc.oneof(
      fc.record({ op: fc.constant("add" as const), key, at: fc.integer({ min: 0, max: 50 }) }),
      fc.record({ op: fc.constant("delete" as const), key }),
      fc.record({ op: fc.constant("pop" as const), now: fc.integer({ min: 0, max: 50 }) }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const heap = new DelayHeap();
        const model = new Map<string, number>();
        for (const s of steps) {
          if (s.op === "add") {
            heap.add(s.key, s.at);
            model.set(s.key, Math.min(model.get(s.key) ?? Infinity, s.at));
          } else if (s.op === "delete") {
            expect(heap.delete(s.key)).toBe(model.delete(s.key));
          } else {
            const popped = heap.popDue(s.now);
            const first = Math.min(...model.values());
            if (popped === undefined) expect(first).toBeGreaterThan(s.now);
            else {
              expect(model.get(popped)).toBe(first);
              expect(first).toBeLessThanOrEqual(s.now);
              model.delete(popped);
            }
          }
          expect(heap.size).toBe(model.size);
          expect(heap.nextAt).toBe(model.size === 0 ? undefined : Math.min(...model.values()));
        }
      }),
    );
  });
});
