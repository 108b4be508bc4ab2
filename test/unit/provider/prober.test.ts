import { describe, expect, test } from "vitest";
import type { Probe } from "../../../src/provider/machine.ts";
import { Prober } from "../../../src/provider/probes/prober.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const probe: Probe = {
  http_get: { port: 80, path: "/", scheme: "http", headers: [] },
  initial_delay_s: 10,
  period_s: 5,
  timeout_s: 1,
  success: 1,
  failure: 3,
} as unknown as Probe;

function setup() {
  const clock = new VirtualClock();
  const attempts: number[] = [];
  const attempt = () => {
    attempts.push(clock.monotonic());
    return Promise.resolve({ outcome: "success" as const, output: "" });
  };
  const prober = new Prober("readiness", probe, clock, attempt, { verdict: () => {}, complaint: () => {} });
  return { clock, attempts, prober };
}

describe("the first probe", () => {
  test.each([
    ["of a container that has just started", 0, 10_000],
    ["of one that has been running for a while", -7_000, 3_000],
    ["of one that has been running for longer than the delay", -60_000, 0],
    ["of one whose start lies ahead, by a clock that does", 240_000, 10_000],
  ])("%s comes after the rest of its initial delay", async (_name, startedMs, firstMs) => {
    const { clock, attempts, prober } = setup();
    prober.start(clock.now() + startedMs);
    await clock.advance(20_000);
    expect(Math.round(attempts[0]!)).toBe(firstMs);
    prober.stop();
  });

  test("is not put off when the wall clock is set back meanwhile", async () => {
    const { clock, attempts, prober } = setup();
    prober.start(clock.now());
    clock.step(-3_600_000);
    await clock.advance(20_000);
    expect(attempts.map((at) => Math.round(at / 1000))).toEqual([10, 15, 20]);
    prober.stop();
  });
});
