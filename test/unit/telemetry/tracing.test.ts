import { mkdtempSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { OtlpExporter } from "../../../src/telemetry/otlp-exporter.ts";
import { SdkTracing } from "../../../src/telemetry/sdk-tracing.ts";
import { traced, tracedStep, type Tracing } from "../../../src/telemetry/tracing.ts";
import { systemClock, type Clock } from "../../../src/util/clock.ts";
import { collectingLogger } from "../../support/collecting-logger.ts";
import { OtlpCollector } from "../../support/otlp-collector.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const SAMPLED = { traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" };
const UNSAMPLED = { traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00" };

interface Settings {
  endpoint: string;
  samplingRatePerMillion?: number;
  headersFile?: string;
  caFile?: string;
  clock?: Clock;
}

async function open(settings: Settings) {
  const { endpoint, samplingRatePerMillion = 1_000_000, headersFile, caFile, clock = systemClock } = settings;
  const logger = collectingLogger();
  const collaborators = { resource: { "service.name": "vmlet" }, version: "1.2.3", clock, logger };
  const tracing = await SdkTracing.open({ endpoint, samplingRatePerMillion, headersFile, caFile, ...collaborators });
  return { tracing, logger };
}

const spanIn = (tracing: Tracing, name: string, parent?: { traceparent: string }) =>
  traced(tracing, name, { parent }, () => undefined);

test("where nothing is traced, work is done all the same", async () => {
  expect(await traced(undefined, "a", {}, (span) => [span])).toEqual([undefined]);
});

describe("a span", () => {
  test("is part of the one in which it began, and has what it was told", async () => {
    await using collector = await OtlpCollector.open();
    const { tracing } = await open(collector);
    await traced(tracing, "pod", { attributes: { "k8s.pod.name": "web", left: undefined } }, () =>
      tracedStep(tracing, "call", { kind: "client" }, (span) => span?.set({ count: 2, share: 0.5, isNew: true })),
    );
    await tracing.close();
    const [call, pod] = collector.spans;
    expect(pod).toMatchObject({ name: "pod", kind: 1, attributes: { "k8s.pod.name": "web" }, status: { code: 0 } });
    expect(pod!.attributes).not.toHaveProperty("left");
    expect(call).toMatchObject({
      name: "call",
      kind: 3,
      traceId: pod!.traceId,
      parentSpanId: pod!.spanId,
      attributes: { count: "2", share: 0.5, isNew: true },
      resource: { "service.name": "vmlet" },
    });
    expect(BigInt(call!.endTimeUnixNano) >= BigInt(call!.startTimeUnixNano)).toBe(true);
    expect(collector.requests).toMatchObject([{ path: "/v1/traces", headers: { "content-type": "application/json" } }]);
  });

  test("that fails says what kind of failure it was, and not its text", async () => {
    await using collector = await OtlpCollector.open();
    const { tracing } = await open(collector);
    const failing = traced(tracing, "a", {}, () => Promise.reject(new TypeError("password hunter2 is wrong")));
    await expect(failing).rejects.toThrow("hunter2");
    await tracing.close();
    expect(collector.spans).toMatchObject([{ status: { code: 2 }, attributes: { "error.type": "TypeError" } }]);
    expect(JSON.stringify(collector.spans)).not.toContain("hunter2");
  });

  test("is not the place of what it began and what goes on after it", async () => {
    await using collector = await OtlpCollector.open();
    const { tracing } = await open(collector);
    const later = Promise.withResolvers<void>();
    let watch: Promise<unknown> | undefined;
    await traced(tracing, "pod", {}, () => {
      watch = later.promise.then(() => tracing.active());
    });
    later.resolve();
    expect(await watch).toBeUndefined();
    await tracing.close();
  });

  test("outside of any is not begun where it is but a step", async () => {
    await using collector = await OtlpCollector.open();
    const { tracing } = await open(collector);
    await tracedStep(tracing, "list", {}, () => undefined);
    await tracing.close();
    expect(collector.spans).toEqual([]);
  });

  test("has texts and attributes of a bounded length and number", async () => {
    await using collector = await OtlpCollector.open();
    const { tracing } = await open(collector);
    const many = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`a${i}`, "x".repeat(10_000)]));
    await traced(tracing, "a", { attributes: many }, () => undefined);
    await tracing.close();
    const { attributes } = collector.spans[0]!;
    expect(Object.keys(attributes)).toHaveLength(32);
    expect(new Set(Object.values(attributes))).toEqual(new Set(["x".repeat(256)]));
  });
});

describe("sampling", () => {
  test("follows the caller, whatever the rate", async () => {
    await using collector = await OtlpCollector.open();
    const { tracing } = await open({ endpoint: collector.endpoint, samplingRatePerMillion: 0 });
    await spanIn(tracing, "of a sampled trace", SAMPLED);
    await spanIn(tracing, "of a trace of its own");
    await tracing.close();
    const every = await open(collector);
    await spanIn(every.tracing, "of an unsampled trace", UNSAMPLED);
    await every.tracing.close();
    expect(collector.spans.map(({ name }) => name)).toEqual(["of a sampled trace"]);
    expect(collector.spans[0]).toMatchObject({
      traceId: "4bf92f3577b34da6a3ce929d0e0e4736",
      parentSpanId: "00f067aa0ba902b7",
    });
  });

  test("takes about as many traces of a million as it is told", async () => {
    await using collector = await OtlpCollector.open();
    const { tracing } = await open({ endpoint: collector.endpoint, samplingRatePerMillion: 500_000 });
    for (let i = 0; i < 200; i++) await spanIn(tracing, "a");
    await tracing.close();
    // Of a fair coin, less than once in 10^12 runs.
    expect(collector.spans.length).toBeGreaterThan(50);
    expect(collector.spans.length).toBeLessThan(150);
  });

  test("is passed on also where it says no, with the state of others", async () => {
    const { tracing } = await open({ endpoint: "http://127.0.0.1:1" });
    const span = tracing.begin("a", { parent: { ...UNSAMPLED, tracestate: "congo=1" } });
    expect(span.context.traceparent).toMatch(/^00-4bf92f3577b34da6a3ce929d0e0e4736-[0-9a-f]{16}-00$/);
    expect(span.context.tracestate).toBe("congo=1");
    await tracing.close();
  });
});

describe("a collector", () => {
  test("that hangs delays nobody, and the end of the process by two seconds at most", async () => {
    await using collector = await OtlpCollector.open();
    collector.answer = () => undefined;
    const clock = new VirtualClock();
    const { tracing } = await open({ endpoint: collector.endpoint, clock });
    for (let i = 0; i < 5_000; i++) await spanIn(tracing, "a");
    const closing = tracing.close();
    await collector.until(({ requests }) => requests.length > 0);
    await clock.advance(2_000);
    await closing;
    // What its queue has room for, with the batch that was under way.
    expect(collector.spans.length).toBeLessThanOrEqual(2048 + 512);
  });

  test("that takes nothing is told of once in ten minutes, and when it takes them again", async () => {
    await using collector = await OtlpCollector.open();
    collector.answer = (reply) => void reply.writeHead(400).end();
    const clock = new VirtualClock();
    const logger = collectingLogger();
    const exporter = new OtlpExporter({ endpoint: collector.endpoint, resource: {}, version: "1", clock, logger });
    const send = () => new Promise((resolve) => exporter.export([], resolve));
    await send();
    await send();
    expect(logger.lines).toMatchObject([{ level: "warn", fields: { endpoint: `${collector.endpoint}/v1/traces` } }]);
    await clock.advance(10 * 60_000);
    await send();
    expect(logger.lines.map(({ level }) => level)).toEqual(["warn", "warn"]);
    collector.answer = (reply) => void reply.end("{}");
    await send();
    await send();
    expect(logger.lines.map(({ level }) => level)).toEqual(["warn", "warn", "info"]);
  });

  test("that wants to speak another protocol has taken nothing, and nothing waits for it", async () => {
    await using collector = await OtlpCollector.open();
    collector.answer = (reply) => {
      reply.socket?.end("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
    };
    const logger = collectingLogger();
    const clock = new VirtualClock();
    const exporter = new OtlpExporter({ endpoint: collector.endpoint, resource: {}, version: "1", clock, logger });
    await new Promise((resolve) => exporter.export([], resolve));
    await exporter.shutdown();
    expect(logger.lines).toMatchObject([{ level: "warn", fields: { err: { message: "HTTP 101" } } }]);
  });

  test("that is gone is tried three times, a second and two apart", async () => {
    const gone = createServer();
    await new Promise<void>((resolve) => gone.listen(0, "127.0.0.1", resolve));
    const endpoint = `http://127.0.0.1:${(gone.address() as AddressInfo).port}`;
    await new Promise((resolve) => gone.close(resolve));
    const clock = new VirtualClock();
    const logger = collectingLogger();
    const exporter = new OtlpExporter({ endpoint, resource: {}, version: "1", clock, logger });
    let isOver = false;
    const begun = clock.monotonic();
    exporter.export([], () => (isOver = true));
    while (!isOver) {
      await settle();
      await clock.advance(100);
    }
    expect(clock.monotonic() - begun).toBeGreaterThan(2_900);
    expect(logger.lines).toMatchObject([{ level: "warn", message: expect.stringContaining("does not take traces") }]);
  });

  test("that asks for later is asked again", async () => {
    await using collector = await OtlpCollector.open();
    const clock = new VirtualClock();
    const { tracing } = await open({ endpoint: collector.endpoint, clock });
    collector.answer = (reply) => void reply.writeHead(503).end();
    await spanIn(tracing, "a");
    const closing = tracing.close();
    await collector.until(({ requests }) => requests.length === 1);
    collector.answer = (reply) => void reply.end("{}");
    while (collector.requests.length < 2) await clock.advance(100);
    await closing;
    expect(collector.spans.map(({ name }) => name)).toEqual(["a", "a"]);
  });

  test("gets the headers of the file, as they are now", async () => {
    const folder = mkdtempSync(join(tmpdir(), "tracing-"));
    await using collector = await OtlpCollector.open();
    const headersFile = join(folder, "headers");
    await writeFile(headersFile, "# of the collector\nauthorization: Bearer first\nX-Tenant:blue\n");
    const { tracing } = await open({ endpoint: collector.endpoint, headersFile });
    await writeFile(headersFile, "authorization: Bearer second\n");
    await spanIn(tracing, "a");
    await tracing.close();
    expect(collector.requests[0]!.headers).toMatchObject({ authorization: "Bearer second" });
    expect(collector.requests[0]!.headers).not.toHaveProperty("x-tenant");
  });

  test.each([
    ["no header", "hunter2\n", "line 1 of"],
    ["a header of the request's own", "a: b\nHost: elsewhere\n", "sets Host"],
  ])("is not asked at all with a file that holds %s, which is not repeated", async (_what, text, message) => {
    const folder = mkdtempSync(join(tmpdir(), "tracing-"));
    const headersFile = join(folder, "headers");
    await writeFile(headersFile, text);
    const opening = open({ endpoint: "http://127.0.0.1:1", headersFile });
    await expect(opening).rejects.toThrow(message);
    await expect(opening).rejects.not.toThrow("hunter2");
  });

  test("is not asked with files that are missing", async () => {
    await expect(open({ endpoint: "https://127.0.0.1:1", caFile: "/no/such/ca" })).rejects.toThrow(/^caFile: /);
  });
});
