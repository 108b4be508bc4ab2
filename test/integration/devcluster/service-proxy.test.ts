/** Cluster addresses that this process answers on, as `npm start` has them. */
import { once } from "node:events";
import { connect } from "node:net";
import { text } from "node:stream/consumers";
import { Duplex, PassThrough } from "node:stream";
import { expect, onTestFinished, test, vi } from "vitest";
import { type Clock, systemClock } from "../../../src/util/clock.ts";
import type { Json } from "../../e2e/fidelity/api.ts";
import { create, node, pod, podWhen, PODS, runDevCluster } from "./support.ts";

const SERVICES = "/api/v1/namespaces/default/services";
/** Of this test alone: `npm start` has another. */
const NETWORK = "127.99";

/** A pod answers with its UID, the port that was dialled and what it was told, once it was told all. */
function answer(podUid: string, port: number): Duplex {
  const input = new PassThrough();
  const output = new PassThrough();
  void text(input).then((told) => output.end(`${podUid} ${port} ${told}`));
  return Duplex.from({ writable: input, readable: output });
}

/** Half a minute is over at once. */
const hasty = {
  ...systemClock,
  after: (ms: number, tick: () => void) => systemClock.after(ms === 30_000 ? 100 : ms, tick),
};

async function setUp(
  dial: (podUid: string, port: number, signal: AbortSignal) => Promise<Duplex> = (podUid, port) =>
    Promise.resolve(answer(podUid, port)),
  clock: Clock = systemClock,
) {
  const running = await runDevCluster({ clock, serviceProxy: { network: NETWORK, dial } });
  onTestFinished(() => running[Symbol.asyncDispose]());
  await create(running.api, "/api/v1/nodes", node("n1"));
  return running.api;
}

type Api = Awaited<ReturnType<typeof setUp>>;

async function runningPod(api: Api, name: string, ip: string, isReady = true): Promise<string> {
  const labelled = pod(name);
  labelled.metadata.labels = { app: "web" };
  const { metadata } = await create(api, PODS, labelled);
  await podWhen(api, name, ({ spec }) => spec.nodeName !== undefined);
  const status = {
    phase: "Running",
    podIPs: [{ ip }],
    conditions: [{ type: "Ready", status: isReady ? "True" : "False" }],
  };
  await api.request("PATCH", `${PODS}/${name}/status`, { status }, { "content-type": "application/merge-patch+json" });
  return metadata.uid;
}

const service = (name: string, ports: Json[], selector?: Json): Json => ({
  metadata: { name },
  spec: { ports, selector },
});

async function endpointsOf(api: Api, name: string, count: number): Promise<void> {
  await vi.waitFor(async () => {
    const { body } = await api.request("GET", `/api/v1/namespaces/default/endpoints/${name}`);
    expect(body.subsets?.[0]?.addresses ?? []).toHaveLength(count);
  });
}

async function ask(address: string, port: number, words: string): Promise<string> {
  const socket = connect({ host: address, port, allowHalfOpen: true });
  socket.end(words);
  return await text(socket);
}

test("a connection to a Service's address goes to a ready pod, at the port that the Service leads to", async () => {
  const api = await setUp();
  const ready = await runningPod(api, "ready", "127.64.0.1");
  await runningPod(api, "starting", "127.64.0.2", false);
  const made = await create(api, SERVICES, service("web", [{ port: 8080, targetPort: 80 }], { app: "web" }));
  expect(made.spec.clusterIP).toMatch(/^127\.99\./);
  await endpointsOf(api, "web", 1);
  await vi.waitFor(async () => expect(await ask(made.spec.clusterIP, 8080, "hello")).toBe(`${ready} 80 hello`));
});

test("a connection that is still being made is given up when its client is gone", async () => {
  const dials: AbortSignal[] = [];
  const api = await setUp((_podUid, _port, signal) => {
    dials.push(signal);
    return new Promise(() => {});
  });
  await runningPod(api, "p", "127.64.0.1");
  const { spec } = await create(api, SERVICES, service("slow", [{ port: 8099, targetPort: 80 }], { app: "web" }));
  await endpointsOf(api, "slow", 1);
  const client = await vi.waitFor(async () => {
    const socket = connect({ host: spec.clusterIP, port: 8099 });
    await once(socket, "connect");
    return socket;
  });
  await vi.waitFor(() => expect(dials).toHaveLength(1));
  expect(dials[0]!.aborted).toBe(false);
  client.resetAndDestroy();
  await vi.waitFor(() => expect(dials[0]!.aborted).toBe(true));
});

test("a machine that takes no connection does not keep one for ever, whatever its client does", async () => {
  const dials: AbortSignal[] = [];
  const api = await setUp((_podUid, _port, signal) => {
    dials.push(signal);
    return new Promise(() => {});
  }, hasty);
  await runningPod(api, "p", "127.64.0.1");
  const { spec } = await create(api, SERVICES, service("deaf", [{ port: 8098, targetPort: 80 }], { app: "web" }));
  await endpointsOf(api, "deaf", 1);
  const client = await vi.waitFor(async () => {
    const socket = connect({ host: spec.clusterIP, port: 8098 });
    await once(socket, "connect");
    return socket;
  });
  const [error] = (await once(client, "error")) as [NodeJS.ErrnoException];
  expect(error.code).toBe("ECONNRESET");
  expect(dials[0]!.aborted).toBe(true);
});

test("each named port leads to its own", async () => {
  const api = await setUp();
  const uid = await runningPod(api, "p", "127.64.0.1");
  const ports = [
    { name: "a", port: 8001, targetPort: 1001 },
    { name: "b", port: 8002, targetPort: 1002 },
  ];
  const { spec } = await create(api, SERVICES, service("two", ports, { app: "web" }));
  await endpointsOf(api, "two", 1);
  await vi.waitFor(async () => expect(await ask(spec.clusterIP, 8002, "x")).toBe(`${uid} 1002 x`));
  expect(await ask(spec.clusterIP, 8001, "y")).toBe(`${uid} 1001 y`);
});

test("a Service without a ready pod refuses, and one that is deleted is gone", async () => {
  const api = await setUp();
  const { spec } = await create(api, SERVICES, service("none", [{ port: 8003 }], { app: "none" }));
  const failure = async () => {
    const socket = connect(8003, spec.clusterIP);
    const [error] = await once(socket, "error").catch((thrown: unknown) => [thrown]);
    return (error as NodeJS.ErrnoException).code;
  };
  await vi.waitFor(async () => expect(await failure()).toBe("ECONNRESET"));
  await api.request("DELETE", `${SERVICES}/none`);
  await vi.waitFor(async () => expect(await failure()).toBe("ECONNREFUSED"));
});

test("an address that cannot be listened on is told at the Service", async () => {
  const api = await setUp();
  const clusterIP = "203.0.113.7";
  await create(api, SERVICES, { metadata: { name: "elsewhere" }, spec: { clusterIP, ports: [{ port: 8004 }] } });
  await vi.waitFor(async () => {
    const { body } = await api.request("GET", "/api/v1/namespaces/default/events");
    expect(body.items).toContainEqual(
      expect.objectContaining({
        reason: "FailedToListen",
        message: expect.stringContaining("203.0.113.7:8004 does not answer"),
      }),
    );
  });
});
