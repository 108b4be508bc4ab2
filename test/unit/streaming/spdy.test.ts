import fc from "fast-check";
import { once } from "node:events";
import { createInflate } from "node:zlib";
import { describe, expect, test } from "vitest";
import { SPDY_DICTIONARY } from "../../../src/spdy/dictionary.ts";
import {
  SpdyFrameParser,
  dataHeader,
  goawayFrame,
  pingFrame,
  rstStreamFrame,
  synStreamFrame,
  type SpdyFrame,
} from "../../../src/spdy/frames.ts";
import { HeaderDeflater, HeaderInflater, emptyHeaderBlock, rawHeaders } from "../../../src/spdy/headers.ts";
import { SpdySession, type SpdyStream } from "../../../src/spdy/session.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { runs } from "../../support/runs.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";
import { SpdyClient, duplexPair, headerBomb } from "./spdy-client.ts";

function setUp(options: Partial<ConstructorParameters<typeof SpdySession>[2]> = {}) {
  const [near, far] = duplexPair();
  const streams: SpdyStream[] = [];
  const session = new SpdySession(near, Buffer.alloc(0), {
    clock: systemClock,
    onStream: (stream) => void streams.push(stream),
    ...options,
  });
  return { session, streams, near, client: new SpdyClient(far) };
}

/** Joins the pieces of DATA frames, which depend on how the bytes were split. */
function normalized(frames: SpdyFrame[]): unknown[] {
  const out: unknown[] = [];
  for (const frame of frames) {
    const last = out.at(-1) as { type?: string; streamId?: number; fin?: boolean; hex?: string } | undefined;
    if (frame.type !== "data") out.push(JSON.parse(JSON.stringify(frame)));
    else if (last?.type === "data" && last.streamId === frame.streamId && !last.fin) {
      last.hex += frame.payload.toString("hex");
      last.fin = frame.fin;
    } else out.push({ type: "data", streamId: frame.streamId, fin: frame.fin, hex: frame.payload.toString("hex") });
  }
  return out;
}

function parse(chunks: Buffer[]): SpdyFrame[] {
  const parser = new SpdyFrameParser({ maxControlBytes: 1 << 17 });
  return chunks.flatMap((chunk) => [...parser.push(chunk)]);
}

/** What kubectl 1.35 sends when it opens an exec: recorded from its connection. */
const KUBECTL_OPENS = [
  "80030001000000290000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a6800000000ffff",
  "800300010000001900000003000000000000c22ac5565c92925f5a02000000ffff",
].map((hex) => Buffer.from(hex, "hex"));

describe("SPDY frames", () => {
  test("are the same however the bytes are split", () => {
    const bytes = Buffer.concat([
      ...KUBECTL_OPENS,
      dataHeader(3, 5, false),
      Buffer.from("hello"),
      pingFrame(1),
      dataHeader(3, 0, true),
      rstStreamFrame(1, 5),
      goawayFrame(3),
    ]);
    const whole = normalized(parse([bytes]));
    fc.assert(
      fc.property(fc.array(fc.nat(bytes.length)), (cuts) => {
        const ends = [...cuts, bytes.length].sort((a, b) => a - b);
        const chunks = ends.map((end, index) => bytes.subarray(ends[index - 1] ?? 0, end));
        expect(normalized(parse(chunks))).toEqual(whole);
      }),
    );
  });

  test("from any bytes are either frames or a protocol error", () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 64 })), (chunks) => {
        try {
          parse(chunks.map((chunk) => Buffer.from(chunk)));
        } catch (thrown) {
          expect(thrown).toMatchObject({ code: "SPDY_PROTOCOL" });
        }
      }),
      { numRuns: runs(1000) },
    );
  });

  test("of data are handed on before they are complete", () => {
    const parser = new SpdyFrameParser({ maxControlBytes: 100 });
    const frames = [...parser.push(Buffer.concat([dataHeader(1, 16_000_000, true), Buffer.from("start")]))];
    expect(normalized(frames)).toEqual([
      { type: "data", streamId: 1, fin: false, hex: Buffer.from("start").toString("hex") },
    ]);
  });

  test("of control larger than the limit are refused by their length alone", () => {
    const parser = new SpdyFrameParser({ maxControlBytes: 100 });
    const frame = synStreamFrame(1, Buffer.alloc(200));
    expect(() => [...parser.push(frame.subarray(0, 8))]).toThrow(/larger than the limit/);
  });
});

describe("SPDY header blocks", () => {
  test("of kubectl are read in the order of arrival", async () => {
    const inflater = new HeaderInflater({ maxBytes: 65536 });
    const read: unknown[] = [];
    for (const frame of parse(KUBECTL_OPENS)) {
      if (frame.type === "syn_stream") read.push(Object.fromEntries(await inflater.next(frame.headerBlock)));
    }
    expect(read).toEqual([{ streamtype: "error" }, { streamtype: "stdout" }]);
  });

  test("of any headers survive the way through both ends", async () => {
    const headers = fc.dictionary(fc.stringMatching(/^[a-z]{1,12}$/), fc.string({ maxLength: 2000 }), { maxKeys: 20 });
    await fc.assert(
      fc.asyncProperty(fc.array(headers, { maxLength: 8 }), async (blocks) => {
        const deflater = new HeaderDeflater();
        const inflater = new HeaderInflater({ maxBytes: 1 << 20 });
        for (const block of blocks) {
          const read = await inflater.next(await deflater.next(block));
          const wanted = Object.entries(block).map(([name, value]) => [name, Buffer.from(value).toString()]);
          expect(Object.fromEntries(read)).toEqual(Object.fromEntries(wanted));
        }
        inflater.close();
      }),
      { numRuns: runs(50) },
    );
  });

  test("that inflate to more than the limit are refused", async () => {
    const inflater = new HeaderInflater({ maxBytes: 65536 });
    await expect(inflater.next(headerBomb(64 * 1024 * 1024))).rejects.toThrow(/inflates to more than 65536 bytes/);
  });

  test("of any bytes end in headers or an error, and never hang", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.uint8Array({ maxLength: 200 }), { minLength: 1, maxLength: 4 }), async (blocks) => {
        const inflater = new HeaderInflater({ maxBytes: 65536 });
        try {
          for (const block of blocks) await inflater.next(Buffer.from(block));
        } catch (thrown) {
          expect(thrown).toMatchObject({ code: "SPDY_PROTOCOL" });
        }
        inflater.close();
      }),
      { numRuns: runs(300) },
    );
  });

  test("that claim more entries or longer texts than they have are refused", async () => {
    for (const raw of [Buffer.from("ffffffff", "hex"), Buffer.from("00000001000000ff61", "hex"), Buffer.alloc(2)]) {
      const inflater = new HeaderInflater({ maxBytes: 65536 });
      await expect(inflater.next(await new HeaderDeflater().next(raw))).rejects.toMatchObject({
        code: "SPDY_PROTOCOL",
      });
    }
  });

  test("of our replies inflate to no headers, each flushed for readers that stop at its end", async () => {
    const inflate = createInflate({ dictionary: SPDY_DICTIONARY });
    const blocks = [emptyHeaderBlock(true), emptyHeaderBlock(false), emptyHeaderBlock(false)];
    for (const block of blocks) {
      // Z_SYNC_FLUSH: Go's reader fails for ever on a block without it.
      expect(block.subarray(-4).toString("hex")).toBe("0000ffff");
      inflate.write(block);
      const [headers] = (await once(inflate, "data")) as [Buffer];
      expect(headers).toEqual(rawHeaders({}));
    }
  });
});

describe("a SPDY session", () => {
  test("replies to a stream at once and carries data both ways", async () => {
    const { client, streams } = setUp();
    await client.openAndWait(1, { streamtype: "stdin" });
    client.data(1, "hello", true);
    const received: Buffer[] = [];
    for await (const chunk of streams[0]!.iterator({ destroyOnReturn: false })) received.push(chunk as Buffer);
    streams[0]!.end("bye");
    await client.until(() => client.isFinished(1));
    expect([Buffer.concat(received).toString(), client.text(1)]).toEqual(["hello", "bye"]);
  });

  test("reads frames that came with the request", async () => {
    const [near, far] = duplexPair();
    const client = new SpdyClient(far);
    const head = synStreamFrame(1, await new HeaderDeflater().next({ streamtype: "error" }));
    new SpdySession(near, head, { clock: systemClock, onStream: (stream) => void stream.end("from head") });
    await client.until(() => client.isFinished(1));
    expect(client.text(1)).toBe("from head");
  });

  test("answers the client's pings with the same id, and ignores answers to its own", async () => {
    const { client } = setUp();
    client.ping(7);
    client.ping(2);
    client.ping(9);
    await client.until(() => client.frames.length >= 2);
    expect(client.frames).toEqual([
      { type: "ping", id: 7 },
      { type: "ping", id: 9 },
    ]);
  });

  test("keeps the other direction open after the client's end", async () => {
    const { client, streams } = setUp();
    await client.open(1, {}, true);
    await client.until(() => client.frames.length === 1);
    streams[0]!.resume();
    await once(streams[0]!, "end");
    streams[0]!.end("still here");
    await client.until(() => client.isFinished(1));
    expect(client.text(1)).toBe("still here");
  });

  test("refuses streams beyond its limit and stays usable", async () => {
    const { client } = setUp({ maxStreams: 2 });
    for (const id of [1, 3, 5]) await client.open(id, {});
    await client.until(() => client.frames.length === 3);
    expect(client.frames.at(-1)).toEqual({ type: "rst_stream", streamId: 5, status: 3 });
    client.ping(1);
    await client.until(() => client.frames.at(-1)?.type === "ping");
  });

  test("ends with an error when a stream id is used twice", async () => {
    const { client, session } = setUp();
    await client.open(1, {});
    await client.open(1, {});
    expect(await session.closed).toMatchObject({ code: "SPDY_PROTOCOL" });
  });

  test("ends with an error on a header bomb", async () => {
    const { client, session } = setUp();
    client.transport.write(synStreamFrame(1, headerBomb(32 * 1024 * 1024)));
    expect(await session.closed).toMatchObject({ code: "SPDY_PROTOCOL" });
  });

  test("survives a flood of streams from a client that reads nothing: it stops reading it", async () => {
    const { client, near, streams } = setUp({ maxStreams: 4 });
    client.transport.pause();
    for (let id = 1; id < 60_000; id += 2) {
      client.transport.write(synStreamFrame(id, emptyHeaderBlock(id === 1)));
      if (id % 2000 === 1) await settle(2);
    }
    await settle(20);
    const unread = client.transport.writableLength;
    expect(streams).toHaveLength(4);
    expect(unread).toBeGreaterThan(100_000);
    expect(near.writableLength).toBeLessThanOrEqual(64 * 1024);
  });

  test("destroys its streams when the client leaves", async () => {
    const { client, session, streams } = setUp();
    await client.openAndWait(1, {});
    client.transport.destroy();
    expect(await session.closed).toBeInstanceOf(Error);
    expect(streams[0]!.destroyed).toBe(true);
  });

  test("destroys the stream that the client resets, and no other", async () => {
    const { client, streams } = setUp();
    await client.openAndWait(1, {});
    await client.openAndWait(3, {});
    client.reset(1);
    await once(streams[0]!, "close");
    expect(streams[1]!.destroyed).toBe(false);
  });

  test("tells the client when a stream is given up here", async () => {
    const { client, streams } = setUp();
    await client.openAndWait(1, {});
    streams[0]!.destroy();
    await client.until(() => client.frames.some((frame) => frame.type === "rst_stream"));
    expect(client.frames.at(-1)).toEqual({ type: "rst_stream", streamId: 1, status: 5 });
  });

  test("flushes everything before it closes", async () => {
    const { client, session, streams } = setUp();
    await client.openAndWait(1, {});
    const big = Buffer.alloc(3_000_000, "x");
    streams[0]!.end(big);
    streams[0]!.on("finish", () => session.close());
    await client.until(() => client.closed);
    expect(client.text(1)).toHaveLength(big.length);
  });

  test("stops reading while a stream is full, and goes on when it is read", async () => {
    const { client, streams } = setUp({ streamBufferBytes: 64 * 1024 });
    await client.openAndWait(1, {});
    const piece = Buffer.alloc(32 * 1024);
    for (let i = 0; i < 256; i++) client.data(1, piece, i === 255);
    await settle(50);
    const buffered = streams[0]!.readableLength;
    let total = 0;
    for await (const chunk of streams[0]!.iterator({ destroyOnReturn: false })) total += (chunk as Buffer).length;
    expect(buffered).toBeLessThan(256 * 1024);
    expect(total).toBe(8 << 20);
  });

  test("is cut when idle, and not while there is traffic", async () => {
    const clock = new VirtualClock();
    const { client, session } = setUp({ clock, idleTimeoutMs: 1000, pingIntervalMs: 1e9 });
    let over = false;
    void session.closed.then(() => (over = true));
    await clock.advance(900);
    await client.openAndWait(1, {});
    await clock.advance(900);
    await settle();
    expect(over).toBe(false);
    await clock.advance(200);
    expect(await session.closed).toMatchObject({ message: "idle for 1 s" });
  });

  test("pings the client, so that a silent connection is found out", async () => {
    const clock = new VirtualClock();
    const { client } = setUp({ clock });
    await clock.advance(61_000);
    await client.until(() => client.frames.length === 2);
    expect(client.frames).toEqual([
      { type: "ping", id: 2 },
      { type: "ping", id: 4 },
    ]);
  });

  test("ends, holds no more than its limits and throws nothing, whatever is changed in a recorded session, split anywhere", async () => {
    const deflater = new HeaderDeflater();
    const opens = [];
    for (const [index, streamtype] of ["error", "stdin", "stdout"].entries())
      opens.push(synStreamFrame(2 * index + 1, await deflater.next({ streamtype })));
    const recorded = Buffer.concat([
      ...opens,
      pingFrame(1),
      dataHeader(3, 500, false),
      Buffer.alloc(500, "input\n"),
      rstStreamFrame(5, 5),
      dataHeader(3, 0, true),
      goawayFrame(5),
    ]);
    const changes = fc.array(fc.tuple(fc.nat(recorded.length - 1), fc.nat(255)), { maxLength: 8 });
    const cuts = fc.array(fc.nat(recorded.length), { maxLength: 12 });
    await fc.assert(
      fc.asyncProperty(changes, cuts, fc.nat(recorded.length), async (changed, cut, length) => {
        const bytes = Buffer.from(recorded.subarray(0, length));
        for (const [at, value] of changed) if (at < length) bytes[at] = value;
        const { client, near, session, streams } = setUp({ maxStreams: 4, streamBufferBytes: 1024 });
        let from = 0;
        for (const to of [...cut, length].toSorted((a, b) => a - b)) {
          client.transport.write(bytes.subarray(from, Math.min(to, length)));
          from = Math.min(to, length);
          if (to % 3 === 0) await settle(1);
        }
        expect(streams.length).toBeLessThanOrEqual(4);
        expect(near.writableLength).toBeLessThanOrEqual(64 * 1024);
        for (const stream of streams) stream.resume();
        client.transport.end();
        await session.closed;
      }),
      { numRuns: runs(300) },
    );
  });

  test("ends, and throws nothing, whatever bytes come after real ones", async () => {
    const block = await new HeaderDeflater().next({ streamtype: "data" });
    await fc.assert(
      fc.asyncProperty(fc.array(fc.uint8Array({ maxLength: 100 }), { maxLength: 20 }), async (chunks) => {
        const { client, session, streams } = setUp({ maxStreams: 4 });
        client.transport.write(synStreamFrame(1, block));
        for (const chunk of chunks) client.transport.write(Buffer.from(chunk));
        client.transport.end();
        for (const stream of streams) stream.resume();
        await session.closed;
      }),
      { numRuns: runs(300) },
    );
  });
});
