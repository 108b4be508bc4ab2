/** Our client against our server: what the backend speaks with a container runtime's streaming server. */
import { expect, onTestFinished, test } from "vitest";
import { SpdySession, type SpdyStream } from "../../../src/spdy/session.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { duplexPair } from "./spdy-client.ts";

function connectBoth(onStream: (stream: SpdyStream) => void, limits: { maxStreams?: number } = {}) {
  const [near, far] = duplexPair();
  const server = new SpdySession(near, Buffer.alloc(0), { clock: systemClock, onStream, ...limits });
  const client = new SpdySession(far, Buffer.alloc(0), { clock: systemClock, side: "client" });
  onTestFinished(() => {
    client.destroy();
    server.destroy();
  });
  return { server, client };
}

async function textOf(stream: SpdyStream): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

test("streams are told apart by their headers, carry bytes both ways, and end each way by itself", async () => {
  const kinds: string[] = [];
  const { client } = connectBoth((stream) => {
    kinds.push(stream.headers.get("streamtype")!);
    stream.pipe(stream);
  });
  const [first, second] = await Promise.all([
    client.open({ streamType: "stdin" }),
    client.open({ streamType: "error" }),
  ]);
  first.end("one");
  second.end("two");
  expect([await textOf(first), await textOf(second)]).toEqual(["one", "two"]);
  expect(kinds).toEqual(["stdin", "error"]);
});

test("a stream that the server refuses is an error of its opening alone", async () => {
  const { client } = connectBoth((stream) => stream.end("kept"), { maxStreams: 1 });
  const kept = await client.open({ streamtype: "a" });
  await expect(client.open({ streamtype: "b" })).rejects.toThrow("refused");
  expect(await textOf(kept)).toBe("kept");
});

test("an opening ends with the connection", async () => {
  const [near, far] = duplexPair();
  near.resume();
  const client = new SpdySession(far, Buffer.alloc(0), { clock: systemClock, side: "client" });
  const opening = client.open({ streamtype: "a" });
  near.destroy();
  await expect(opening).rejects.toThrow();
  await expect(client.open({ streamtype: "b" })).rejects.toThrow("closed");
});

test("a slow reader of ten megabytes holds the sender back and gets all of it", async () => {
  const { client } = connectBoth((stream) => stream.end(Buffer.alloc(10 << 20)));
  const stream = await client.open({ streamtype: "data" });
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += (chunk as Buffer).length;
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(bytes).toBe(10 << 20);
});

test("a server that opens streams itself ends the session", async () => {
  const [near, far] = duplexPair();
  const rogue = new SpdySession(near, Buffer.alloc(0), { clock: systemClock, side: "client" });
  const client = new SpdySession(far, Buffer.alloc(0), { clock: systemClock, side: "client" });
  rogue.open({ streamtype: "data" }).catch(() => undefined);
  expect((await client.closed)?.message).toContain("has opened stream 1");
  rogue.destroy();
});
