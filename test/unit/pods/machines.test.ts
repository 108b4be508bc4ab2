import { expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { MachineCache, MachineObserver } from "../../../src/pods/machines.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const machine = (id: string, revision: number): Machine => ({
  id,
  version: 1,
  revision,
  labels: {},
  state: "running",
  reachability: "ok",
  sandbox_ready: true,
  created_at: "2026-01-01T00:00:00.000Z",
  addresses: [],
  containers: [],
});

const OBSERVED = { labels: {}, random: () => 0.5, logger: silentLogger };

const cacheOf = () => new MachineCache({ clock: new VirtualClock(), onChange: () => {} });

test("a machine whose create was answered while a list was on its way is not dropped by that list", () => {
  const cache = cacheOf();
  cache.replace([machine("a", 10)], 10);
  const knownBefore = cache.revision;
  cache.put(machine("b", 11));
  cache.replace([machine("a", 10)], 10, knownBefore);
  expect(cache.observe("b").kind).toBe("found");
});

test("a backend that counts anew is believed", () => {
  const cache = cacheOf();
  cache.replace([machine("a", 10)], 10);
  cache.replace([machine("b", 1)], 1, cache.revision);
  expect([...cache.ids()]).toEqual(["b"]);
});

test("a change between the list and the reply to a create is seen at once", async () => {
  const clock = new VirtualClock();
  const cache = new MachineCache({ clock, onChange: () => {} });
  const stop = new AbortController();
  const { signal } = stop;
  const spec = { labels: {}, restart_policy: "never" as const, containers: [{ name: "c", image: "i" }] };
  const provider = new MemoryProvider({ clock });
  await provider.createPod("a", spec, { signal });
  const list = provider.getPods.bind(provider);
  provider.getPods = async (options) => {
    const answer = await list(options);
    provider.setReachability("a", "unknown");
    cache.put(await provider.createPod("b", spec, { signal }));
    return answer;
  };
  const observer = new MachineObserver({ ...OBSERVED, provider, cache, clock });
  const running = observer.run(signal);
  await settle(20);
  expect(cache.observe("a")).toMatchObject({ machine: { reachability: "unknown" } });
  stop.abort();
  await running;
  await provider.close();
});

test.each([
  ["is refused at once", () => Promise.reject(new ProviderError("unavailable", "no events today"))],
  ["has always forgotten where to begin", () => Promise.reject(new ProviderError("gone", "compacted"))],
  ["ends at once", () => Promise.resolve({ done: true as const, value: undefined })],
])("a backend whose stream of events %s is not listed in a loop", async (_what, next) => {
  const clock = new VirtualClock();
  const cache = new MachineCache({ clock, onChange: () => {} });
  const stop = new AbortController();
  const provider = new MemoryProvider({ clock });
  provider.watchPods = () => ({ [Symbol.asyncIterator]: () => ({ next }) }) as never;
  let lists = 0;
  const observer = new MachineObserver({
    ...OBSERVED,
    provider,
    cache,
    clock,
    onListed: () => {
      // A loop without a pause would leave the test no turn.
      if (++lists > 100) stop.abort();
    },
  });
  const running = observer.run(stop.signal);
  await clock.advance(60_000);
  stop.abort();
  await running;
  expect(lists).toBeGreaterThan(3);
  expect(lists).toBeLessThan(12);
  await provider.close();
});
