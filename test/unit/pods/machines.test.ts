import { describe, expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { MachineCache, MachineObserver } from "../../../src/pods/machines.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { inRanges } from "../../../src/util/cidr.ts";
import { machine } from "../../support/builders.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const at = (id: string, revision: number) => machine({ id, revision });

const OBSERVED = { labels: {}, random: () => 0.5, logger: silentLogger };

const cacheOf = () => new MachineCache({ clock: new VirtualClock(), onChange: () => {} });

test("a machine whose create was answered while a list was on its way is not dropped by that list", () => {
  const cache = cacheOf();
  cache.replace([at("a", 10)], 10);
  const knownBefore = cache.revision;
  cache.put(at("b", 11));
  cache.replace([at("a", 10)], 10, knownBefore);
  expect(cache.observe("b").kind).toBe("found");
});

test("a backend that counts anew is believed", () => {
  const cache = cacheOf();
  cache.replace([at("a", 10)], 10);
  cache.replace([at("b", 1)], 1, cache.revision);
  expect([...cache.ids()]).toEqual(["b"]);
});

test("a backend that was put back to an older state is believed, though it has counted on since", () => {
  const cache = cacheOf();
  cache.replace([{ ...at("a", 10), version: 5, state: "stopped" }], 10);
  cache.replace([{ ...at("a", 7), version: 3 }, at("b", 11)], 11);
  expect(cache.observe("a")).toMatchObject({ machine: { state: "running", version: 3 } });
});

test("what changed while a list was on its way is not taken back by it", () => {
  const cache = cacheOf();
  cache.replace([at("a", 9)], 10);
  cache.put({ ...at("a", 12), version: 3, state: "stopped" });
  cache.replace([{ ...at("a", 11), version: 2 }], 11, 10);
  expect(cache.observe("a")).toMatchObject({ machine: { state: "stopped" } });
});

test("a tombstone is not replaced by what was said before of a machine of the same id", () => {
  const cache = cacheOf();
  const tombstone = { ...at("a", 12), state: "deleted" as const, created_at: "2026-01-01T00:01:00.000Z" };
  cache.replace([], 9);
  cache.put(tombstone);
  cache.put({ ...at("a", 10), version: 4 });
  expect(cache.observe("a")).toEqual({ kind: "found", machine: tombstone });
});

test("a machine that was heard of while the answer that there is none was on its way is still there", () => {
  const cache = cacheOf();
  cache.replace([], 10);
  const knownBefore = cache.revision;
  cache.put(at("a", 11));
  expect(cache.drop("a", knownBefore)).toBe(false);
  expect(cache.observe("a").kind).toBe("found");
  expect(cache.drop("a", cache.revision)).toBe(true);
  expect(cache.observe("a").kind).toBe("absent");
});

test("an answer about another machine of the same id is believed by one who knew the first when asking", () => {
  const cache = cacheOf();
  cache.replace([{ ...at("a", 13), version: 6 }], 13);
  const lost = { ...at("a", 1), state: "deleted" as const, created_at: "2026-01-01T00:09:00.000Z" };
  cache.put(lost, 12);
  expect(cache.observe("a")).toMatchObject({ machine: { state: "running" } });
  cache.put(lost, cache.revision);
  expect(cache.observe("a")).toMatchObject({ machine: { state: "deleted" } });
});

describe("before the first list", () => {
  test("a machine that the backend itself said is not there is absent, for as long as it takes to act on it", () => {
    const clock = new VirtualClock();
    const cache = new MachineCache({ clock, onChange: () => {} });
    expect(cache.observe("a").kind).toBe("unknown");
    cache.drop("a", cache.revision);
    expect(cache.observe("a").kind).toBe("absent");
    expect(cache.observe("b").kind).toBe("unknown");
  });

  test("that is no longer believed after a while", async () => {
    const clock = new VirtualClock();
    const cache = new MachineCache({ clock, onChange: () => {} });
    cache.drop("a", cache.revision);
    await clock.advance(6_000);
    expect(cache.observe("a").kind).toBe("unknown");
  });

  test("nor when the backend has said otherwise since", () => {
    const cache = cacheOf();
    cache.drop("a", cache.revision);
    cache.put(at("a", 1));
    cache.forget("a");
    expect(cache.observe("a").kind).toBe("unknown");
  });
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

describe("a machine of which the backend says what makes no sense", () => {
  const doubt = (id: string, rest: object = {}) => ({ id, reason: "no sense", ...rest });

  test("is unknown, whatever was known of it before, and the others are as they were", () => {
    const cache = cacheOf();
    cache.replace([at("a", 10), at("b", 9)], 10);
    cache.replace([at("b", 9)], 11, cache.revision, [doubt("a")]);
    expect(cache.observe("a")).toEqual({ kind: "unknown", machine: doubt("a", { revision: 11 }) });
    expect(cache.observe("b").kind).toBe("found");
    expect([...cache.values()].map(({ id }) => id)).toEqual(["b"]);
    expect([...cache.ids()].toSorted()).toEqual(["a", "b"]);
  });

  test("is unknown after an event that makes none, until one comes that does", () => {
    const cache = cacheOf();
    cache.replace([at("a", 10)], 10);
    cache.putUnknown(doubt("a", { revision: 11, version: 2 }));
    expect(cache.observe("a").kind).toBe("unknown");
    cache.put({ ...at("a", 12), version: 3 });
    expect(cache.observe("a").kind).toBe("found");
  });

  test("is known again when the backend makes sense of it in an answer, though nothing of it has changed", () => {
    const changed: string[] = [];
    const cache = new MachineCache({ clock: new VirtualClock(), onChange: (id) => changed.push(id) });
    cache.replace([at("a", 10)], 10);
    cache.putUnknown(doubt("a"));
    changed.length = 0;
    cache.put(at("a", 10));
    expect(cache.observe("a").kind).toBe("found");
    expect(changed).toEqual(["a"]);
  });

  test("is not known again by what was said before", () => {
    const cache = cacheOf();
    cache.replace([], 10);
    cache.putUnknown(doubt("a", { revision: 12, version: 5 }));
    cache.put({ ...at("a", 11), version: 4 });
    expect(cache.observe("a").kind).toBe("unknown");
  });

  test("is not doubted for what was said before it was known", () => {
    const cache = cacheOf();
    cache.replace([{ ...at("a", 10), version: 5 }], 10);
    expect(cache.putUnknown(doubt("a", { revision: 9, version: 4 }))).toBe(false);
    expect(cache.observe("a").kind).toBe("found");
  });

  test("is as a list has it that is newer", () => {
    const cache = cacheOf();
    cache.replace([], 10, cache.revision, [doubt("a"), doubt("b"), doubt("c")]);
    cache.replace([at("a", 9)], 11, cache.revision, [doubt("b")]);
    expect(cache.observe("a").kind).toBe("found");
    expect(cache.observe("b").kind).toBe("unknown");
    expect(cache.observe("c").kind).toBe("absent");
  });

  test("is not absent because a list that is older lacks it", () => {
    const cache = cacheOf();
    cache.replace([], 10);
    const knownBefore = cache.revision;
    cache.putUnknown(doubt("a", { revision: 12 }));
    cache.replace([], 11, knownBefore);
    expect(cache.observe("a").kind).toBe("unknown");
  });

  test("is unknown to a backend that counts anew, too", () => {
    const cache = cacheOf();
    cache.replace([{ ...at("a", 100), version: 50 }, at("b", 99)], 100);
    cache.replace([], 3, cache.revision, [doubt("a", { version: 1 })]);
    expect(cache.observe("a").kind).toBe("unknown");
    expect(cache.observe("b").kind).toBe("absent");
  });

  test("is absent when the backend says so in answer to a question", () => {
    const cache = cacheOf();
    cache.replace([], 10, cache.revision, [doubt("a")]);
    cache.drop("a", cache.revision);
    expect(cache.observe("a").kind).toBe("absent");
  });

  test("is spoken of once, not with each list that repeats it", () => {
    const changed: string[] = [];
    const cache = new MachineCache({ clock: new VirtualClock(), onChange: (id) => changed.push(id) });
    for (let revision = 1; revision < 5; revision++) cache.replace([], revision, cache.revision, [doubt("a")]);
    expect(changed).toEqual(["a"]);
  });
});

test("the observer takes what makes sense of a list and of events, and doubts the rest", async () => {
  const clock = new VirtualClock();
  const cache = new MachineCache({ clock, onChange: () => {} });
  const stop = new AbortController();
  const provider = new MemoryProvider({ clock });
  const unknown = (id: string) => ({ id, reason: "no sense" });
  provider.getPods = () => Promise.resolve({ items: [at("a", 1)], unknown: [unknown("b")], revision: 1 });
  provider.watchPods = async function* () {
    yield { revision: 2, unknown: unknown("a") } as never;
    yield { revision: 3, machine: at("b", 3) };
    await clock.sleep(1e6, stop.signal);
  };
  const warned: object[] = [];
  const logger = { ...silentLogger, warn: (fields: object) => void warned.push(fields) };
  const observer = new MachineObserver({ ...OBSERVED, provider, cache, clock, logger });
  const running = observer.run(stop.signal);
  await settle(20);
  expect(cache.observe("a")).toMatchObject({ kind: "unknown", machine: { revision: 2 } });
  expect(cache.observe("b").kind).toBe("found");
  expect(warned).toHaveLength(1);
  stop.abort();
  await running;
  await provider.close();
});

describe("an address that no machine can have here", () => {
  const within = (...ips: string[]) => ({ ...at("a", 10), addresses: ips.map((ip) => ({ ip })) });
  const cache = () =>
    new MachineCache({
      clock: new VirtualClock(),
      onChange: () => {},
      acceptsAddress: inRanges(["10.9.0.0/16", "fd00:9::/32"]),
    });
  const addresses = (of: MachineCache) => {
    const observed = of.observe("a");
    return observed.kind === "found" ? observed.machine.addresses.map(({ ip }) => ip) : undefined;
  };

  test("is left out of what is known of it, and remembered", () => {
    const known = cache();
    known.put(within("192.168.0.1", "10.9.1.2", "fd00:9::1", "fd01::1"));
    expect(addresses(known)).toEqual(["10.9.1.2", "fd00:9::1"]);
    expect(known.strayAddresses("a")).toEqual(["192.168.0.1", "fd01::1"]);
  });

  test("is left out of lists, also of a backend that counts anew", () => {
    const known = cache();
    known.replace([within("192.168.0.1")], 10);
    expect(addresses(known)).toEqual([]);
    known.replace([{ ...within("192.168.0.1"), revision: 1 }], 1, 10);
    expect(addresses(known)).toEqual([]);
  });

  test("is forgotten when the machine has a better one, or is gone", () => {
    const known = cache();
    known.put(within("192.168.0.1"));
    known.put({ ...within("10.9.0.1"), version: 2 });
    expect(known.strayAddresses("a")).toEqual([]);
    known.put({ ...within("192.168.0.1"), version: 3 });
    known.drop("a", known.revision);
    expect(known.strayAddresses("a")).toEqual([]);
  });
});
