import { mkdtempSync, rmSync } from "node:fs";
import { once } from "node:events";
import { createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { GuestPorts, MAX_PORTS } from "../../../providers/local/engines/vm/ports.ts";

const signal = new AbortController().signal;

interface Command {
  execute: string;
  arguments: { id?: string; nr?: number };
}

let dir: string;
let qemu: Server;
/** label -> whether the guest has its end open */
let plugged: Map<string, boolean>;
let devices: Set<string>;
let commands: Command[];
let refused: string | undefined;
let ports: GuestPorts;

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-ports-"));
  plugged = new Map([["ctl", true]]);
  devices = new Set();
  commands = [];
  refused = undefined;
  // QEMU serves one client of its control socket after the other.
  let turn = Promise.resolve();
  qemu = createServer((socket) => {
    turn = turn.then(async () => {
      socket.write('{"QMP": {}}\n');
      socket.setEncoding("utf8").on("data", (text: string) => {
        for (const line of text.split("\n").filter((part) => part !== ""))
          socket.write(`${JSON.stringify(answer(line))}\n`);
      });
      await once(socket, "close");
    });
  });
  const path = join(dir, "qmp");
  await new Promise<void>((resolve) => qemu.listen(path, resolve));
  ports = new GuestPorts(path, dir);
});

afterEach(() => {
  qemu.close();
  rmSync(dir, { recursive: true });
});

function answer(line: string): object {
  const command = JSON.parse(line) as Command;
  if (command.execute !== "qmp_capabilities" && command.execute !== "query-chardev") commands.push(command);
  if (command.execute === refused) return { error: { desc: "no" } };
  const id = command.arguments.id!;
  const isTwice = command.execute === "chardev-add" ? plugged.has(id) : devices.has(id);
  if (["chardev-add", "device_add"].includes(command.execute) && isTwice)
    return { error: { desc: `Duplicate '${id}'` } };
  if (command.execute === "device_add") devices.add(id);
  if (command.execute === "chardev-add") plugged.set(id, false);
  const list = [...plugged].map(([label, open]) => ({ label, "frontend-open": open, filename: "" }));
  return { return: command.execute === "query-chardev" ? list : {} };
}

test("a port is plugged in when it is first needed, with a token that nobody has", async () => {
  const [a, b] = await Promise.all([ports.take(signal), ports.take(signal)]);
  expect(new Set([a.number, b.number])).toEqual(new Set([2, 3]));
  expect(a.socket).toBe(join(dir, `p${a.number}`));
  expect(a.token).toMatch(/^[0-9a-f]{32}$/);
  expect(a.token).not.toBe(b.token);
  for (const name of ["chardev-add", "device_add"])
    expect(commands.filter(({ execute }) => execute === name)).toHaveLength(2);
});

test("a released port is used again once the guest has closed its end, and not before", async () => {
  const first = await ports.take(signal);
  plugged.set("p2", true);
  ports.release(first);
  const second = await ports.take(signal);
  expect(second.number).toBe(3);
  plugged.set("p2", false);
  expect((await ports.take(signal)).number).toBe(2);
  expect(commands.filter(({ execute }) => execute === "device_add")).toHaveLength(2);
});

test("what a former backend's containers use is left alone", async () => {
  plugged.set("p2", true).set("p3", true).set("p4", false);
  expect((await ports.take(signal)).number).toBe(4);
});

test("a port that a killed backend has plugged in by half is plugged in", async () => {
  plugged.set("p2", false);
  expect((await ports.take(signal)).number).toBe(2);
  expect(devices).toEqual(new Set(["port-p2"]));
  ports.release({ number: 2 });
  await ports.take(signal);
  expect(commands).toHaveLength(2);
});

test("a running container's port is no other command's, though its session may not have opened it yet", async () => {
  plugged.set("p2", false);
  ports.reserve(2);
  expect((await ports.take(signal)).number).toBe(3);
});

test("when all are in use, the error says how many there are and what to do", async () => {
  for (let number = 2; number < MAX_PORTS; number++) plugged.set(`p${number}`, true);
  await expect(ports.take(signal)).rejects.toMatchObject({
    code: "unavailable",
    message: expect.stringMatching(/62 containers, commands and forwarded ports open: try again/),
  });
});

test("a port that cannot be plugged in is free again", async () => {
  refused = "device_add";
  await expect(ports.take(signal)).rejects.toThrow("no");
  refused = undefined;
  expect((await ports.take(signal)).number).toBe(2);
  expect(devices).toEqual(new Set(["port-p2"]));
});
