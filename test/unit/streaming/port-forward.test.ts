import { once } from "node:events";
import type { Duplex } from "node:stream";
import { createWebSocketStream } from "ws";
import { describe, expect, test } from "vitest";
import { negotiatePortForward, servePortForward } from "../../../src/streaming/port-forward.ts";
import { systemClock, type Clock } from "../../../src/util/clock.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { SpdyClient, duplexPair } from "./spdy-client.ts";
import { startUpgradeServer } from "./upgrade-server.ts";

/** A server whose ports are the other ends of `remotes`; port 1 refuses, port 9 does not answer. */
async function serve(query = "", clock: Clock = systemClock) {
  const remotes: { port: number; end: Duplex }[] = [];
  let dialed = Promise.withResolvers<void>();
  const server = await startUpgradeServer(async (upgrade) =>
    servePortForward(
      upgrade,
      negotiatePortForward(upgrade.request, new URLSearchParams(query)),
      {
        podName: "web",
        podUid: "u-1",
        dial: (port, signal) => {
          if (port === 1) return Promise.reject(new Error("connection \u001b[31mrefused\u0007"));
          if (port === 9) {
            dialed.resolve();
            return once(signal, "abort").then(() => Promise.reject(signal.reason as Error));
          }
          const [near, end] = duplexPair();
          signal.addEventListener("abort", () => near.destroy(), { once: true });
          end.on("error", () => {});
          remotes.push({ port, end });
          dialed.resolve();
          dialed = Promise.withResolvers();
          return Promise.resolve(near);
        },
      },
      { clock },
      new AbortController().signal,
    ),
  );
  return {
    server,
    remotes,
    nextDial: () => dialed.promise,
    [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
  };
}

async function openPair(client: SpdyClient, errorId: number, port: number, requestid: string): Promise<void> {
  await client.openAndWait(errorId, { streamtype: "error", port: String(port), requestid });
  client.data(errorId, "", true);
  await client.openAndWait(errorId + 2, { streamtype: "data", port: String(port), requestid });
}

describe("port-forward over SPDY", () => {
  test("carries bytes both ways, with half-closes, and ends the error stream last", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    const dial = it.nextDial();
    await openPair(client, 1, 8080, "0");
    await dial;
    const { port, end } = it.remotes[0]!;
    client.data(3, "request", true);
    const request: Buffer[] = [];
    for await (const chunk of end.iterator({ destroyOnReturn: false })) request.push(chunk as Buffer);
    end.end("response");
    await client.until(() => client.isFinished(1));
    expect([port, Buffer.concat(request).toString(), client.text(3), client.text(1)]).toEqual([
      8080,
      "request",
      "response",
      "",
    ]);
    expect(client.isFinished(3)).toBe(true);
  });

  test("keeps many connections apart", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    for (let i = 0; i < 20; i++) await openPair(client, 4 * i + 1, 8000 + i, String(i));
    await client.until(() => it.remotes.length === 20);
    for (const { port, end } of it.remotes) end.end(`from ${port}`);
    const texts: string[] = [];
    for (let i = 0; i < 20; i++) {
      await client.until(() => client.isFinished(4 * i + 3));
      texts.push(client.text(4 * i + 3));
    }
    expect(texts).toEqual(Array.from({ length: 20 }, (_, i) => `from ${8000 + i}`));
  });

  test("tells why a port cannot be reached, resets the data stream, and lives on", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    await openPair(client, 1, 1, "0");
    await client.until(() => client.isFinished(1) && client.frames.some((frame) => frame.type === "rst_stream"));
    expect(client.text(1)).toBe("error forwarding port 1 to pod web, uid u-1: connection refused");
    expect(client.frames).toContainEqual({ type: "rst_stream", streamId: 3, status: 5 });
    await openPair(client, 5, 2, "1");
  });

  test("closes the remote end and ends the error stream when the client resets the data stream", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    const dial = it.nextDial();
    await openPair(client, 1, 80, "0");
    await dial;
    client.reset(3);
    await once(it.remotes[0]!.end, "close");
    await client.until(() => client.isFinished(1));
  });

  test("ends the error stream when the port has ended, for old clients wait for that before they end theirs", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    const dial = it.nextDial();
    await openPair(client, 1, 80, "0");
    await dial;
    it.remotes[0]!.end.end("all there is");
    await client.until(() => client.isFinished(1));
    expect([client.isFinished(3), client.text(3), client.text(1)]).toEqual([true, "all there is", ""]);
  });

  test("hands over what the client sends after the port's end, however slowly it is read", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    const dial = it.nextDial();
    await openPair(client, 1, 80, "0");
    await dial;
    const { end } = it.remotes[0]!;
    end.end();
    await client.until(() => client.isFinished(3));
    client.data(3, Buffer.alloc(200_000), true);
    // What comes behind it was read when this is answered.
    client.ping(1);
    await client.until(() => client.frames.some((frame) => frame.type === "ping"));
    let received = 0;
    for await (const chunk of end.iterator({ destroyOnReturn: false })) received += (chunk as Buffer).length;
    expect(received).toBe(200_000);
  });

  test("says nothing of a connection that the client gave up before it was there: the others would end with it", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    const dial = it.nextDial();
    await openPair(client, 1, 9, "0");
    await dial;
    client.reset(3);
    await client.until(() => client.isFinished(1));
    expect(client.text(1)).toBe("");
  });

  test("closes every remote end when the client leaves", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    await openPair(client, 1, 80, "0");
    await openPair(client, 5, 81, "1");
    await client.until(() => it.remotes.length === 2);
    const closed = it.remotes.map(({ end }) => once(end, "close"));
    client.transport.destroy();
    await Promise.all(closed);
  });

  test("pairs the streams of old clients without request ids", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    const dial = it.nextDial();
    await client.openAndWait(1, { streamtype: "error", port: "90" });
    await client.openAndWait(3, { streamtype: "data", port: "90" });
    await dial;
    expect(it.remotes[0]!.port).toBe(90);
  });

  test.each(["0", "65536", "http", ""])("resets a stream for port %j", async (port) => {
    await using it = await serve();
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    await client.open(1, { streamtype: "data", port, requestid: "0" });
    await client.until(() => client.frames.some((frame) => frame.type === "rst_stream"));
  });

  test("keeps nothing of a stream that the client reset before the other one of its pair came", async () => {
    const clock = new VirtualClock();
    await using it = await serve("", clock);
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    await client.openAndWait(1, { streamtype: "error", port: "80", requestid: "0" });
    const timers = clock.pending;
    for (let id = 3; id < 100; id += 2) {
      await client.open(id, { streamtype: "data", port: "80", requestid: String(id) });
      client.reset(id);
    }
    client.ping(1);
    await client.until(() => client.frames.some((frame) => frame.type === "ping"));
    expect(clock.pending).toBe(timers);
  });

  test("gives up half a pair after 30 s", async () => {
    const clock = new VirtualClock();
    await using it = await serve("", clock);
    const { client } = await it.server.spdy(["portforward.k8s.io"]);
    await client.openAndWait(1, { streamtype: "error", port: "80", requestid: "0" });
    await clock.advance(29_000);
    await clock.advance(2_000);
    await client.until(() => client.isFinished(1));
    expect(client.text(1)).toMatch(/timed out/);
  });
});

describe("port-forward over WebSocket", () => {
  test("carries SPDY in the tunnel, whose protocol name is no token", async () => {
    await using it = await serve();
    const { socket, protocol } = await it.server.rawWebSocket("SPDY/3.1+portforward.k8s.io");
    const client = new SpdyClient(createWebSocketStream(socket));
    const dial = it.nextDial();
    await openPair(client, 1, 8080, "0");
    await dial;
    it.remotes[0]!.end.end("through the tunnel");
    await client.until(() => client.isFinished(3));
    expect([protocol, client.text(3)]).toEqual(["SPDY/3.1+portforward.k8s.io", "through the tunnel"]);
    socket.terminate();
  });

  test("gives each port two channels that begin with its number", async () => {
    await using it = await serve("port=80,443");
    const webSocket = await it.server.webSocket(["v4.channel.k8s.io"], "/?port=80,443");
    webSocket.send(0, "to 80");
    const [input] = (await once(it.remotes[0]!.end, "data")) as [Buffer];
    it.remotes[0]!.end.end("from 80");
    it.remotes[1]!.end.end("from 443");
    await webSocket.closed;
    const channels = [0, 1, 2, 3].map((channel) => webSocket.bytes(channel).toString("latin1"));
    expect(String(input)).toBe("to 80");
    expect(channels).toEqual(["P\0from 80", "P\0", "\u00bb\u0001from 443", "\u00bb\u0001"]);
  });

  test("numbers the channels of many ports by one character each in the base64 protocol", async () => {
    const query = `port=${[80, 81, 82, 83, 84, 85].join(",")}`;
    await using it = await serve(query);
    const webSocket = await it.server.webSocket(["v4.base64.channel.k8s.io"]);
    while (it.remotes.length < 6) await it.nextDial();
    it.remotes.at(-1)!.end.write("from 85");
    webSocket.socket.send(`:${Buffer.from("to 85").toString("base64")}`);
    const [input] = (await once(it.remotes.at(-1)!.end, "data")) as [Buffer];
    for (const { end } of it.remotes) end.end();
    await webSocket.closed;
    const texts = webSocket.messages.map(({ data }) => data.toString());
    expect(String(input)).toBe("to 85");
    expect(texts).toContain(`:${Buffer.from("from 85").toString("base64")}`);
  });

  test("tells why a port cannot be reached on its error channel", async () => {
    await using it = await serve("port=1");
    const webSocket = await it.server.webSocket(["v4.channel.k8s.io"]);
    await webSocket.closed;
    expect(webSocket.text(1)).toBe("\u0001\u0000error forwarding port 1 to pod web, uid u-1: connection refused");
  });

  test("carries the data of the other ports past one that cannot be reached", async () => {
    await using it = await serve("port=1,80");
    const webSocket = await it.server.webSocket(["v4.channel.k8s.io"]);
    for (let i = 0; i < 32; i++) webSocket.send(0, Buffer.alloc(32 * 1024));
    webSocket.send(2, "to 80");
    const [input] = (await once(it.remotes[0]!.end, "data")) as [Buffer];
    expect(String(input)).toBe("to 80");
    webSocket.socket.terminate();
  });

  test.each(["", "port=x", "port=0"])("refuses with 400 the query %j", async (query) => {
    await using it = await serve(query);
    await expect(it.server.webSocket(["v4.channel.k8s.io"])).rejects.toThrow(/400/);
  });
});
