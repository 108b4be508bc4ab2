import { createServer as createHttp2 } from "node:http2";
import { createServer, type RequestListener } from "node:http";
import { createServer as createTcpServer, type AddressInfo, type Server } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import type { Handler } from "../../../src/provider/machine.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { connect, runHook, runProbe, type Target } from "../../../src/provider/probes/actions.ts";

/** A machine whose address is this host's. */
const target: Target = {
  addresses: ["127.0.0.1"],
  dial: (port, signal) => connect("127.0.0.1", port, signal),
  exec: () => Promise.reject(new Error("no case runs a command")),
};

async function listen(server: Server): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => void server.close());
  return (server.address() as AddressInfo).port;
}

const http = (listener: RequestListener) => listen(createServer(listener));
const probe = (handler: Handler, timeoutMs = 2_000) => runProbe(handler, target, timeoutMs, systemClock);

async function closedPort(): Promise<number> {
  const server = createTcpServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise<void>((resolve) => server.close(() => resolve()));
  return port;
}

test.each([
  [200, "success"],
  [204, "success"],
  [399, "success"],
  [400, "failure"],
  [500, "failure"],
])("an http probe that is answered with %i is a %s", async (status, outcome) => {
  const port = await http((_request, response) => response.writeHead(status).end());
  expect((await probe({ http: { path: "/", port } })).outcome).toBe(outcome);
});

test("an http probe that fails says the status code as kubelet does", async () => {
  const port = await http((_request, response) => response.writeHead(503).end());
  expect((await probe({ http: { path: "/", port } })).output).toBe("HTTP probe failed with statuscode: 503");
});

test("an http probe sends kubelet's headers, and the probe's own over them", async () => {
  let seen: Record<string, unknown> = {};
  const port = await http((request, response) => {
    seen = request.headers;
    response.end();
  });
  await probe({
    http: {
      path: "/",
      port,
      headers: [
        { name: "accept", value: "text/x" },
        { name: "X-Own", value: "1" },
      ],
    },
  });
  expect(seen).toMatchObject({
    "user-agent": "kube-probe/1.37",
    accept: "text/x",
    "x-own": "1",
    connection: "close",
    host: `127.0.0.1:${port}`,
  });
});

test.each([
  ["Connection", "Upgrade"],
  ["connection", "keep-alive, Upgrade"],
  ["Upgrade", "websocket"],
  ["Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="],
  ["sec-websocket-protocol", "v5.channel.k8s.io"],
  ["Content-Length", "5"],
  ["Transfer-Encoding", "chunked"],
  ["Expect", "100-continue"],
  ["HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA"],
  ["TE", "trailers"],
  ["Keep-Alive", "timeout=600"],
])("an http probe or hook is one GET, whatever is asked of its headers: %s", async (name, value) => {
  const seen: string[] = [];
  const server = createTcpServer((socket) => {
    socket.on("data", (chunk: Buffer) => {
      seen.push(chunk.toString("latin1"));
      socket.end("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    });
  });
  const port = await listen(server);
  const headers = [
    { name, value },
    { name: "X-Own", value: "1" },
  ];
  expect(await probe({ http: { path: "/", port, headers } })).toMatchObject({ outcome: "success" });
  await runHook({ http: { path: "/", port, headers } }, target, {
    clock: systemClock,
    signal: new AbortController().signal,
    onFallback: () => undefined,
  });
  expect(seen).toHaveLength(2);
  for (const request of seen) {
    const lines = request.toLowerCase().split("\r\n").slice(1, -2);
    expect(lines.map((line) => line.split(":")[0])).toEqual(
      expect.arrayContaining(["accept", "connection", "host", "user-agent", "x-own"]),
    );
    expect(lines).toHaveLength(5);
    expect(lines).toContain("connection: close");
  }
});

test("an http probe has one host, the last that was named", async () => {
  let hosts: string[] = [];
  const port = await http((request, response) => {
    hosts = request.rawHeaders.filter((_each, index, all) => index % 2 === 1 && /^host$/i.test(all[index - 1]!));
    response.end();
  });
  const headers = [
    { name: "Host", value: "a.example" },
    { name: "host", value: "b.example" },
  ];
  await probe({ http: { path: "/", port, headers } });
  expect(hosts).toEqual(["b.example"]);
});

test("an http probe to a closed port says so in kubelet's words", async () => {
  const port = await closedPort();
  expect(await probe({ http: { path: "/x", port } })).toEqual({
    outcome: "failure",
    output: `Get "http://127.0.0.1:${port}/x": dial tcp 127.0.0.1:${port}: connect: connection refused`,
  });
});

test("an http probe without an answer in time fails in kubelet's words", async () => {
  const port = await http(() => {});
  expect((await probe({ http: { path: "/", port } }, 50)).output).toMatch(
    /context deadline exceeded \(Client.Timeout exceeded while awaiting headers\)$/,
  );
});

test("an http probe follows redirects on the same host", async () => {
  const port = await http((request, response) => {
    if (request.url === "/") response.writeHead(302, { location: "/there" }).end();
    else response.writeHead(500).end();
  });
  expect((await probe({ http: { path: "/", port } })).output).toBe("HTTP probe failed with statuscode: 500");
});

test("an http probe that is sent to another host is a success with a warning", async () => {
  const port = await http((_request, response) =>
    response.writeHead(302, { location: "http://elsewhere.example/" }).end("moved"),
  );
  expect(await probe({ http: { path: "/", port } })).toEqual({
    outcome: "warning",
    output: "Probe terminated redirects, Response body: moved",
  });
});

test("an http probe keeps no more than 10 KiB of the body", async () => {
  const port = await http((_request, response) => response.end("x".repeat(100_000)));
  expect((await probe({ http: { path: "/", port } })).output).toHaveLength(10_240);
});

test("a tcp probe succeeds when the port takes a connection", async () => {
  const port = await listen(createTcpServer((socket) => socket.on("error", () => {})));
  expect((await probe({ tcp: { port } })).outcome).toBe("success");
});

test("a tcp probe to a closed port fails", async () => {
  const port = await closedPort();
  expect(await probe({ tcp: { port } })).toEqual({
    outcome: "failure",
    output: `dial tcp 127.0.0.1:${port}: connect: connection refused`,
  });
});

/** A health service by hand: `status` is the answer's field 1. */
async function grpcServer(status: number | undefined): Promise<{ port: number; asked: Buffer[] }> {
  const asked: Buffer[] = [];
  const server = createHttp2();
  server.on("stream", (stream, headers) => {
    stream.on("data", (chunk: Buffer) => asked.push(chunk));
    stream.on("error", () => {});
    stream.on("end", () => {
      const known = status !== undefined && headers[":path"] === "/grpc.health.v1.Health/Check";
      stream.respond({ ":status": 200, "content-type": "application/grpc" }, { waitForTrailers: true });
      stream.on("wantTrailers", () =>
        stream.sendTrailers(
          known ? { "grpc-status": "0" } : { "grpc-status": "12", "grpc-message": "unknown service" },
        ),
      );
      stream.end(known ? Buffer.from([0, 0, 0, 0, 2, 8, status]) : undefined);
    });
  });
  return { port: await listen(server), asked };
}

test.each([
  [1, "success", "service healthy"],
  [2, "failure", 'service unhealthy (responded with "NOT_SERVING")'],
])("a grpc probe that is answered with status %i is a %s", async (status, outcome, output) => {
  const { port } = await grpcServer(status);
  expect(await probe({ grpc: { port } })).toEqual({ outcome, output });
});

test("a grpc probe asks for the named service", async () => {
  const { port, asked } = await grpcServer(1);
  await probe({ grpc: { port, service: "db" } });
  expect(Buffer.concat(asked)).toEqual(Buffer.from([0, 0, 0, 0, 4, 0x0a, 2, 0x64, 0x62]));
});

test("a grpc probe of a server without health checks says so", async () => {
  const { port } = await grpcServer(undefined);
  expect((await probe({ grpc: { port } })).output).toMatch(
    /^error: this server does not implement the grpc health protocol/,
  );
});

const hook = (handler: Handler, onFallback = (_message: string) => {}) =>
  runHook(handler, target, { clock: systemClock, signal: AbortSignal.timeout(2_000), onFallback });

test("an http hook succeeds whatever the status code", async () => {
  const port = await http((_request, response) => response.writeHead(500).end());
  await expect(hook({ http: { path: "/", port } })).resolves.toBeUndefined();
});

test("an http hook to a closed port fails", async () => {
  await expect(hook({ http: { path: "/", port: await closedPort() } })).rejects.toThrow(/ECONNREFUSED/);
});

test("an https hook that meets plain http is repeated as http, and says so", async () => {
  let calls = 0;
  const port = await http((_request, response) => {
    calls++;
    response.end();
  });
  const told: string[] = [];
  await hook({ http: { path: "/", port, scheme: "https" } }, (message) => told.push(message));
  expect(calls).toBe(1);
  expect(told).toHaveLength(1);
});

test.each<[string, (port: number, host: string) => Handler]>([
  ["an http probe", (port, host) => ({ http: { path: "/", port, host } })],
  ["a tcp probe", (port, host) => ({ tcp: { port, host } })],
])("%s to another host than the pod is a failure, and nothing is sent there", async (_title, handler) => {
  let connections = 0;
  const server = createTcpServer((socket) => {
    connections++;
    socket.end();
  });
  const port = await listen(server);
  const elsewhere: Target = { ...target, addresses: ["192.0.2.1"] };
  for (const host of ["127.0.0.1", "localhost", "::1", "0.0.0.0", "127.1", "example.test"])
    expect(await runProbe(handler(port, host), elsewhere, 2_000, systemClock)).toMatchObject({
      outcome: "failure",
      output: expect.stringContaining("leave its host field out"),
    });
  expect(connections).toBe(0);
});

test("a hook to another host than the pod fails", async () => {
  const hook = { http: { path: "/", port: await closedPort(), host: "example.test" } };
  const context = { clock: systemClock, signal: new AbortController().signal, onFallback: () => undefined };
  await expect(runHook(hook, target, context)).rejects.toThrow("leave its host field out");
});

test("a probe of the loopback goes to the machine's own, where that can be reached", async () => {
  const port = await http((_request, response) => response.end("own"));
  const inside: Target = {
    ...target,
    addresses: ["192.0.2.1"],
    dialLoopback: (asked, signal) => connect("127.0.0.1", asked, signal),
  };
  const handler = { http: { path: "/", port, host: "localhost" } };
  expect(await runProbe(handler, inside, 2_000, systemClock)).toEqual({ outcome: "success", output: "own" });
});
