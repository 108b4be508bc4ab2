/**
 * Machines created and deleted in bursts, on each engine: nothing of them may be left. `SOAK_PROCESS`, `SOAK_OCI`,
 * `SOAK_CRI` and `SOAK_VM` set the number of machines (default 200; emulated VMs take more than a second each),
 * `SOAK_BURST` how many there are at a time; what the first burst takes of the host while it runs is printed. With
 * `SOAK_REST`, also what processors it takes in so many seconds in which nobody asks for anything; with
 * `SOAK_MINUTES`, bursts go on until these are over, and what was taken at the begin and the end is printed;
 * `SOAK_PAUSE` seconds are between two of them, `SOAK_STAY` machines with logs and restarts run beside them all the time,
 * and every `SOAK_TELL` minutes it is printed what all that takes by then. `SOAK_PATIENCE` is for how many minutes a
 * burst is waited for (default 5).
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Engine } from "../../providers/local/engine.ts";
import { createProcessEngine } from "../../providers/local/engines/process/process.ts";
import { run } from "../../providers/local/host/command.ts";
import { machineHash } from "../../providers/local/host/machine-hash.ts";
import type { MachineSpec } from "../../src/provider/machine.ts";
import { HostNetwork } from "../../providers/local/network/network.ts";
import { systemClock } from "../../src/util/clock.ts";
import { Bench } from "../integration/backend/suite.ts";
import {
  type ContainerEngine,
  type ContainerEngineOptions,
  createContainerEngine,
  engineOnThisHost,
} from "../support/engines.ts";
import { testNetwork } from "../support/host.ts";
import { leaveOut } from "../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../support/registry.ts";

interface Subject {
  name: "process" | ContainerEngine;
  machines: number;
  burst: number;
}

const REST_MS = 1000 * Number(process.env["SOAK_REST"] ?? 0);
const SOAK_MS = 60_000 * Number(process.env["SOAK_MINUTES"] ?? 0);
const PAUSE_MS = 1000 * Number(process.env["SOAK_PAUSE"] ?? 0);
const TELL_MS = 60_000 * Number(process.env["SOAK_TELL"] ?? 0);
const STAY = Number(process.env["SOAK_STAY"] ?? 0);
/** What a burst may take until its machines run, and until they are gone. */
const PATIENCE_MS = 60_000 * Number(process.env["SOAK_PATIENCE"] ?? 5);
/** Of the bursts before and after. */
const MORE_MS = Math.max(1_200_000, 4 * PATIENCE_MS);
const TICK_MS = 10;
/** Of containerd, whose garbage is collected after 100 changes of its database; a machine makes a dozen. */
const MORE_BURSTS = 10;
/** What outlives its container's first process, and has a name of its own beside another soak's. */
const ORPHAN = `sleep 9${process.pid}`;
const burstOf = (usual: number) => Number(process.env["SOAK_BURST"] ?? usual);
const machines = (variable: string) => Number(process.env[variable] ?? 200);

const subjects: Subject[] = [
  { name: "process", machines: machines("SOAK_PROCESS"), burst: burstOf(10) },
  { name: "oci", machines: machines("SOAK_OCI"), burst: burstOf(10) },
  { name: "cri", machines: machines("SOAK_CRI"), burst: burstOf(10) },
  { name: "vm", machines: machines("SOAK_VM"), burst: burstOf(2) },
];

function create(name: Subject["name"], options: ContainerEngineOptions): Engine {
  return name === "process"
    ? createProcessEngine({ ...options, images: {}, addressPool: "127.64.0.0/10", clock: systemClock })
    : createContainerEngine(name, options);
}

/** Where engine cri's own containerd has what it keeps no longer than the host runs. */
const runDir = (stateDir: string) => `/run/vmlet-cri-${machineHash(join(stateDir, "cri"))}`;

/** What a machine may leave on this host, as one line each; `marks` are what its names and paths contain. */
async function traces(marks: readonly string[]): Promise<string[]> {
  const lines = async (command: string, args: string[]) => (await run(command, args)).stdout.toString().split("\n");
  const all = [
    ...(await lines("ps", ["-eo", "pid,args"])).map((line) => `process ${line}`),
    ...(await lines("ip", ["-o", "link"])).map((line) => `link ${line}`),
    ...(await lines("ip", ["netns"])).map((line) => `namespace ${line}`),
    ...(await lines("losetup", ["-a"])).map((line) => `loop device ${line}`),
    ...readFileSync("/proc/self/mountinfo", "utf8")
      .split("\n")
      .map((line) => `mount ${line}`),
    ...cgroups("/sys/fs/cgroup").map((path) => `control group ${path}`),
  ];
  return all.filter((line) => marks.some((mark) => line.includes(mark)));
}

const pidsOf = (running: readonly string[]) => running.flatMap((line) => /^process +(\d+) /.exec(line)?.[1] ?? []);

/** What a file of a process says, as `read` finds it; 0 when it has ended. */
function told(pid: string, file: string, read: (text: string) => number): number {
  try {
    return read(readFileSync(`/proc/${pid}/${file}`, "latin1"));
  } catch {
    return 0;
  }
}

const sum = (numbers: readonly number[]) => numbers.reduce((all, each) => all + each, 0);

/** MiB, each page by its part of those who share it. */
const pss = (text: string) => Number(/^Pss: +(\d+)/m.exec(text)?.[1] ?? 0) / 1024;

/** Of what is left of this host while machines run: memory in MiB, of all their processes and of this one. */
function figures(running: readonly string[], stateDir: string) {
  const pids = pidsOf(running);
  const memory = process.memoryUsage();
  return {
    processes: pids.length,
    processesMib: Math.round(sum(pids.map((pid) => told(pid, "smaps_rollup", pss)))),
    backendMib: Math.round(memory.rss / 2 ** 20),
    backendHeapMib: Math.round(memory.heapUsed / 2 ** 20),
    backendDescriptors: readdirSync("/proc/self/fd").length,
    files: files(stateDir).length,
  };
}

/** Milliseconds of processors that a process has had, by its `stat`. */
function ticks(stat: string): number {
  const [user, system] = stat
    .slice(stat.lastIndexOf(")") + 2)
    .split(" ")
    .slice(11, 13)
    .map(Number);
  return (user! + system!) * TICK_MS;
}

async function pass(ms: number): Promise<void> {
  const { promise: over, resolve } = Promise.withResolvers<void>();
  systemClock.after(ms, resolve);
  await over;
}

/** Tells, every so many minutes, what the host gives by then, and what each machine since the last time has cost. */
class Series {
  readonly #name: string;
  readonly #stateDir: string;
  readonly #begun = performance.now();
  /** Without it the heap is what happens not to be collected yet. */
  readonly #collect: () => void;
  #since = { at: performance.now(), cpu: process.cpuUsage(), machines: 0 };
  #startedMs: number[] = [];

  constructor(name: string, stateDir: string) {
    [this.#name, this.#stateDir] = [name, stateDir];
    setFlagsFromString("--expose-gc");
    this.#collect = runInNewContext("gc") as () => void;
  }

  /** A burst whose machines ran after so many milliseconds. */
  async add(startedMs: number, machines: number, look: () => Promise<string[]>): Promise<void> {
    this.#startedMs.push(startedMs);
    this.#since.machines += machines;
    if (performance.now() - this.#since.at < TELL_MS) return;
    const { user, system } = process.cpuUsage(this.#since.cpu);
    const { machines: made } = this.#since;
    this.#collect();
    const running = await look();
    const daemons = pidsOf(running.filter((line) => /containerd --config /.test(line)));
    const { length: tombstones } = readdirSync(join(this.#stateDir, "tombstones"));
    console.log(this.#name, {
      minutes: Math.round((performance.now() - this.#begun) / 60_000),
      machines: made,
      burstMs: this.#startedMs.toSorted((a, b) => a - b)[this.#startedMs.length >> 1],
      backendCpuMsAMachine: Math.round((user + system) / 1000 / made),
      daemonsMib: Math.round(sum(daemons.map((pid) => told(pid, "smaps_rollup", pss)))),
      daemonsDescriptors: sum(daemons.map((pid) => readdirSync(`/proc/${pid}/fd`).length)),
      daemonsThreads: sum(daemons.map((pid) => readdirSync(`/proc/${pid}/task`).length)),
      tombstones,
      ...figures(running, this.#stateDir),
      traces: running.length,
      stateKib: await kib(this.#stateDir),
    });
    this.#startedMs = [];
    this.#since = { at: performance.now(), cpu: process.cpuUsage(), machines: 0 };
  }
}

const kib = async (dir: string) => Number(/^\d+/.exec((await run("du", ["-skx", dir])).stdout.toString())?.[0]);

/** Milliseconds of processors in a second of rest, of this process and of all of the machines'. */
async function restfulness(running: readonly string[]): Promise<{ backendCpuMs: number; processesCpuMs: number }> {
  const spent = () => sum(pidsOf(running).map((pid) => told(pid, "stat", ticks)));
  const [own, theirs] = [process.cpuUsage(), spent()];
  await pass(REST_MS);
  const { user, system } = process.cpuUsage(own);
  const perSecond = (ms: number) => Math.round((10 * ms) / (REST_MS / 1000)) / 10;
  return { backendCpuMs: perSecond((user + system) / 1000), processesCpuMs: perSecond(spent() - theirs) };
}

function cgroups(root: string, depth = 3): string[] {
  if (depth === 0) return [];
  return readdirSync(root, { withFileTypes: true }).flatMap((entry) =>
    entry.isDirectory() ? [join(root, entry.name), ...cgroups(join(root, entry.name), depth - 1)] : [],
  );
}

/** Every file below, those that are kept on purpose left out: images, templates, tombstones, keys. */
function files(root: string, below = ""): string[] {
  return readdirSync(join(root, below)).flatMap((name) => {
    const path = join(below, name);
    if (/^(?:images|tombstones|vm\/templates|shim-[0-9a-f]+|cri\/root)$/.test(path)) return [];
    return statSync(join(root, path), { throwIfNoEntry: false })?.isDirectory() ? files(root, path) : [path];
  });
}

/** What containerd has on disk, as the number of entries in each folder: it numbers them, and never begins again. */
function kept(stateDir: string): Record<string, number> {
  const [root, run] = [join(stateDir, "cri/root"), join(runDir(stateDir), "state")];
  const folders = [
    join(root, "io.containerd.content.v1.content/blobs/sha256"),
    join(root, "io.containerd.content.v1.content/ingest"),
    join(root, "io.containerd.snapshotter.v1.overlayfs/snapshots"),
    ...[root, run].flatMap((dir) =>
      readdirSync(dir)
        .filter((name) => name.startsWith("io.containerd.grpc.v1.cri") || name.startsWith("io.containerd.runtime"))
        .flatMap((name) => [join(dir, name), ...readdirSync(join(dir, name)).map((below) => join(dir, name, below))]),
    ),
  ];
  return Object.fromEntries(folders.map((folder) => [folder, readdirSync(folder).length]));
}

/** A machine that runs for hours: a container that writes a log, and one that ends again and again. */
const steady = (bench: Bench): Partial<MachineSpec> => ({
  restart_policy: "always",
  containers: [
    bench.shell("talks", "while sleep 1; do echo $(date) what is said by a program that says a line a second; done"),
    bench.shell("ends", "sleep 20; exit 3"),
  ],
});

for (const subject of subjects) {
  const { dir: _dir, ...network } = testNetwork("");
  const missing = [
    ...(subject.name === "process" ? [] : (await engineOnThisHost(subject.name)).missing),
    ...[missingForImages() ?? []].flat(),
  ];
  if (missing.length > 0) {
    leaveOut(`soak, engine ${subject.name}`, missing);
    continue;
  }
  const probe = create(subject.name, { stateDir: "/nonexistent", network });
  const hasVolumes = probe.capabilities.includes("volumes.empty_dir");
  describe(`engine ${subject.name}`, () => {
    let registry: TestRegistry;
    let bench: Bench;
    const stateDir = mkdtempSync(join(tmpdir(), "vmlet-soak-"));
    beforeAll(async () => {
      registry = await startRegistry();
      await registry.push("t/busybox:1", await busyboxImage());
      bench = new Bench(
        {
          name: subject.name,
          image: `${registry.host}/t/busybox:1`,
          createEngine: (stateDir) =>
            create(subject.name, { stateDir, network, images: { insecureRegistries: [registry.host] } }),
          patienceMs: PATIENCE_MS,
        },
        stateDir,
      );
      await bench.open();
    });
    afterAll(async () => {
      await bench.close();
      await registry.stop();
      await new HostNetwork({ dir: join(stateDir, "network"), ...network }).remove();
      rmSync(stateDir, { recursive: true, force: true });
    });

    const title = `${subject.machines} machines in bursts of ${subject.burst} leave nothing`;
    test(title, { timeout: SOAK_MS + MORE_MS }, async () => {
      const burst = async (look = async (_startedMs: number) => {}) => {
        const begun = performance.now();
        const made = await Promise.all(
          Array.from({ length: subject.burst }, () =>
            bench.create({
              ...(hasVolumes ? { volumes: [{ name: "m", type: "empty_dir", medium: "memory" }] } : {}),
              containers: [
                bench.shell("a", `setsid ${ORPHAN} & sleep 1000000`, {
                  ...(hasVolumes ? { mounts: [{ volume: "m", path: "/m" }] } : {}),
                }),
              ],
            }),
          ),
        );
        // Some are deleted while they start.
        await Promise.all(made.filter((_, index) => index % 4 !== 3).map((id) => bench.reaches(id, "running")));
        const startedMs = Math.round(performance.now() - begun);
        await look(startedMs);
        if (process.env["SOAK_BURST"] !== undefined) console.log(`${subject.name}: ${made.length} in ${startedMs} ms`);
        await Promise.all(made.map((id) => bench.provider.deletePod(id, { force: true, signal: bench.signal })));
        await Promise.all(made.map((id) => bench.reaches(id, "deleted")));
      };
      const marks = [
        ...[stateDir, runDir(stateDir), `vmlet-${machineHash(stateDir)}/`],
        ...[`${network.bridge!}-`, `master ${network.bridge!} `, ORPHAN],
      ];
      const left = async () => ({
        traces: await traces(marks),
        files: files(stateDir),
        kept: subject.name === "cri" ? kept(stateDir) : {},
      });
      const idle = figures([], stateDir);
      // What the first machines make for all that follow: bridge, rules, template.
      await burst(async () => {
        const running = await traces(marks);
        console.log(subject.name, { idle, busy: figures(running, stateDir) });
        if (REST_MS > 0) console.log(subject.name, await restfulness(running));
      });
      const isOwn = (line: string) => line.startsWith("link") || /containerd --config \S+$/.test(line);
      const before = await bench.until(async () => {
        const now = await left();
        expect(now.traces.filter((line) => !isOwn(line))).toEqual([]);
        return now;
      });
      const [begin, begun] = [figures(before.traces, stateDir), performance.now()];
      const staying = await Promise.all(Array.from({ length: STAY }, () => bench.create(steady(bench))));
      await Promise.all(staying.map((id) => bench.reaches(id, "running")));
      const series = new Series(subject.name, stateDir);
      let made = subject.burst;
      for (; made < subject.machines || performance.now() - begun < SOAK_MS; made += subject.burst) {
        let took = 0;
        await burst(async (startedMs) => {
          took = startedMs;
        });
        if (TELL_MS > 0) await series.add(took, subject.burst, () => traces(marks));
        if (PAUSE_MS > 0) await pass(PAUSE_MS);
      }
      for (const id of staying) expect((await bench.get(id)).state).toBe("running");
      await Promise.all(staying.map((id) => bench.provider.deletePod(id, { force: true, signal: bench.signal })));
      await Promise.all(staying.map((id) => bench.reaches(id, "deleted")));
      const atRest = () =>
        bench.until(async () => {
          const now = await left();
          expect({ ...now, kept: {} }).toEqual({ ...before, kept: {} });
          return Object.entries(now.kept).filter(([folder, count]) => count > (before.kept[folder] ?? 0));
        });
      // What a creation that was broken off has left, containerd removes by itself, when enough else has changed.
      let grown = await atRest();
      for (let more = 0; more < MORE_BURSTS && grown.length > 0; more++) {
        console.log(
          `${subject.name}: one more burst, for there is more in ${grown.map(([folder]) => folder).join(", ")}`,
        );
        await burst();
        grown = await atRest();
      }
      expect(grown).toEqual([]);
      // A look at rules or processes that goes on just now has some of its own.
      const end = await bench.until(() => {
        const now = figures(before.traces, stateDir);
        expect(now.backendDescriptors).toBeLessThanOrEqual(begin.backendDescriptors);
        return now;
      });
      if (SOAK_MS > 0) console.log(subject.name, { made, begin, end });
    });
  });
}
