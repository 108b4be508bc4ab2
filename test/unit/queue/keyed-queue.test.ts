import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { KeyedQueue, type KeyedQueueOptions } from "../../../src/queue/keyed-queue.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { runs } from "../../support/runs.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";

const running: AbortController[] = [];
afterEach(() => {
  for (const abort of running.splice(0)) abort.abort();
});

/** A queue whose handler runs until the test lets it finish. */
function setup(options: Partial<KeyedQueueOptions> = {}) {
  const clock = new VirtualClock();
  const started: string[] = [];
  const open = new Map<string, { resolve: () => void; reject: (error: Error) => void }>();
  const queue = new KeyedQueue({
    clock,
    random: () => 0,
    concurrency: 10,
    logger: silentLogger,
    handle: (key) => {
      started.push(`${key}@${clock.monotonic()}`);
      return new Promise((resolve, reject) => open.set(key, { resolve, reject }));
    },
    ...options,
  });
  const abort = new AbortController();
  running.push(abort);
  const done = queue.run(abort.signal);
  const finish = async (key: string, error?: Error) => {
    if (error) open.get(key)!.reject(error);
    else open.get(key)!.resolve();
    await settle();
  };
  return { clock, started, queue, abort, done, finish };
}

describe("adding", () => {
  test("handles a key that was added many times once", async () => {
    const { queue, started } = setup();
    queue.add("a");
    queue.add("a");
    await settle();
    expect(started).toEqual(["a@0"]);
  });

  test("never handles a key twice at the same time, and handles it once more after changes meanwhile", async () => {
    const { queue, started, finish } = setup();
    queue.add("a");
    await settle();
    queue.add("a");
    queue.add("a");
    await settle();
    expect(started).toEqual(["a@0"]);
    await finish("a");
    expect(started).toEqual(["a@0", "a@0"]);
    await finish("a");
    expect(started).toHaveLength(2);
  });

  test("handles as many keys at once as it may", async () => {
    const { queue, started, finish } = setup({ concurrency: 2 });
    for (const key of ["a", "b", "c"]) queue.add(key);
    await settle();
    expect(started).toEqual(["a@0", "b@0"]);
    await finish("a");
    expect(started).toEqual(["a@0", "b@0", "c@0"]);
  });

  test("takes one key of each group in turn, and a group's keys as they came", async () => {
    const { queue, started, finish } = setup({ concurrency: 1, groupOf: (key) => key[0]! });
    for (const key of ["busy", "a1", "a2", "a3", "a4", "b1", "c1", "b2"]) queue.add(key);
    for (let i = 0; i < 8; i++) {
      await settle();
      await finish(started.at(-1)!.replace("@0", ""));
    }
    expect(started).toEqual(["busy@0", "a1@0", "b1@0", "c1@0", "a2@0", "b2@0", "a3@0", "a4@0"]);
  });

  test("keeps what is added before it runs", async () => {
    const clock = new VirtualClock();
    const seen: string[] = [];
    const queue = new KeyedQueue({
      clock,
      random: () => 0,
      concurrency: 1,
      handle: async (key) => void seen.push(key),
    });
    queue.add("a");
    queue.addAfter("b", 100);
    await clock.advance(200);
    expect(seen).toEqual([]);
    const abort = new AbortController();
    running.push(abort);
    void queue.run(abort.signal);
    await clock.advance(1);
    expect(seen).toEqual(["a", "b"]);
  });
});

describe("groups", () => {
  const groupOf = (key: string) => key[0]!;
  const add = (queue: KeyedQueue, group: string, count: number) => {
    for (let i = 0; i < count; i++) queue.add(`${group}${i}`, "high");
  };
  const of = (group: string, started: string[]) => started.filter((each) => each.startsWith(group)).length;

  test("have no more than half of the workers alone, so that the next one's key need not wait for theirs", async () => {
    const { queue, started } = setup({ concurrency: 8, groupOf });
    add(queue, "a", 100);
    await settle();
    expect(of("a", started)).toBe(4);
    queue.add("b0", "high");
    await settle();
    expect(of("b", started)).toBe(1);
  });

  test("leave a worker to one more, though several of them are stuck", async () => {
    const { queue, started } = setup({ concurrency: 16, groupOf });
    for (const group of ["a", "b", "c", "d", "e"]) {
      add(queue, group, 100);
      await settle();
      expect(of(group, started)).toBeGreaterThan(0);
    }
  });

  test("have a worker each even when there is only one", async () => {
    const { queue, started, finish } = setup({ concurrency: 1, groupOf });
    queue.add("a0");
    queue.add("b0");
    await settle();
    await finish("a0");
    expect(started).toEqual(["a0@0", "b0@0"]);
  });

  test("go on when their own work is done", async () => {
    const { queue, started, finish } = setup({ concurrency: 4, groupOf });
    add(queue, "a", 10);
    for (let i = 0; i < 10; i++) {
      await settle();
      await finish(`a${i}`);
    }
    expect(started).toHaveLength(10);
    expect(queue.depth).toBe(0);
  });
});

describe("a key that fails", () => {
  test("is tried again for ever: the hundredth time as well as the first", async () => {
    const { clock, queue, started, finish } = setup();
    queue.add("a");
    await settle();
    for (let failures = 1; failures <= 100; failures++) {
      await finish("a", new Error("refused"));
      // No pause is longer than a few minutes.
      for (let minute = 0; minute < 10 && started.length === failures; minute++) {
        await clock.advance(60_000);
        await settle();
      }
      expect(started).toHaveLength(failures + 1);
    }
  });
});

describe("urgency", () => {
  test("decides who goes first", async () => {
    const { queue, started, finish } = setup({ concurrency: 1 });
    queue.add("busy");
    queue.add("resync", "low");
    queue.add("refresh", "normal");
    queue.add("create", "high");
    for (let i = 0; i < 4; i++) {
      await settle();
      await finish(started.at(-1)!.replace("@0", ""));
    }
    expect(started).toEqual(["busy@0", "create@0", "refresh@0", "resync@0"]);
  });

  test("of a key that waits can rise and not fall", async () => {
    const { queue, started, finish } = setup({ concurrency: 1 });
    queue.add("busy");
    queue.add("a", "normal");
    queue.add("b", "low");
    queue.add("b", "high");
    queue.add("b", "low");
    for (let i = 0; i < 3; i++) {
      await settle();
      await finish(started.at(-1)!.replace("@0", ""));
    }
    expect(started).toEqual(["busy@0", "b@0", "a@0"]);
  });

  test("of a key that is added while it is handled holds for the next time", async () => {
    const { queue, started, finish } = setup({ concurrency: 1 });
    queue.add("a", "low");
    await settle();
    queue.add("b", "normal");
    queue.add("a", "high");
    await finish("a");
    expect(started).toEqual(["a@0", "a@0"]);
  });

  test("stays with a key that is due later, and is the highest that it was added with", async () => {
    const { queue, started, clock, finish } = setup({ concurrency: 1 });
    queue.add("busy");
    queue.addAfter("a", 100, "high");
    queue.addAfter("a", 50, "low");
    queue.add("b", "normal");
    await clock.advance(60);
    await finish("busy");
    expect(started).toEqual(["busy@0", "a@60"]);
  });

  test("keeps workers free: half of them from what is low, a quarter from what is not high", async () => {
    const { queue, started } = setup({ concurrency: 8 });
    for (const urgency of ["low", "normal", "high"] as const)
      for (let i = 0; i < 20; i++) queue.add(`${urgency}${i}`, urgency);
    await settle();
    const count = (urgency: string) => started.filter((each) => each.startsWith(urgency)).length;
    expect([count("low"), count("normal"), count("high")]).toEqual([4, 2, 2]);
  });

  test("is kept by a key whose handler throws", async () => {
    const { queue, started, clock, finish } = setup({ concurrency: 1, backoff: { initialMs: 100, maxMs: 100 } });
    queue.add("a", "high");
    await settle();
    queue.add("busy", "high");
    queue.add("b", "normal");
    await finish("a", new Error("boom"));
    await clock.advance(100);
    await finish("busy");
    expect(started).toEqual(["a@0", "busy@0", "a@100"]);
  });
});

describe("adding for later", () => {
  test("waits for the time", async () => {
    const { queue, started, clock } = setup();
    queue.addAfter("a", 1000);
    await clock.advance(999);
    expect(started).toEqual([]);
    await clock.advance(1);
    expect(started).toEqual(["a@1000"]);
  });

  test("brings a key forward and never pushes it back", async () => {
    const { queue, started, clock, finish } = setup();
    queue.addAfter("a", 1000);
    queue.addAfter("a", 5000);
    queue.addAfter("a", 500);
    await clock.advance(600);
    expect(started).toEqual(["a@500"]);
    await finish("a");
    await clock.advance(10_000);
    expect(started).toHaveLength(1);
  });

  test("is overtaken by adding the key now", async () => {
    const { queue, started, clock, finish } = setup();
    queue.addAfter("a", 1000);
    queue.add("a");
    await settle();
    await finish("a");
    await clock.advance(5000);
    expect(started).toEqual(["a@0"]);
  });

  test("works while the key is being handled", async () => {
    const { queue, started, clock, finish } = setup();
    queue.add("a");
    await settle();
    queue.addAfter("a", 100);
    await clock.advance(50);
    await finish("a");
    await clock.advance(100);
    expect(started).toEqual(["a@0", "a@100"]);
  });

  test("needs one timer for any number of keys", () => {
    const { queue, clock } = setup();
    for (let i = 0; i < 1000; i++) queue.addAfter(`k${i}`, 1000 + ((i * 7919) % 1000));
    expect(clock.pending).toBe(1);
  });
});

describe("retrying", () => {
  test("waits longer each time, up to the limit, and anew after forget", async () => {
    const { queue, started, clock, finish } = setup({ backoff: { initialMs: 100, maxMs: 350 } });
    queue.add("a");
    for (let i = 0; i < 4; i++) {
      await clock.advance(0);
      queue.retry("a");
      await finish("a");
      await clock.advance(350);
    }
    expect(started).toEqual(["a@0", "a@100", "a@550", "a@1050", "a@1400"]);
    expect(queue.failures("a")).toBe(4);
    queue.forget("a");
    queue.retry("a");
    await finish("a");
    await clock.advance(100);
    expect(started.at(-1)).toBe("a@1500");
  });

  test("follows a handler that throws", async () => {
    const { queue, started, clock, finish } = setup({ backoff: { initialMs: 100, maxMs: 1000 } });
    queue.add("a");
    await settle();
    await finish("a", new Error("boom"));
    await clock.advance(100);
    expect(started).toEqual(["a@0", "a@100"]);
  });

  test("gives way to a change that comes meanwhile", async () => {
    const { queue, started, finish } = setup();
    queue.add("a");
    await settle();
    queue.add("a");
    await finish("a", new Error("boom"));
    expect(started).toEqual(["a@0", "a@0"]);
  });
});

describe("stopping", () => {
  test("waits for handlers under way and starts no others", async () => {
    const { queue, started, abort, done, finish, clock } = setup({ concurrency: 1 });
    queue.add("a");
    queue.add("b");
    queue.addAfter("c", 10);
    await settle();
    abort.abort();
    let over = false;
    void done.then(() => (over = true));
    await clock.advance(100);
    expect(over).toBe(false);
    await finish("a");
    expect(over).toBe(true);
    expect(started).toEqual(["a@0"]);
    expect(clock.pending).toBe(0);
  });

  test("gives handlers the signal", async () => {
    let aborted = false;
    const { queue, abort, done } = setup({
      handle: (_key, signal) =>
        new Promise((resolve) =>
          signal.addEventListener("abort", () => {
            aborted = true;
            resolve();
          }),
        ),
    });
    queue.add("a");
    await settle();
    abort.abort();
    await done;
    expect(aborted).toBe(true);
  });
});

describe("observing", () => {
  test("tells when nothing is due or under way any more", async () => {
    const { queue, finish } = setup();
    queue.add("a");
    queue.addAfter("later", 60_000);
    let idle = false;
    void queue.idle().then(() => (idle = true));
    await settle();
    expect(idle).toBe(false);
    queue.add("a");
    await finish("a");
    expect(idle).toBe(false);
    await finish("a");
    expect(idle).toBe(true);
  });

  test("measures waiting and work", async () => {
    const seen: string[] = [];
    const { queue, clock, finish } = setup({
      concurrency: 1,
      metrics: {
        onAdd: () => seen.push("add"),
        onStart: (s) => seen.push(`start ${s}`),
        onDone: (s) => seen.push(`done ${s}`),
        onRetry: () => seen.push("retry"),
      },
    });
    queue.add("a");
    queue.add("b");
    await clock.advance(2000);
    expect(queue.workingSeconds()).toEqual([2]);
    await finish("a");
    expect(seen.filter((s) => s.startsWith("start"))).toEqual(["start 0", "start 2"]);
    expect(seen.filter((s) => s.startsWith("done"))).toEqual(["done 2"]);
    expect(queue.depth).toBe(0);
  });
});

describe("any history", () => {
  test("loses no change, never overlaps a key, keeps every key's time, and stays within its concurrency", async () => {
    const key = fc.constantFrom("a", "b", "c");
    const step = fc.oneof(
      fc.record({ op: fc.constant("add" as const), key }),
      fc.record({ op: fc.constant("after" as const), key, ms: fc.integer({ min: 1, max: 50 }) }),
      fc.record({ op: fc.constant("retry" as const), key }),
      fc.record({ op: fc.constant("wait" as const), ms: fc.integer({ min: 1, max: 30 }) }),
    );
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { maxLength: 25 }),
        fc.array(fc.record({ ms: fc.integer({ min: 0, max: 20 }), fails: fc.boolean() }), {
          minLength: 1,
          maxLength: 6,
        }),
        fc.integer({ min: 1, max: 2 }),
        async (steps, works, concurrency) => {
          const clock = new VirtualClock();
          const active = new Set<string>();
          const startedAt = new Map<string, number[]>([
            ["a", []],
            ["b", []],
            ["c", []],
          ]);
          let runs = 0;
          // Collected, because the queue would take a failing assertion for a failing handler.
          const violations: string[] = [];
          const queue = new KeyedQueue({
            clock,
            random: () => 0,
            concurrency,
            backoff: { initialMs: 5, maxMs: 40 },
            handle: async (k) => {
              if (active.has(k)) violations.push(`${k} overlaps`);
              active.add(k);
              if (active.size > concurrency) violations.push(`${active.size} at once`);
              startedAt.get(k)!.push(clock.monotonic());
              // After some runs everything succeeds, so that the history ends.
              const work = runs < 10 ? works[runs % works.length]! : { ms: 1, fails: false };
              runs++;
              await clock.sleep(work.ms);
              active.delete(k);
              if (work.fails) throw new Error("boom");
              queue.forget(k);
            },
          });
          const abort = new AbortController();
          const done = queue.run(abort.signal);
          /** For every request: the key must start at or after the request (a run that began earlier does not count)... */
          const requested: { key: string; at: number; latest: number }[] = [];
          for (const s of steps) {
            const now = clock.monotonic();
            if (s.op === "wait") await clock.advance(s.ms);
            else {
              if (s.op === "add") queue.add(s.key);
              else if (s.op === "after") queue.addAfter(s.key, s.ms);
              else queue.retry(s.key);
              requested.push({
                key: s.key,
                at: now,
                latest: now + (s.op === "add" ? 0 : s.op === "after" ? s.ms : 40),
              });
            }
          }
          await clock.advance(2_000);
          for (const { key: k, at, latest } of requested) {
            // ...and not later than due plus the work of all keys that may stand before it.
            const start = startedAt.get(k)!.find((t) => t >= at);
            expect(start).toBeDefined();
            expect(start! - latest).toBeLessThanOrEqual(20 * 6);
          }
          expect(violations).toEqual([]);
          expect([queue.depth, queue.delayed, active.size]).toEqual([0, 0, 0]);
          abort.abort();
          await done;
        },
      ),
      { numRuns: runs(150) },
    );
  });
});

test("what was added before a handler looks is seen by that look, and what comes after it is handled once more", async () => {
  const { queue, started, finish } = setup();
  queue.add("a");
  // Not yet handled: nobody has looked.
  queue.seen("a");
  await settle();
  queue.add("a");
  queue.seen("a");
  expect(queue.depth).toBe(0);
  await finish("a");
  expect(started).toEqual(["a@0"]);
  queue.add("a");
  await settle();
  queue.seen("a");
  queue.add("a");
  await finish("a");
  expect(started).toEqual(["a@0", "a@0", "a@0"]);
});
