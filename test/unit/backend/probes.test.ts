import { expect, test, vi } from "vitest";
import type { Probe } from "../../../src/provider/machine.ts";
import { main, World } from "./world.ts";

const probe = (more: Partial<Probe> = {}): Probe => ({
  initial_delay_s: 0,
  period_s: 10,
  timeout_s: 1,
  success: 1,
  failure: 3,
  exec: { command: ["probe"] },
  ...more,
});

/** A world whose probes answer with `health.exit`; undefined never answers. */
async function withHealth(probes: Parameters<typeof main>[1], health: { exit: number | undefined }): Promise<World> {
  const world = await World.create((fresh) => (fresh.exec = () => health.exit));
  await world.create({ containers: [main("a", probes)] });
  await world.advance(0);
  return world;
}

test("without probes a running container is started and ready", async () => {
  const world = await withHealth({}, { exit: 0 });
  expect(await world.container("a")).toMatchObject({ started: true, ready: true });
});

test("a container with a readiness probe is not ready until it has passed", async () => {
  const health = { exit: 1 };
  const world = await withHealth({ probes: { readiness: probe() } }, health);
  expect(await world.container("a")).toMatchObject({ started: true, ready: false });
  health.exit = 0;
  await world.advance(10_000);
  expect((await world.container("a")).ready).toBe(true);
});

test("readiness is lost after the failure threshold and not before", async () => {
  const health = { exit: 0 };
  const world = await withHealth({ probes: { readiness: probe() } }, health);
  health.exit = 1;
  await world.advance(20_000);
  expect((await world.container("a")).ready).toBe(true);
  await world.advance(10_000);
  expect((await world.container("a")).ready).toBe(false);
});

test("readiness needs as many successes in a row as its success threshold", async () => {
  const world = await withHealth({ probes: { readiness: probe({ success: 3 }) } }, { exit: 0 });
  await world.advance(10_000);
  expect((await world.container("a")).ready).toBe(false);
  await world.advance(10_000);
  expect((await world.container("a")).ready).toBe(true);
});

test("a failed probe is told with its output", async () => {
  const world = await withHealth({ probes: { readiness: probe() } }, { exit: 1 });
  expect(await world.notices()).toContain("Unhealthy: Readiness probe failed: ");
});

test("a probe that does not answer in time has failed", async () => {
  const world = await withHealth({ probes: { readiness: probe() } }, { exit: undefined });
  await world.advance(1_000);
  expect(await world.notices()).toContain('Unhealthy: Readiness probe failed: command "probe" timed out');
});

test("a failed liveness probe kills the container, which is restarted", async () => {
  const health = { exit: 1 };
  const world = await withHealth({ probes: { liveness: probe() } }, health);
  await world.advance(20_000);
  expect(await world.notices()).toContain("Killing: Container a failed liveness probe, will be restarted");
  expect(await world.container("a")).toMatchObject({ state: "running", restart_count: 1 });
});

test("a liveness kill uses the probe's own grace period", async () => {
  const world = await World.create((fresh) => {
    fresh.deaf.add("a");
    fresh.exec = () => 1;
  });
  await world.create({
    containers: [main("a", { probes: { liveness: probe({ failure: 1, termination_grace_s: 5 }) } })],
  });
  await world.advance(5_000);
  expect(world.instances[0]!.signals).toEqual([
    { signal: "SIGTERM", at: 0 },
    { signal: "SIGKILL", at: 5_000 },
  ]);
});

test("an initial delay counts from the container's start", async () => {
  const world = await withHealth({ probes: { readiness: probe({ initial_delay_s: 7 }) } }, { exit: 0 });
  await world.advance(6_999);
  expect((await world.container("a")).ready).toBe(false);
  await world.advance(1);
  expect((await world.container("a")).ready).toBe(true);
});

test("readiness and liveness are not asked before the startup probe has passed", async () => {
  const asked: string[] = [];
  let started = false;
  const world = await World.create((fresh) => {
    fresh.exec = (_container, [name]) => {
      asked.push(name!);
      return name === "startup" && !started ? 1 : 0;
    };
  });
  const named = (name: string) => probe({ failure: 30, exec: { command: [name] } });
  await world.create({
    containers: [
      main("a", { probes: { startup: named("startup"), readiness: named("readiness"), liveness: named("liveness") } }),
    ],
  });
  await world.advance(20_000);
  expect(new Set(asked)).toEqual(new Set(["startup"]));
  expect(await world.container("a")).toMatchObject({ started: false, ready: false });
  started = true;
  await world.advance(10_000);
  expect(await world.container("a")).toMatchObject({ started: true, ready: true });
  expect(new Set(asked)).toEqual(new Set(["startup", "readiness", "liveness"]));
});

test("a startup probe that never passes kills the container", async () => {
  const world = await withHealth({ probes: { startup: probe() } }, { exit: 1 });
  await world.advance(20_000);
  expect(await world.notices()).toContain("Killing: Container a failed startup probe, will be restarted");
});

test("during a stop, readiness is still asked and liveness is not", async () => {
  const asked: string[] = [];
  const world = await World.create((fresh) => {
    fresh.deaf.add("a");
    fresh.exec = (_container, [name]) => {
      asked.push(name!);
      return 0;
    };
  });
  const named = (name: string) => probe({ exec: { command: [name] } });
  await world.create({
    containers: [main("a", { probes: { readiness: named("readiness"), liveness: named("liveness") } })],
  });
  await world.stop(30);
  asked.length = 0;
  await world.advance(25_000);
  expect(new Set(asked)).toEqual(new Set(["readiness"]));
});

test("probes of a container end with it", async () => {
  const world = await withHealth({ restart_policy: "never", probes: { readiness: probe() } }, { exit: 0 });
  await world.exit("a", 0);
  const before = world.journal.length;
  await world.advance(60_000);
  expect(world.journal.slice(before)).toEqual([]);
});

test("the outcomes of each probe are counted, and tell with the usage what they came to", async () => {
  const health = { exit: 0 };
  const world = await withHealth({ probes: { readiness: probe(), liveness: probe({ failure: 9 }) } }, health);
  await world.advance(10_000);
  health.exit = 1;
  await world.advance(10_000);
  const [stats] = await world.provider.getStats({ labels: {}, signal: world.signal });
  expect(stats!.containers[0]!.probes).toEqual([
    { probe: "readiness", successful: 2, failed: 1, unknown: 0 },
    { probe: "liveness", successful: 2, failed: 1, unknown: 0 },
  ]);
});

test("a machine that cannot be measured does not hold up what others use", async () => {
  const world = await World.create((fresh) => fresh.unmeasurable.add("hung"));
  await world.create({ containers: [main("hung")] }, "m1");
  await world.create({ labels: { is: "well" }, containers: [main("a")] }, "m2");
  const timers = world.clock.pending;
  const samples = world.provider.getStats({ signal: world.signal, labels: {} });
  // The size of the other one's log comes from a disk, on its own time: then only the hung one's two deadlines are left.
  await vi.waitUntil(() => world.clock.pending === timers + 2, { interval: 1 });
  await world.advance(5_000);
  expect((await samples).map(({ id }) => id)).toEqual(["m2"]);
});
