import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { once } from "node:events";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { encodeFrame, FrameReader } from "../../../providers/local/shim/frames.ts";
import { GuestSession } from "../../../providers/local/shim/guest-session.ts";

const TOKEN = "0123456789abcdef0123456789abcdef";
const [STDIN, STDIN_END, RESIZE, OUTPUT_TAKEN] = [1, 2, 3, 4] as const;
const [STARTED, TAKEN, EXIT, STDOUT, STDERR] = [1, 2, 3, 4, 5] as const;
const WINDOW = 64 * 1024;

let dir: string;
let server: Server;
let guest: Socket;
/** What the guest got after the token, as `type:text`. */
let got: string[];
let events: string[];
let session: GuestSession;
let closed: Promise<void>;

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-guest-session-"));
  got = [];
  events = [];
  server = createServer();
  const socket = join(dir, "port");
  await new Promise<void>((resolve) => server.listen(socket, resolve));
  const connected = once(server, "connection");
  const { promise, resolve } = Promise.withResolvers<void>();
  closed = promise;
  session = new GuestSession(
    { socket, token: TOKEN },
    {
      started: () => events.push("started"),
      output: (stream, chunk) => events.push(`${stream}:${chunk.toString()}`),
      streamEnd: (stream) => events.push(`${stream} ends`),
      exited: (code) => events.push(`exited ${code}`),
      drained: () => events.push("drained"),
      closed(error) {
        events.push(error === undefined ? "closed" : `broken: ${error.message}`);
        resolve();
      },
    },
  );
  [guest] = (await connected) as [Socket];
  guest.on("error", () => undefined);
  let greeting = "";
  const reader = new FrameReader((type, payload) => got.push(`${type}:${payload.toString("latin1")}`));
  guest.on("data", (chunk: Buffer) => {
    const missing = TOKEN.length - greeting.length;
    greeting += chunk.subarray(0, missing).toString();
    reader.push(chunk.subarray(missing));
    expect(TOKEN).toContain(greeting);
  });
});

afterEach(async () => {
  session.close();
  await closed;
  guest.destroy();
  server.close();
  rmSync(dir, { recursive: true });
});

const taken = (bytes: number) => {
  const payload = Buffer.alloc(4);
  payload.writeUInt32BE(bytes);
  return encodeFrame(TAKEN, payload);
};
const bytesGot = () =>
  got.filter((frame) => frame.startsWith(`${STDIN}:`)).reduce((sum, frame) => sum + frame.length - 2, 0);
const eventually = async (condition: () => boolean) => {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
};

test("what a port's last user has left is not taken for the command's output", async () => {
  guest.write(Buffer.concat([encodeFrame(STDOUT, "of another"), Buffer.from(TOKEN), encodeFrame(STDOUT, "own")]));
  await eventually(() => events.length > 0);
  expect(events).toEqual(["stdout:own"]);
});

test("the token is found across the pieces in which it comes", async () => {
  const all = Buffer.concat([Buffer.from(`junk${TOKEN.slice(0, 9)}${TOKEN}`), encodeFrame(STARTED, "")]);
  for (const byte of all) guest.write(Buffer.from([byte]));
  await eventually(() => events.length > 0);
  expect(events).toEqual(["started"]);
});

test("a command's streams and its exit code arrive in order, and then the session is over", async () => {
  guest.write(TOKEN);
  guest.write(encodeFrame(STDOUT, "out"));
  guest.write(encodeFrame(STDERR, "err"));
  guest.write(encodeFrame(EXIT, Buffer.from([7])));
  guest.write(encodeFrame(STDERR, ""));
  guest.write(encodeFrame(STDOUT, ""));
  await closed;
  expect(events).toEqual(["stdout:out", "stderr:err", "exited 7", "stderr ends", "stdout ends", "closed"]);
});

test("output after the exit code is still delivered", async () => {
  guest.write(TOKEN);
  guest.write(encodeFrame(EXIT, Buffer.from([0])));
  guest.write(encodeFrame(STDOUT, "late"));
  for (const stream of [STDOUT, STDERR]) guest.write(encodeFrame(stream, ""));
  await closed;
  expect(events).toContain("stdout:late");
});

test("a session that breaks off ends its streams and tells no exit code", async () => {
  guest.write(TOKEN);
  guest.write(encodeFrame(STDOUT, "half"));
  await eventually(() => events.length > 0);
  guest.destroy();
  await closed;
  expect(events).toEqual([
    "stdout:half",
    "stdout ends",
    "stderr ends",
    "broken: the connection to the guest was closed before the command ended",
  ]);
});

test("a guest that sends without end before the token is given up", async () => {
  guest.write(Buffer.alloc((1 << 20) + 64 * 1024, "x"));
  await closed;
  expect(events.at(-1)).toBe("broken: the guest sends without end, and not the session's token");
});

test("a guest that says again and again that the command has started is given up", async () => {
  guest.write(TOKEN);
  for (let times = 0; times < 2; times++) guest.write(encodeFrame(STARTED, ""));
  await closed;
  expect(events).toContain("started");
  expect(events.at(-1)).toContain("broken: the guest sent a frame of type 1");
});

test("frames of a byte, faster than anybody needs them, wait", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  try {
    const frames = 20_000;
    guest.write(TOKEN);
    guest.write(Buffer.concat(Array.from({ length: frames }, () => encodeFrame(STDOUT, "x"))));
    await eventually(() => events.length > 0);
    for (let round = 0; round < 100; round++) await new Promise((resolve) => setImmediate(resolve));
    expect(events.length).toBeLessThan(frames);
    while (events.length < frames) {
      vi.advanceTimersByTime(1000);
      await new Promise((resolve) => setImmediate(resolve));
    }
  } finally {
    vi.useRealTimers();
  }
});

describe("input", () => {
  beforeEach(() => guest.write(TOKEN));

  test("goes no further than the window before the command has read", async () => {
    expect(session.write(Buffer.alloc(WINDOW + 10))).toBe(false);
    await eventually(() => bytesGot() === WINDOW);
    session.resize(80, 24);
    await eventually(() => got.some((frame) => frame.startsWith(`${RESIZE}:`)));
    expect(bytesGot()).toBe(WINDOW);
    guest.write(taken(100));
    await eventually(() => events.includes("drained"));
    await eventually(() => bytesGot() === WINDOW + 10);
  });

  test("its end follows all that was written before it, once", async () => {
    session.write(Buffer.alloc(WINDOW + 10));
    session.end();
    session.end();
    await eventually(() => bytesGot() === WINDOW);
    expect(got.at(-1)).not.toBe(`${STDIN_END}:`);
    guest.write(taken(WINDOW));
    guest.write(taken(10));
    await eventually(() => got.at(-1) === `${STDIN_END}:`);
    expect(got.filter((frame) => frame === `${STDIN_END}:`)).toHaveLength(1);
    expect(bytesGot()).toBe(WINDOW + 10);
  });

  test("a new size of the terminal has columns first", async () => {
    session.resize(0x102, 70_000);
    await eventually(() => got.length > 0);
    expect(got).toEqual([`${RESIZE}:\u0001\u0002\u00ff\u00ff`]);
  });
});

describe("output", () => {
  const read = () =>
    got
      .filter((frame) => frame.startsWith(`${OUTPUT_TAKEN}:`))
      .reduce((sum, frame) => sum + Buffer.from(frame.slice(2), "latin1").readUInt32BE(), 0);
  beforeEach(() => guest.write(TOKEN));

  test("that was taken makes room for more", async () => {
    for (const size of [1000, 24]) guest.write(encodeFrame(STDOUT, Buffer.alloc(size)));
    await eventually(() => read() === 1024);
  });

  test("makes no room while it waits to be read, and all else goes on", async () => {
    session.pause();
    guest.write(encodeFrame(STDOUT, Buffer.alloc(WINDOW)));
    guest.write(encodeFrame(EXIT, Buffer.from([3])));
    await eventually(() => events.includes("exited 3"));
    expect(read()).toBe(0);
    session.resume();
    await eventually(() => read() === WINDOW);
  });

  test("beyond the room that there is ends the session", async () => {
    session.pause();
    guest.write(encodeFrame(STDOUT, Buffer.alloc(WINDOW)));
    guest.write(encodeFrame(STDERR, Buffer.alloc(1)));
    await closed;
    expect(events.at(-1)).toMatch(/more output than there is room for/);
  });
});

describe("a guest that breaks the rules is cut off", () => {
  const rules: [string, Buffer, RegExp][] = [
    ["a frame of an unknown type", encodeFrame(9, "x"), /type 9/],
    ["a frame too large", Buffer.from([STDOUT, 0x7f, 0, 0, 0]), /exceeds/],
    ["more input read than was given", taken(1), /more input than it was given/],
    [
      "output after a stream's end",
      Buffer.concat([encodeFrame(STDOUT, ""), encodeFrame(STDOUT, "x")]),
      /after its end/,
    ],
    [
      "a second exit code",
      Buffer.concat([encodeFrame(EXIT, "\u0001"), encodeFrame(EXIT, "\u0002")]),
      /second exit code/,
    ],
    ["an exit code without a number", encodeFrame(EXIT, ""), /type 3 with 0 bytes/],
  ];
  test.each(rules)("%s", async (_name, bytes, message) => {
    guest.write(Buffer.concat([Buffer.from(TOKEN), bytes]));
    await closed;
    expect(events.at(-1)).toMatch(/^broken: /);
    expect(events.at(-1)).toMatch(message);
  });
});
