import { expect, test } from "vitest";
import { CALL_PROCESSOR_MS, FIRST_ANSWER } from "../../../providers/local/engines/vm/patience.ts";
import { patienceFor } from "../../../providers/local/host/patience.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

/** How long a guest is waited for that computes so much of each second; at most ten minutes. */
async function waitedFor(share: (second: number) => number | undefined): Promise<number> {
  const clock = new VirtualClock();
  let computed: number | undefined = 0;
  using patience = patienceFor(() => computed, FIRST_ANSWER, clock);
  for (let second = 1; second <= 600; second++) {
    const more = share(second);
    computed = more === undefined ? undefined : computed! + 1000 * more;
    await clock.advance(1000);
    if (patience.signal.aborted) return second;
  }
  return Infinity;
}

test("a guest that does nothing is given up after half a minute", async () => {
  expect(await waitedFor(() => 0.005)).toBeLessThan(36);
});

test("a guest that computes with all its might and says nothing is given up after half a minute", async () => {
  expect(await waitedFor(() => 1)).toBeLessThan(36);
});

test("a guest whose host is overrun is waited for as long as it comes on, until it has had what a boot takes", async () => {
  expect(await waitedFor(() => 1 / 20)).toBeGreaterThan(280);
  expect(await waitedFor(() => 1 / 20)).toBeLessThan(320);
});

test("a guest that stops computing on the way is given up", async () => {
  expect(await waitedFor((second) => (second < 60 ? 1 / 20 : 0))).toBeLessThan(71);
});

test("what a guest has computed before it was asked is not held against it when its host is overrun", async () => {
  const clock = new VirtualClock();
  let computed = 10 * CALL_PROCESSOR_MS;
  using patience = patienceFor(() => computed, { ms: 30_000, processorMs: CALL_PROCESSOR_MS }, clock);
  for (let second = 1; second <= 120; second++) {
    computed += 50;
    await clock.advance(1000);
  }
  expect(patience.signal.aborted).toBe(false);
});

test("a program that hangs and computes a little all the time is not waited for by the hour", async () => {
  const clock = new VirtualClock();
  let computed = 0;
  using patience = patienceFor(() => computed, { ms: 15_000, processorMs: 60_000 }, clock);
  for (let second = 1; second <= 305; second++) {
    computed += 50;
    await clock.advance(1000);
  }
  expect(patience.signal.aborted).toBe(true);
});

test("a guest that is no more is not waited for", async () => {
  expect(await waitedFor((second) => (second < 3 ? 1 : undefined))).toBeLessThan(7);
});
