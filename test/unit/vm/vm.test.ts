import { spawn } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import type { ContainerLaunch } from "../../../providers/local/engine.ts";
import { probeAccelerator } from "../../../providers/local/engines/vm/accelerator.ts";
import { GuestControl, GuestError, quote } from "../../../providers/local/engines/vm/control.ts";
import { tscKhz } from "../../../providers/local/engines/vm/frequency.ts";
import { machineScript } from "../../../providers/local/engines/vm/identity.ts";
import type { Jail } from "../../../providers/local/engines/vm/jail.ts";
import { attachDisk } from "../../../providers/local/engines/vm/blocks.ts";
import { kernelArguments, PROCESSOR, Qemu, startJailed } from "../../../providers/local/engines/vm/qemu.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import { Qmp } from "../../../providers/local/engines/vm/qmp.ts";
import { VmSandbox } from "../../../providers/local/engines/vm/sandbox.ts";
import { vmSize } from "../../../providers/local/engines/vm/size.ts";
import { parseStats } from "../../../providers/local/engines/vm/stats.ts";
import { GuestDisks } from "../../../providers/local/engines/vm/disks.ts";
import { destroyVm, Vm, type VmContext } from "../../../providers/local/engines/vm/vm.ts";
import { bootId, processStat } from "../../../providers/local/host/proc.ts";
import type { VmNetwork } from "../../../providers/local/engines/vm/vm-network.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { type Clock, systemClock } from "../../../src/util/clock.ts";
import { containerSpec, machineSpec } from "../../support/builders.ts";
import { Faults } from "../../support/faults.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const MIB = 1 << 20;
const machine = (...limits: { memory_bytes?: number; cpu_millis?: number }[]) =>
  machineSpec({
    containers: limits.map((limit, index) => containerSpec({ name: `c${index}`, resources: { limits: limit } })),
  });

describe("size of a VM", () => {
  const size = (spec: MachineSpec) => vmSize(spec, { memoryMib: 128, maxCpus: 4 });
  test("holds what the containers may use, and the guest's share", () =>
    expect(size(machine({ memory_bytes: 100 * MIB }, { memory_bytes: 200 * MIB })).memoryMib).toBe(512));
  test("a container without a limit gets the default", () => expect(size(machine({})).memoryMib).toBe(256));
  test.each([
    ["a request", { resources: { requests: { memory_bytes: 100 * MIB } } }, {}],
    ["no limit beside a container that has one", {}, { containers: machine({ memory_bytes: 100 * MIB }).containers }],
  ])("%s is no limit: the container gets the default besides", (_title, more, other: Partial<MachineSpec>) => {
    const [unlimited] = machine({}).containers;
    const { containers = [] } = other;
    const own = { ...unlimited!, ...more };
    expect(size({ ...machine(), containers: [...containers, own] }).memoryMib).toBe(384);
    expect(size({ ...machine(), containers, init_containers: [own] }).memoryMib).toBe(384);
  });
  test("with a limit for the machine as a whole its containers need none", () =>
    expect(size({ ...machine({}), resources: { limits: { memory_bytes: 90 * MIB } } }).memoryMib).toBe(192));
  test("sidecars count with the containers, an init container alone", () => {
    const [init] = machine({ memory_bytes: 150 * MIB }).containers;
    const sidecar = { ...init!, restart_policy: "always" } as const;
    const spec = machine({ memory_bytes: 100 * MIB });
    expect(size({ ...spec, init_containers: [init!] }).memoryMib).toBe(256);
    expect(size({ ...spec, init_containers: [sidecar] }).memoryMib).toBe(384);
  });
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

describe("the control channel", () => {
  let dir: string;
  let server: Server;
  let connections: Socket[];
  /** What the guest does with a command: its number and its text. */
  let answer: (socket: Socket, id: string, text: string) => void;
  let control: GuestControl;
  const ok = (socket: Socket, id: string) => socket.write(`\u0001${id} 0 \u0002`);
  beforeEach(async () => {
    dir = mkdtempSync(join(tmpdir(), "vmlet-ctl-"));
    connections = [];
    answer = ok;
    server = createServer((socket) => {
      connections.push(socket);
      let received = "";
      socket.on("error", () => undefined).setEncoding("utf8");
      socket.on("data", (text: string) => {
        received += text;
        for (;;) {
          const match = /\{ out=\$\(exec 2>&1 <\/dev\/null; set -e\n([^]*?)\n\); vm_answer ([-0-9a-f]+) /.exec(
            received,
          );
          if (match === null) return;
          received = received.slice(match.index + match[0].length);
          answer(socket, match[2]!, match[1]!);
        }
      });
    });
    await new Promise<void>((listening) => server.listen(join(dir, "ctl"), listening));
    control = new GuestControl(join(dir, "ctl"), systemClock);
  });
  afterEach(() => {
    control.close();
    for (const socket of connections) socket.destroy();
    server.close();
    rmSync(dir, { recursive: true, force: true });
  });
  const signal = () => AbortSignal.timeout(5000);

  test("answers that cross each other, in parts, reach who asked", async () => {
    const waiting = new Map<string, string>();
    answer = (socket, id, text) => {
      if (text === "true") return void ok(socket, id);
      waiting.set(text, id);
      const [a, b] = ["a", "b"].map((name) => waiting.get(name));
      if (a === undefined || b === undefined) return;
      socket.write(`\u0001${b} + se\u0002noise\u0001${a} 0 first\u0002\u0001${b} 0 cond\u0002`);
    };
    expect(await Promise.all([control.script("a", signal()), control.script("b", signal())])).toEqual([
      "first",
      "second",
    ]);
  });
  test("a command that fails rejects with what the guest says", async () => {
    answer = (socket, id, text) =>
      void (text === "true" ? ok(socket, id) : socket.write(`\u0001${id} 3 no such disk\n\u0002`));
    await expect(control.run([["image", "a", "b"]], signal())).rejects.toEqual(new GuestError(3, "no such disk"));
  });
  test("endless output is refused", async () => {
    answer = (socket, id, text) => void (text === "true" ? ok(socket, id) : socket.write("x".repeat(3 << 20)));
    await expect(control.script("a", signal())).rejects.toThrow("closed its control channel");
  });
  test.each([
    ["complete answers that nobody waits for", () => `\u0001000000000000-2 0 ${"x".repeat(1000)}\u0002`],
    ["parts of an answer with nothing in them", (id: string) => `\u0001${id} + \u0002`],
    ["messages of a letter", () => "\u0001a\u0002"],
    [
      "parts of an answer, with rubbish between them",
      (id: string) => `\u0001${id} + x\u0002\u0001${"r".repeat(900_000)}\u0002`,
    ],
    ["rubbish that no message ends", () => "r".repeat(1000)],
  ])("%s, without end, are refused", async (_title, noise) => {
    answer = (socket, id, text) =>
      void (text === "true" ? ok(socket, id) : socket.write(noise(id).repeat(Math.ceil((3 << 20) / noise(id).length))));
    await expect(control.script("a", signal())).rejects.toThrow("closed its control channel");
  });
  test("long answers to several calls at once are taken, and late ones to calls of before", async () => {
    const part = "p".repeat(3000);
    answer = (socket, id, text) => {
      if (text === "true") return void ok(socket, id);
      socket.write(`\u0001000000000000-2 0 ${"l".repeat(500_000)}\u0002`);
      for (let sent = 0; sent < 300; sent++) socket.write(`\u0001${id} + ${part}\u0002`);
      ok(socket, id);
    };
    for (let round = 0; round < 5; round++) {
      const answers = await Promise.all([1, 2, 3].map(() => control.script("a", signal())));
      expect(answers.map(({ length }) => length)).toEqual([900_000, 900_000, 900_000]);
    }
  });
  test("a VM that ends meanwhile is not waited for", async () => {
    answer = (socket, id, text) => void (text === "true" ? ok(socket, id) : socket.end());
    await expect(control.script("a", signal())).rejects.toThrow("closed its control channel");
  });
  test("after the connection was lost, the next command makes another", async () => {
    await control.script("a", signal());
    connections[0]!.destroy();
    await expect.poll(() => control.script("a", signal()).catch(() => "lost")).toBe("");
    expect(connections).toHaveLength(2);
  });
  test("an answer to a former backend's command is nobody's", async () => {
    answer = (socket, id, text) => {
      if (text !== "true") socket.write(`\u0001000000000000-2 0 stale\u0002\u0001${id} 0 mine\u0002`);
      else ok(socket, id);
    };
    expect(await control.script("a", signal())).toBe("mine");
  });
});

test("under KVM a guest has neither the host's virtualisation nor its counters", () => {
  const [model, ...features] = PROCESSOR.kvm[PROCESSOR.kvm.indexOf("-cpu") + 1]!.split(",");
  expect(model).toBe("host");
  expect(features).toEqual(expect.arrayContaining(["-vmx", "-svm", "pmu=off"]));
});

test("under KVM the guest's kernel keeps its protections, which emulated cost too much", () => {
  expect(kernelArguments("kvm", 2_400_000).split(" ")).toContain("mitigations=auto");
  expect(kernelArguments("kvm")).not.toMatch(/mitigations=off|nokaslr|init_on_alloc=0|tsc_early_khz/);
  expect(kernelArguments("tcg", 2_400_000).split(" ")).toEqual(
    expect.arrayContaining(["mitigations=off", "tsc_early_khz=2400000"]),
  );
});

describe("a guest's identity", () => {
  test("what a pod's author writes is quoted for the guest's shell", () => {
    const script = machineScript({
      machineId: "m",
      spec: {
        ...machine({}),
        hostname: "h'; reboot; '",
        security: { sysctls: [{ name: "net.core.somaxconn", value: "1'; reboot; '" }] },
      },
      addresses: ["10.0.0.2"],
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

  test.each(["garbage", "7", "null"])(
    "a line that is no JSON object (%s) fails the command and nothing else",
    async (line) => {
      const dir = mkdtempSync(join(tmpdir(), "vmlet-qmp-"));
      const server = createServer((socket) => void socket.on("error", () => undefined).write(`${line}\n`));
      await new Promise<void>((listening) => server.listen(join(dir, "q"), listening));
      await expect(Qmp.open(join(dir, "q"), AbortSignal.timeout(5000))).rejects.toThrow("no JSON object");
      server.close();
      rmSync(dir, { recursive: true });
    },
  );

  test("a QEMU that sends events without end, and no answer, is cut off", async () => {
    const dir = mkdtempSync(join(tmpdir(), "vmlet-qmp-"));
    let sent = 0;
    const server = createServer((socket) => {
      const event = `${JSON.stringify({ event: "X".repeat(1000) })}\n`.repeat(64);
      const more = () => {
        while (!socket.destroyed && socket.write(event)) sent += event.length;
      };
      socket.on("error", () => undefined).on("drain", more);
      more();
    });
    await new Promise<void>((listening) => server.listen(join(dir, "q"), listening));
    await expect(Qmp.open(join(dir, "q"), AbortSignal.timeout(10_000))).rejects.toThrow("sends without end");
    expect(sent).toBeLessThan(32 << 20);
    server.close();
    rmSync(dir, { recursive: true });
  });

  test("a disk that a killed backend has plugged in halfway is plugged in", async () => {
    const dir = mkdtempSync(join(tmpdir(), "vmlet-qmp-"));
    const there = new Set(["blockdev-add i1"]);
    const server = createServer((socket) => {
      socket.on("error", () => undefined).write('{"QMP": {}}\n');
      socket.setEncoding("utf8").on("data", (text: string) => {
        const { execute, arguments: args } = JSON.parse(text) as {
          execute: string;
          arguments: { "node-name"?: string; serial?: string };
        };
        const key = `${execute} ${args["node-name"] ?? args.serial}`;
        const isTwice = execute !== "qmp_capabilities" && there.has(key);
        there.add(key);
        socket.write(isTwice ? `{"error": {"desc": "Duplicate thing '${key}'"}}\n` : '{"return": {}}\n');
      });
    });
    await new Promise<void>((listening) => server.listen(join(dir, "q"), listening));
    const attach = () => attachDisk(join(dir, "q"), { id: "i1", file: "/f" }, AbortSignal.timeout(5000));
    await attach();
    expect(there).toContain("device_add i1");
    await attach();
    server.close();
    rmSync(dir, { recursive: true });
  });
});

/** A machine whose QEMU is a process that waits, and whose guest does with each command as is said. */
async function machineWith(
  answer: (socket: Socket, id: string, text: string) => void,
  containers: { memory_bytes?: number; cpu_millis?: number }[] = [],
  { isOutOfMemory = false, clock = systemClock }: { isOutOfMemory?: boolean; clock?: Clock } = {},
) {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-vm-"));
  onTestFinished(() => rmSync(dir, { recursive: true, force: true }));
  const server = createServer((socket) => {
    socket.on("error", () => undefined).setEncoding("utf8");
    socket.on("data", (text: string) => {
      for (const [, script, id] of text.matchAll(/set -e\n([^]*?)\n\); vm_answer ([-0-9a-f]+) /g))
        answer(socket, id!, script!);
    });
  });
  onTestFinished(() => void server.close());
  mkdirSync(join(dir, "k1"));
  await new Promise<void>((listening) => server.listen(join(dir, "k1/ctl"), listening));
  const qemu = spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)"], { stdio: "ignore" });
  onTestFinished(() => void qemu.kill("SIGKILL"));
  const attachment = { address: "10.0.0.2", prefix: 24, gateway: "10.0.0.1", link: "l", mac: "m" };
  const { pid, startTime } = processStat(qemu.pid!)!;
  const record = { size: { memoryMib: 192, cpus: 1 }, attachment, process: { pid, startTime }, boot: bootId() };
  writeFileSync(join(dir, "k1/vm.json"), JSON.stringify(record));
  const sizing = { memoryMib: 128, maxCpus: 4 };
  const noDisk = () => {
    throw new Error("it has no volumes");
  };
  const context = {
    clock,
    vmsDir: dir,
    callMs: 300,
    bootTimeoutMs: 5000,
    sizing,
    network: { detach: async () => {} } as unknown as VmNetwork,
    qemu: {
      wasOutOfMemory: async (folder: string) => isOutOfMemory && folder === join(dir, "k1"),
      forget: async () => {},
    } as unknown as Qemu,
    disks: new GuestDisks({ guestDir: dir, clock, diskOf: noDisk }),
  } as VmContext;
  const vm = (await Vm.find(context, "k1"))!;
  const home = {
    id: "m",
    spec: machine(...containers),
    dir,
    secretDir: dir,
    socketPath: (name: string) => join(dir, name),
  };
  const sandbox = new VmSandbox(context, home, vm);
  onTestFinished(() => sandbox.close());
  const container = { name: "c0", attempt: 0, id: "a-0", dir };
  return { dir, vm, sandbox, container, context, kill: () => sandbox.kill(container) };
}

/** What its only container is started with, once a QEMU answers that agrees to everything. */
async function launchable(
  vm: Vm,
  container: Pick<ContainerLaunch, "name" | "attempt" | "id" | "dir">,
): Promise<ContainerLaunch> {
  const qemu = createServer((socket) => {
    socket.on("error", () => undefined).write('{"QMP": {}}\n');
    socket.on("data", () => void socket.write('{"return": []}\n'));
  });
  onTestFinished(() => void qemu.close());
  await new Promise<void>((listening) => qemu.listen(vm.qmp, listening));
  const location = join(container.dir, "image/rootfs");
  mkdirSync(location, { recursive: true });
  writeFileSync(join(container.dir, "image/disk.squashfs"), "");
  mkdirSync(join(container.dir, "run"));
  return {
    ...container,
    kind: "main",
    spec: { name: "c0", image: "i", command: ["x"], security: { seccomp: "unconfined" } },
    image: { imageId: "", image: "i", config: {}, location },
    imageVolumes: {},
    target: undefined,
  };
}

describe("a guest cannot keep its containers alive", () => {
  test("by answering no more: its VM is killed", async () => {
    const { vm, sandbox, kill } = await machineWith(() => undefined);
    await kill();
    expect(vm.alive).toBe(false);
    expect((await sandbox.lost).reason).toBe("SandboxLost");
  });

  test("by refusing again and again: its VM is killed", async () => {
    const { vm, kill } = await machineWith(
      (socket, id, text) => void socket.write(text === "true" ? `\u0001${id} 0 \u0002` : `\u0001${id} 1 no\u0002`),
    );
    await expect(kill()).rejects.toEqual(new GuestError(1, "no"));
    for (let tries = 0; tries < 10 && vm.alive; tries++) await kill().catch(() => undefined);
    expect(vm.alive).toBe(false);
  });

  test("by answering with rubbish without end: its VM is killed", async () => {
    const { vm, kill } = await machineWith(
      (socket, id, text) => void socket.write(text === "true" ? `\u0001${id} 0 \u0002` : "x".repeat(3 << 20)),
    );
    for (let tries = 0; tries < 10 && vm.alive; tries++) await kill().catch(() => undefined);
    expect(vm.alive).toBe(false);
  });

  test("by answering no start any more: its VM is killed", async () => {
    const { vm, sandbox, container } = await machineWith(() => undefined);
    const launch = await launchable(vm, container);
    await expect(sandbox.launch(launch)).rejects.toThrow("no answer of the guest in");
    expect(vm.alive).toBe(false);
  });

  test.each(["a start", "a kill"])(
    "and one whose host gives it little of a processor may be late with %s",
    async (what) => {
      const clock = new VirtualClock();
      const answers: (() => void)[] = [];
      const { vm, sandbox, container, kill } = await machineWith(
        (socket, id, text) => {
          const answer = () => void socket.write(`\u0001${id} 0 \u0002`);
          if (text === "true") answer();
          else answers.push(answer);
        },
        [],
        { clock },
      );
      let computed = 0;
      vi.spyOn(vm, "processorMs", "get").mockImplementation(() => (computed += 200));
      const launch = await launchable(vm, container);
      const asked = what === "a kill" ? kill() : sandbox.launch(launch);
      await expect.poll(() => answers.length).toBe(1);
      await clock.advance(5_000);
      answers[0]!();
      await asked;
      expect(vm.alive).toBe(true);
    },
  );

  test.each([
    ["memory_bytes", { memory_bytes: 100 * MIB }],
    ["cpu_millis", { memory_bytes: 64 * MIB, cpu_millis: 900 }],
  ])("a resize to more %s than its VM has, all containers together, is refused", async (key, limits) => {
    const asked: string[] = [];
    const { sandbox, container } = await machineWith(
      (socket, id, text) => {
        if (text !== "true") asked.push(text);
        socket.write(`\u0001${id} 0 \u0002`);
      },
      [
        { memory_bytes: 64 * MIB, cpu_millis: 500 },
        { memory_bytes: 16 * MIB, cpu_millis: 500 },
      ],
    );
    await expect(sandbox.resize(container, { limits })).rejects.toMatchObject({
      code: "invalid",
      field: `resources.limits.${key}`,
    });
    expect(asked).toEqual([]);
    await sandbox.resize(container, { limits: { memory_bytes: 72 * MIB, cpu_millis: 400 } });
    expect(asked).toHaveLength(1);
  });
});

test.each([
  ["SandboxLost", false, /panicked or powered off/],
  ["OutOfMemory", true, /the kernel has killed the machine's VM because memory ran out/],
])("a VM that is gone is told as %s when it is so that memory ran out: %s", async (reason, isOutOfMemory, message) => {
  const { vm, sandbox } = await machineWith(() => undefined, [], { isOutOfMemory });
  await vm.kill();
  expect(await sandbox.lost).toEqual({ reason, message: expect.stringMatching(message) });
});

test("a guest that stood still under commands has their ports back, and not while one of them may yet begin", async () => {
  const clock = new VirtualClock();
  let hangs = true;
  const ended: string[] = [];
  const { vm, sandbox, container, dir } = await machineWith(
    (socket, id, text) => {
      if (hangs && text !== "true") return;
      ended.push(...text.matchAll(/^vm_end_session '(\w+)'/gm).map(([, token]) => token!));
      socket.write(`\u0001${id} 0 \u0002`);
    },
    [],
    { clock },
  );
  // Its ports are there from the start, and no guest has opened one.
  const qemu = createServer((socket) => {
    socket.on("error", () => undefined).write('{"QMP": {}}\n');
    socket.on("data", () => void socket.write('{"return": []}\n'));
  });
  onTestFinished(() => void qemu.close());
  await new Promise<void>((listening) => qemu.listen(vm.qmp, listening));
  mkdirSync(join(dir, "run"));
  writeFileSync(join(dir, "run/a-0.json"), JSON.stringify({ process: { env: [] }, port: 2 }));
  const command = { stdin: false, stdout: true, stderr: true, tty: false, signal: AbortSignal.timeout(10_000) };
  const commands = await Promise.allSettled(["1", "2", "3"].map((name) => sandbox.exec(container, [name], command)));
  expect(commands.map(({ status }) => status)).toEqual(["rejected", "rejected", "rejected"]);
  const next = async () => {
    const port = await vm.ports.take(AbortSignal.timeout(5_000));
    vm.ports.release(port);
    return port.number;
  };
  expect(await next()).toBe(5);
  hangs = false;
  await clock.advance(5_000);
  await expect
    .poll(async () => {
      await clock.advance(1_000);
      return ended.length;
    })
    .toBe(3);
  await clock.advance(30_000);
  expect(await next()).toBe(5);
  await expect
    .poll(async () => {
      await clock.advance(5_000);
      return await next();
    })
    .toBe(2);
});

test("a QEMU that hangs before it has begun is not waited for beyond the deadline, and does not begin later", async () => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-hung-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const pidFile = join(dir, "pid");
  // Its launcher has said nothing of it yet.
  const script = `sleep 1000 & echo $$ $! > ${pidFile}; wait`;
  const jail = { command: () => ({ command: "sh", args: ["-c", script] }) };
  const deadline = new AbortController();
  const starting = startJailed(jail as unknown as Jail, "qemu", [], join(dir, "log"), deadline.signal);
  const outcome = expect(starting).rejects.toThrow("it takes too long");
  await expect.poll(() => existsSync(pidFile) && readFileSync(pidFile, "utf8")).toMatch(/\n$/);
  const pids = readFileSync(pidFile, "utf8").trim().split(" ").map(Number);
  expect(pids.filter((pid) => existsSync(`/proc/${pid}`))).toEqual(pids);
  deadline.abort(new Error("it takes too long"));
  await outcome;
  // What has no parent any more is reaped by process 1, when that comes to it.
  const runs = (pid: number) => !["Z", "X", undefined].includes(/\) (\w)/.exec(statOf(pid))?.[1]);
  await expect.poll(() => pids.filter(runs)).toEqual([]);
});

test("a QEMU that ends at once is said to have, though nothing else keeps the process running that waits for it", async () => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-ended-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const module = join(import.meta.dirname, "../../../providers/local/engines/vm/qemu.ts");
  const program = `
    import { startJailed } from ${JSON.stringify(module)};
    const script = "echo $$; exec >&-; sleep 0.2; echo no KVM >&2; exit 3";
    const jail = { command: () => ({ command: "sh", args: ["-c", script] }) };
    const never = new AbortController().signal;
    const { ended } = await startJailed(jail, "qemu", [], ${JSON.stringify(join(dir, "log"))}, never);
    await ended.catch((thrown) => console.log(thrown.message));`;
  const { stdout } = await runCommand(process.execPath, ["--input-type=module", "--eval", program]);
  expect(stdout).toBe("qemu ended with 3: no KVM\n");
});

function statOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/stat`, "latin1");
  } catch {
    return "";
  }
}

test("a VM is killed and removed without a look at all processes of the host", async () => {
  const { context, dir, vm } = await machineWith(() => undefined);
  Faults.install().fail({ kind: "read", errno: "EMFILE", about: (path) => path === "/proc" });
  await destroyVm(context, "k1");
  expect([vm.alive, existsSync(join(dir, "k1"))]).toEqual([false, false]);
});

test("what QEMU complains of is cut short when there is much of it", async () => {
  const { dir } = await machineWith(() => undefined);
  const log = join(dir, "k1/qemu.log");
  writeFileSync(log, "x".repeat((1 << 20) + 1));
  await expect.poll(() => statSync(log).size, { timeout: 5000 }).toBe(0);
});

test("templates of another guest image are removed at the start, and so is what a killed backend was making", async () => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-templates-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  for (const name of ["0123456789abcdef-256x1", "t-Xa81ks", "blank-1024.img"])
    mkdirSync(join(dir, "templates", name), { recursive: true });
  writeFileSync(join(dir, "version"), "v2\n");
  const options = { guestDir: dir, templatesDir: join(dir, "templates"), accelerator: "tcg", diskBytes: 1024 } as const;
  await new Qemu({ ...options, clock: systemClock }).sweep();
  expect(readdirSync(join(dir, "templates"))).toEqual(["blank-1024.img"]);
});

test("whether guests boot under KVM is tried once for each device, and not at all without one", async () => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-accelerator-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  writeFileSync(join(dir, "version"), "v2\n");
  const file = join(dir, "verdict");
  const options = { guestDir: dir, templatesDir: dir, diskBytes: 1 << 20, clock: systemClock };
  const probe = async (device: string) => await probeAccelerator(options, file, device);
  expect(await probe(join(dir, "kvm"))).toBe("tcg");
  expect(existsSync(file)).toBe(false);
  // There is no guest to boot.
  expect(await probe("/dev/null")).toBe("tcg");
  writeFileSync(file, readFileSync(file, "utf8").replace("tcg", "kvm"));
  expect(await probe("/dev/null")).toBe("kvm");
  expect(await probe("/dev/zero")).toBe("tcg");
  expect(await probe(join(dir, "kvm"))).toBe("tcg");
});

test("the frequency of the host's counter is measured once per boot", async () => {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-frequency-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  const file = join(dir, "kept");
  expect(await tscKhz(dir, file)).toBeUndefined();
  const program = (khz: string) => writeFileSync(join(dir, "frequency"), `#!/bin/sh\necho ${khz}\n`, { mode: 0o755 });
  program("nonsense");
  expect(await tscKhz(dir, file)).toBeUndefined();
  program("2400001");
  expect(await tscKhz(dir, file)).toBe(2_400_001);
  program("2400002");
  expect(await tscKhz(dir, file)).toBe(2_400_001);
  writeFileSync(file, "of-another-boot 5");
  expect(await tscKhz(dir, file)).toBe(2_400_002);
});
