/** The client against the server over real sockets, with the in-memory provider behind it: what one says, the other understands. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { afterEach, describe, expect, test } from "vitest";
import {
  MachineApiServer,
  HttpVmProvider,
  type HttpVmOptions,
  type MachineApiServerOptions,
} from "../../../providers/http-vm/index.ts";
import { MemoryProvider, scriptedFaults, type MemoryProviderOptions } from "../../../providers/memory/index.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { LogLine, StreamOptions } from "../../../src/provider/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settled } from "../../e2e/harness/wait.ts";
import { machineSpec, script } from "../../support/builders.ts";

const signal = new AbortController().signal;
const cleanups: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

async function setup(
  options: {
    memory?: MemoryProviderOptions;
    server?: Partial<MachineApiServerOptions>;
    client?: Partial<HttpVmOptions>;
    unix?: boolean;
  } = {},
): Promise<{ memory: MemoryProvider; server: MachineApiServer; client: HttpVmProvider; url: string }> {
  const memory = new MemoryProvider(options.memory);
  const server = new MachineApiServer({ provider: memory, logger: silentLogger, ...options.server });
  let address: Parameters<MachineApiServer["listen"]>[0] = { host: "127.0.0.1", port: 0 };
  if (options.unix === true) {
    const folder = await mkdtemp(join(tmpdir(), "vmlet-http-"));
    cleanups.push(() => rm(folder, { recursive: true }));
    address = { socketPath: join(folder, "api.sock") };
  }
  const { url } = await server.listen(address);
  const client = new HttpVmProvider({ url, pacing: { perSecond: 10_000, burst: 10_000 }, ...options.client });
  cleanups.push(
    () => memory.close(),
    () => server.close({ graceMs: 100 }),
    () => client.close(),
  );
  return { memory, server, client, url };
}

const spec = (rest: Partial<MachineSpec> = {}) =>
  machineSpec({ labels: { node: "n" }, containers: [script("sleep 3600")], ...rest });
const streams = (rest: Partial<StreamOptions> = {}): StreamOptions => ({
  signal,
  stdin: false,
  stdout: true,
  stderr: true,
  tty: false,
  ...rest,
});

async function contents(source: AsyncIterable<LogLine>): Promise<string[]> {
  const found: string[] = [];
  for await (const line of source) found.push(line.content.toString("latin1"));
  return found;
}

describe.each([
  ["TCP", false],
  ["a unix socket", true],
])("over %s", (_name, unix) => {
  test("a machine lives from creation to tombstone", async () => {
    const { client, memory } = await setup({ unix });
    expect(await client.getInfo({ signal })).toEqual(await memory.getInfo({ signal }));
    const created = await client.createPod("m", spec(), { signal });
    expect(created).toEqual(await memory.getPod("m", { signal }));
    expect(await client.createPod("m", spec(), { signal })).toEqual(created);
    expect((await client.stopPod("m", { signal, graceSeconds: 5 }))?.state).toBe("stopped");
    await client.deletePod("m", { signal, force: true });
    expect((await client.getPod("m", { signal })).state).toBe("deleted");
    await expect(client.createPod("m", spec(), { signal })).rejects.toMatchObject({ code: "gone" });
    await expect(client.getPod("absent", { signal })).rejects.toMatchObject({ code: "not_found" });
  });

  test("exec that a provider declares, and has no method for, is refused by that method's name", async () => {
    const { client, memory } = await setup({ unix });
    Object.assign(memory, { exec: undefined });
    await expect(client.exec("m", "c", ["true"], streams())).rejects.toThrow(
      "this backend lacks the capability exec: its provider has no exec",
    );
  });

  test("exec carries its streams and the exit code", async () => {
    const { client } = await setup({ unix });
    await client.createPod("m", spec(), { signal });
    const process = await client.exec("m", "c", ["sh", "-c", "echo out; echo err >&2; exit 7"], streams());
    expect((await process.stdout!.toArray()).join("")).toBe("out\n");
    expect((await process.stderr!.toArray()).join("")).toBe("err\n");
    expect(await process.exit).toEqual({ exitCode: 7 });
  });
});

describe("lists", () => {
  test("of many pages have every machine once and the first page's revision", async () => {
    const { client, memory } = await setup({ server: { limits: { pageItems: 7 } } });
    for (let i = 0; i < 50; i++) memory.insert(`m-${i}`, spec({ labels: { node: i % 2 === 0 ? "n" : "other" } }));
    const list = await client.getPods({ signal, labels: { node: "n" } });
    expect(list.items.map(({ id }) => id).toSorted()).toEqual(
      Array.from({ length: 25 }, (_, i) => `m-${2 * i}`).toSorted(),
    );
    expect(list.revision).toBe(50);
  });

  test("with tombstones have them when asked for", async () => {
    const { client } = await setup();
    await client.createPod("m", spec(), { signal });
    await client.deletePod("m", { signal, force: true });
    expect((await client.getPods({ signal, labels: { node: "n" } })).items).toEqual([]);
    expect((await client.getPods({ signal, labels: { node: "n" }, includeDeleted: true })).items).toMatchObject([
      { id: "m", state: "deleted" },
    ]);
  });
});

describe("events", () => {
  test("come in order over one stream", async () => {
    const { client } = await setup();
    const { revision } = await client.getPods({ signal, labels: {} });
    const stop = new AbortController();
    const seen: string[] = [];
    const watching = (async () => {
      for await (const { machine } of client.watchPods(revision, { signal: stop.signal, labels: { node: "n" } })) {
        seen.push(`${machine?.id} ${machine?.state}`);
        if (seen.length === 3) stop.abort();
      }
    })();
    await client.createPod("a", spec(), { signal });
    await client.createPod("b", spec(), { signal });
    await client.deletePod("a", { signal, force: true });
    await watching;
    expect(seen).toEqual(["a running", "b running", "a deleted"]);
  });

  test("from a revision that is too old are gone", async () => {
    const { client, memory } = await setup({ memory: { historyLimit: 2 } });
    for (let i = 0; i < 10; i++) memory.insert(`m-${i}`, spec());
    await expect(client.watchPods(1, { signal, labels: {} }).next()).rejects.toMatchObject({ code: "gone" });
  });

  test("end with an error when the server goes away", async () => {
    const { client, server } = await setup();
    const events = client.watchPods(0, { signal, labels: {} });
    const next = events.next();
    next.catch(() => {});
    await client.createPod("m", spec(), { signal });
    await next;
    const broken = expect(events.next()).rejects.toMatchObject({ code: "unavailable" });
    await server.close({ graceMs: 100 });
    await broken;
  });
});

describe("logs", () => {
  test("carry any bytes", async () => {
    const { client } = await setup({
      memory: {
        behaviour: () => async (io) => {
          await io.write("stdout", Buffer.from([0, 0xff, 0x20, 0x0d, 0x0a]));
          await io.write("stderr", Buffer.from("no newline"));
          return 0;
        },
      },
    });
    await client.createPod("m", spec(), { signal });
    const lines: LogLine[] = [];
    for await (const line of client.getLogs("m", "c", { signal, follow: true })) lines.push(line);
    expect(lines.map(({ stream, partial, content }) => [stream, partial, content.toString("latin1")])).toEqual([
      ["stdout", false, "\u0000\u00ff \r"],
      ["stderr", true, "no newline"],
    ]);
  });

  test("follow until the container ends", async () => {
    const { client } = await setup();
    await client.createPod("m", spec({ containers: [script("echo one; sleep 0.4; echo two")] }), { signal });
    expect(await contents(client.getLogs("m", "c", { signal, follow: true }))).toEqual(["one", "two"]);
  });

  test("of an unknown container are not found", async () => {
    const { client } = await setup();
    await client.createPod("m", spec(), { signal });
    await expect(contents(client.getLogs("m", "x", { signal }))).rejects.toMatchObject({
      code: "not_found",
      field: "container",
    });
  });

  test("stop when the reader has had enough", async () => {
    const { client } = await setup();
    await client.createPod("m", spec({ containers: [script("while true; do echo x; sleep 0.01; done")] }), {
      signal,
    });
    let lines = 0;
    for await (const _line of client.getLogs("m", "c", { signal, follow: true })) if (++lines === 3) break;
    expect(lines).toBe(3);
  });
});

describe("streams", () => {
  test("ten megabytes go through cat and back, half-closed at the end", async () => {
    const { client } = await setup();
    await client.createPod("m", spec(), { signal });
    const process = await client.exec("m", "c", ["cat"], streams({ stdin: true }));
    const block = Buffer.alloc(65_536, "0123456789abcdef");
    const writing = (async () => {
      for (let i = 0; i < 160; i++) {
        if (!process.stdin!.write(block)) await new Promise((resolve) => process.stdin!.once("drain", resolve));
      }
      process.stdin!.end();
    })();
    let received = 0;
    for await (const chunk of process.stdout!) received += (chunk as Buffer).length;
    await writing;
    expect(received).toBe(160 * 65_536);
    expect(await process.exit).toEqual({ exitCode: 0 });
  });

  test("a reader that does not read holds the writer back", async () => {
    const { client, memory } = await setup();
    let produced = 0;
    const block = Buffer.alloc(65_536);
    const endless = new Readable({
      read() {
        produced += block.length;
        this.push(block);
      },
    });
    memory.exec = async () => ({
      stdin: null,
      stdout: endless,
      stderr: null,
      resize() {},
      exit: new Promise(() => {}),
      close: () => void endless.destroy(),
    });
    const process = await client.exec("m", "c", ["x"], streams());
    // The sockets' buffers fill up; from then on nothing more is produced.
    await expect.poll(() => produced).toBeGreaterThan(0);
    await settled(() => produced);
    expect(produced).toBeLessThan(32 * 1024 * 1024);
    process.close();
    await expect(process.exit).rejects.toMatchObject({ code: "unavailable" });
  });

  test("a terminal takes its new size and has one output", async () => {
    const { client } = await setup();
    await client.createPod("m", spec(), { signal });
    const process = await client.exec("m", "c", ["sh", "-c", "read x; stty size"], streams({ stdin: true, tty: true }));
    expect(process.stderr).toBeNull();
    process.resize(132, 43);
    process.stdin!.write("\n");
    expect((await process.stdout!.toArray()).join("")).toBe("43 132\n");
  });

  test("closing a session ends it at the backend", async () => {
    const { client, memory } = await setup();
    const closed = Promise.withResolvers<void>();
    memory.exec = async () => ({
      stdin: null,
      stdout: null,
      stderr: null,
      resize() {},
      exit: new Promise(() => {}),
      close: () => closed.resolve(),
    });
    const process = await client.exec("m", "c", ["sleep", "3600"], streams());
    process.close();
    await expect(process.exit).rejects.toMatchObject({ code: "unavailable" });
    await closed.promise;
  });

  test("attach ends with the container's exit code", async () => {
    const { client } = await setup();
    await client.createPod("m", spec({ containers: [script("sleep 0.3; echo late; exit 3")] }), { signal });
    const process = await client.attach("m", "c", streams());
    expect((await process.stdout!.toArray()).join("")).toBe("late\n");
    expect(await process.exit).toEqual({ exitCode: 3 });
  });

  test("a port carries bytes both ways and half-closes", async () => {
    const { client } = await setup();
    await client.createPod(
      "m",
      spec({ containers: [script("sleep 3600", { ports: [{ port: 80, protocol: "tcp" }] })] }),
      { signal },
    );
    const port = await client.portForward("m", 80, { signal });
    port.end("ping");
    expect((await port.toArray()).join("")).toBe("ping");
    await expect(client.portForward("m", 81, { signal })).rejects.toMatchObject({ code: "conflict" });
  });

  test("of a container that does not run are refused before they begin", async () => {
    const { client } = await setup();
    await client.createPod("m", spec(), { signal });
    await client.stopPod("m", { signal, graceSeconds: 0 });
    await expect(client.exec("m", "c", ["true"], streams())).rejects.toMatchObject({ code: "conflict" });
  });
});

describe("capabilities", () => {
  test("that are missing answer unsupported", async () => {
    const { client } = await setup({ memory: { capabilities: [] } });
    const { capabilities } = await client.getInfo({ signal });
    expect(capabilities).toEqual([]);
    await client.createPod("m", spec(), { signal });
    const unsupported = { code: "unsupported" };
    await expect(client.getCapacity({ signal })).rejects.toMatchObject(unsupported);
    await expect(client.getStats({ signal, labels: {} })).rejects.toMatchObject(unsupported);
    await expect(client.watchPods(0, { signal, labels: {} }).next()).rejects.toMatchObject(unsupported);
    await expect(client.exec("m", "c", ["true"], streams())).rejects.toMatchObject(unsupported);
    await expect(client.updatePod("m", { containers: [{ name: "c", image: "j" }] }, { signal })).rejects.toMatchObject({
      ...unsupported,
      field: "containers",
    });
  });
});

describe("authentication", () => {
  test("without the right token everything is refused, streams too", async () => {
    const { client } = await setup({ server: { auth: { bearerTokens: () => ["secret"] } } });
    await expect(client.getInfo({ signal })).rejects.toMatchObject({ code: "unauthorized" });
    await expect(client.exec("m", "c", ["true"], streams())).rejects.toMatchObject({ code: "unauthorized" });
  });
});

describe("faults behind the server", () => {
  test("a reply that was lost is unavailable, and repeating the call finds the machine", async () => {
    const { client, memory } = await setup({
      memory: { faults: scriptedFaults([{ operation: "createPod", fault: { kind: "lost" } }]) },
    });
    await expect(client.createPod("m", spec(), { signal })).rejects.toMatchObject({ code: "unavailable" });
    expect(await client.createPod("m", spec(), { signal })).toMatchObject({ id: "m" });
    expect(memory.machines).toHaveLength(1);
  });

  test("a quota says when to come back", async () => {
    const { client } = await setup({ memory: { maxMachines: 0 } });
    await expect(client.createPod("m", spec(), { signal })).rejects.toMatchObject({
      code: "quota",
      retryAfterMs: 5000,
    });
  });
});
