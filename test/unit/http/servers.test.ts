/** What all servers of vmlet do alike. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type RequestListener } from "node:http";
import { connect, type Socket } from "node:net";
import { text } from "node:stream/consumers";
import { afterEach, describe, expect, test } from "vitest";
import { readBody } from "../../../src/http/body.ts";
import { sendReply, whileConnected } from "../../../src/http/exchange.ts";
import { HttpError } from "../../../src/http/http-error.ts";
import { closeNow, closeWithin, listen, urlOf } from "../../../src/http/listen.ts";
import { matchRoute } from "../../../src/http/routes.ts";
import { serverOptions, tlsContext } from "../../../src/http/server-options.ts";
import { systemClock } from "../../../src/util/clock.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

async function serve(answer: RequestListener) {
  const server = createServer(answer);
  const failures: Error[] = [];
  const port = await listen(server, { host: "127.0.0.1", port: 0 }, (error) => failures.push(error));
  cleanups.push(() => closeNow(server));
  return { server, port, failures, url: urlOf("http", "127.0.0.1", port) };
}

function dial(port: number): Socket {
  const socket = connect(port, "127.0.0.1").on("error", () => {});
  cleanups.push(() => socket.destroy());
  return socket;
}

describe("a server", () => {
  test("that cannot have its port says so to the one who started it", async () => {
    const { port } = await serve(() => {});
    await expect(listen(createServer(), { host: "127.0.0.1", port }, () => {})).rejects.toThrow("EADDRINUSE");
  });

  test("that cannot accept a connection reports it and goes on", async () => {
    const { server, failures, url } = await serve((_request, response) => response.end("on"));
    server.emit("error", new Error("accept EMFILE"));
    expect(failures).toEqual([new Error("accept EMFILE")]);
    expect(await (await fetch(url)).text()).toBe("on");
  });

  test("that closes waits for a request that is being answered", async () => {
    const asked = Promise.withResolvers<() => void>();
    const { server, url } = await serve((_request, response) => asked.resolve(() => response.end("whole")));
    const reply = fetch(url, { headers: { connection: "close" } });
    const finish = await asked.promise;
    const closed = closeWithin(server, 60_000, systemClock, () => {
      throw new Error("cut too early");
    });
    finish();
    expect(await (await reply).text()).toBe("whole");
    await closed;
  });

  test("that closes cuts what is left after its grace", async () => {
    const asked = Promise.withResolvers<void>();
    const { server, url } = await serve(() => asked.resolve());
    const reply = fetch(url).then(
      () => "answered",
      () => "cut",
    );
    await asked.promise;
    await closeWithin(server, 0, systemClock, () => server.closeAllConnections());
    expect(await reply).toBe("cut");
  });
});

describe("a request's body", () => {
  /** Answers with the body, or the status that reading it fails with. */
  const echo: RequestListener = (request, response) => {
    readBody(request, 10).then(
      (body) => sendReply(response, 200, {}, body),
      (thrown: HttpError) => sendReply(response, thrown.status, Object.fromEntries(thrown.headers), thrown.message),
    );
  };

  test.each(["", "x", "0123456789"])("within the limit is read whole: %j", async (body) => {
    const { url } = await serve(echo);
    const reply = await fetch(url, { method: "POST", body });
    expect([reply.status, await reply.text()]).toEqual([200, body]);
  });

  test("above the limit is refused in words that reach the client, though it goes on sending", async () => {
    const { port } = await serve(echo);
    const socket = dial(port);
    const reply = text(socket);
    socket.write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
    socket.write("x".repeat(500_000));
    expect(await reply).toMatch(/^HTTP\/1\.1 413 [^]*the body is larger than 10 bytes$/);
  });

  test.each(["before it is read", "while it is read"])("that breaks off %s is not waited for", async (when) => {
    const outcome = Promise.withResolvers<unknown>();
    const accepted = Promise.withResolvers<IncomingMessage>();
    const { port } = await serve((request) => accepted.resolve(request));
    const socket = dial(port);
    socket.write("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
    const request = await accepted.promise;
    request.on("error", () => {});
    const read = () => readBody(request, 10).then(outcome.resolve, outcome.resolve);
    if (when === "while it is read") void read();
    const gone = new Promise((resolve) => request.once("close", resolve));
    socket.destroy();
    await gone;
    if (when === "before it is read") void read();
    expect(await outcome.promise).toBeInstanceOf(Error);
  });
});

describe("the signal of a request", () => {
  const gone = () => new Error("gone");

  test("aborts when the client leaves before it has its answer", async () => {
    const aborted = Promise.withResolvers<unknown>();
    const { port } = await serve((_request, response) => {
      const { signal } = whileConnected(response, gone, new AbortController().signal);
      signal.addEventListener("abort", () => aborted.resolve(signal.reason));
      response.write("half");
    });
    const socket = dial(port);
    socket.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    await once(socket, "data");
    socket.destroy();
    expect(await aborted.promise).toEqual(new Error("gone"));
  });

  test("does not abort when the client has its answer", async () => {
    const closed = Promise.withResolvers<boolean>();
    const { url } = await serve((_request, response) => {
      const { signal } = whileConnected(response, gone, new AbortController().signal);
      response.on("close", () => closed.resolve(signal.aborted));
      response.end();
    });
    await fetch(url);
    expect(await closed.promise).toBe(false);
  });

  test("aborts when the server stops", async () => {
    const stopping = new AbortController();
    const signal = Promise.withResolvers<AbortSignal>();
    const { url } = await serve((_request, response) => {
      signal.resolve(whileConnected(response, gone, stopping.signal).signal);
    });
    fetch(url).catch(() => {});
    const { aborted } = await signal.promise;
    stopping.abort();
    expect([aborted, (await signal.promise).aborted]).toEqual([false, true]);
  });
});

describe("a table of routes", () => {
  const routes = [
    { methods: ["GET"], pattern: "/v1/things/:id" },
    { methods: ["PUT"], pattern: "/v1/things/:id" },
    { methods: ["GET"], pattern: "/v1/things/all" },
  ];

  test("finds the first route for method and path, with what the path names", () => {
    expect(matchRoute(routes, "PUT", "/v1/things/a%2Fb")).toEqual({ route: routes[1], params: { id: "a%2Fb" } });
  });

  test.each([
    ["GET", "/v1/things", undefined],
    ["GET", "/v1/things/", undefined],
    ["GET", "/v1/things/a/b", undefined],
    ["GET", "/v1/Things/a", undefined],
    ["DELETE", "/v1/things/a", "method not allowed"],
  ])("has for %s %s: %s", (method, path, expected) => {
    expect(matchRoute(routes, method, path)).toBe(expected);
  });

  test("takes no name of a path for one of every object's", () => {
    const match = matchRoute([{ methods: ["GET"], pattern: "/:a" }], "GET", "/x");
    expect(typeof match === "object" && "constructor" in match.params).toBe(false);
  });
});

describe("a server's options", () => {
  test("look for late requests at least as often as they become late", () => {
    expect(serverOptions({ headersMs: 50, requestMs: 100, keepAliveMs: 100 }).connectionsCheckingInterval).toBe(50);
  });

  test("trust no public CA when no client CA is given", () => {
    expect(tlsContext({ cert: "c", key: "k" }, undefined).ca).toEqual([]);
  });

  test.each([
    ["127.0.0.1", "https://127.0.0.1:80"],
    ["::1", "https://[::1]:80"],
  ])("put %s into a URL as %s", (host, url) => {
    expect(urlOf("https", host, 80)).toBe(url);
  });
});
