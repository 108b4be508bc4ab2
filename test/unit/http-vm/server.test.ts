/** What the server does by itself: envelopes, limits, credentials, closing. What it passes on is in roundtrip.test.ts. */
import { once } from "node:events";
import { mkdtempSync, readFileSync, renameSync } from "node:fs";
import { rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect as tlsConnect } from "node:tls";
import { PassThrough } from "node:stream";
import { afterEach, describe, expect, test } from "vitest";
import { MachineApiServer, type MachineApiServerOptions } from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger, type Logger } from "../../../src/telemetry/logger.ts";
import { createCertificate, generateKeyPair, privateKeyPem } from "../../../src/util/x509.ts";
import { CBC_CIPHERS, handshake } from "../../support/tls-handshake.ts";

const cleanups: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

async function setup(
  options: Partial<MachineApiServerOptions> = {},
): Promise<{ memory: MemoryProvider; server: MachineApiServer; url: string; port: number }> {
  const memory = new MemoryProvider();
  const server = new MachineApiServer({ provider: memory, logger: silentLogger, ...options });
  const { url, port } = await server.listen({ host: "127.0.0.1", port: 0 });
  cleanups.push(
    () => memory.close(),
    () => server.close({ graceMs: 50 }),
  );
  return { memory, server, url, port };
}

const spec: MachineSpec = { labels: { a: "b" }, restart_policy: "never", containers: [{ name: "c", image: "i" }] };
const put = (
  url: string,
  body: string | Buffer,
  headers: Record<string, string> = { "content-type": "application/json" },
) => fetch(`${url}/v1/machines/m`, { method: "PUT", body, headers });

async function refusal(reply: Response): Promise<{ status: number; code: string; field?: string; request_id: string }> {
  const { error } = (await reply.json()) as { error: { code: string; field?: string; request_id: string } };
  expect(reply.headers.get("x-request-id")).toBe(error.request_id);
  return { status: reply.status, ...error };
}

function selfSigned(): { cert: string; key: string } {
  const keys = generateKeyPair();
  const [notBeforeMs, notAfterMs] = [Date.now() - 3_600_000, Date.now() + 3_600_000];
  const cert = createCertificate({ subject: { commonName: "backend" }, keys, notBeforeMs, notAfterMs });
  return { cert, key: privateKeyPem(keys.privateKey) };
}

test("an error of a module's own kind is told as a backend that failed, and logged", async () => {
  const logged: unknown[] = [];
  const logger: Logger = { ...silentLogger, error: (fields) => void logged.push(fields) };
  const { memory, url } = await setup({ logger });
  const thrown = new ProviderError("teapot" as "invalid", "short and stout");
  memory.createPod = () => Promise.reject(thrown);
  expect(await refusal(await put(url, JSON.stringify(spec)))).toMatchObject({ status: 503, code: "unavailable" });
  expect(logged).toEqual([expect.objectContaining({ err: thrown })]);
});

describe("whoever holds connections open", () => {
  const silent = (port: number) => {
    const socket = connect({ port, host: "127.0.0.1" }).on("error", () => {});
    cleanups.push(() => Promise.resolve(socket.destroy()));
    return socket;
  };

  test.each([
    ["with TLS", true],
    ["in plain HTTP", false],
  ])("and says nothing keeps nobody else out, %s", async (_title, withTls) => {
    const { port } = await setup({ tls: withTls ? selfSigned() : undefined, limits: { connections: 8 } });
    const dropped = Array.from({ length: 8 }, () => once(silent(port), "close"));
    const socket = withTls ? tlsConnect({ port, rejectUnauthorized: false }) : connect({ port, host: "127.0.0.1" });
    cleanups.push(() => Promise.resolve(socket.destroy()));
    socket.write("GET /v1/info HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(String((await once(socket, "data"))[0])).toMatch(/^HTTP\/1\.1 200 /);
    await dropped[0];
  });

  test("without accepted credentials makes room for whoever has them", async () => {
    const { port, url } = await setup({ auth: { bearerTokens: () => ["good"] }, limits: { connections: 4 } });
    const refused = Array.from({ length: 4 }, async () => {
      const socket = silent(port);
      socket.write("GET /v1/info HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\n\r\n");
      return String((await once(socket, "data"))[0]).slice(0, 12);
    });
    expect(await Promise.all(refused)).toEqual(refused.map(() => "HTTP/1.1 401"));
    expect((await fetch(`${url}/v1/info`, { headers: { authorization: "Bearer good" } })).status).toBe(200);
  });

  test.each([
    ["says nothing", true, ""],
    ["begins a handshake and stops", true, "\x16\x03\x01\x02\x00\x01"],
    ["says nothing in plain HTTP", false, ""],
    ["begins a request and stops", false, "GET /v1/info HTTP/1.1\r\nHost:"],
  ])("and %s is cut off in the end", async (_title, withTls, bytes) => {
    const { port } = await setup({ tls: withTls ? selfSigned() : undefined, limits: { headersMs: 200 } });
    const socket = silent(port);
    socket.write(Buffer.from(bytes, "latin1"));
    await once(socket.resume(), "close");
  });
});

test("a server with TLS has no CBC suites", async () => {
  const { port } = await setup({ tls: selfSigned() });
  const suites = [
    await handshake({ port }),
    await handshake({ port, maxVersion: "TLSv1.2" }),
    await handshake({ port, maxVersion: "TLSv1.2", ciphers: CBC_CIPHERS }),
  ];
  expect(suites).toEqual([expect.stringMatching(/^TLS_/), expect.stringMatching(/GCM|POLY1305/), "refused"]);
});

describe("a bad request", () => {
  test.each<[string, string, RequestInit, string | undefined]>([
    ["an id in capitals", "/v1/machines/M", {}, "id"],
    ["an id that climbs", "/v1/machines/..%2Fx", {}, "id"],
    ["a flag that is neither true nor false", "/v1/machines?include_deleted=1", {}, "include_deleted"],
    ["a limit of nothing", "/v1/machines?limit=0", {}, "limit"],
    ["a label without a value", "/v1/machines?label=a", {}, "label"],
    ["a state that there is not", "/v1/machines/m?wait=flying", {}, "wait"],
    ["a timeout of a day", "/v1/events?since=0&timeout=86400", {}, "timeout"],
    ["events from nowhere", "/v1/events", {}, "since"],
    ["a time in another zone", "/v1/machines/m/containers/c/logs?since=2026-01-01T00:00:00%2B02:00", {}, "since"],
    ["a stream that there is not", "/v1/machines/m/containers/c/logs?stream=stdin", {}, "stream"],
    ["a stop without grace", "/v1/machines/m/stop", { method: "POST", body: "{}" }, "grace_seconds"],
    ["a negative grace", "/v1/machines/m/stop", { method: "POST", body: '{"grace_seconds":-1}' }, "grace_seconds"],
  ])("with %s is invalid and names the field", async (_name, path, init, field) => {
    const { url } = await setup();
    const headers = { "content-type": "application/json" };
    expect(await refusal(await fetch(url + path, { ...init, headers }))).toMatchObject({
      status: 400,
      code: "invalid",
      field,
    });
  });

  test.each<[string, string | Buffer]>([
    ["is not UTF-8", Buffer.from([0x22, 0xff, 0x22])],
    ["is nested too deep", `{"x-a":${"[".repeat(50)}${"]".repeat(50)}}`],
    ["would reach a prototype", '{"labels":{"__proto__":"x"}}'],
    ["is empty", ""],
  ])("whose body %s is invalid", async (_name, body) => {
    const { url, memory } = await setup();
    expect(await refusal(await put(url, body))).toMatchObject({ status: 400, code: "invalid" });
    expect(memory.machines).toEqual([]);
  });

  test("whose body is too large is refused before it is read whole", async () => {
    const { url } = await setup({ limits: { bodyBytes: 1000 } });
    expect(await refusal(await put(url, " ".repeat(2000)))).toMatchObject({ status: 400, code: "invalid" });
  });

  test("whose body has no room beside others of the same client is to be sent again later, and a stop has room", async () => {
    const { url, memory } = await setup({ limits: { bodiesBytes: 20_000 } });
    const large = JSON.stringify({ ...spec, containers: [{ ...spec.containers[0], args: ["x".repeat(15_000)] }] });
    const begun = Promise.withResolvers<void>();
    const go = Promise.withResolvers<void>();
    const create = memory.createPod.bind(memory);
    memory.createPod = async (...args) => {
      begun.resolve();
      await go.promise;
      return create(...args);
    };
    const first = put(url, large);
    await begun.promise;
    expect(await refusal(await put(url, large))).toMatchObject({ status: 429, code: "rate_limited" });
    memory.insert("other", spec);
    const stop = { method: "POST", headers: { "content-type": "application/json" }, body: '{"grace_seconds":1}' };
    expect((await fetch(`${url}/v1/machines/other/stop`, stop)).status).toBe(202);
    go.resolve();
    expect((await first).status).toBeLessThan(300);
    expect((await put(url, large)).status).toBeLessThan(300);
  });

  test("of another content type is refused, so that no web page can send one", async () => {
    const { url } = await setup();
    expect(await refusal(await put(url, JSON.stringify(spec), { "content-type": "text/plain" }))).toMatchObject({
      status: 400,
    });
  });

  test.each(["GET", "PUT", "upgrade"])("of a web page is refused: %s", async (method) => {
    const { port, memory } = await setup();
    memory.insert("m", spec);
    memory.exec = () => Promise.reject(new Error("a web page got through"));
    const socket = connect(port, "127.0.0.1");
    const path = method === "upgrade" ? "/v1/machines/m/containers/c/exec?command=x" : "/v1/machines/m";
    const lines = [
      `${method === "upgrade" ? "GET" : method} ${path} HTTP/1.1`,
      "Host: evil.test",
      "Origin: http://evil.test",
      ...(method === "upgrade"
        ? ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: v5.channel.k8s.io"]
        : ["Connection: close", "Content-Length: 0"]),
    ];
    socket.write(`${lines.join("\r\n")}\r\n\r\n`);
    expect((await socket.toArray()).join("")).toMatch(/^HTTP\/1\.1 400 [^]*"code":"invalid".*web pages/);
  });

  test("that is no HTTP gets the envelope too", async () => {
    const { port } = await setup();
    const socket = connect(port, "127.0.0.1");
    socket.write("hello\r\n\r\n");
    const text = (await socket.toArray()).join("");
    expect(text).toMatch(/^HTTP\/1\.1 400 /);
    expect(text).toContain('"code":"invalid"');
  });
});

describe("a fault of the provider", () => {
  test("is unavailable to the caller, who learns nothing of its inside, and an error in the log", async () => {
    const logged: object[] = [];
    const logger: Logger = { ...silentLogger, error: (fields) => void logged.push(fields) };
    const { url, memory } = await setup({ logger });
    memory.getPod = () => Promise.reject(new Error("password hunter2"));
    const reply = await fetch(`${url}/v1/machines/m`, { headers: { "x-request-id": "r-1" } });
    const text = await reply.text();
    expect(reply.status).toBe(503);
    expect(text).not.toContain("hunter2");
    expect(text).toContain('"request_id":"r-1"');
    expect(logged).toMatchObject([{ requestId: "r-1" }]);
  });
});

describe("credentials", () => {
  const bearer = (token: string) => ({ headers: { authorization: `Bearer ${token}` } });

  test("can be replaced while the server runs", async () => {
    let tokens = ["old"];
    const { url } = await setup({ auth: { bearerTokens: () => tokens } });
    expect((await fetch(`${url}/v1/info`, bearer("old"))).status).toBe(200);
    tokens = ["new", "newer"];
    expect((await fetch(`${url}/v1/info`, bearer("old"))).status).toBe(401);
    expect((await fetch(`${url}/v1/info`, bearer("newer"))).status).toBe(200);
  });

  test.each([
    ["none", {}],
    ["an empty token", bearer("")],
    ["another scheme", { headers: { authorization: "Basic c2VjcmV0" } }],
  ])("%s is refused even when the accepted token is empty by mistake", async (_name, init) => {
    const { url } = await setup({ auth: { bearerTokens: () => [""] } });
    expect(await refusal(await fetch(`${url}/v1/info`, init))).toMatchObject({ status: 401, code: "unauthorized" });
  });
});

describe("closing", () => {
  test("ends long polls with what there is, and refuses nothing that it has begun", async () => {
    const { url, server, memory } = await setup();
    memory.insert("m", spec);
    const { revision } = (await (await fetch(`${url}/v1/machines`)).json()) as { revision: number };
    const poll = fetch(`${url}/v1/events?since=${revision}&timeout=60`);
    const wait = fetch(`${url}/v1/machines/m?wait=deleted&timeout=60`);
    await expect.poll(() => memory.machines.length).toBe(1);
    await fetch(`${url}/v1/info`);
    await server.close({ graceMs: 5000 });
    expect(await (await poll).json()).toEqual({ events: [], revision });
    expect((await wait).status).toBe(200);
    // Or the server would wait for the grace, or for the callers to be idle long enough.
    expect([await poll, await wait].map(({ headers }) => headers.get("connection"))).toEqual(["close", "close"]);
  });

  test.each([
    ["is no HTTP", "hello\r\n\r\n"],
    ["is an upgrade to nothing", "GET /v1/x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"],
  ])("does not wait for a caller whose request %s", async (_title, request) => {
    const { server, port } = await setup();
    const socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    cleanups.push(() => Promise.resolve(socket.destroy()));
    socket.write(request);
    expect((await socket.toArray()).join("")).toMatch(/^HTTP\/1\.1 [45]/);
    await server.close({ graceMs: 0 });
  });

  test("does not wait for a provider that never opens a stream", async () => {
    const { server, memory, port } = await setup();
    const asked = Promise.withResolvers<void>();
    memory.portForward = () => {
      asked.resolve();
      return new Promise(() => {});
    };
    const socket = connect(port, "127.0.0.1");
    cleanups.push(() => Promise.resolve(socket.destroy()));
    socket.write(
      "GET /v1/machines/m/ports/80 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    );
    await asked.promise;
    await server.close({ graceMs: 0 });
  });

  test("breaks a followed log off, which would look whole otherwise", async () => {
    const { url, server, memory } = await setup();
    memory.getLogs = async function* (_id, _container, { signal }) {
      yield { at: "2026-01-01T00:00:00Z", stream: "stdout", partial: false, content: Buffer.from("line") };
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
    };
    const reply = await fetch(`${url}/v1/machines/m/containers/c/logs?follow=true`);
    const reader = reply.body!.getReader();
    expect(new TextDecoder().decode((await reader.read()).value)).toContain("line");
    await server.close({ graceMs: 5000 });
    await expect(reader.read()).rejects.toThrow("terminated");
  });

  test("makes room for a new server on the same port at once", async () => {
    const { server, port } = await setup();
    await server.close({ graceMs: 50 });
    const next = new MachineApiServer({ provider: new MemoryProvider(), logger: silentLogger });
    expect((await next.listen({ host: "127.0.0.1", port })).port).toBe(port);
    await next.close();
  });
});

test("a page of a list is as large as it may be in bytes, not in characters, and no larger", async () => {
  const { memory, url } = await setup({ limits: { pageBytes: 4000 } });
  const image = "\u20ac".repeat(300);
  for (const id of ["a", "b", "c", "d", "e", "f"])
    await memory.createPod(
      id,
      { ...spec, containers: [{ name: "c", image }] },
      { signal: new AbortController().signal },
    );
  const ids: string[] = [];
  for (let cursor: string | undefined = ""; cursor !== undefined;) {
    const reply = await fetch(`${url}/v1/machines${cursor === "" ? "" : `?cursor=${cursor}`}`);
    const text = await reply.text();
    expect(Buffer.byteLength(text)).toBeLessThan(4200);
    const page = JSON.parse(text) as { items: { id: string }[]; next_cursor?: string };
    ids.push(...page.items.map(({ id }) => id));
    cursor = page.next_cursor;
  }
  expect(ids).toEqual(["a", "b", "c", "d", "e", "f"]);
});

test("a socket that a server listens on is not taken from it; one that a killed server has left is", async () => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-server-"));
  cleanups.push(() => rm(dir, { recursive: true }));
  const socketPath = join(dir, "api");
  const serve = () => new MachineApiServer({ provider: new MemoryProvider(), logger: silentLogger });
  const first = serve();
  cleanups.push(() => first.close());
  await first.listen({ socketPath });
  await expect(serve().listen({ socketPath })).rejects.toThrow(`another server listens on ${socketPath}`);
  renameSync(socketPath, join(dir, "old"));
  await first.close();
  renameSync(join(dir, "old"), socketPath);
  const next = serve();
  cleanups.push(() => next.close());
  await next.listen({ socketPath });
  const socket = connect(socketPath);
  cleanups.push(() => Promise.resolve(socket.destroy()));
  await once(socket, "connect");
});

test("a quiet connection is probed, lest the session of a caller that is gone stay for ever", async () => {
  const { port } = await setup();
  const socket = connect(port, "127.0.0.1");
  cleanups.push(() => Promise.resolve(socket.destroy()));
  await once(socket, "connect");
  const [local, remote] = [port, socket.localPort!].map((number) => number.toString(16).toUpperCase().padStart(4, "0"));
  // Of the server's end: a timer of kind 2 is that of keep-alive (linux, Documentation/networking/proc_net_tcp).
  const timer = new RegExp(`:${local} \\w+:${remote} \\w+ \\S+ (\\d+):`);
  await expect.poll(() => timer.exec(readFileSync("/proc/net/tcp", "latin1"))?.[1]).toBe("02");
});

test("an upgrade that turns out to be no WebSocket leaves nothing open", async () => {
  const stream = new PassThrough();
  const { memory, port } = await setup();
  memory.portForward = () => Promise.resolve(stream);
  const socket = connect(port, "127.0.0.1");
  cleanups.push(() => Promise.resolve(socket.destroy()));
  socket.write("GET /v1/machines/m/ports/80 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
  await once(socket.resume(), "close");
  await expect.poll(() => stream.destroyed).toBe(true);
});
