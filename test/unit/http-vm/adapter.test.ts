/** What reaches a backend of a request that axios sends, and what becomes of one that is given up. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { json, text } from "node:stream/consumers";
import axios, { AxiosError, type AxiosInstance } from "axios";
import { afterEach, expect, test } from "vitest";
import { nodeAdapter } from "../../../providers/http-vm/adapter.ts";
import { parseTarget } from "../../../providers/http-vm/options.ts";

let server: Server | undefined;

afterEach(() => {
  server?.closeAllConnections();
  server?.close();
});

async function listening(answer: RequestListener, { host = "127.0.0.1", prefix = "" } = {}): Promise<AxiosInstance> {
  server = createServer(answer);
  server.listen(0, host);
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const name = host.includes(":") ? `[${host}]` : host;
  return axios.create({ adapter: nodeAdapter(parseTarget(`http://${name}:${port}${prefix}`, false)) });
}

/** Answers with what came. */
const mirror: RequestListener = (request, reply) => {
  const { method, url, headers } = request;
  void text(request).then((body) => reply.end(JSON.stringify({ method, url, headers, body })));
};

async function read(body: IncomingMessage) {
  return (await json(body)) as { method: string; url: string; headers: Record<string, string>; body: string };
}

test("a path stands behind the backend's own, with its query", async () => {
  const backend = await listening(mirror, { prefix: "/machines-of/eu/" });
  const { data } = await backend.request<IncomingMessage>({ url: "/v1/machines?label=a%3Db" });
  expect(await read(data)).toMatchObject({ method: "GET", url: "/machines-of/eu/v1/machines?label=a%3Db" });
});

test("a backend may have an IPv6 address", async () => {
  const backend = await listening(mirror, { host: "::1" });
  const { data } = await backend.request<IncomingMessage>({ url: "/v1/info" });
  expect((await read(data)).headers["host"]).toMatch(/^\[::1\]:\d+$/);
});

test("a body goes out as it is, and its length is told before it", async () => {
  const backend = await listening(mirror);
  const data = JSON.stringify({ image: "größe" });
  const headers = { "content-type": "application/json" };
  const seen = await read((await backend.request({ method: "PUT", url: "/", data, headers })).data);
  expect(seen.body).toBe(data);
  expect(seen.headers).toMatchObject({
    "content-type": "application/json",
    "content-length": String(Buffer.byteLength(data)),
  });
});

test.each(["POST", "PUT", "PATCH"])("a %s without a body has no type of one", async (method) => {
  const backend = await listening(mirror);
  const seen = await read((await backend.request({ method, url: "/" })).data);
  expect(seen.headers).not.toHaveProperty("content-type");
  expect(seen.body).toBe("");
});

test("a reply is told of whatever its status, and a redirection is not followed", async () => {
  const backend = await listening((_, reply) => reply.writeHead(302, { location: "/elsewhere" }).end());
  const reply = await backend.request<IncomingMessage>({ url: "/" });
  expect([reply.status, reply.headers["location"]]).toEqual([302, "/elsewhere"]);
  reply.data.destroy();
});

test("who sends no reply is told of with the request that failed", async () => {
  const backend = await listening((request) => void request.socket.destroy());
  const failed = await backend.request({ url: "/" }).catch((thrown: unknown) => thrown);
  expect(failed).toBeInstanceOf(AxiosError);
  expect(failed).toMatchObject({ code: "ECONNRESET", request: { reusedSocket: false } });
});

test("who speaks another protocol all of a sudden has not replied", async () => {
  const backend = await listening(({ socket }) => {
    socket.write("HTTP/1.1 101 Switching Protocols\r\nupgrade: other\r\nconnection: upgrade\r\n\r\n");
  });
  await expect(backend.request({ url: "/" })).rejects.toBeInstanceOf(AxiosError);
});

test("a request that is given up before its reply fails, and the backend sees that nobody waits", async () => {
  const asked = Promise.withResolvers<IncomingMessage>();
  const backend = await listening((request) => asked.resolve(request));
  const abort = new AbortController();
  const failed = backend.request({ url: "/", signal: abort.signal }).catch((thrown: unknown) => thrown);
  const request = await asked.promise;
  const closed = once(request.socket, "close");
  abort.abort();
  expect(axios.isCancel(await failed)).toBe(true);
  await closed;
});

test("a body that is given up breaks off", async () => {
  const backend = await listening((_, reply) => void reply.writeHead(200).write("begun"));
  const abort = new AbortController();
  const { data } = await backend.request<IncomingMessage>({ url: "/", signal: abort.signal });
  await once(data, "readable");
  abort.abort();
  await expect(data.toArray()).rejects.toThrow();
});

test("a request that was given up before it was sent reaches nobody", async () => {
  const backend = await listening(mirror);
  const failed = await backend.request({ url: "/", signal: AbortSignal.abort() }).catch((thrown: unknown) => thrown);
  expect(axios.isCancel(failed)).toBe(true);
});
