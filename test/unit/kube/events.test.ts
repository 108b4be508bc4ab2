import { afterEach, describe, expect, test } from "vitest";
import { EventRecorder, type DropReason, type EventRecorderOptions } from "../../../src/kube/events.ts";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { ScriptedKube, apiError } from "../../support/scripted-kube.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";

const running: AbortController[] = [];
afterEach(() => {
  for (const abort of running.splice(0)) abort.abort();
});

const pod = {
  apiVersion: "v1",
  kind: "Pod",
  metadata: { namespace: "ns", name: "web", uid: "u1", resourceVersion: "7" },
};

const about = (namespace: string, name: string) => ({ apiVersion: "v1", kind: "Pod", namespace, name, uid: name });

function setup(options: Partial<EventRecorderOptions> & { start?: boolean } = {}) {
  const kube = new ScriptedKube();
  const clock = new VirtualClock();
  const dropped: DropReason[] = [];
  const recorder = new EventRecorder({
    kube,
    clock,
    logger: silentLogger,
    component: "kubelet",
    host: "node-1",
    onDropped: (reason) => dropped.push(reason),
    ...options,
  });
  const abort = new AbortController();
  running.push(abort);
  if (options.start ?? true) void recorder.run(abort.signal);
  const bodies = () => kube.requests.map((r) => r.body as Record<string, unknown>);
  const writes = () => kube.requests.map((r) => r.method);
  return { kube, clock, dropped, recorder, abort, bodies, writes };
}

describe("EventRecorder", () => {
  test.each([
    { type: "Warning" as const, patienceMs: 200 },
    { type: "Normal" as const, patienceMs: 10_000 },
  ])("lets more urgent work go before a $type event for $patienceMs ms at most", async ({ type, patienceMs }) => {
    let isBusy = true;
    const { recorder, clock, writes } = setup({ isBusy: () => isBusy });
    recorder.event(pod, type, "Started", "Container started");
    await clock.advance(patienceMs - 10);
    const early = writes().length;
    await clock.advance(30);
    const inTheEnd = writes().length;
    recorder.event(pod, type, "Killing", "Stopping container app");
    isBusy = false;
    await clock.advance(20);
    expect([early, inTheEnd, writes().length]).toEqual([0, 1, 2]);
  });

  test("sends a warning soon though normal events wait for a quieter moment", async () => {
    const { recorder, clock, bodies } = setup({ isBusy: () => true });
    recorder.event(pod, "Normal", "Started", "Container started");
    await clock.advance(1_000);
    recorder.event(pod, "Warning", "Failed", "It broke");
    await clock.advance(250);
    expect(bodies().map((body) => (body as { reason: string }).reason)).toContain("Failed");
  });

  test("creates an event as a kubelet does", async () => {
    const { recorder, kube } = setup();
    recorder.event(pod, "Normal", "Started", "Container started");
    await settle();
    expect(kube.requests[0]).toMatchObject({ method: "POST", path: "/api/v1/namespaces/ns/events" });
    expect(kube.requests[0]?.body).toEqual({
      apiVersion: "v1",
      kind: "Event",
      metadata: { name: expect.stringMatching(/^web\.[0-9a-f]{16}$/), namespace: "ns" },
      involvedObject: { apiVersion: "v1", kind: "Pod", namespace: "ns", name: "web", uid: "u1", resourceVersion: "7" },
      type: "Normal",
      reason: "Started",
      message: "Container started",
      source: { component: "kubelet", host: "node-1" },
      firstTimestamp: "2026-01-01T00:00:00Z",
      lastTimestamp: "2026-01-01T00:00:00Z",
      count: 1,
      reportingComponent: "kubelet",
      reportingInstance: "node-1",
    });
  });

  test("names the event of an object with the longest of names so that the API server takes it", async () => {
    const { recorder, bodies } = setup();
    recorder.event(
      { ...pod, metadata: { ...pod.metadata, name: `${"a".repeat(235)}.${"b".repeat(17)}` } },
      "Normal",
      "Started",
      "x",
    );
    await settle();
    const { name } = bodies()[0]!["metadata"] as { name: string };
    expect(name.length).toBeLessThanOrEqual(253);
    expect(name).toMatch(/^a{235}\.[0-9a-f]{16}$/);
    expect(bodies()[0]!["involvedObject"]).toMatchObject({ name: expect.stringMatching(/b{17}$/) });
  });

  test("keeps events of objects without a namespace in the default namespace", async () => {
    const { recorder, kube } = setup();
    recorder.event({ apiVersion: "v1", kind: "Node", name: "node-1", uid: "node-1" }, "Normal", "Starting", "x");
    await settle();
    expect(kube.requests[0]?.path).toBe("/api/v1/namespaces/default/events");
  });

  test("counts a repeated event up instead of creating it again", async () => {
    const { recorder, kube, clock, writes } = setup();
    for (let i = 0; i < 3; i++) {
      recorder.event(pod, "Warning", "BackOff", "Back-off restarting");
      await clock.advance(1_000);
    }
    expect(writes()).toEqual(["POST", "PATCH", "PATCH"]);
    const { name } = (kube.requests[0]!.body as { metadata: { name: string } }).metadata;
    expect(kube.requests[2]).toMatchObject({
      path: `/api/v1/namespaces/ns/events/${name}`,
      body: { count: 3, lastTimestamp: "2026-01-01T00:00:02Z" },
    });
  });

  test("creates the event anew when the one to count up has expired", async () => {
    const { recorder, kube, writes } = setup();
    recorder.event(pod, "Normal", "Pulled", "x");
    await settle();
    kube.answer = (request: KubeRequest) => {
      if (request.method === "PATCH") throw apiError(404, "NotFound");
      return {};
    };
    recorder.event(pod, "Normal", "Pulled", "x");
    await settle();
    expect(writes()).toEqual(["POST", "PATCH", "POST"]);
  });

  test("combines many similar events into one", async () => {
    const { recorder, bodies, writes } = setup();
    for (let i = 0; i < 12; i++) recorder.event(pod, "Warning", "Failed", `attempt ${i}`);
    await settle(20);
    expect(writes()).toEqual([...Array<string>(10).fill("POST"), "PATCH", "PATCH"]);
    expect(bodies()[8]?.["message"]).toBe("attempt 8");
    expect(bodies()[9]?.["message"]).toBe("(combined from similar events): attempt 9");
    expect(bodies()[11]).toMatchObject({ count: 3, message: "(combined from similar events): attempt 11" });
  });

  test("cuts an object off after 25 events and lets one through every five minutes", async () => {
    const { recorder, kube, clock, dropped } = setup();
    for (let i = 0; i < 30; i++) recorder.event(pod, "Normal", "Same", "x");
    await settle(40);
    expect(kube.requests).toHaveLength(25);
    expect(dropped).toEqual(Array(5).fill("spam"));
    recorder.event({ ...pod, metadata: { ...pod.metadata, name: "other", uid: "u2" } }, "Normal", "Same", "x");
    await clock.advance(300_000);
    recorder.event(pod, "Normal", "Same", "x");
    await settle();
    expect(kube.requests).toHaveLength(27);
  });

  test("drops events beyond the queue's limit instead of making anybody wait", () => {
    const { recorder, dropped } = setup({ start: false, limits: { queue: 2 } });
    for (let i = 0; i < 3; i++) recorder.event(pod, "Normal", "R", `m${i}`);
    expect(recorder.depth).toBe(2);
    expect(dropped).toEqual(["queue_full"]);
  });

  test("sends no more than its rate allows, what exceeds it twice a second and together", async () => {
    const { recorder, kube, clock } = setup({ limits: { perSecond: 10, burst: 6 } });
    for (let i = 0; i < 20; i++) recorder.event(pod, "Normal", `R${i}`, "m");
    await settle(40);
    expect(kube.requests).toHaveLength(6);
    await clock.advance(490);
    expect(kube.requests).toHaveLength(6);
    const before = clock.fired;
    await clock.advance(20);
    await settle(40);
    expect(kube.requests).toHaveLength(6 + 5);
    expect(clock.fired - before).toBeLessThanOrEqual(2);
    await clock.advance(500);
    await settle(40);
    expect(kube.requests).toHaveLength(6 + 10);
  });

  test("gives up at once on an event that the server refuses", async () => {
    const { recorder, kube, dropped } = setup();
    kube.answer = () => {
      throw apiError(403, "Forbidden", { details: { causes: [{ reason: "NamespaceTerminating" }] } });
    };
    recorder.event(pod, "Normal", "R", "m");
    await settle();
    expect(kube.requests).toHaveLength(1);
    expect(dropped).toEqual(["rejected"]);
  });

  test("does not repeat an event at which a namespace's webhook fails, nor lets others wait for it", async () => {
    const { recorder, kube, dropped, clock } = setup();
    kube.answer = ({ path }: KubeRequest) => {
      if (path.includes("/broken/")) throw apiError(500, "InternalError");
      return {};
    };
    for (let i = 0; i < 10; i++) recorder.event(about("broken", `p${i}`), "Normal", "R", "m");
    recorder.event(pod, "Normal", "R", "m");
    await clock.advance(1_000);
    expect(kube.requests).toHaveLength(11);
    expect(dropped).toEqual(Array(10).fill("rejected"));
  });

  test("does not let a namespace wait for another whose webhook is slow", async () => {
    const { recorder, kube } = setup();
    kube.answer = ({ path }: KubeRequest) => (path.includes("/slow/") ? new Promise(() => {}) : {});
    for (let i = 0; i < 10; i++) recorder.event(about("slow", `p${i}`), "Normal", "R", "m");
    recorder.event(pod, "Normal", "R", "m");
    await settle();
    const asked = kube.requests.map(({ path }) => path.split("/")[4]);
    expect(asked).toEqual(["slow", "ns"]);
  });

  test("repeats what the server asks to be repeated later, and when it says", async () => {
    const { recorder, kube, clock, dropped } = setup();
    kube.answer = () => {
      throw apiError(503, "ServiceUnavailable", { retryAfterMs: 7_000 });
    };
    recorder.event(pod, "Normal", "R", "m");
    await clock.advance(6_900);
    expect(kube.requests).toHaveLength(1);
    kube.answer = () => ({});
    await clock.advance(200);
    expect(kube.requests).toHaveLength(2);
    expect(dropped).toEqual([]);
  });

  test("sends warnings before what is normal", async () => {
    const { recorder, bodies, abort } = setup({ start: false });
    recorder.event(pod, "Normal", "Pulled", "m");
    recorder.event(pod, "Warning", "Failed", "m");
    recorder.event(pod, "Normal", "Created", "m");
    void recorder.run(abort.signal);
    await settle(20);
    expect(bodies().map((body) => body["reason"])).toEqual(["Failed", "Pulled", "Created"]);
  });

  test("drops normal events of the namespace that has most of them when there is no room, and no warning", async () => {
    const { recorder, bodies, abort, dropped } = setup({ start: false, limits: { queue: 5 } });
    recorder.event(pod, "Normal", "Quiet", "m");
    for (let i = 0; i < 8; i++) recorder.event(about("loud", `p${i}`), "Normal", "Loud", "m");
    for (let i = 0; i < 3; i++) recorder.event(pod, "Warning", "Failed", `m${i}`);
    void recorder.run(abort.signal);
    await settle(20);
    expect(dropped).toHaveLength(7);
    expect(
      bodies()
        .map((body) => String(body["reason"]))
        .sort(),
    ).toEqual(["Failed", "Failed", "Failed", "Loud", "Quiet"]);
  });

  test("looks for a quieter moment once for all that waits, however long others are busy", async () => {
    const { recorder, kube, clock } = setup({ isBusy: () => true });
    for (let i = 0; i < 20; i++) recorder.event(pod, "Warning", `R${i}`, "m");
    await clock.advance(230);
    expect(kube.requests).toHaveLength(20);
  });

  test("uses connections of its own", async () => {
    const { recorder, kube } = setup();
    for (let i = 0; i < 2; i++) recorder.event(pod, "Normal", "R", "m");
    await settle();
    expect(kube.requests.map(({ method, lane }) => [method, lane])).toEqual([
      ["POST", "event"],
      ["PATCH", "event"],
    ]);
  });

  test("holds events back while the API server is away and sends them when it is back", async () => {
    const { recorder, kube, clock, dropped } = setup();
    kube.answer = () => {
      throw apiError(0, "ConnectionRefused");
    };
    recorder.event(pod, "Normal", "R", "m");
    await clock.advance(5_000);
    kube.answer = () => ({});
    await clock.advance(10_000);
    expect(dropped).toEqual([]);
    expect(recorder.depth).toBe(0);
    const sent = kube.requests.length;
    await clock.advance(60_000);
    expect(kube.requests).toHaveLength(sent);
  });

  test("flushes what is queued", async () => {
    const { recorder, kube } = setup();
    recorder.event(pod, "Normal", "A", "m");
    recorder.event(pod, "Normal", "B", "m");
    await recorder.flush(new AbortController().signal);
    expect(kube.requests).toHaveLength(2);
    await recorder.flush(new AbortController().signal);
  });

  test("stops flushing when told to", async () => {
    const { recorder } = setup({ start: false });
    recorder.event(pod, "Normal", "A", "m");
    const abort = new AbortController();
    const flushing = recorder.flush(abort.signal);
    abort.abort(new Error("late"));
    await expect(flushing).rejects.toThrow("late");
  });
});
