/**
 * `node test/bench/engines.ts [--machines N]... [--engine process|oci|cri|vm]... [--guest FOLDER] [--warm-pool N]`
 *
 * Prints what a machine costs on each engine of the reference backend: from create to running, an exec round trip, delete,
 * memory; and beside it, the bare tool: `runc run` of the same bundle, the same calls of containerd's own interface, QEMU to
 * the point where the guest is ready. Nothing is asserted: the figures depend on the machine.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import type { Engine } from "../../providers/local/engine.ts";
import { commandOf, ociConfig } from "../../providers/local/bundle/bundle.ts";
import { createProcessEngine } from "../../providers/local/engines/process/process.ts";
import { VmEngine } from "../../providers/local/engines/vm/engine.ts";
import { tscKhz } from "../../providers/local/engines/vm/frequency.ts";
import { defaultGuestDir } from "../../providers/local/engines/vm/guest.ts";
import { WAITING } from "../../providers/local/engines/vm/pool.ts";
import { killVm, Qemu } from "../../providers/local/engines/vm/qemu.ts";
import { run } from "../../providers/local/host/command.ts";
import { machineHash } from "../../providers/local/host/machine-hash.ts";
import { LocalProvider } from "../../providers/local/provider.ts";
import { HostNetwork } from "../../providers/local/network/network.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { missingForContainerd } from "../support/containerd.ts";
import { createContainerEngine, parseEngine } from "../support/engines.ts";
import { testNetwork } from "../support/host.ts";
import { busyboxImage, startRegistry, type TestRegistry } from "../support/registry.ts";
import { plainCri } from "./plain-cri.ts";

const signal = new AbortController().signal;
const COMMAND = ["sleep", "100000"];
const POLL_MS = 5;

interface Figures {
  engine: string;
  machines: number;
  runningMs: number[];
  execMs: number[];
  deleteMs: number[];
  /** Private memory of all processes that came with the machines, per machine. */
  privateMib: number;
}

/** How many VMs the engine keeps ready, and how many it has made ready so far. */
interface WarmPool {
  size: number;
  waiting: number;
}

async function measure(
  name: string,
  engine: Engine,
  stateDir: string,
  image: string,
  { machines, warm, beside }: { machines: number; warm: WarmPool; beside?: (() => Promise<void>) | undefined },
): Promise<Figures> {
  const before = new Set(pids());
  const provider = await LocalProvider.open({
    engine,
    stateDir,
    clock: systemClock,
    logger: silentLogger,
    host: "bench",
    version: "0",
  });
  const ids = Array.from({ length: machines }, (_, index) => `b${index}`);
  const until = async (id: string, state: string) => {
    for (;;) {
      const machine = await provider.getPod(id, { signal });
      if (machine.state === state) return;
      if (machine.state === "failed") throw new Error(`${name}: machine ${id} failed: ${machine.message}`);
      await systemClock.sleep(POLL_MS);
    }
  };
  const timed = async (work: () => Promise<unknown>) => {
    const start = performance.now();
    await work();
    return performance.now() - start;
  };
  try {
    while (warm.waiting < warm.size) await systemClock.sleep(POLL_MS);
    const runningMs = await Promise.all(
      ids.map((id) =>
        timed(async () => {
          const container = { name: "a", image, pull_policy: "if_not_present" as const, command: COMMAND };
          await provider.createPod(id, { labels: {}, restart_policy: "never", containers: [container] }, { signal });
          await until(id, "running");
        }),
      ),
    );
    const privateMib =
      pids()
        .filter((pid) => !before.has(pid))
        .reduce((sum, pid) => sum + privateKib(pid), 0) /
      1024 /
      machines;
    const execMs: number[] = [];
    for (const id of ids.slice(0, 10)) {
      execMs.push(
        await timed(async () => {
          const options = { signal, stdin: false, stdout: true, stderr: true, tty: false };
          const streams = await provider.exec(id, "a", ["true"], options);
          streams.stdout?.resume();
          streams.stderr?.resume();
          await streams.exit;
        }),
      );
    }
    const deleteMs = await Promise.all(
      ids.map((id) =>
        timed(async () => {
          await provider.deletePod(id, { force: true, signal });
          await until(id, "deleted");
        }),
      ),
    );
    await beside?.();
    return { engine: name, machines, runningMs, execMs, deleteMs, privateMib };
  } finally {
    await provider.close();
    await engine.close();
  }
}

/** Of the containerd that engine cri has started. */
const ownSocket = (stateDir: string) => `/run/vmlet-cri-${machineHash(join(stateDir, "cri"))}/containerd.sock`;

function pids(): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number);
}

function privateKib(pid: number): number {
  try {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, "utf8");
    return [...text.matchAll(/^Private_(?:Clean|Dirty):\s+(\d+)/gm)].reduce((sum, match) => sum + Number(match[1]), 0);
  } catch {
    return 0; // it has ended
  }
}

function median(values: readonly number[]): string {
  const sorted = values.toSorted((a, b) => a - b);
  return (sorted[Math.floor((sorted.length - 1) / 2)] ?? Number.NaN).toFixed(0);
}

/** The same command in the same image with the runtime alone: no machine, no network, no log. */
async function plainRunc(rootfs: string): Promise<number[]> {
  const bundle = mkdtempSync(join(tmpdir(), "vmlet-bench-bundle-"));
  const spec = { name: "bench", image: "", command: ["true"] };
  const config = ociConfig({
    spec,
    image: {},
    user: { uid: 0, gid: 0, supplementalGroups: [], home: "/" },
    hostname: "",
    rootfs,
    namespaces: [{ type: "pid" }, { type: "network" }, { type: "ipc" }, { type: "uts" }],
    mounts: [],
    cgroupsPath: "/vmlet-bench",
    cgroupVersion: 1,
    sysctls: [],
    seccomp: undefined,
    pidsLimit: 100,
  });
  await mkdir(bundle, { recursive: true });
  await writeFile(
    join(bundle, "config.json"),
    JSON.stringify({ ...config, process: { ...(config as { process: object }).process, args: commandOf(spec, {}) } }),
  );
  const times = [];
  for (let round = 0; round < 5; round++) {
    const start = performance.now();
    await run("runc", ["run", "--bundle", bundle, `bench-${process.pid}-${round}`]);
    times.push(performance.now() - start);
  }
  rmSync(bundle, { recursive: true });
  return times;
}

/** QEMU alone with the engine's kernel and arguments: milliseconds to a guest that answers, booted and copied from a template. */
async function plainQemu(guestDir: string, stateDir: string): Promise<{ boot: number[]; clone: number[] }> {
  const size = { memoryMib: 256, cpus: 1 };
  const khz = await tscKhz(guestDir, join(stateDir, "frequency"));
  const qemu = new Qemu({
    tscKhz: khz,
    guestDir,
    templatesDir: join(stateDir, "bare"),
    accelerator: "tcg",
    diskBytes: 1 << 30,
    clock: systemClock,
  });
  await qemu.template(size, signal);
  const times = { boot: [] as number[], clone: [] as number[] };
  for (const how of ["boot", "clone"] as const) {
    for (let round = 0; round < 3; round++) {
      const at = (file: string) => join(stateDir, `${how}${round}.${file}`);
      const place = { qmp: at("qmp"), ctl: at("ctl"), tap: undefined, disk: at("disk"), log: at("log") };
      const start = performance.now();
      const { vm, control } = await qemu[how](size, place, signal);
      await control.ready(signal);
      times[how].push(performance.now() - start);
      control.close();
      await killVm(vm, systemClock);
    }
  }
  return times;
}

async function bench(
  name: string,
  registry: TestRegistry,
  machines: number,
  guestDir: string | undefined,
  warmPool: number,
): Promise<void> {
  const stateDir = mkdtempSync(join(tmpdir(), "vmlet-bench-"));
  const { dir: _dir, ...network } = testNetwork("");
  const images = { insecureRegistries: [registry.host] };
  const common = { stateDir, clock: systemClock, logger: silentLogger, network, images };
  const warm: WarmPool = { size: name === "vm" ? warmPool : 0, waiting: 0 };
  const logger = {
    ...silentLogger,
    debug(_fields: object, message: string) {
      if (message === WAITING) warm.waiting++;
    },
  };
  const create = () => {
    switch (name) {
      case "process":
        return createProcessEngine({ stateDir, images: {}, addressPool: "127.64.0.0/10", clock: systemClock });
      case "vm":
        return new VmEngine({ ...common, logger, warmPool, guestDir });
      default:
        return createContainerEngine(parseEngine(name), common);
    }
  };
  const engine = create();
  if (name === "cri") await missingForContainerd();
  const problems = (await engine.check()).filter(({ fatal }) => fatal);
  if (problems.length > 0) {
    console.log(`${name}: left out: ${problems.map(({ problem, cure }) => `${problem} (${cure})`).join("; ")}`);
    return;
  }
  const image = `${registry.host}/t/busybox:1`;
  try {
    // The first machine pays for the image and the template, as the first of a host does.
    const first = await measure(name, engine, stateDir, image, { machines: 1, warm: { size: 0, waiting: 0 } });
    let plain: string | undefined;
    const beside = async () => {
      const found = (await again.images!.find(image))!.location;
      const figures = await plainCri(ownSocket(stateDir), found, COMMAND, machines);
      const [running, exec, remove] = [figures.runningMs, figures.execMs, figures.deleteMs].map(median);
      plain = `containerd alone, the same calls: ${running} ms to running, ${exec} ms exec, ${remove} ms delete`;
    };
    warm.waiting = 0;
    rmSync(join(stateDir, "machines"), { recursive: true, force: true });
    rmSync(join(stateDir, "tombstones"), { recursive: true, force: true });
    const again = create();
    const figures =
      machines === 1 && name === "process"
        ? first
        : await measure(name, again, stateDir, image, { machines, warm, beside: name === "cri" ? beside : undefined });
    console.log(
      [
        name.padEnd(8),
        String(machines).padStart(8),
        median(first.runningMs).padStart(12),
        median(figures.runningMs).padStart(14),
        Math.max(...figures.runningMs)
          .toFixed(0)
          .padStart(11),
        median(figures.execMs).padStart(9),
        median(figures.deleteMs).padStart(10),
        figures.privateMib.toFixed(1).padStart(12),
      ].join(" "),
    );
    if (plain !== undefined) console.log(`         ${plain}`);
    if (name === "oci" && engine.images !== undefined) {
      const found = await engine.images.find(image);
      console.log(
        `         plain runc run, same image: ${median(await plainRunc(found!.location))} ms to start and end`,
      );
    }
    if (name === "vm") {
      const { boot, clone } = await plainQemu(guestDir ?? defaultGuestDir(), stateDir);
      console.log(
        `         plain QEMU, same kernel: ${median(boot)} ms to a guest that answers, ${median(clone)} ms for a copy of a template`,
      );
    }
  } finally {
    if (name !== "process") await new HostNetwork({ dir: join(stateDir, "network"), ...network }).remove();
    rmSync(stateDir, { recursive: true, force: true });
  }
}

const { values } = parseArgs({
  options: {
    machines: { type: "string", multiple: true },
    engine: { type: "string", multiple: true },
    guest: { type: "string" },
    "warm-pool": { type: "string", default: "0" },
  },
});
const registry = await startRegistry();
await registry.push("t/busybox:1", await busyboxImage());
console.log("engine   machines  first run ms  running ms p50  slowest ms  exec ms  delete ms  private MiB/machine");
for (const name of values.engine ?? ["process", "oci", "cri", "vm"])
  for (const machines of (values.machines ?? ["1", "10", "50"]).map(Number))
    await bench(name, registry, machines, values.guest, Number(values["warm-pool"]));
await registry.stop();
process.exit(0);
