import { expect, test } from "vitest";
import { EventLoopWatch } from "../../../src/agent/event-loop.ts";
import { systemClock } from "../../../src/util/clock.ts";

/** A clock whose timers run when the test says so: late, as after a standstill. */
function heldClock() {
  let now = 0;
  let due: (() => void)[] = [];
  const after = (_ms: number, callback: () => void) => {
    due.push(callback);
    return () => void (due = due.filter((other) => other !== callback));
  };
  const pass = (ms: number) => {
    now += ms;
    const ready = due;
    due = [];
    for (const callback of ready) callback();
  };
  return { clock: { ...systemClock, monotonic: () => now, after }, pass, timers: () => due.length };
}

const STANDSTILL = "the event loop stood still for 6000 ms";

test("a standstill right after the start is told, once", async () => {
  const { clock, pass } = heldClock();
  const watch = new EventLoopWatch(clock);
  pass(6_000);
  expect(await watch.check()).toBe(STANDSTILL);
  expect(await watch.check()).toBeUndefined();
});

test("a standstill right after a look is told by the next one", async () => {
  const { clock, pass } = heldClock();
  const watch = new EventLoopWatch(clock);
  pass(500);
  expect(await watch.check()).toBeUndefined();
  pass(6_000);
  expect(await watch.check()).toBe(STANDSTILL);
});

test("a loop that turns late, but turns, is well", async () => {
  const { clock, pass } = heldClock();
  const watch = new EventLoopWatch(clock);
  for (let turn = 0; turn < 10; turn++) pass(4_900);
  expect(await watch.check()).toBeUndefined();
});

test("how late the loop was is told of the time since it was asked last", () => {
  const { clock, pass } = heldClock();
  const watch = new EventLoopWatch(clock);
  for (let i = 0; i < 9; i++) pass(500);
  pass(2_500);
  const { mean, stddev, ...others } = watch.lag();
  expect([mean, stddev]).toEqual([expect.closeTo(0.2), expect.closeTo(0.6)]);
  expect(others).toEqual({ last: 2, min: 0, max: 2, p50: 0, p90: 0, p99: 2 });
  pass(600);
  expect(watch.lag()).toMatchObject({ last: 0.1, min: 0.1, max: 0.1, stddev: 0 });
  expect(watch.lag()).toMatchObject({ last: 0, max: 0 });
});

test("of a loop that nobody asks about only some minutes are kept", () => {
  const { clock, pass } = heldClock();
  const watch = new EventLoopWatch(clock);
  pass(5_500);
  for (let i = 0; i < 600; i++) pass(500);
  expect(watch.lag().max).toBe(0);
});

test("a watch that is closed leaves no timer", () => {
  const { clock, timers } = heldClock();
  new EventLoopWatch(clock).close();
  expect(timers()).toBe(0);
});
