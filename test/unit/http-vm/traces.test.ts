/** W3C Trace Context between the two ends of the Machine API. */
import { expect, onTestFinished, test } from "vitest";
import { HttpVmProvider, MachineApiServer } from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { contextOf, RecordedTracing } from "../../support/recorded-tracing.ts";

const { signal } = new AbortController();
const JSON_BODY = { "content-type": "application/json" };
const spec: MachineSpec = { labels: {}, restart_policy: "never", containers: [{ name: "c", image: "i" }] };

async function setup() {
  const [atClient, atServer] = [new RecordedTracing(), new RecordedTracing()];
  const memory = new MemoryProvider();
  const server = new MachineApiServer({ provider: memory, logger: silentLogger, tracing: atServer });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  // One at a time: all others are sent when one before has come back, in the course of that.
  const client = new HttpVmProvider({
    url,
    tracing: atClient,
    pacing: { concurrency: 1, perSecond: 1000, burst: 1000 },
  });
  onTestFinished(async () => {
    await client.close();
    await server.close({ graceMs: 50 });
    await memory.close();
  });
  return { url, client, atClient, atServer };
}

test("each call tells its own trace, though it is sent in the course of another", async () => {
  const { client, atClient, atServer } = await setup();
  const make = (id: string) => {
    const span = atClient.begin(id, {});
    return atClient.within(span, () => client.createPod(id, spec, { signal }));
  };
  await Promise.all([make("a"), make("b"), make("c"), client.createPod("d", spec, { signal })]);
  const parents = Object.fromEntries(
    atServer.spans.map(({ attributes, parent }) => [attributes!["vmlet.machine.id"], parent]),
  );
  expect(parents).toEqual({ a: contextOf(1), b: contextOf(2), c: contextOf(3), d: undefined });
});

test("the server goes on from the caller's trace, and begins none for what only looks", async () => {
  const { url, atServer } = await setup();
  const { traceparent } = contextOf(7);
  await fetch(`${url}/v1/info`, { headers: { traceparent, tracestate: "a=1" } });
  await fetch(`${url}/v1/info`);
  await fetch(`${url}/v1/machines/m`, { method: "PUT", headers: JSON_BODY, body: JSON.stringify(spec) });
  expect(atServer.spans).toMatchObject([
    { name: "GET /v1/info", kind: "server", parent: { traceparent, tracestate: "a=1" } },
    { name: "PUT /v1/machines/:id", kind: "server", parent: undefined },
  ]);
});

test.each(["", "00-0-0-01", `${contextOf(1).traceparent}-more`, "x".repeat(8_000)])(
  "a traceparent that is none is as if it had not been sent: %.40s",
  async (traceparent) => {
    const { url, atServer } = await setup();
    const reply = await fetch(`${url}/v1/machines/m`, {
      method: "PUT",
      body: JSON.stringify(spec),
      headers: { ...JSON_BODY, traceparent, tracestate: "a=1" },
    });
    expect(reply.status).toBe(200);
    expect(atServer.spans.map(({ parent }) => parent)).toEqual([undefined]);
  },
);

test("who may not call begins and continues no trace", async () => {
  const atServer = new RecordedTracing();
  const memory = new MemoryProvider();
  const auth = { bearerTokens: () => ["good"] };
  const server = new MachineApiServer({ provider: memory, logger: silentLogger, auth, tracing: atServer });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  onTestFinished(async () => {
    await server.close({ graceMs: 50 });
    await memory.close();
  });
  const headers = { ...contextOf(1), authorization: "Bearer bad" };
  expect((await fetch(`${url}/v1/info`, { headers })).status).toBe(401);
  expect(atServer.spans).toEqual([]);
});
