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

test("a watch that is closed leaves no timer", () => {
  const { clock, timers } = heldClock();
  new EventLoopWatch(clock).close();
  expect(timers()).toBe(0);
});
