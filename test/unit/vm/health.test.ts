/** A guest that is asked now and then whether it lives. */
import { beforeEach, expect, onTestFinished, test } from "vitest";
import type { SandboxHealth, SandboxLoss } from "../../../providers/local/engine.ts";
import { GuestHealth, type GuestProbe } from "../../../providers/local/engines/vm/health.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

let clock: VirtualClock;
let status: string;
let hasRoom: boolean;
/** What the guest's clock is ahead of the host's, in milliseconds. */
let ahead: number;
/** The guest answers nothing. */
let hangs: boolean;
let told: SandboxHealth[];
let losses: SandboxLoss[];
let resumed: number;
let clocksSet: number[];

const unlessHung = async <T>(signal: AbortSignal, answer: () => T): Promise<T> => {
  if (!hangs) return answer();
  return await new Promise((_resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason as Error));
  });
};

const probe: GuestProbe = {
  status: () => Promise.resolve(status),
  resume: () => {
    resumed++;
    status = "running";
    return Promise.resolve();
  },
  time: (signal) => unlessHung(signal, () => Math.floor((clock.now() + ahead) / 1000)),
  setTime: (ms) => {
    clocksSet.push(ms);
    ahead = 0;
    return Promise.resolve();
  },
  hasRoom: () => Promise.resolve(hasRoom),
};

beforeEach(() => {
  clock = new VirtualClock();
  [status, hasRoom, ahead, hangs, resumed] = ["running", true, 0, false, 0];
  [told, losses, clocksSet] = [[], [], []];
  const health = new GuestHealth({
    probe,
    clock,
    onChange: (each) => void told.push(each),
    onLost: (loss) => void losses.push(loss),
  });
  onTestFinished(() => health.close());
});

async function pass(seconds: number): Promise<void> {
  for (let second = 0; second < seconds; second++) {
    await clock.advance(1_000);
    await settle(5);
  }
}

test("a guest that answers is not spoken of, and its clock is left alone", async () => {
  await pass(60);
  expect([told, losses, clocksSet]).toEqual([[], [], []]);
});

test("a guest whose disk has met a full one goes on by itself when there is room", async () => {
  [status, hasRoom] = ["io-error", false];
  await pass(15);
  expect([resumed, told]).toEqual([0, [expect.objectContaining({ state: "unknown", reason: "HostDiskFull" })]]);
  hasRoom = true;
  await pass(20);
  expect([resumed, told.at(-1)]).toEqual([1, { state: "ok" }]);
});

test("a guest that waits for room is never lost", async () => {
  [status, hasRoom] = ["io-error", false];
  await pass(1_000);
  expect(losses).toEqual([]);
});

test("a guest that hangs is out of sight, and after minutes lost", async () => {
  hangs = true;
  await pass(100);
  expect([told, losses]).toEqual([[expect.objectContaining({ reason: "GuestUnresponsive" })], []]);
  await pass(300);
  expect(losses[0]).toMatchObject({ reason: "GuestUnresponsive" });
});

test("a guest that answers again is in sight again", async () => {
  hangs = true;
  await pass(100);
  hangs = false;
  await pass(40);
  expect(told.map(({ state }) => state)).toEqual(["unknown", "ok"]);
});

test.each(["paused", "internal-error"])("a guest that QEMU says is %s does not live", async (state) => {
  status = state;
  await pass(40);
  expect(told).toEqual([expect.objectContaining({ state: "unknown", message: expect.stringContaining(state) })]);
});

test.each([-3_600_000, -5_000, 5_000, 86_400_000])("a clock that is off by %d ms is set", async (off) => {
  ahead = off;
  await pass(15);
  expect(clocksSet).toHaveLength(1);
  expect(Math.abs(clocksSet[0]! - clock.now())).toBeLessThan(6_000);
});
