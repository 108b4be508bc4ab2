import fc from "fast-check";
import { once } from "node:events";
import { PassThrough } from "node:stream";
import { describe, expect, test } from "vitest";
import {
  acceptRemoteCommand,
  followResizes,
  negotiateRemoteCommand,
  remoteCommandOptions,
  serveRemoteCommand,
  type RemoteCommandOptions,
} from "../../../src/streaming/remote-command.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { runs } from "../../support/runs.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";
import { FakeProcess, startUpgradeServer } from "./upgrade-server.ts";

const ALL: RemoteCommandOptions = { stdin: true, stdout: true, stderr: true, tty: false };
const ALL_SPDY = ["v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];

async function serve(
  options: Partial<RemoteCommandOptions> = {},
  kind: "exec" | "attach" = "exec",
  endsWithStdin = false,
) {
  const process = new FakeProcess();
  const server = await startUpgradeServer(async (upgrade) => {
    const wanted = { ...ALL, ...options };
    const protocol = negotiateRemoteCommand(upgrade.request);
    const client = await acceptRemoteCommand(upgrade, protocol, wanted, { clock: systemClock, pingIntervalMs: 100 });
    await serveRemoteCommand(client, process, kind, endsWithStdin ? { clock: systemClock } : undefined);
    await client.closed;
  });
  return { server, process, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

const SUCCESS = { metadata: {}, status: "Success" };

describe("remote command over SPDY", () => {
  test("serves the first protocol of the client that it knows", async () => {
    await using it = await serve();
    const { protocol } = await it.server.spdy(ALL_SPDY);
    expect(protocol).toBe("v4.channel.k8s.io");
  });

  test("refuses with 403 and its own list when there is none in common", async () => {
    await using it = await serve();
    await expect(it.server.spdy(["v9.channel.k8s.io"])).rejects.toThrow(
      /^HTTP 403: unable to upgrade: unable to negotiate protocol: client supports \[v9.channel.k8s.io\], server accepts \[v4/,
    );
  });

  test("refuses with 400 when the client names no protocol", async () => {
    await using it = await serve();
    await expect(it.server.spdy([])).rejects.toThrow(/^HTTP 400: .*X-Stream-Protocol-Version does not exist/);
  });

  test("detaches with success when the input ends, if told to, and passes on what was written before", async () => {
    await using it = await serve({}, "attach", true);
    const { client } = await it.server.spdy(ALL_SPDY);
    const types = ["error", "stdin", "stdout", "stderr"];
    for (const [index, streamtype] of types.entries()) await client.openAndWait(2 * index + 1, { streamtype });
    it.process.stdout.write("so far");
    await client.until(() => client.text(5) === "so far");
    client.data(3, "last words", true);
    await once(it.process.stdin, "finish");
    it.process.stdout.write(", and an answer");
    await client.until(() => [1, 5, 7].every((id) => client.isFinished(id)));
    expect(JSON.parse(client.text(1))).toEqual(SUCCESS);
    expect(client.text(5)).toBe("so far, and an answer");
    expect((it.process.stdin.read() as Buffer).toString()).toBe("last words");
  });

  test("carries the three streams apart, and the exit code as a status", async () => {
    await using it = await serve();
    const { client } = await it.server.spdy(ALL_SPDY);
    const types = ["error", "stdin", "stdout", "stderr"];
    for (const [index, streamtype] of types.entries()) await client.openAndWait(2 * index + 1, { streamtype });
    client.data(3, "to stdin", true);
    it.process.stdout.write("to stdout");
    it.process.stderr.write("to stderr");
    const input = await it.process.input();
    it.process.finish(3);
    await client.until(() => client.closed);
    expect([input, client.text(5), client.text(7)]).toEqual(["to stdin", "to stdout", "to stderr"]);
    expect(JSON.parse(client.text(1))).toMatchObject({
      status: "Failure",
      reason: "NonZeroExitCode",
      details: { causes: [{ reason: "ExitCode", message: "3" }] },
    });
  });

  test("tells clients before v4 of a failure as text, and of success nothing", async () => {
    for (const [exitCode, text] of [
      [0, ""],
      [2, "command terminated with non-zero exit code: exit code 2"],
    ] as const) {
      await using it = await serve({ stdin: false, stderr: false });
      const { client } = await it.server.spdy(["channel.k8s.io"]);
      await client.openAndWait(1, { streamtype: "error" });
      await client.openAndWait(3, { streamtype: "stdout" });
      it.process.finish(exitCode);
      await client.until(() => client.closed);
      expect(client.text(1)).toBe(text);
    }
  });

  test("resizes the terminal, the first time at the start", async () => {
    await using it = await serve({ tty: true, stderr: false });
    const { client } = await it.server.spdy(ALL_SPDY);
    const types = ["error", "stdin", "stdout", "resize"];
    for (const [index, streamtype] of types.entries()) await client.openAndWait(2 * index + 1, { streamtype });
    client.data(7, '{"Width":80,"Height":24}\n{"Width":1');
    while (it.process.resizes.length === 0) await settle();
    client.data(7, '32,"Height":50}\n');
    client.data(3, "x", true);
    await it.process.input();
    await settle();
    it.process.finish(0);
    await client.until(() => client.closed);
    expect(it.process.resizes).toEqual([
      [80, 24],
      [132, 50],
    ]);
  });

  test("outlives a terminal that cannot be resized, as one whose process has just ended", async () => {
    await using it = await serve({ tty: true, stderr: false });
    const { client } = await it.server.spdy(ALL_SPDY);
    const resized = new Promise<void>((resolve) => {
      it.process.resize = () => {
        resolve();
        throw new Error("the terminal is gone");
      };
    });
    const types = ["error", "stdin", "stdout", "resize"];
    for (const [index, streamtype] of types.entries()) await client.openAndWait(2 * index + 1, { streamtype });
    client.data(7, '{"Width":80,"Height":24}');
    await resized;
    it.process.finish(0);
    await client.until(() => client.closed);
    expect(JSON.parse(client.text(1))).toEqual(SUCCESS);
  });

  test("replies to a stream of an unknown type and ignores it", async () => {
    await using it = await serve({ stdin: false, stderr: false });
    const { client } = await it.server.spdy(ALL_SPDY);
    await client.openAndWait(1, { streamtype: "future" });
    await client.openAndWait(3, { streamtype: "error" });
    await client.openAndWait(5, { streamtype: "stdout" });
    it.process.finish(0);
    await client.until(() => client.closed);
    expect(JSON.parse(client.text(3))).toEqual(SUCCESS);
  });

  test("ends the process's session when the client leaves", async () => {
    await using it = await serve({ stdin: false, stderr: false });
    const { client } = await it.server.spdy(ALL_SPDY);
    await client.openAndWait(1, { streamtype: "error" });
    await client.openAndWait(3, { streamtype: "stdout" });
    client.transport.destroy();
    await it.process.closed;
  });

  test("does not wait for a client's end of stdin once the process is over", async () => {
    await using it = await serve({ stderr: false });
    const { client } = await it.server.spdy(ALL_SPDY);
    for (const [index, streamtype] of ["error", "stdin", "stdout"].entries())
      await client.openAndWait(2 * index + 1, { streamtype });
    it.process.finish(0);
    await client.until(() => client.closed);
    expect(JSON.parse(client.text(1))).toEqual(SUCCESS);
  });

  test("hands over all output before the status, however slowly it is read", async () => {
    await using it = await serve({ stdin: false, stderr: false });
    const { client } = await it.server.spdy(ALL_SPDY);
    await client.openAndWait(1, { streamtype: "error" });
    await client.openAndWait(3, { streamtype: "stdout" });
    client.transport.pause();
    const output = Buffer.alloc(8 << 20, "o");
    it.process.stdout.write(output);
    it.process.finish(0);
    await settle(50);
    client.transport.resume();
    await client.until(() => client.closed);
    expect(client.text(3)).toHaveLength(output.length);
    expect(JSON.parse(client.text(1))).toEqual(SUCCESS);
  });

  test("gives up a client that does not open its streams in time", async () => {
    const clock = new VirtualClock();
    const failed = Promise.withResolvers<unknown>();
    await using server = await startUpgradeServer(async (upgrade) => {
      const protocol = negotiateRemoteCommand(upgrade.request);
      await acceptRemoteCommand(upgrade, protocol, ALL, { clock }).catch(failed.resolve);
    });
    const { client } = await server.spdy(ALL_SPDY);
    await client.openAndWait(1, { streamtype: "error" });
    await clock.advance(31_000);
    expect(await failed.promise).toMatchObject({ message: "timed out waiting for the client to create its streams" });
  });

  test("tells no exit code when attached", async () => {
    await using it = await serve({ stdin: false, stderr: false }, "attach");
    const { client } = await it.server.spdy(ALL_SPDY);
    await client.openAndWait(1, { streamtype: "error" });
    await client.openAndWait(3, { streamtype: "stdout" });
    it.process.finish(7);
    await client.until(() => client.closed);
    expect(JSON.parse(client.text(1))).toEqual(SUCCESS);
  });

  test("tells why the process could not go on", async () => {
    await using it = await serve({ stdin: false, stderr: false });
    const { client } = await it.server.spdy(ALL_SPDY);
    await client.openAndWait(1, { streamtype: "error" });
    await client.openAndWait(3, { streamtype: "stdout" });
    it.process.fail(new Error("the machine \u001b[31mis gone\u0007"));
    await client.until(() => client.closed);
    expect(JSON.parse(client.text(1))).toMatchObject({
      status: "Failure",
      reason: "InternalError",
      message: "the machine is gone",
    });
  });

  test("hands over what came before a failure, however slowly it is read", async () => {
    await using it = await serve({ stdin: false, stderr: false });
    const { client } = await it.server.spdy(ALL_SPDY);
    await client.openAndWait(1, { streamtype: "error" });
    await client.openAndWait(3, { streamtype: "stdout" });
    client.transport.pause();
    it.process.stdout.write(Buffer.alloc(16 << 20, "o"));
    for (let i = 0; i < 50; i++) it.process.stdout.write(Buffer.alloc(300, "o"));
    it.process.stdout.write("last words");
    await settle(50);
    it.process.fail(new Error("the machine is gone"));
    await settle(50);
    client.transport.resume();
    await client.until(() => client.closed);
    expect(client.text(3)).toHaveLength((16 << 20) + 50 * 300 + "last words".length);
    expect(JSON.parse(client.text(1))).toMatchObject({ message: "the machine is gone" });
  });
});

describe("remote command over WebSocket", () => {
  test("serves each protocol that clients of any age offer", async () => {
    const protocols = [
      "v5.channel.k8s.io",
      "v4.channel.k8s.io",
      "v4.base64.channel.k8s.io",
      "channel.k8s.io",
      "base64.channel.k8s.io",
    ];
    for (const protocol of protocols) {
      await using it = await serve();
      const webSocket = await it.server.webSocket(["unheard.of", protocol]);
      expect(webSocket.socket.protocol).toBe(protocol);
      webSocket.socket.terminate();
    }
  });

  test("refuses with 403 when there is no protocol in common", async () => {
    await using it = await serve();
    await expect(it.server.webSocket(["v9.channel.k8s.io"])).rejects.toThrow(/403/);
  });

  test("carries streams, a closed stdin and the exit code (v5)", async () => {
    await using it = await serve();
    const webSocket = await it.server.webSocket(["v5.channel.k8s.io"]);
    webSocket.send(0, "to stdin");
    webSocket.socket.send(Buffer.from([255, 0]));
    const input = await it.process.input();
    it.process.stdout.write("to stdout");
    it.process.stderr.write("to stderr");
    it.process.finish(4);
    const code = await webSocket.closed;
    expect([input, webSocket.text(1), webSocket.text(2), code]).toEqual(["to stdin", "to stdout", "to stderr", 1000]);
    expect(JSON.parse(webSocket.text(3))).toMatchObject({
      details: { causes: [{ reason: "ExitCode", message: "4" }] },
    });
  });

  test("begins with an empty message on the lowest channel that it writes", async () => {
    await using it = await serve();
    const webSocket = await it.server.webSocket(["v4.channel.k8s.io"]);
    it.process.finish(0);
    await webSocket.closed;
    expect(webSocket.messages[0]!.data).toEqual(Buffer.from([1]));
  });

  test("speaks text and base64 in the base64 protocols", async () => {
    await using it = await serve();
    const webSocket = await it.server.webSocket(["v4.base64.channel.k8s.io"]);
    webSocket.socket.send(`0${Buffer.from("hi").toString("base64")}`);
    const [input] = (await once(it.process.stdin, "data")) as [Buffer];
    it.process.stdout.write("out");
    it.process.finish(0);
    await webSocket.closed;
    expect(String(input)).toBe("hi");
    expect(webSocket.messages.map(({ data, isBinary }) => [data.toString(), isBinary])).toContainEqual([
      `1${Buffer.from("out").toString("base64")}`,
      false,
    ]);
  });

  test("takes text messages on a binary protocol for bytes", async () => {
    await using it = await serve();
    const webSocket = await it.server.webSocket(["v4.channel.k8s.io"]);
    webSocket.socket.send("\u0000text");
    const [input] = (await once(it.process.stdin, "data")) as [Buffer];
    expect(String(input)).toBe("text");
    webSocket.socket.terminate();
  });

  test("tells clients of v1 of a failure as text", async () => {
    await using it = await serve();
    const webSocket = await it.server.webSocket(["channel.k8s.io"]);
    it.process.finish(1);
    await webSocket.closed;
    expect(webSocket.text(3)).toBe("command terminated with non-zero exit code: exit code 1");
  });

  test("stops reading the client while stdin is not read, and still finds out that it left", async () => {
    await using it = await serve();
    const webSocket = await it.server.webSocket(["v5.channel.k8s.io"]);
    for (let i = 0; i < 1024; i++) webSocket.send(0, Buffer.alloc(32 * 1024));
    await settle(200);
    // What the kernel's buffers take is not ours; the rest must still be here.
    expect(webSocket.socket.bufferedAmount).toBeGreaterThan(16 << 20);
    webSocket.socket.terminate();
    await it.process.closed;
  });

  test("ends the process's session when the client leaves", async () => {
    await using it = await serve();
    const webSocket = await it.server.webSocket(["v5.channel.k8s.io"]);
    webSocket.socket.terminate();
    await it.process.closed;
  });

  test("survives any messages", async () => {
    await using it = await serve({ tty: true });
    const webSocket = await it.server.webSocket(["v5.channel.k8s.io"]);
    it.process.stdin.resume();
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 50 }), fc.boolean(), (bytes, binary) => {
        webSocket.socket.send(binary ? bytes : Buffer.from(bytes).toString("latin1"));
      }),
      { numRuns: runs(2000) },
    );
    await new Promise<void>((resolve) => webSocket.socket.once("pong", () => resolve()).ping());
    it.process.finish(0);
    await webSocket.closed;
    expect(JSON.parse(webSocket.text(3))).toEqual(SUCCESS);
  });

  test("ends the process's session, whatever is changed in the frames of a client, split anywhere", async () => {
    const mask = Buffer.from([1, 2, 3, 4]);
    const frame = (opcode: number, payload: Buffer) =>
      Buffer.concat([
        Buffer.from([0x80 | opcode, 0x80 | payload.length]),
        mask,
        payload.map((byte, index) => byte ^ mask[index % 4]!),
      ]);
    const recorded = Buffer.concat([
      frame(2, Buffer.from("\0some input\n")),
      frame(2, Buffer.from('\u0004{"Width":80,"Height":24}')),
      frame(9, Buffer.from("ping")),
      frame(2, Buffer.from([255, 0])),
      frame(8, Buffer.from([3, 232])),
    ]);
    const changes = fc.array(fc.tuple(fc.nat(recorded.length - 1), fc.nat(255)), { maxLength: 6 });
    await fc.assert(
      fc.asyncProperty(changes, fc.nat(recorded.length), fc.nat(recorded.length), async (changed, cut, length) => {
        const bytes = Buffer.from(recorded.subarray(0, length));
        for (const [at, value] of changed) if (at < length) bytes[at] = value;
        await using it = await serve({ tty: true });
        it.process.stdin.resume();
        const webSocket = await it.server.webSocket(["v5.channel.k8s.io"]);
        // Past the client's own framing.
        const raw = (webSocket.socket as unknown as { _socket: NodeJS.WritableStream })._socket;
        raw.write(bytes.subarray(0, cut));
        await new Promise((resolve) => setImmediate(resolve));
        raw.end(bytes.subarray(cut));
        await it.process.closed;
      }),
      { numRuns: runs(40) },
    );
  });

  test("closes the connection on bytes that are no WebSocket frames", async () => {
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ minLength: 2, maxLength: 100 }), async (bytes) => {
        await using it = await serve();
        const webSocket = await it.server.webSocket(["v5.channel.k8s.io"]);
        // Past the client's own framing.
        const raw = (webSocket.socket as unknown as { _socket: NodeJS.WritableStream })._socket;
        raw.end(Buffer.from(bytes));
        await it.process.closed;
      }),
      { numRuns: runs(40) },
    );
  });
});

describe("a client that left before it could be answered", () => {
  test.each(["spdy", "webSocket"] as const)("is given up at once (%s)", async (transport) => {
    const outcome = Promise.withResolvers<unknown>();
    await using server = await startUpgradeServer(async (upgrade) => {
      const protocol = negotiateRemoteCommand(upgrade.request);
      upgrade.socket.destroy();
      await once(upgrade.socket, "close");
      await acceptRemoteCommand(upgrade, protocol, ALL, { clock: systemClock }).catch(outcome.resolve);
    });
    await server[transport](["v4.channel.k8s.io"]).catch(() => {});
    expect(await outcome.promise).toBeInstanceOf(Error);
  });
});

describe("remoteCommandOptions", () => {
  test.each([
    ["input=1&output=1&error=1", { stdin: true, stdout: true, stderr: true, tty: false }],
    ["output=1&error=1&tty=1", { stdin: false, stdout: true, stderr: false, tty: true }],
    ["output=1&input=true", { stdin: false, stdout: true, stderr: false, tty: false }],
  ])("reads %s, where only the literal 1 counts", (query, options) => {
    expect(remoteCommandOptions(new URLSearchParams(query))).toEqual(options);
  });

  test.each(["", "tty=1", "error=1&tty=1", "output=true"])("refuses %j, which asks for no stream", (query) => {
    expect(() => remoteCommandOptions(new URLSearchParams(query))).toThrow(
      "you must specify at least 1 of stdin, stdout, stderr",
    );
  });
});

describe("followResizes", () => {
  test("passes on the last one of many at a time: a flood of them must not become one for the backend", async () => {
    const source = new PassThrough();
    const sizes: [number, number][] = [];
    followResizes(source, (columns, rows) => void sizes.push([columns, rows]));
    for (let width = 1; width <= 10_000; width++) source.write(`{"Width":${width},"Height":24}`);
    await settle();
    expect(sizes.length).toBeLessThan(10);
    expect(sizes.at(-1)).toEqual([10_000, 24]);
  });

  test("finds every size however the bytes are split, and skips what is none", async () => {
    const text =
      '{"Width":80,"Height":24}garbage}{"Width":-1,"Height":2}{"Width":1.5,"Height":2}\n{"Width":65535,"Height":1}';
    await fc.assert(
      fc.asyncProperty(fc.array(fc.nat(text.length)), async (cuts) => {
        const source = new PassThrough();
        const sizes: [number, number][] = [];
        followResizes(source, (columns, rows) => void sizes.push([columns, rows]));
        const ends = [...cuts, text.length].sort((a, b) => a - b);
        for (const [index, end] of ends.entries()) {
          source.write(text.slice(ends[index - 1] ?? 0, end));
          await settle(2);
        }
        // The first one may have come together with the last.
        const seen = ends.some((end) => end >= text.indexOf("}") + 1 && end < text.lastIndexOf("}") + 1);
        expect(sizes).toEqual([...(seen ? [[80, 24]] : []), [65535, 1]]);
      }),
    );
  });
});

test("a session whose client went while it was opened lets go of the process's output, and throws nothing", async () => {
  const stdout = new PassThrough();
  const client = {
    ...{ stdin: null, stdout: new PassThrough().destroy(), stderr: null, resize: null },
    closed: new Promise<never>(() => {}),
    finish: () => Promise.resolve(),
    destroy: () => {},
  };
  const exit = Promise.resolve({ exitCode: 0 });
  const process = { stdin: null, stdout, stderr: null, resize: () => {}, exit, close: () => {} };
  expect(await serveRemoteCommand(client, process, "exec")).toEqual({ exitCode: 0 });
  expect(stdout.destroyed).toBe(true);
});
