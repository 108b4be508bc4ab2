/** What only real sockets show: deadlines per phase, bodies that trickle or never end, connections that break, credentials on disk. */
import { existsSync, readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer, type RequestListener, type Server } from "node:http";
import { createServer as createTcpServer, type AddressInfo, type Server as TcpServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import { WebSocketServer } from "ws";
import { writeFilesVolume } from "../../../providers/local/bundle/volume-files.ts";
import { HttpVmProvider, type HttpVmOptions, type InvalidReason } from "../../../providers/http-vm/index.ts";
import { passTime, settled } from "../../e2e/harness/wait.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const signal = new AbortController().signal;
const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const QUICK = { connectMs: 150, headersMs: 150, bodyMs: 300, silenceMs: 300 };
const INFO = JSON.stringify({ name: "b", version: "1", api: "v1", capabilities: [] });

async function connect(server: TcpServer, options: Partial<HttpVmOptions> = {}) {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const invalid: InvalidReason[] = [];
  const { port } = server.address() as AddressInfo;
  const provider = new HttpVmProvider({
    url: `http://127.0.0.1:${port}`,
    deadlines: QUICK,
    onInvalidReply: (reason) => invalid.push(reason),
    ...options,
  });
  cleanups.push(() => provider.close());
  return { provider, invalid, port };
}

function http(serve: RequestListener): Server {
  const server = createServer(serve);
  cleanups.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return server;
}

/** Sends raw bytes for every request that comes in; `%ID%` becomes the request's id. */
function raw(reply: (request: string, socket: Socket) => string | undefined) {
  const sockets = new Set<Socket>();
  const server = createTcpServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.on("data", (data) => {
      const request = data.toString("latin1");
      const id = /x-request-id: (\S+)/i.exec(request)?.[1] ?? "";
      const bytes = reply(request, socket);
      if (bytes !== undefined) socket.write(bytes.replaceAll("%ID%", id));
    });
  });
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return server;
}

async function all<T>(source: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of source) items.push(item);
  return items;
}

const okHead = (length: number | string) =>
  `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Request-Id: %ID%\r\nContent-Length: ${length}\r\n\r\n`;

describe("deadlines", () => {
  test("a backend that accepts and never answers", async () => {
    const { provider } = await connect(raw(() => undefined));
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining("in time"),
    });
  });

  test("headers that trickle", async () => {
    const server = raw((_request, socket) => {
      const timer = setInterval(() => socket.write("X"), 20);
      socket.on("close", () => clearInterval(timer));
      return "HTTP/1.1 200 OK\r\nX-";
    });
    const { provider } = await connect(server);
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({ code: "unavailable" });
  });

  test("a body that trickles", async () => {
    const server = raw((_request, socket) => {
      const timer = setInterval(() => socket.write(" "), 20);
      socket.on("close", () => clearInterval(timer));
      return okHead(100_000);
    });
    const { provider } = await connect(server);
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining("did not end in time"),
    });
  });

  test("a connection that cannot be made: TLS that never greets", async () => {
    const server = raw(() => undefined);
    const { port } = await connect(server);
    // Only that one: on a busy machine another of the same length may be noticed before it.
    const deadlines = { ...QUICK, headersMs: 30_000 };
    const provider = new HttpVmProvider({ url: `https://127.0.0.1:${port}`, deadlines });
    cleanups.push(() => provider.close());
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining("no connection within 150 ms"),
    });
  });

  test("an event stream that falls silent", async () => {
    const server = http((request, response) => {
      response.writeHead(200, {
        "content-type": "text/event-stream",
        "x-request-id": request.headers["x-request-id"]!,
      });
      response.write(": hello\n\n");
    });
    const { provider } = await connect(server);
    await expect(provider.watchPods(0, { signal, labels: {} }).next()).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining("silent"),
    });
  });

  test("a followed log may be silent for longer", async () => {
    const server = http((request, response) => {
      response.writeHead(200, { "content-type": "text/x-cri-log", "x-request-id": request.headers["x-request-id"]! });
      response.flushHeaders();
      void passTime(2 * QUICK.silenceMs, "silence itself is tried").then(() =>
        response.end("2026-01-01T00:00:00.000000000Z stdout F late\n"),
      );
    });
    const { provider } = await connect(server);
    const { value } = await provider.getLogs("m", "c", { signal, follow: true }).next();
    expect(value?.content.toString()).toBe("late");
  });
});

describe("bytes", () => {
  test("a body without end is cut off", async () => {
    const server = http((request, response) => {
      response.writeHead(200, { "content-type": "application/json", "x-request-id": request.headers["x-request-id"]! });
      const block = Buffer.alloc(65_536, " ");
      const pump = () => {
        while (!response.destroyed && response.write(block));
        if (!response.destroyed) response.once("drain", pump);
      };
      pump();
    });
    const { provider, invalid } = await connect(server, { deadlines: {} });
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual(["size"]);
  });

  test("ten thousand headers are refused", async () => {
    const many = Array.from({ length: 10_000 }, (_, i) => `X-${i}: y\r\n`).join("");
    const { provider } = await connect(raw(() => `HTTP/1.1 200 OK\r\n${many}Content-Length: 0\r\n\r\n`));
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({ code: "unavailable" });
  });

  test("a body that breaks off is unknown", async () => {
    const { provider } = await connect(
      raw((_request, socket) => {
        setImmediate(() => socket.end());
        return okHead(500) + INFO;
      }),
    );
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({ code: "unavailable" });
  });

  test("what is no HTTP is unknown", async () => {
    const { provider } = await connect(raw(() => "SSH-2.0-OpenSSH_9.2\r\n"));
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({ code: "unavailable" });
  });

  test("a log that breaks off is an error, one that ends is not", async () => {
    const line = "2026-01-01T00:00:00.000000000Z stdout F x\n";
    let isWhole = true;
    const server = http((request, response) => {
      response.writeHead(200, { "content-type": "text/x-cri-log", "x-request-id": request.headers["x-request-id"]! });
      response.write(line);
      if (isWhole) response.end();
      else setImmediate(() => response.destroy());
    });
    const { provider } = await connect(server);
    const read = async () => (await all(provider.getLogs("m", "c", { signal }))).length;
    expect(await read()).toBe(1);
    isWhole = false;
    await expect(read()).rejects.toMatchObject({ code: "unavailable" });
  });

  test.each([
    ["no log line", "hello\n", "log_line"],
    ["a line that is cut off", "2026-01-01T00:00:00.000000000Z stdout F x", "log_line"],
    ["a line without end", `2026-01-01T00:00:00.000000000Z stdout F ${"x".repeat(2 * 1024 * 1024)}`, "size"],
  ])("a log with %s is refused", async (_name, body, reason) => {
    const server = http((request, response) => {
      response.writeHead(200, { "content-type": "text/x-cri-log", "x-request-id": request.headers["x-request-id"]! });
      response.end(body);
    });
    const { provider, invalid } = await connect(server, { deadlines: {} });
    await expect(all(provider.getLogs("m", "c", { signal }))).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual([reason]);
  });

  test.each([
    ["no JSON", "id: 1\ndata: {\n\n", "json"],
    ["no machine", 'id: 1\ndata: {"revision":1}\n\n', "schema"],
    ["an event without end", `data: ${"x".repeat(2 * 1024 * 1024)}`, "size"],
    ["an event of lines without end", `data: ${"x".repeat(1024)}\n`.repeat(2 * 1024), "size"],
  ])("events with %s are refused", async (_name, body, reason) => {
    const server = http((request, response) => {
      response.writeHead(200, {
        "content-type": "text/event-stream",
        "x-request-id": request.headers["x-request-id"]!,
      });
      response.end(body);
    });
    const { provider, invalid } = await connect(server, { deadlines: {} });
    await expect(provider.watchPods(0, { signal, labels: {} }).next()).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual([reason]);
  });
});

describe("connections", () => {
  test("one that the backend closed while it was idle is replaced, and the call made once more", async () => {
    let requests = 0;
    const server = raw((_request, socket) => {
      requests++;
      if (requests === 2) {
        socket.resetAndDestroy();
        return undefined;
      }
      return okHead(INFO.length) + INFO;
    });
    const { provider } = await connect(server);
    await provider.getInfo({ signal });
    await provider.getInfo({ signal });
    expect(requests).toBe(3);
  });

  test("one on which an answer to another request came is destroyed", async () => {
    let connections = 0;
    let isPoisoned = true;
    const server = raw(
      () => (isPoisoned ? okHead(INFO.length).replace("%ID%", "another") : okHead(INFO.length)) + INFO,
    );
    server.on("connection", () => connections++);
    const { provider, invalid } = await connect(server);
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({ code: "unavailable" });
    expect(invalid).toEqual(["request_id"]);
    isPoisoned = false;
    await provider.getInfo({ signal });
    expect(connections).toBe(2);
  });

  test("no more calls are in flight than allowed", async () => {
    const answers: (() => void)[] = [];
    const server = http((request, response) => {
      answers.push(() =>
        response
          .writeHead(200, { "content-type": "application/json", "x-request-id": request.headers["x-request-id"]! })
          .end(INFO),
      );
    });
    const { provider } = await connect(server, {
      deadlines: {},
      pacing: { concurrency: 3, perSecond: 1000, burst: 1000 },
    });
    const calls = Promise.all(Array.from({ length: 12 }, () => provider.getInfo({ signal })));
    for (let answered = 0; answered < 12; answered += 3) {
      await expect.poll(() => answers.length).toBe(3);
      expect(await settled(() => answers.length)).toBe(3);
      for (const answer of answers.splice(0)) answer();
    }
    await calls;
  });
});

describe("a connection that is kept", () => {
  const MAX_AGE_MS = 5 * 60_000;

  test("is closed at its greatest age, so that the next call goes where the backend's name leads then", async () => {
    const clock = new VirtualClock();
    const connections: Socket[] = [];
    const server = raw(() => okHead(INFO.length) + INFO);
    server.on("connection", (socket: Socket) => connections.push(socket));
    const { provider } = await connect(server, { clock, deadlines: {} });
    await provider.getInfo({ signal });
    await clock.advance(MAX_AGE_MS - 1000);
    await provider.getInfo({ signal });
    expect(connections).toHaveLength(1);
    await clock.advance(1000);
    await expect.poll(() => connections[0]!.destroyed).toBe(true);
    await provider.getInfo({ signal });
    expect(connections).toHaveLength(2);
  });

  test("is not closed under a call, but after it", async () => {
    const clock = new VirtualClock();
    let answer = () => {};
    let connections = 0;
    const server = raw((_request, socket) => {
      const id = /x-request-id: (\S+)/i.exec(_request)![1]!;
      answer = () => void socket.write((okHead(INFO.length) + INFO).replace("%ID%", id));
      return undefined;
    });
    server.on("connection", () => connections++);
    const { provider } = await connect(server, { clock, deadlines: { headersMs: 1e9 } });
    const call = provider.getInfo({ signal });
    await expect.poll(() => connections).toBe(1);
    await clock.advance(MAX_AGE_MS);
    answer();
    expect(await call).toMatchObject({ name: "b" });
    const next = provider.getInfo({ signal });
    await expect.poll(() => connections).toBe(2);
    await expect.poll(() => (answer(), true)).toBe(true);
    await next;
  });
});

describe.runIf(existsSync("/proc/net/tcp"))("a stream whose backend's host vanishes is noticed by the kernel:", () => {
  /** True while the kernel's timer of the connection from this port is that of keep-alive (proc(5), net/tcp: tr). */
  function isKeptAlive(port: number): boolean {
    const hex = `:${port.toString(16).toUpperCase().padStart(4, "0")}`;
    const rows = readFileSync("/proc/net/tcp", "utf8")
      .split("\n")
      .map((row) => row.trim().split(/\s+/));
    return rows.some(([, local, , , , timer]) => local?.endsWith(hex) === true && timer?.startsWith("02:") === true);
  }

  test("a followed log", async () => {
    let port = 0;
    const server = http((request, response) => {
      port = request.socket.remotePort!;
      response.writeHead(200, { "content-type": "text/x-cri-log", "x-request-id": request.headers["x-request-id"]! });
      response.flushHeaders();
    });
    const { provider } = await connect(server);
    const stop = new AbortController();
    const following = provider.getLogs("m", "c", { signal: stop.signal, follow: true }).next();
    await expect.poll(() => port > 0 && isKeptAlive(port)).toBe(true);
    stop.abort();
    await following;
  });

  test("a command", async () => {
    let port = 0;
    const server = http(() => {});
    const sockets = new WebSocketServer({ server, handleProtocols: () => "v5.channel.k8s.io" });
    sockets.on("headers", (headers, request) =>
      headers.push(`X-Request-Id: ${request.headers["x-request-id"] as string}`),
    );
    sockets.on("connection", (_socket, request) => (port = request.socket.remotePort!));
    const { provider } = await connect(server);
    const streams = await provider.exec("m", "c", ["sleep", "3600"], {
      signal,
      stdin: false,
      stdout: true,
      stderr: false,
      tty: false,
    });
    await expect.poll(() => port > 0 && isKeptAlive(port)).toBe(true);
    streams.close();
    sockets.close();
  });
});

describe("credentials", () => {
  test("a token is read again when the backend refuses it and its file has changed", async () => {
    const folder = await mkdtemp(join(tmpdir(), "vmlet-token-"));
    cleanups.push(() => rm(folder, { recursive: true }));
    const tokenFile = join(folder, "token");
    await writeFile(tokenFile, "old\n");
    let accepted = "old";
    const server = http((request, response) => {
      const isKnown = request.headers.authorization === `Bearer ${accepted}`;
      response.writeHead(isKnown ? 200 : 401, {
        "content-type": "application/json",
        "x-request-id": request.headers["x-request-id"]!,
      });
      response.end(isKnown ? INFO : JSON.stringify({ error: { code: "unauthorized", message: "no" } }));
    });
    const { provider } = await connect(server, { credentials: { tokenFile } });
    await provider.getInfo({ signal });
    accepted = "new";
    await writeFile(tokenFile, "newer\n");
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({ code: "unauthorized" });
    await writeFile(tokenFile, "new\n");
    await provider.getInfo({ signal });
  });

  test("a token is read again when a mounted Secret was replaced: one request is refused, and no more", async () => {
    const mount = await mkdtemp(join(tmpdir(), "vmlet-token-"));
    cleanups.push(() => rm(mount, { recursive: true }));
    const mountToken = (token: string) =>
      writeFilesVolume(mount, [{ path: "token", mode: 0o600, content_b64: Buffer.from(token).toString("base64") }]);
    mountToken("old");
    let accepted = "old";
    let refused = 0;
    const server = http((request, response) => {
      const isKnown = request.headers.authorization === `Bearer ${accepted}`;
      if (!isKnown) refused++;
      response.writeHead(isKnown ? 200 : 401, {
        "content-type": "application/json",
        "x-request-id": request.headers["x-request-id"]!,
      });
      response.end(isKnown ? INFO : JSON.stringify({ error: { code: "unauthorized", message: "no" } }));
    });
    const { provider } = await connect(server, { credentials: { tokenFile: join(mount, "token") } });
    await provider.getInfo({ signal });
    mountToken("new");
    accepted = "new";
    for (let i = 0; i < 3; i++) await provider.getInfo({ signal });
    expect(refused).toBeLessThanOrEqual(1);
  });

  test("a token file that is missing says which", async () => {
    const { provider } = await connect(
      raw(() => undefined),
      { credentials: { tokenFile: "/nonexistent/token" } },
    );
    await expect(provider.getInfo({ signal })).rejects.toMatchObject({
      code: "unauthorized",
      message: expect.stringContaining("/nonexistent/token"),
    });
  });
});
