import { createConnection } from "node:net";
import { Duplex, PassThrough } from "node:stream";
import { afterEach, describe, expect, test } from "vitest";
import { HttpVmProvider, MachineApiServer } from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { machineSpec, script } from "../../support/builders.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const signal = new AbortController().signal;
const cleanups: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** A backend that has an address of which the provider knows nothing. */
async function backend(): Promise<() => Promise<Duplex>> {
  const memory = new MemoryProvider();
  const server = new MachineApiServer({
    provider: memory,
    logger: silentLogger,
  });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  cleanups.push(
    () => memory.close(),
    () => server.close({ graceMs: 100 }),
  );
  return () =>
    new Promise((resolve, reject) => {
      const socket = createConnection({ host: "127.0.0.1", port: Number(new URL(url).port) }, () => resolve(socket));
      socket.once("error", reject);
    });
}

function provider(
  dial: (signal: AbortSignal) => Promise<Duplex>,
  clock?: VirtualClock,
  keepDialled = false,
): HttpVmProvider {
  const opened = new HttpVmProvider({ url: "http://localhost", dial, clock, keepDialled });
  cleanups.push(() => opened.close());
  return opened;
}

describe("a backend that is dialled", () => {
  test("answers calls and streams, each on a connection of its own", async () => {
    const dial = await backend();
    let dialled = 0;
    const opened = provider(() => {
      dialled++;
      return dial();
    });
    await opened.createPod("m", machineSpec({ containers: [script("sleep 3600")] }), { signal });
    const streams = { signal, stdin: false, stdout: true, stderr: true, tty: false };
    const process = await opened.exec("m", "c", ["sh", "-c", "echo hello; exit 3"], streams);
    const output = await process.stdout!.toArray();
    expect(Buffer.concat(output as Buffer[]).toString()).toBe("hello\n");
    expect(await process.exit).toEqual({ exitCode: 3 });
    expect(await opened.getPod("m", { signal })).toMatchObject({ state: "running" });
    expect(dialled).toBe(3);
  });

  test("may be behind any stream of bytes", async () => {
    const dial = await backend();
    const opened = provider(async () => {
      const socket = await dial();
      return Duplex.from({ readable: socket, writable: socket });
    });
    await opened.createPod("m", machineSpec({ containers: [script("sleep 3600")] }), { signal });
    expect(await opened.getPod("m", { signal })).toMatchObject({ id: "m" });
  });

  test("answers further calls on a connection that may be kept", async () => {
    const dial = await backend();
    let dialled = 0;
    const counted = async () => {
      dialled++;
      const socket = await dial();
      return Duplex.from({ readable: socket, writable: socket });
    };
    const opened = provider(counted, undefined, true);
    for (let i = 0; i < 3; i++) await opened.getInfo({ signal });
    expect(dialled).toBe(1);
  });

  test("is unavailable when it cannot be dialled", async () => {
    const opened = provider(() => Promise.reject(new Error("no route to the guest")));
    await expect(opened.getPod("m", { signal })).rejects.toMatchObject({
      code: "unavailable",
      message: expect.stringContaining("no route to the guest") as unknown,
    });
  });

  test("is unavailable when dialling does not end, and what comes of it afterwards is closed", async () => {
    const clock = new VirtualClock();
    const { promise, resolve } = Promise.withResolvers<Duplex>();
    const opened = provider(() => promise, clock);
    const asked = expect(opened.getPod("m", { signal })).rejects.toMatchObject({ code: "unavailable" });
    await settle();
    await clock.advance(6000);
    await asked;
    const late = new PassThrough();
    resolve(late);
    await settle();
    expect(late.destroyed).toBe(true);
  });
});
