import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { connect, Server } from "node:net";
import { connect as tlsConnect } from "node:tls";
import { request as httpsRequest } from "node:https";
import { Worker } from "node:worker_threads";
import { afterEach, describe, expect, test, vi } from "vitest";
import { WebSocket } from "ws";
import { DEFAULT_SESSION_LIMITS } from "../../../src/kubelet/sessions.ts";
import { synStreamFrame, dataHeader } from "../../../src/spdy/frames.ts";
import { HeaderDeflater } from "../../../src/spdy/headers.ts";
import { fill, must, waitFor } from "../../e2e/harness/wait.ts";
import { CBC_CIPHERS, handshake } from "../../support/tls-handshake.ts";
import { ask, statusOf } from "./client.ts";
import type { FloodResult } from "./flood.ts";
import { startKubelet, testPod, type TestKubelet } from "./support.ts";

const SPDY = { connection: "Upgrade", upgrade: "SPDY/3.1", "x-stream-protocol-version": "v4.channel.k8s.io" };
const open: { destroy(): void }[] = [];
afterEach(() => {
  for (const socket of open.splice(0)) socket.destroy();
});

/** Opens an exec with stdin and stdout and keeps it. */
async function openExec(kubelet: TestKubelet, command: string[]): Promise<import("node:stream").Duplex> {
  const query = command.map((word) => `command=${encodeURIComponent(word)}`).join("&");
  const request = httpsRequest({
    host: "127.0.0.1",
    port: kubelet.server.port,
    path: `/exec/default/p/main?${query}&input=1&output=1`,
    method: "POST",
    headers: SPDY,
    ca: kubelet.authority.cert,
    agent: false,
    ...kubelet.client,
  });
  request.end();
  const [, socket] = (await once(request, "upgrade")) as [unknown, import("node:stream").Duplex];
  open.push(socket);
  socket.on("error", () => {});
  const deflater = new HeaderDeflater();
  for (const [index, streamtype] of ["error", "stdin", "stdout"].entries()) {
    socket.write(synStreamFrame(2 * index + 1, await deflater.next({ streamtype })));
  }
  return socket;
}

describe("TLS of the kubelet API", () => {
  test("has no CBC suites", async () => {
    await using kubelet = await startKubelet();
    const { port } = kubelet.server;
    const suites = [
      await handshake({ port }),
      await handshake({ port, maxVersion: "TLSv1.2" }),
      await handshake({ port, maxVersion: "TLSv1.2", ciphers: CBC_CIPHERS }),
    ];
    expect(suites).toEqual([expect.stringMatching(/^TLS_/), expect.stringMatching(/GCM|POLY1305/), "refused"]);
    kubelet.certificate.set(kubelet.authority.issue({ commonName: "vm-1" }, "serverAuth"));
    expect(await handshake({ port, maxVersion: "TLSv1.2", ciphers: CBC_CIPHERS })).toBe("refused");
  });
});

describe("limits of the kubelet API", () => {
  test.each([
    ["one address, the client's own", () => "127.0.0.1"],
    ["a hundred addresses", (index: number) => `127.0.0.${2 + (index % 100)}`],
  ])("answer a good request while a thousand slow connections of %s wait", async (_of, address) => {
    await using kubelet = await startKubelet();
    const slow = Array.from({ length: 1000 }, (_, index) => {
      const host = { port: kubelet.server.port, host: "127.0.0.1", localAddress: address(index) };
      // Half of them say nothing at all, half of them begin a request and stop.
      const socket = index % 2 === 0 ? connect(host) : tlsConnect({ ...host, rejectUnauthorized: false });
      socket.on("error", () => {});
      if (index % 2 === 1) socket.write("GET /pods HTTP/1.1\r\nHost: x\r\nX-Slow: ");
      open.push(socket);
      return socket;
    });
    const connecting = slow.filter((socket) => socket.connecting);
    await Promise.allSettled(connecting.map((socket) => once(socket, "connect")));
    expect((await ask(kubelet, "/pods")).status).toBe(200);
  });

  test("answer a hundred clients that connect at the same moment from one address, with credentials of their own", async () => {
    await using kubelet = await startKubelet();
    const answers = await Promise.all(Array.from({ length: 100 }, () => ask(kubelet, "/pods")));
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
  });

  test("give the place of a silent connection to a newcomer when all are taken, never that of one with credentials", async () => {
    await using kubelet = await startKubelet({ limits: { connections: 3 } });
    const session = await openExec(kubelet, ["cat"]);
    const silent = Array.from({ length: 5 }, () => {
      const socket = connect({ port: kubelet.server.port, host: "127.0.0.1" }).on("error", () => {});
      open.push(socket);
      return once(socket, "close");
    });
    await Promise.all(silent.slice(0, 3));
    expect((await ask(kubelet, "/pods")).status).toBe(200);
    expect(session.destroyed).toBe(false);
  });

  test("cap the connections of one address that show no credentials", async () => {
    await using kubelet = await startKubelet({ limits: { unauthenticatedPerAddress: 4 } });
    let cut = 0;
    for (let i = 0; i < 10; i++) {
      const socket = connect({ port: kubelet.server.port, host: "127.0.0.1", localAddress: "127.0.0.9" });
      socket.on("error", () => {});
      socket.on("close", () => cut++);
      open.push(socket);
    }
    await waitFor({ what: "six connections are cut" }, () => must(cut === 6, "not yet"));
    expect((await ask(kubelet, "/pods")).status).toBe(200);
  });

  test("do not count connections that have authenticated", async () => {
    await using kubelet = await startKubelet({ limits: { unauthenticatedPerAddress: 2 } });
    for (let i = 0; i < 5; i++) await openExec(kubelet, ["cat"]);
    expect((await ask(kubelet, "/pods")).status).toBe(200);
  });

  test("take the place of those whose credentials are good and who may do nothing: every pod has such", async () => {
    await using kubelet = await startKubelet({ limits: { connections: 4 } });
    kubelet.reviews.allows = ({ user }) => user !== "robot";
    const forbidden = Array.from({ length: 4 }, async () => {
      const socket = tlsConnect({ port: kubelet.server.port, host: "127.0.0.1", rejectUnauthorized: false });
      open.push(socket.on("error", () => {}));
      socket.write("GET /pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n\r\n");
      const [head] = (await once(socket, "data")) as [Buffer];
      return head.toString().slice(0, 12);
    });
    expect(await Promise.all(forbidden)).toEqual(forbidden.map(() => "HTTP/1.1 403"));
    expect((await ask(kubelet, "/pods")).status).toBe(200);
  });

  test.each([
    ["says nothing at all", ""],
    ["begins a handshake and stops", "\x16\x03\x01\x02\x00\x01"],
  ])("cut a connection that %s", async (_what, bytes) => {
    await using kubelet = await startKubelet({ limits: { headersTimeoutMs: 200 } });
    const socket = connect({ port: kubelet.server.port, host: "127.0.0.1" }).on("error", () => {});
    open.push(socket);
    socket.write(Buffer.from(bytes, "latin1"));
    await once(socket.resume(), "close");
  });

  test("cut a connection that says nothing after the handshake", async () => {
    await using kubelet = await startKubelet({ limits: { headersTimeoutMs: 200 } });
    const socket = tlsConnect({ port: kubelet.server.port, host: "127.0.0.1", rejectUnauthorized: false });
    open.push(socket.on("error", () => {}));
    await once(socket.resume(), "close");
  });

  test("find out that the client of a silent log is gone: the connection is probed", async () => {
    await using kubelet = await startKubelet();
    const socket = tlsConnect({
      port: kubelet.server.port,
      host: "127.0.0.1",
      rejectUnauthorized: false,
      ...kubelet.client,
    });
    open.push(socket);
    socket.write("GET /containerLogs/default/p/main?follow=true HTTP/1.1\r\nHost: x\r\n\r\n");
    await once(socket, "data");
    const hex = (port: number) => port.toString(16).toUpperCase().padStart(4, "0");
    const ends = `:${hex(kubelet.server.port)} 0100007F:${hex(socket.localPort!)} `;
    await waitFor({ what: "the kernel's timer for probes is set" }, async () => {
      const line = (await readFile("/proc/net/tcp", "utf8")).split("\n").find((each) => each.includes(ends));
      must(line?.trim().split(/ +/)[5]?.startsWith("02:") === true, line);
    });
  });

  test("do not fall with a connection that the system cannot give us", async () => {
    using listen = vi.spyOn(Server.prototype, "listen");
    await using kubelet = await startKubelet();
    // As Node does when accept fails, for example without a free file descriptor.
    (listen.mock.contexts[0] as Server).emit("error", new Error("accept ENFILE"));
    expect((await ask(kubelet, "/pods")).status).toBe(200);
  });

  test("cut a request whose header does not come to an end", async () => {
    await using kubelet = await startKubelet({ limits: { headersTimeoutMs: 200 } });
    const socket = tlsConnect({ port: kubelet.server.port, host: "127.0.0.1", rejectUnauthorized: false });
    socket.on("error", () => {});
    open.push(socket);
    socket.write("GET /pods HTTP/1.1\r\nHost: x\r\n");
    socket.resume();
    await once(socket, "close");
  });

  test("refuse a header of more than 16 KiB", async () => {
    await using kubelet = await startKubelet();
    expect((await ask(kubelet, `/pods?${"x".repeat(66_000)}`)).status).toBe(431);
  });

  test("refuse sessions beyond the limit of a pod with 429, and take one again when another has ended", async () => {
    await using kubelet = await startKubelet({ limits: { sessions: { ...DEFAULT_SESSION_LIMITS, perPod: 2 } } });
    const first = await openExec(kubelet, ["cat"]);
    await openExec(kubelet, ["cat"]);
    const another = () => ask(kubelet, "/exec/default/p/main?command=true&output=1", { method: "POST", headers: SPDY });
    const refused = await another();
    first.destroy();
    await waitFor({ what: "the first session is over" }, () => must(kubelet.provider.openSessions === 1, "not yet"));
    expect(statusOf(refused)).toMatchObject({ code: 429, message: "too many exec sessions: the limit per pod is 2" });
    expect((await another()).status).toBe(101);
  });

  test("end every session when the node shuts down", async () => {
    const kubelet = await startKubelet();
    const socket = await openExec(kubelet, ["sleep", "1000"]);
    await waitFor({ what: "the session is open" }, () => must(kubelet.provider.openSessions === 1, "not yet"));
    const closed = new Promise((resolve) => socket.resume().once("close", resolve));
    await kubelet.server.close(0);
    await closed;
    await waitFor({ what: "the process is gone" }, () => must(kubelet.provider.openSessions === 0, "not yet"));
  });

  test("keep memory flat while a slow client reads 256 MiB", async () => {
    await using kubelet = await startKubelet();
    const socket = await openExec(kubelet, ["sh", "-c", "head -c 268435456 /dev/zero"]);
    let received = 0;
    const before = process.memoryUsage.rss();
    let peak = 0;
    socket.on("data", (chunk: Buffer) => {
      received += chunk.length;
      peak = Math.max(peak, process.memoryUsage.rss());
      // Slower than the command writes.
      socket.pause();
      setImmediate(() => setImmediate(() => socket.resume()));
    });
    await once(socket, "close");
    expect(received).toBeGreaterThan(268_435_456);
    expect(peak - before).toBeLessThan(128 * 1024 * 1024);
  });

  test("stop reading a client whose process reads nothing", async () => {
    await using kubelet = await startKubelet();
    const socket = await openExec(kubelet, ["sleep", "1000"]);
    socket.resume();
    const piece = Buffer.concat([dataHeader(3, 32 * 1024, false), Buffer.alloc(32 * 1024)]);
    const sent = await fill({
      write: () => (socket.write(piece), piece.length),
      pending: () => socket.writableLength,
      allowed: socket.writableHighWaterMark,
      limit: 512 * 1024 * 1024,
    });
    expect(sent).toBeLessThan(64 * 1024 * 1024);
  });
});

describe("the bytes of sessions that nobody takes", () => {
  const pods = { get: () => ({ pod: testPod(), machineId: "m-1" }), list: () => [] };

  const openIn = async (kubelet: TestKubelet, namespace: string, command: string) => {
    const url = `${kubelet.url.replace("https", "wss")}/exec/${namespace}/p/main?command=${command}&input=1&output=1`;
    const socket = new WebSocket(url, ["v5.channel.k8s.io"], { ...kubelet.client, ca: kubelet.authority.cert });
    socket.on("error", () => {});
    open.push({ destroy: () => socket.terminate() });
    await once(socket, "open");
    return socket;
  };

  test("are bounded over all: a tenant whose messages are begun and not ended loses sessions, another's goes on", async () => {
    await using kubelet = await startKubelet({ pods, limits: { unreadBytes: 4 * 1024 * 1024 } });
    const other = await openIn(kubelet, "polite", "cat");
    const greedy = await Promise.all(Array.from({ length: 8 }, () => openIn(kubelet, "greedy", "cat")));
    const cut = greedy.map((socket) => new Promise((resolve) => socket.once("close", resolve)));
    for (const socket of greedy) socket.send(Buffer.alloc(1024 * 1024), { fin: false });
    await Promise.race(cut);
    await waitFor({ what: "half of them to be cut" }, () =>
      must(greedy.filter(({ readyState }) => readyState !== WebSocket.OPEN).length >= 4, "not yet"),
    );
    let text = "";
    other.on("message", (data: Buffer) => (text += data.toString()));
    other.send(Buffer.from("\0still here"));
    await waitFor({ what: "the other's echo" }, () => must(text.includes("still here"), text));
    expect(greedy.some(({ readyState }) => readyState === WebSocket.OPEN)).toBe(true);
  });

  test("close a session whose message has too many pieces", async () => {
    await using kubelet = await startKubelet();
    const socket = await openIn(kubelet, "default", "cat");
    const closed = once(socket, "close");
    for (let piece = 0; piece < 2000; piece++) socket.send(Buffer.alloc(1), { fin: false });
    expect((await closed)[0]).toBe(1008);
  });

  test.each([
    ["1009 of a message that is too large", Buffer.from([0x82, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0]), 1009],
    ["1002 of a frame that is not masked", Buffer.from([0x82, 0x01, 0x00]), 1002],
    ["1002 of an opcode that there is not", Buffer.from([0x83, 0x80, 0, 0, 0, 0]), 1002],
  ])("say by close code %s", async (_what, bytes, code) => {
    await using kubelet = await startKubelet();
    const socket = await openIn(kubelet, "default", "cat");
    const closed = once(socket, "close");
    (socket as unknown as { _socket: NodeJS.WritableStream })._socket.write(bytes);
    expect((await closed)[0]).toBe(code);
  });

  test("of commands that are run without a session are bounded too", async () => {
    await using kubelet = await startKubelet({ limits: { unreadBytes: 1024 * 1024 } });
    const answer = await ask(kubelet, "/run/default/p/main?cmd=head%20-c%208000000%20/dev/zero", { method: "POST" });
    expect(answer).toMatchObject({ status: 503, body: expect.stringContaining("use exec") });
    expect((await ask(kubelet, "/run/default/p/main?cmd=echo%20hi", { method: "POST" })).body).toBe("hi\n");
  });
});

describe("a flood of bad tokens", () => {
  test("of ten thousand a second is not passed on to the API server, and good clients are answered throughout", async () => {
    await using kubelet = await startKubelet();
    // They are known already, from the address that is about to be misused.
    for (const as of ["certificate", { token: "good" }] as const)
      expect((await ask(kubelet, "/pods", { as })).status).toBe(200);
    const reviewsBefore = kubelet.reviews.reviews.length;
    await using flood = new Flood(kubelet.server.port);
    const started = performance.now();
    const seconds = () => (performance.now() - started) / 1000;
    const answers: number[] = [];
    let slowest = 0;
    // Five seconds' worth of it, however long this host takes to offer that.
    while (seconds() < 5 || (await flood.result()).sent < 50_000) {
      for (const as of ["certificate", { token: "good" }] as const) {
        const asked = seconds();
        answers.push((await ask(kubelet, "/pods", { as })).status);
        slowest = Math.max(slowest, seconds() - asked);
      }
    }
    const { sent, answers: refusals } = await flood.result();
    console.log(
      `${(sent / seconds()).toFixed(0)} bad tokens a second; ${answers.length} good requests took ${slowest.toFixed(2)} s at most`,
    );
    expect(answers).toEqual(answers.map(() => 200));
    expect(Object.keys(refusals).toSorted()).toEqual(["401", "429"]);
    // Ten in each second that it touched.
    expect(kubelet.reviews.reviews.length - reviewsBefore).toBeLessThanOrEqual(10 * (Math.ceil(seconds()) + 1));
  });
});

/** The other side of flood.ts. */
class Flood {
  readonly #worker: Worker;

  constructor(port: number) {
    this.#worker = new Worker(new URL("./flood.ts", import.meta.url), { workerData: { port, connections: 16 } });
  }

  async result(): Promise<FloodResult> {
    // eslint-disable-next-line unicorn/require-post-message-target-origin -- a worker has none
    this.#worker.postMessage("how far?");
    const [result] = (await once(this.#worker, "message")) as [FloodResult];
    return result;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#worker.terminate();
  }
}
