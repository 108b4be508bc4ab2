import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { giveIdentity, identityScript, makeHostKey } from "../../../providers/http-vm/backend/engines/vm/identity.ts";
import { Qmp } from "../../../providers/http-vm/backend/engines/vm/qmp.ts";
import { parseStats, vmSize } from "../../../providers/http-vm/backend/engines/vm/sandbox.ts";
import { quote } from "../../../providers/http-vm/backend/engines/vm/ssh.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";

const MIB = 1 << 20;
const machine = (...limits: { memory_bytes?: number; cpu_millis?: number }[]): MachineSpec => ({
  labels: {},
  restart_policy: "never",
  containers: limits.map((limit, index) => ({ name: `c${index}`, image: "i", resources: { limits: limit } })),
});

describe("size of a VM", () => {
  const size = (spec: MachineSpec) => vmSize(spec, { memoryMib: 128, maxCpus: 4 });
  test("holds what the containers may use, and the guest's share", () =>
    expect(size(machine({ memory_bytes: 100 * MIB }, { memory_bytes: 200 * MIB })).memoryMib).toBe(512));
  test("a container without a limit gets the default", () => expect(size(machine({})).memoryMib).toBe(256));
  test("is one of few, so that templates are shared", () =>
    expect(size(machine({ memory_bytes: 101 * MIB })).memoryMib).toBe(
      size(machine({ memory_bytes: 99 * MIB })).memoryMib,
    ));
  test("beyond the classes, whole gibibytes", () =>
    expect(size(machine({ memory_bytes: 70_000 * MIB })).memoryMib).toBe(70_656));
  test.each([
    [{}, 1],
    [{ cpu_millis: 250 }, 1],
    [{ cpu_millis: 1001 }, 2],
    [{ cpu_millis: 64_000 }, 4],
  ])("processors for %j: %d, no more than the host has", (limit, cpus) => expect(size(machine(limit)).cpus).toBe(cpus));
});

describe("what a guest prints", () => {
  test("statistics by container and volume", () => {
    const { containers, volumes } = parseStats("container a-0\nusage_usec 5\nanon 7\ncurrent 9\nfs 3\nvolume v 12\n");
    expect([...containers.get("a-0")!]).toEqual([
      ["usage_usec", 5],
      ["anon", 7],
      ["current", 9],
      ["fs", 3],
    ]);
    expect([...volumes]).toEqual([["v", 12]]);
  });
  test("nonsense counts as zero or as nothing", () => {
    const { containers, volumes } = parseStats(
      "usage_usec 5\ncontainer a\ncurrent -1\nanon 1e99\nfs NaN\nvolume v\n\0\0 x\n",
    );
    expect([...containers.get("a")!.values()].every((value) => value === 0)).toBe(true);
    expect([...volumes]).toEqual([["v", 0]]);
  });
});

describe("a guest's identity", () => {
  let dir: string;
  let server: Server;
  let guest: Promise<Socket>;
  const path = () => join(dir, "ctl");
  beforeEach(async () => {
    dir = mkdtempSync(join(tmpdir(), "vmlet-ctl-"));
    const { promise, resolve } = Promise.withResolvers<Socket>();
    guest = promise;
    server = createServer(resolve);
    await new Promise<void>((listening) => server.listen(path(), listening));
  });
  afterEach(() => {
    server.close();
    rmSync(dir, { recursive: true, force: true });
  });
  const signal = () => AbortSignal.timeout(5000);

  test("is sent when the guest is ready, in one line, and is there when the guest says so", async () => {
    const given = giveIdentity(path(), "script\nlines", signal(), { booted: false });
    const socket = await guest;
    socket.write("noise\nREADY\n");
    const line = await new Promise<Buffer>((resolve) => socket.once("data", resolve));
    expect(Buffer.from(line.toString().trim(), "base64").toString()).toBe("script\nlines");
    socket.write("DONE\n");
    await given;
    socket.destroy();
  });
  test("endless output is refused", async () => {
    const given = giveIdentity(path(), "script", signal(), { booted: true });
    const refused = expect(given).rejects.toThrow("more than an answer");
    const socket = await guest;
    socket.on("error", () => undefined).write("x".repeat(70_000));
    await refused;
    socket.destroy();
  });
  test("a VM that ends meanwhile is not waited for", async () => {
    const given = giveIdentity(path(), "script", signal(), { booted: false });
    const refused = expect(given).rejects.toThrow("ended before it was ready");
    (await guest).end();
    await refused;
  });
  test("what a pod's author writes is quoted for the guest's shell", () => {
    const script = identityScript({
      machineId: "m",
      spec: {
        ...machine({}),
        hostname: "h'; reboot; '",
        security: { sysctls: [{ name: "net.core.somaxconn", value: "1'; reboot; '" }] },
      },
      attachment: { address: "10.0.0.2", prefix: 24, gateway: "10.0.0.1", link: "l", mac: "02:fc:0a:00:00:02" },
      authorizedKey: "ssh-ed25519 AAAA",
      hostKey: makeHostKey(),
      nowMs: 0,
      hostResolvConf: "",
      prepare: [["volume", "v'; reboot; '"]],
    });
    expect(script.replaceAll(/'(?:[^']|'\\'')*'/g, "")).not.toContain("reboot");
  });
  test("quoting survives a shell", () => expect(quote("a'b")).toBe(`'a'\\''b'`));
});

describe("QEMU's control socket", () => {
  test("answers belong to their commands, events to none; errors carry QEMU's words", async () => {
    const dir = mkdtempSync(join(tmpdir(), "vmlet-qmp-"));
    const server = createServer((socket) => {
      socket.on("error", () => undefined).write('{"QMP": {}}\n');
      socket.setEncoding("utf8").on("data", (text: string) => {
        const { execute } = JSON.parse(text) as { execute: string };
        socket.write('{"event": "RESET"}\n');
        socket.write(execute === "bad" ? '{"error": {"desc": "no such thing"}}\n' : `{"return": "${execute}"}\n`);
      });
    });
    await new Promise<void>((listening) => server.listen(join(dir, "q"), listening));
    const qmp = await Qmp.open(join(dir, "q"), AbortSignal.timeout(5000));
    expect(await qmp.execute("one")).toBe("one");
    await expect(qmp.execute("bad")).rejects.toThrow("no such thing");
    qmp.close();
    server.close();
    rmSync(dir, { recursive: true });
  });
});
