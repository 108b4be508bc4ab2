import { afterEach, describe, expect, test } from "vitest";
import { Reflector } from "../../../src/kube/reflector.ts";
import { Store } from "../../../src/kube/store.ts";
import { KubeTransport, type KubeTransportOptions } from "../../../src/kube/transport.ts";
import type { Logger } from "../../../src/telemetry/logger.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import type { Clock } from "../../../src/util/clock.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { passTime } from "../../e2e/harness/wait.ts";
import { KubeServer, failure, json, type Received } from "../../support/kube-server.ts";
import type { ServerResponse } from "node:http";

const open: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

const pod = (name: string, bytes: number) => ({
  metadata: {
    name,
    namespace: "team-a",
    uid: `uid-${name}`,
    resourceVersion: "1",
    annotations: { a: "x".repeat(bytes) },
  },
});

/** Pauses that cost no time. */
const hurried: Clock = { ...systemClock, sleep: (ms, signal) => systemClock.sleep(Math.min(ms, 1), signal) };

interface Asked {
  limit: number | undefined;
  from: number;
}

/** An API server with these pods, and a reflector of them over the real transport. */
async function start(
  pods: object[],
  options: {
    transport?: Partial<KubeTransportOptions>;
    intercept?: (asked: Asked, reply: ServerResponse) => boolean;
    logger?: Logger;
  } = {},
) {
  const asked: Asked[] = [];
  const answer = (request: Received, reply: ServerResponse) => {
    const query = new URL(request.url, "http://x").searchParams;
    if (query.has("watch")) return reply.writeHead(200).flushHeaders();
    const page = {
      limit: query.has("limit") ? Number(query.get("limit")) : undefined,
      from: Number(query.get("continue") ?? 0),
    };
    asked.push(page);
    if (options.intercept?.(page, reply)) return;
    const end = page.from + (page.limit ?? pods.length);
    const token = end < pods.length ? String(end) : undefined;
    json(reply, 200, {
      kind: "PodList",
      metadata: { resourceVersion: "10", continue: token },
      items: pods.slice(page.from, end),
    });
  };
  const server = await KubeServer.start(answer);
  const kube = new KubeTransport({
    kubeConfig: server.kubeConfig(),
    clock: systemClock,
    logger: silentLogger,
    ...options.transport,
  });
  const store = new Store({ logger: silentLogger });
  const logger = options.logger ?? silentLogger;
  const reflector = new Reflector({ kube, path: "/api/v1/pods", store, clock: hurried, random: Math.random, logger });
  const stop = new AbortController();
  const running = reflector.run(stop.signal);
  open.push(
    () => server.stop(),
    () => kube.close(),
    () => running,
    () => stop.abort(),
  );
  await store.hasSynced(AbortSignal.timeout(10_000));
  return { store, asked, reflector };
}

describe("a list", () => {
  test("of more than a reply may have comes in smaller pages, without beginning again", async () => {
    const pods = Array.from({ length: 60 }, (_, i) => pod(`p${i}`, 12_000));
    const { store, asked, reflector } = await start(pods, { transport: { maxReplyBytes: 100_000 } });
    expect(store.size).toBe(60);
    expect(asked.slice(0, 5).map(({ limit, from }) => [limit, from])).toEqual([
      [500, 0],
      [125, 0],
      [31, 0],
      [7, 0],
      [7, 7],
    ]);
    expect(reflector.counters).toMatchObject({ lists: 1, skipped: 0 });
  });

  test("of five thousand pods comes in ten pages, each let go of before the next is asked for", async () => {
    const pods = Array.from({ length: 5_000 }, (_, i) => pod(`p${i}`, 4_000));
    const { store, asked, reflector } = await start(pods);
    expect(store.size).toBe(5_000);
    expect(asked.map(({ limit, from }) => [limit, from])).toEqual(Array.from({ length: 10 }, (_, i) => [500, i * 500]));
    expect(reflector.counters).toMatchObject({ lists: 1, skipped: 0 });
  });

  test("whose objects differ in size comes in, however small the pages have to be", async () => {
    const pods = Array.from({ length: 40 }, (_, i) => pod(`p${i}`, i === 20 ? 40_000 : 100));
    const { store } = await start(pods, { transport: { maxReplyBytes: 82_000 } });
    expect(store.size).toBe(40);
  });

  test("comes in without the one object that is larger than any legal one, which is told", async () => {
    const told: object[] = [];
    const logger = { ...silentLogger, error: (fields: object) => told.push(fields) };
    const { store, reflector } = await start([pod("a", 10), pod("huge", 200_000), pod("b", 10)], {
      transport: { maxReplyBytes: 100_000 },
      logger,
    });
    expect(store.list().map((each) => each.metadata?.name)).toEqual(["a", "b"]);
    expect(reflector.counters.skipped).toBe(1);
    expect(told).toEqual([{ path: "/api/v1/pods", namespace: "team-a", name: "huge", bytes: expect.any(Number) }]);
  });

  test("that is too large at once comes in pages again, though a page had expired before", async () => {
    const pods = Array.from({ length: 30 }, (_, i) => pod(`p${i}`, 9_000));
    let expired = false;
    const { store, asked } = await start(pods, {
      transport: { maxReplyBytes: 100_000 },
      intercept: ({ from }, reply) => {
        if (from === 0 || expired) return false;
        expired = true;
        json(reply, 410, failure(410, "Expired"));
        return true;
      },
    });
    expect(store.size).toBe(30);
    expect(asked.filter(({ limit }) => limit === undefined)).toEqual([{ limit: undefined, from: 0 }]);
  });

  test("may take longer than a request may, as long as it goes on coming", async () => {
    const text = JSON.stringify({ metadata: { resourceVersion: "1" }, items: [pod("a", 100)] });
    const { store, reflector } = await start([], {
      transport: { timeoutMs: 500 },
      intercept: (_asked, reply) => {
        void (async () => {
          for (let at = 0; at < text.length; at += 20) {
            await passTime(80, "slowness itself is tried");
            reply.write(text.slice(at, at + 20));
          }
          reply.end();
        })();
        return true;
      },
    });
    expect(store.size).toBe(1);
    expect(reflector.counters.lists).toBe(1);
  });

  test("that is silent for too long is asked for again with fewer objects", async () => {
    const pods = Array.from({ length: 200 }, (_, i) => pod(`p${i}`, 10));
    const { store } = await start(pods, {
      transport: { timeoutMs: 100 },
      intercept: ({ limit }, reply) => {
        if (limit !== undefined && limit <= 40) return false;
        reply.write('{"items":[');
        return true;
      },
    });
    expect(store.size).toBe(200);
  });
});
