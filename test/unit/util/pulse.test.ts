import { getEventListeners } from "node:events";
import { expect, test } from "vitest";
import { Pulse } from "../../../src/util/pulse.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

test("a pulse wakes everybody who waits", async () => {
  const pulse = new Pulse();
  const waiting = [pulse.wait(), pulse.wait()];
  pulse.fire();
  await Promise.all(waiting);
});

test("a pulse that nobody waited for is not remembered", async () => {
  const pulse = new Pulse();
  pulse.fire();
  const woken = await Promise.race([pulse.wait().then(() => true), Promise.resolve().then(() => false)]);
  expect(woken).toBe(false);
});

test("waiting ends with the signal, and leaves nothing behind in it", async () => {
  const source = new AbortController();
  const pulse = new Pulse();
  const waiting = pulse.wait(source.signal);
  source.abort();
  await waiting;
  const again = new AbortController();
  const second = pulse.wait(again.signal);
  pulse.fire();
  await second;
  expect(getEventListeners(again.signal, "abort")).toEqual([]);
});

test("waiting at most so long ends with the time", async () => {
  const clock = new VirtualClock();
  const waiting = new Pulse().waitAtMost(clock, 1_000);
  await clock.advance(1_000);
  await waiting;
});
