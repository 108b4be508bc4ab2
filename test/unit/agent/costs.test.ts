/**
 * What pods cost, as counts: of requests that reach the API server and the backend, and of timers that fire, in time that
 * stands still until it is moved. Counted where they arrive, so on no machine do they come out otherwise. A change that
 * makes them grow has to say so here.
 */
import { Session, type HeapProfiler } from "node:inspector/promises";
import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import { podPath } from "../../../src/kube/paths.ts";
import { KubeTransport } from "../../../src/kube/transport.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { KubeServer, json } from "../../support/kube-server.ts";
import { World, type Agent } from "./world.ts";

const PODS = 100;

/** What `work` sends on behalf of pods, by method and kind of path; watches and what concerns the Node are left out. */
async function requestsOf(agent: Agent, work: () => Promise<void>): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  agent.onRequest = ({ method, path, metadataOnly }: KubeRequest) => {
    if (!path.includes("/pods")) return;
    const kind = path
      .replace(/\/namespaces\/.*/, path.endsWith("/status") ? "/POD/status" : "/POD")
      .replace("/api/v1", "");
    const key = `${method} ${kind}${metadataOnly ? " (metadata)" : ""}`;
    counts[key] = (counts[key] ?? 0) + 1;
  };
  await work();
  agent.onRequest = () => undefined;
  return counts;
}

/** Bytes of the bodies that `work` sends on behalf of pods. */
async function bytesOf(agent: Agent, work: () => Promise<void>): Promise<number> {
  let bytes = 0;
  agent.onRequest = ({ path, body }: KubeRequest) => {
    if (path.includes("/pods") && body !== undefined) bytes += Buffer.byteLength(JSON.stringify(body));
  };
  await work();
  agent.onRequest = () => undefined;
  return bytes;
}

/**
 * Bytes that are allocated while `work` runs by the parts of the agent that look after pods and by what these call,
 * whether or not they are freed: by V8's own sampling, of which a hundred pods are thousands of samples.
 */
async function allocatedBy(work: () => Promise<void>): Promise<number> {
  const session = new Session();
  session.connect();
  await session.post("HeapProfiler.startSampling", {
    samplingInterval: 1024,
    includeObjectsCollectedByMajorGC: true,
    includeObjectsCollectedByMinorGC: true,
  });
  await work();
  const { profile } = await session.post("HeapProfiler.stopSampling");
  session.disconnect();
  const sum = (node: HeapProfiler.SamplingHeapProfileNode, isOurs: boolean): number => {
    const counts = isOurs || /\/src\/(pods|podspec)\//.test(node.callFrame.url);
    return node.children.reduce((bytes, child) => bytes + sum(child, counts), counts ? node.selfSize : 0);
  };
  return sum(profile.head, false);
}

async function running(world: World): Promise<Agent> {
  const agent = world.agent().start();
  await world.clock.advance(1_000);
  return agent;
}

test("a pod costs two requests until it runs, whose replies are metadata, and one create", async () => {
  const world = new World();
  const agent = await running(world);
  const sent = await requestsOf(agent, async () => {
    for (let i = 0; i < PODS; i++) world.createPod(`p-${i}`);
    await world.clock.advance(5_000);
  });
  expect(Object.values(world.phases()).filter((phase) => phase === "Running")).toHaveLength(PODS);
  expect(sent).toEqual({ "GET /POD (metadata)": PODS, "PATCH /POD/status (metadata)": PODS });
  expect(world.effects.filter((each) => each.startsWith("createPod"))).toHaveLength(PODS);
  await agent.stop();
});

test("a pod's end costs two requests: its last status and its removal", async () => {
  const world = new World();
  const agent = await running(world);
  for (let i = 0; i < PODS; i++) world.createPod(`p-${i}`);
  await world.clock.advance(5_000);
  const sent = await requestsOf(agent, async () => {
    for (let i = 0; i < PODS; i++) world.deletePod(`p-${i}`);
    await world.clock.advance(5_000);
  });
  expect(world.pods()).toEqual([]);
  expect(sent).toEqual({ "PATCH /POD/status (metadata)": PODS, "DELETE /POD (metadata)": PODS });
  await agent.stop();
});

test("a pod is looked at once until it runs, and hardly oftener for its end: what a look has seen needs none", async () => {
  const world = new World();
  const agent = await running(world);
  agent.looks = 0;
  for (let i = 0; i < PODS; i++) world.createPod(`p-${i}`);
  await world.clock.advance(5_000);
  const start = agent.looks;
  for (let i = 0; i < PODS; i++) world.deletePod(`p-${i}`);
  await world.clock.advance(5_000);
  expect(world.pods()).toEqual([]);
  expect(start / PODS).toBe(1);
  // Some wait for a worker while their machines end.
  expect((agent.looks - start) / PODS).toBeLessThan(1.5);
  await agent.stop();
});

/** Of an agent of its own, for the end of many pods: calls of the backend. */
async function callsOfEnd(world: World): Promise<Record<"asked" | "stop" | "delete", number>> {
  let asked = 0;
  const ask = world.backend.getPod.bind(world.backend);
  world.backend.getPod = (...call) => (asked++, ask(...call));
  const agent = await running(world);
  for (let i = 0; i < PODS; i++) world.createPod(`p-${i}`);
  await world.clock.advance(5_000);
  [world.effects.length, asked] = [0, 0];
  for (let i = 0; i < PODS; i++) world.deletePod(`p-${i}`);
  await world.clock.advance(5_000);
  expect(world.pods()).toEqual([]);
  await agent.stop();
  const calls = (name: string) => world.effects.filter((each) => each.startsWith(`${name} `)).length;
  return { asked, stop: calls("stopPod"), delete: calls("deletePod") };
}

test("a pod's end costs the backend a stop and a deletion: that it is gone, an event tells", async () => {
  expect(await callsOfEnd(new World())).toEqual({ asked: 0, stop: PODS, delete: PODS });
});

test("where no event tells of a tombstone, the backend is asked for it once", async () => {
  const world = new World();
  const watch = world.backend.watchPods.bind(world.backend);
  world.backend.watchPods = async function* (...call) {
    for await (const event of watch(...call)) if (event.machine?.state !== "deleted") yield event;
  };
  expect(await callsOfEnd(world)).toEqual({ asked: PODS, stop: PODS, delete: PODS });
});

test("a pod of one container costs no more than 1,490 bytes until it runs, and 1,570 for its end", async () => {
  const world = new World();
  const agent = await running(world);
  const start = await bytesOf(agent, async () => {
    for (let i = 0; i < PODS; i++) world.createPod(`p-${i}`);
    await world.clock.advance(5_000);
  });
  const end = await bytesOf(agent, async () => {
    for (let i = 0; i < PODS; i++) world.deletePod(`p-${i}`);
    await world.clock.advance(5_000);
  });
  expect(world.pods()).toEqual([]);
  expect(start / PODS).toBeLessThan(1_490);
  expect(end / PODS).toBeLessThan(1_570);
  await agent.stop();
});

test("for a pod no more than 85 KiB are allocated until it runs, by what looks after pods and by the backend", async () => {
  const world = new World();
  const agent = await running(world);
  const create = async (round: string) => {
    for (let i = 0; i < PODS; i++) world.createPod(`${round}-${i}`);
    await world.clock.advance(5_000);
  };
  // What is allocated once, and by code that is not yet compiled.
  await create("warm");
  const bytes = await allocatedBy(() => create("p"));
  expect(bytes / PODS / 1024).toBeLessThan(85);
  await agent.stop();
});

test.each([
  { namespaces: 1, atOnce: 16 },
  { namespaces: 20, atOnce: 64 },
])(
  "however many pods, those of $namespaces namespaces have $atOnce requests under way, over 64 connections at most",
  async (counts) => {
    const open: (() => void)[] = [];
    // Answers when nothing more comes: so many are under way at once.
    const server = await KubeServer.start((_request, reply) => open.push(() => json(reply, 200, {})));
    const kube = new KubeTransport({
      kubeConfig: server.kubeConfig(),
      clock: systemClock,
      logger: silentLogger,
      rateLimit: false,
    });
    let left = 300;
    const requests = Array.from({ length: left }, async (_, i) => {
      const path = podPath(`n-${i % counts.namespaces}`, `p-${i}`);
      await kube.request({ method: "GET", path, metadataOnly: true, signal: new AbortController().signal });
      left--;
    });
    let most = 0;
    while (left > 0) {
      await nextTurn();
      if (open.length < Math.min(left, counts.atOnce)) continue;
      most = Math.max(most, open.length);
      for (const answer of open.splice(0)) answer();
    }
    await Promise.all(requests);
    expect(most).toBe(counts.atOnce);
    expect(server.connections).toBeLessThanOrEqual(64);
    await kube.close();
    await server.stop();
  },
);

test("pods that run as they should cost no request, and however many they are no more than a few timers a second", async () => {
  const world = new World();
  const agent = await running(world);
  for (let i = 0; i < 500; i++) world.createPod(`p-${i}`);
  // Everything has been looked at again once.
  await world.clock.advance(120_000);
  const before = world.clock.fired;
  const minutes = 5;
  const sent = await requestsOf(agent, () => world.clock.advance(minutes * 60_000));
  expect(sent).toEqual({});
  // Leases, the Node's status, lists of machines; and pods are looked at again twice a second, each time by a timer that
  // may fire too early once. One for each pod would be twice as many.
  expect((world.clock.fired - before) / (minutes * 60)).toBeLessThan(5);
  await agent.stop();
});
