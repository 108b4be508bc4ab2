/** What becomes of a session whose input nobody reads. */
import { once } from "node:events";
import { Duplex, PassThrough, Writable } from "node:stream";
import { afterEach, describe, expect, test } from "vitest";
import { WebSocket } from "ws";
import { MachineApiServer, type ServerLimits } from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { fill } from "../../e2e/harness/wait.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

const EXEC = "/v1/machines/m/containers/c/exec?command=sleep&stdin=true&stdout=true";
const PIECE = 64 * 1024;

/** An exec, or a port, that takes nothing of what is sent; and what it was given until now. */
async function setup(kind: "exec" | "port", limits: Partial<ServerLimits> = {}) {
  const clock = new VirtualClock();
  const memory = new MemoryProvider();
  let taken = 0;
  const over = Promise.withResolvers<void>();
  const write = (chunk: Buffer) => void (taken += chunk.length);
  const stdin = new Writable({ write });
  const streams = { stdin, stdout: new PassThrough(), stderr: null, resize() {}, exit: new Promise(() => {}) };
  const port = new Duplex({ write, read() {} });
  port.once("close", () => over.resolve());
  Object.assign(memory, {
    exec: () => Promise.resolve({ ...streams, close: () => over.resolve() }),
    portForward: () => Promise.resolve(port),
  });
  const server = new MachineApiServer({ provider: memory, logger: silentLogger, clock, limits });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  cleanups.push(
    () => memory.close(),
    async () => {
      const closed = server.close({ graceMs: 0 });
      await clock.advance(0);
      await closed;
    },
  );
  const path = kind === "exec" ? EXEC : "/v1/machines/m/ports/80";
  const open = async () => {
    const socket = new WebSocket(url.replace("http", "ws") + path, kind === "exec" ? ["v5.channel.k8s.io"] : []);
    cleanups.push(() => Promise.resolve(socket.terminate()));
    await once(socket, "open");
    return socket;
  };
  const socket = await open();
  return { clock, socket, open, over: over.promise, stdin, taken: () => taken };
}

/** Sends until the other side takes no more. */
const overfill = (socket: WebSocket): Promise<number> =>
  fill({
    write: () => (socket.send(Buffer.alloc(PIECE)), PIECE),
    pending: () => socket.bufferedAmount,
    limit: 256 * 1024 * 1024,
  });

describe.each(["exec", "port"] as const)("the input of a session (%s) that nobody reads", (kind) => {
  test("is not taken without end", async () => {
    const { socket, taken } = await setup(kind);
    expect(await overfill(socket)).toBeLessThan(64 * 1024 * 1024);
    expect(taken()).toBeLessThan(2 * 1024 * 1024);
  });

  test.each([
    ["breaks off", (socket: WebSocket) => socket.terminate()],
    ["says goodbye", (socket: WebSocket) => socket.close()],
  ])("keeps nothing open when the client %s", async (_how, leave) => {
    const { clock, socket, over } = await setup(kind);
    await overfill(socket);
    leave(socket);
    socket.terminate();
    let isOver = false;
    void over.then(() => (isOver = true));
    await expect
      .poll(async () => {
        await clock.advance(5_000);
        return isOver;
      })
      .toBe(true);
  });
});

describe("what all sessions hold in memory", () => {
  const limits = { unreadBytes: 2 * 1024 * 1024 };
  const closed = (socket: WebSocket) => once(socket, "close").then(([code]: unknown[]) => code);

  test("is bounded though each sends a message that never ends", async () => {
    const { socket, open } = await setup("exec", limits);
    const sockets = [socket, ...(await Promise.all(Array.from({ length: 7 }, open)))];
    const first = Promise.race(sockets.map(closed));
    for (const each of sockets) each.send(Buffer.alloc(512 * 1024), { fin: false });
    expect([1009, 1006]).toContain(await first);
    await expect.poll(() => sockets.filter((each) => each.readyState === WebSocket.OPEN).length).toBeLessThan(5);
    const left = sockets.filter((each) => each.readyState === WebSocket.OPEN);
    expect(left.length).toBeGreaterThan(0);
  });
});

test("a client that stays is not cut off, however long its input is not read", async () => {
  const { clock, socket, stdin } = await setup("exec");
  await overfill(socket);
  for (let minute = 0; minute < 60; minute++) await clock.advance(60_000);
  const sign = once(socket, "pong");
  await clock.advance(5_000);
  await sign;
  expect(socket.readyState).toBe(WebSocket.OPEN);
  stdin.destroy();
  socket.close();
  await once(socket, "close");
});
