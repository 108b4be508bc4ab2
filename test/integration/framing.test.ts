/** Requests whose end two parsers could see in different places: each of vmlet's servers refuses them, and reads nothing behind them. */
import { connect, type Socket } from "node:net";
import { connect as tlsConnect } from "node:tls";
import { afterEach, describe, expect, test } from "vitest";
import { MachineApiServer } from "../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../providers/memory/index.ts";
import { HealthChecks, startHealthServer } from "../../src/telemetry/health.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { unusedMetrics } from "../../src/telemetry/metrics.ts";
import { startKubelet } from "./kubelet/support.ts";

const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const SERVERS: Record<string, () => Promise<Socket>> = {
  async "the kubelet API"() {
    const kubelet = await startKubelet();
    cleanups.push(() => kubelet.server.close(0));
    return tlsConnect({ port: kubelet.server.port, host: "127.0.0.1", rejectUnauthorized: false, ...kubelet.client });
  },
  async "the Machine API"() {
    const provider = new MemoryProvider();
    const server = new MachineApiServer({ provider, logger: silentLogger });
    const { port } = await server.listen({ host: "127.0.0.1", port: 0 });
    cleanups.push(
      () => provider.close(),
      () => server.close({ graceMs: 0 }),
    );
    return connect({ port, host: "127.0.0.1" });
  },
  async "the health port"() {
    const checks = { livez: new HealthChecks("livez"), readyz: new HealthChecks("readyz") };
    const metrics = unusedMetrics();
    const server = await startHealthServer({ host: "127.0.0.1", port: 0, ...checks, metrics, logger: silentLogger });
    cleanups.push(() => server.close());
    return connect({ port: server.port, host: "127.0.0.1" });
  },
};

const NEXT = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
const post = (headers: string, body: string) => `POST /v1/x HTTP/1.1\r\nHost: x\r\n${headers}\r\n\r\n${body}`;
const CORPUS: [what: string, bytes: string][] = [
  ["length and chunks", post("Content-Length: 4\r\nTransfer-Encoding: chunked", `0\r\n\r\n${NEXT}`)],
  ["chunks and length", post("Transfer-Encoding: chunked\r\nContent-Length: 4", `0\r\n\r\n${NEXT}`)],
  ["two lengths", post("Content-Length: 0\r\nContent-Length: 5", `hello${NEXT}`)],
  ["a length with a sign", post("Content-Length: +5", `hello${NEXT}`)],
  ["a length in hexadecimal", post("Content-Length: 0x5", `hello${NEXT}`)],
  ["a list of lengths", post("Content-Length: 5, 6", `hello${NEXT}`)],
  ["a space before the colon", post("Content-Length : 5", `hello${NEXT}`)],
  ["chunks that are not the last encoding", post("Transfer-Encoding: chunked, identity", `0\r\n\r\n${NEXT}`)],
  ["a chunk's size that is none", post("Transfer-Encoding: chunked", `0x5\r\nhello\r\n0\r\n\r\n${NEXT}`)],
  ["a folded line", post("X-A: b\r\n Content-Length: 5", `hello${NEXT}`)],
  ["a bare line feed in a header", `GET / HTTP/1.1\nHost: x\nX: y\r\n\r\n${NEXT}`],
  ["a NUL in a header", `GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n${NEXT}`],
];

describe.each(Object.keys(SERVERS))("%s", (name) => {
  test.each(CORPUS)("refuses %s and closes", async (_what, bytes) => {
    const socket = await SERVERS[name]!();
    socket.on("error", () => {});
    socket.write(Buffer.from(bytes, "latin1"));
    const chunks: Buffer[] = [];
    socket.on("data", (chunk: Buffer) => chunks.push(chunk));
    await new Promise((resolve) => socket.once("close", resolve));
    const replies = Buffer.concat(chunks).toString("latin1");
    expect(replies.match(/HTTP\/1\.1 \d{3}/g)?.length ?? 0).toBeLessThanOrEqual(1);
    expect(replies).toMatch(/^HTTP\/1\.1 4\d\d /);
  });
});
