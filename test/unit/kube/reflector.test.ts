import { afterEach, describe, expect, test } from "vitest";
import { Reflector, type ReflectorOptions } from "../../../src/kube/reflector.ts";
import { Store } from "../../../src/kube/store.ts";
import { ReplyTooLargeError } from "../../../src/kube/errors.ts";
import type { KubeRequest, WatchEvent } from "../../../src/kube/kube.ts";
import type { KubeObject } from "../../../src/kube/wire.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { ScriptedKube, apiError } from "../../support/scripted-kube.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";

const obj = (name: string, resourceVersion: string, uid = `uid-${name}`): KubeObject => ({
  metadata: { namespace: "ns", name, uid, resourceVersion },
});
const event = (type: "ADDED" | "MODIFIED" | "DELETED", object: KubeObject): WatchEvent<KubeObject> => ({
  type,
  object,
});
const bookmark = (resourceVersion: string): WatchEvent<unknown> => ({
  type: "BOOKMARK",
  object: { metadata: { resourceVersion } },
});
const list = (resourceVersion: string, items: KubeObject[], token?: string) => ({
  kind: "PodList",
  apiVersion: "v1",
  metadata: { resourceVersion, ...(token && { continue: token }) },
  items,
});

const running: AbortController[] = [];
afterEach(() => {
  for (const abort of running.splice(0)) abort.abort();
});

function setup(options: Partial<ReflectorOptions<KubeObject>> = {}) {
  const kube = new ScriptedKube();
  kube.answer = () => list("10", [obj("a", "3")]);
  const clock = new VirtualClock();
  const store = new Store<KubeObject>({ logger: silentLogger });
  const errors: Error[] = [];
  const reflector = new Reflector<KubeObject>({
    kube,
    path: "/api/v1/pods",
    query: { fieldSelector: "spec.nodeName=n" },
    store,
    clock,
    random: () => 0.5,
    logger: silentLogger,
    onError: (error) => errors.push(error),
    ...options,
  });
  const abort = new AbortController();
  running.push(abort);
  const names = () =>
    store
      .list()
      .map((o) => o.metadata?.name ?? "")
      .toSorted((a, b) => a.localeCompare(b));
  return { kube, clock, store, reflector, errors, abort, names };
}

const begin = (s: ReturnType<typeof setup>) => {
  const done = s.reflector.run(s.abort.signal);
  return settle().then(() => ({ done }));
};

describe("listing", () => {
  test("fills the store from every page and only then says that it is in sync", async () => {
    const s = setup();
    const synced: boolean[] = [];
    s.kube.answer = (request: KubeRequest) => {
      synced.push(s.store.synced);
      return request.query?.["continue"] === "next" ? list("10", [obj("b", "4")]) : list("10", [obj("a", "3")], "next");
    };
    await begin(s);
    expect(s.names()).toEqual(["a", "b"]);
    expect(synced).toEqual([false, false]);
    expect(s.kube.requests[0]?.query).toMatchObject({ fieldSelector: "spec.nodeName=n", limit: 500 });
  });

  test("gives list items the kind that watched objects have", async () => {
    const s = setup();
    await begin(s);
    expect(s.store.list()[0]).toMatchObject({ kind: "Pod", apiVersion: "v1" });
  });

  test("starts again without pages when a page has expired", async () => {
    const s = setup();
    s.kube.answer = (request: KubeRequest) => {
      if (request.query?.["continue"]) throw apiError(410, "Expired");
      return request.query?.["limit"]
        ? list("10", [obj("a", "3")], "next")
        : list("12", [obj("a", "3"), obj("b", "4")]);
    };
    await begin(s);
    expect(s.store.synced).toBe(false);
    await s.clock.advance(2_000);
    expect(s.names()).toEqual(["a", "b"]);
    expect(s.kube.current.request.query).toMatchObject({ resourceVersion: "12" });
  });

  test("is tried again for ever, with pauses from 0.8 s that double up to 30 s", async () => {
    const s = setup({ random: () => 0 });
    s.kube.answer = () => {
      throw apiError(503, "ServiceUnavailable");
    };
    await begin(s);
    const at: number[] = [0];
    s.kube.answer = () => {
      at.push(s.clock.monotonic());
      throw apiError(503, "ServiceUnavailable");
    };
    await s.clock.advance(120_000);
    const pauses = at.slice(1).map((t, i) => Math.round(t - at[i]!));
    expect(pauses).toEqual([800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
  });

  test("skips items without UID and items that are not accepted, and counts them", async () => {
    const s = setup({ accept: (o) => o.metadata?.name !== "foreign" });
    s.kube.answer = () => list("10", [obj("a", "1"), obj("foreign", "2"), { metadata: { name: "none" } }]);
    await begin(s);
    expect(s.names()).toEqual(["a"]);
    expect(s.reflector.counters.skipped).toBe(2);
  });
});

describe("watching", () => {
  test("begins at the list's version, asks for bookmarks and an end in 5 to 10 minutes", async () => {
    const s = setup();
    await begin(s);
    expect(s.kube.current.request.query).toEqual({
      fieldSelector: "spec.nodeName=n",
      resourceVersion: "10",
      allowWatchBookmarks: true,
      timeoutSeconds: 450,
    });
  });

  test("applies what comes", async () => {
    const s = setup();
    await begin(s);
    s.kube.current.send(
      event("ADDED", obj("b", "11")),
      event("MODIFIED", obj("a", "12")),
      event("DELETED", obj("b", "13")),
    );
    await settle();
    expect(s.names()).toEqual(["a"]);
    expect(s.store.get("uid-a")?.metadata?.resourceVersion).toBe("12");
  });

  test("goes on at once from the last version when the server ends it", async () => {
    const s = setup();
    await begin(s);
    s.kube.current.send(event("ADDED", obj("b", "11")));
    await s.clock.advance(300_000 / 2);
    s.kube.current.end();
    await settle();
    expect(s.kube.watches).toHaveLength(2);
    expect(s.kube.current.request.query).toMatchObject({ resourceVersion: "11" });
  });

  test("goes on from a bookmark", async () => {
    const s = setup();
    await begin(s);
    s.kube.current.send(bookmark("99"));
    await settle();
    s.kube.current.break(apiError(0, "Transport"));
    await s.clock.advance(2_000);
    expect(s.kube.current.request.query).toMatchObject({ resourceVersion: "99" });
    expect(s.reflector.counters.bookmarks).toBe(1);
  });

  test.each([
    ["the connection breaks", apiError(0, "Transport")],
    ["the server refuses connections", apiError(0, "ConnectionRefused")],
    ["the server answers 500", apiError(500, "InternalError")],
    ["the server answers 403", apiError(403, "Forbidden")],
  ])("resumes without a new list when %s", async (_name, fault) => {
    const s = setup();
    await begin(s);
    s.kube.current.break(fault);
    await s.clock.advance(2_000);
    expect(s.kube.watches).toHaveLength(2);
    expect(s.kube.requests).toHaveLength(1);
    expect(s.reflector.counters).toMatchObject({ watchErrors: 1, lists: 1 });
    expect(s.errors).toEqual([fault]);
  });

  test("resumes without a new list after an in-stream error other than expired", async () => {
    const s = setup();
    await begin(s);
    s.kube.current.send({
      type: "ERROR",
      object: { code: 500, reason: "InternalError", message: "etcd leader changed" },
    });
    await s.clock.advance(2_000);
    expect(s.kube.watches).toHaveLength(2);
    expect(s.kube.requests).toHaveLength(1);
    expect(s.errors[0]?.message).toContain("etcd leader changed");
  });

  test.each([
    [
      "in the stream",
      (s: ReturnType<typeof setup>) => s.kube.current.send({ type: "ERROR", object: { code: 410, reason: "Expired" } }),
    ],
    ["by status", (s: ReturnType<typeof setup>) => s.kube.current.break(apiError(410, "Gone"))],
  ])("lists again when its version has expired, said %s, and deletes what is gone", async (_name, expire) => {
    const s = setup();
    await begin(s);
    s.kube.answer = () => list("50", [obj("c", "40")]);
    expire(s);
    await s.clock.advance(2_000);
    expect(s.names()).toEqual(["c"]);
    expect(s.kube.current.request.query).toMatchObject({ resourceVersion: "50" });
    expect(s.reflector.counters.relists.expired).toBe(1);
  });

  test("lists again after an event that is too large to take, which it would meet for ever otherwise", async () => {
    const s = setup();
    await begin(s);
    s.kube.answer = () => list("50", [obj("a", "3"), obj("b", "40")]);
    s.kube.current.break(new ReplyTooLargeError("Watch /api/v1/pods sent an event of more than 9 bytes"));
    await s.clock.advance(2_000);
    expect(s.names()).toEqual(["a", "b"]);
    expect(s.kube.current.request.query).toMatchObject({ resourceVersion: "50" });
    expect(s.reflector.counters.relists.too_large_event).toBe(1);
  });

  test("lists again when the server is behind its version, after Retry-After", async () => {
    const s = setup();
    await begin(s);
    const details = { causes: [{ reason: "ResourceVersionTooLarge" }] };
    s.kube.current.break(apiError(504, "Timeout", { details, retryAfterMs: 5_000 }));
    await s.clock.advance(4_900);
    expect(s.kube.requests).toHaveLength(1);
    await s.clock.advance(200);
    expect(s.kube.requests).toHaveLength(2);
  });

  test("honours Retry-After when the server is overloaded", async () => {
    const s = setup();
    await begin(s);
    s.kube.current.break(apiError(429, "TooManyRequests", { retryAfterMs: 7_000 }));
    await s.clock.advance(6_900);
    expect(s.kube.watches).toHaveLength(1);
    await s.clock.advance(200);
    expect(s.kube.watches).toHaveLength(2);
  });

  test("is back within a minute, whatever a proxy's maintenance page says", async () => {
    const s = setup();
    await begin(s);
    s.kube.current.break(apiError(503, "HTTP503", { retryAfterMs: 3_600_000 }));
    await s.clock.advance(60_100);
    expect(s.kube.watches).toHaveLength(2);
  });

  test("does not hammer a server that ends watches at once", async () => {
    const s = setup({ random: () => 0 });
    s.kube.onWatch = (watch) => watch.end();
    await begin(s);
    await s.clock.advance(10_000);
    expect(s.kube.watches.length).toBeLessThanOrEqual(5);
  });

  test("reconnects from the last version after three minutes of silence", async () => {
    const s = setup();
    await begin(s);
    await s.clock.advance(100_000);
    s.kube.current.send(bookmark("20"));
    await s.clock.advance(179_000);
    expect(s.kube.watches).toHaveLength(1);
    await s.clock.advance(3_000);
    expect(s.kube.watches).toHaveLength(2);
    expect(s.kube.watches[0]?.closed).toBe(true);
    expect(s.kube.current.request.query).toMatchObject({ resourceVersion: "20" });
    expect(s.kube.requests).toHaveLength(1);
  });

  test("pauses longer and longer while watches break at once, and shortly again after one that held for a second", async () => {
    const s = setup({ random: () => 0 });
    await begin(s);
    const pauses: number[] = [];
    for (const openMs of [0, 500, 0, 999, 1_000]) {
      await s.clock.advance(openMs);
      const [before, brokeAt] = [s.kube.watches.length, s.clock.monotonic()];
      s.kube.current.break(apiError(0, "Transport"));
      await settle();
      while (s.kube.watches.length === before) await s.clock.advance(100);
      pauses.push(s.clock.monotonic() - brokeAt);
    }
    expect(pauses).toEqual([800, 1600, 3200, 6400, 800]);
  });

  test("does not take a connection that is long refused for a watch that held", async () => {
    const s = setup({ random: () => 0 });
    await begin(s);
    s.kube.onWatch = () => {
      throw apiError(0, "Transport");
    };
    s.kube.current.break(apiError(0, "Transport"));
    await s.clock.advance(60_000);
    expect(s.kube.watches.length).toBeLessThan(9);
  });

  test("lists soon when a version has expired, however often the connection broke before", async () => {
    const s = setup({ random: () => 0 });
    await begin(s);
    for (const pauseMs of [800, 1600, 3200, 6400]) {
      s.kube.current.break(apiError(0, "Transport"));
      await s.clock.advance(pauseMs);
    }
    s.kube.current.break(apiError(410, "Expired"));
    await s.clock.advance(800);
    expect(s.kube.requests).toHaveLength(2);
  });

  test("lists more and more seldom while each new version has expired at once", async () => {
    const s = setup({ random: () => 0 });
    s.kube.onWatch = () => {
      throw apiError(410, "Expired");
    };
    await begin(s);
    await s.clock.advance(800 + 1600 + 3200 + 6400);
    expect(s.kube.requests).toHaveLength(5);
  });

  test("survives a listener that throws", async () => {
    const s = setup();
    s.store.onChange(() => {
      throw new Error("boom");
    });
    await begin(s);
    s.kube.current.send(event("ADDED", obj("b", "11")));
    await settle();
    expect(s.names()).toEqual(["a", "b"]);
    expect(s.kube.watches).toHaveLength(1);
  });

  test("skips events that it does not understand", async () => {
    const s = setup();
    await begin(s);
    s.kube.current.send({ type: "FUTURE", object: {} } as unknown as WatchEvent<unknown>);
    s.kube.current.send({ type: "ADDED", object: null } as unknown as WatchEvent<unknown>);
    s.kube.current.send(event("ADDED", obj("b", "11")));
    await settle();
    expect(s.names()).toEqual(["a", "b"]);
    expect(s.reflector.counters.skipped).toBe(2);
  });

  test("tells apart a deletion and a creation that were merged into one event", async () => {
    const s = setup();
    await begin(s);
    const heard: string[] = [];
    s.store.onChange((c) => heard.push(`${c.type} ${c.object.metadata?.uid}`));
    s.kube.current.send(event("MODIFIED", obj("a", "11", "uid-new")));
    await settle();
    expect(heard).toEqual(["delete uid-a", "upsert uid-new"]);
  });
});

describe("stopping", () => {
  test("ends the watch and resolves", async () => {
    const s = setup();
    const { done } = await begin(s);
    s.abort.abort();
    await done;
    expect(s.kube.current.closed).toBe(true);
    expect(s.clock.pending).toBe(0);
  });

  test("resolves while it waits to try again", async () => {
    const s = setup();
    s.kube.answer = () => {
      throw apiError(503, "ServiceUnavailable");
    };
    const { done } = await begin(s);
    s.abort.abort();
    await done;
    expect(s.clock.pending).toBe(0);
  });
});
