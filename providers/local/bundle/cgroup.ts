/**
 * Control groups of containers, read and emptied directly; the OCI runtime makes them. Works with v1 (one tree per
 * controller), v2 (one tree) and the hybrid of both, in which the controllers are v1's.
 */
import { existsSync, readFileSync } from "node:fs";
import { mkdir, readdir, readFile, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import {
  type Clock,
  type Pressure,
  ProviderError,
  type ResourceAmounts,
  type Stall,
} from "../../../src/provider/kit/index.ts";
import type { HostProblem } from "../engine.ts";
import { isMissing } from "../host/files.ts";
import { delegateControllers, missingControllers } from "./delegation.ts";
import { CPU_PERIOD_US, cpuQuotaUs } from "./bundle.ts";
import { cpuShares, cpuWeight } from "./host-reserve.ts";

const ROOT = "/sys/fs/cgroup";
/** v1: a controller that is in every such tree and has no internal-process rule. */
const PROCESS_TREE_V1 = "pids";
const EMPTY_POLL_MS = 5;
/** v1: one that not every kernel has. v2 has it as `io`. */
const DISK_TREE_V1 = "blkio";
/** A process in uninterruptible sleep may take long; beyond this the caller is told, and tries again. */
const KILL_ROUNDS = 1000;
/** Of the host's processes; the rest is its own. */
const MACHINES_SHARE = 0.8;
/** v1 reports "no limit" as a number near 2^63. */
const UNLIMITED = 2 ** 60;

interface CgroupUsage {
  cpuNs: number;
  memoryUsage: number;
  /** Usage without inactive page cache: what kubelet and the OOM killer go by. */
  workingSet: number;
  rss: number;
}

/**
 * Processes and threads that all machines may have together: when they have used up the process numbers of this kernel,
 * nothing on the host can be started.
 */
export function allMachinesPids(): number {
  const read = (name: string) => Number(readFileSync(`/proc/sys/kernel/${name}`, "latin1"));
  return Math.floor(Math.min(read("pid_max"), read("threads-max")) * MACHINES_SHARE);
}

export function cgroupVersion(): 1 | 2 {
  return existsSync(join(ROOT, "cgroup.controllers")) ? 2 : 1;
}

/** What the host lacks to limit machines. */
export async function checkCgroups(): Promise<HostProblem[]> {
  if (cgroupVersion() === 1) {
    if (existsSync(join(ROOT, "memory"))) return [];
    const problem = `there is no cgroup tree at ${ROOT}`;
    return [{ fatal: true, problem, cure: "mount cgroup2 there, or the v1 controllers below it" }];
  }
  const missing = await missingControllers(ROOT);
  if (missing.length === 0) return [];
  return [
    {
      fatal: true,
      problem: `cgroup v2 at ${ROOT} has no controllers ${missing.join(", ")}`,
      cure: "where a v1 tree has them, boot with systemd.unified_cgroup_hierarchy=1; in a container, run it with --cgroupns=private and write access to the tree (--privileged), or Delegate=yes",
    },
  ];
}

/** Operates on a path such as `/vmlet-x/machine/container` in whatever trees there are. */
export class Cgroup {
  readonly #path: string;
  readonly #version = cgroupVersion();

  constructor(path: string) {
    this.#path = path;
  }

  /** Undefined when the group does not exist. */
  async usage(): Promise<CgroupUsage | undefined> {
    try {
      if (this.#version === 2) {
        const stat = numbers(await this.#read("", "memory.stat"));
        const memoryUsage = Number(await this.#read("", "memory.current"));
        const cpu = numbers(await this.#read("", "cpu.stat"));
        return {
          cpuNs: (cpu.get("usage_usec") ?? 0) * 1000,
          memoryUsage,
          workingSet: Math.max(0, memoryUsage - (stat.get("inactive_file") ?? 0)),
          rss: stat.get("anon") ?? 0,
        };
      }
      const stat = numbers(await this.#read("memory", "memory.stat"));
      const memoryUsage = Number(await this.#read("memory", "memory.usage_in_bytes"));
      return {
        cpuNs: Number(await this.#read("cpuacct", "cpuacct.usage")),
        memoryUsage,
        workingSet: Math.max(0, memoryUsage - (stat.get("total_inactive_file") ?? 0)),
        rss: stat.get("total_rss") ?? 0,
      };
    } catch (thrown) {
      if (isGone(thrown)) return undefined;
      throw thrown;
    }
  }

  /** How long the group's tasks have waited; undefined where the host does not measure it for groups. */
  async pressure(): Promise<Pressure | undefined> {
    if (this.#version !== 2) return undefined;
    const stalls = await Promise.all(
      (["cpu", "memory", "io"] as const).map(async (resource) => {
        // Switched off at boot (psi=0), or for this group: it cannot be read, and the rest can.
        const text = await this.#read("", `${resource}.pressure`).catch(() => "");
        const stall = stallOf(text);
        return stall === undefined ? [] : [[resource, stall] as const];
      }),
    );
    const pressure: Pressure = Object.fromEntries(stalls.flat());
    return Object.keys(pressure).length > 0 ? pressure : undefined;
  }

  /** How often the kernel killed a process of this group because memory ran out. */
  async oomKills(): Promise<number> {
    try {
      const text =
        this.#version === 2 ? await this.#read("", "memory.events") : await this.#read("memory", "memory.oom_control");
      return numbers(text).get("oom_kill") ?? 0;
    } catch (thrown) {
      if (isGone(thrown)) return 0;
      throw thrown;
    }
  }

  /** Bytes; undefined without a limit. */
  async memoryLimit(): Promise<number | undefined> {
    try {
      const value = Number(
        this.#version === 2 ? await this.#read("", "memory.max") : await this.#read("memory", "memory.limit_in_bytes"),
      );
      return Number.isNaN(value) || value >= UNLIMITED ? undefined : value;
    } catch (thrown) {
      if (isGone(thrown)) return undefined;
      throw thrown;
    }
  }

  /** What the group takes of what it may have; undefined without a limit. */
  async memory(): Promise<{ usedBytes: number; limitBytes: number } | undefined> {
    const limitBytes = await this.memoryLimit();
    const usage = await this.usage();
    return limitBytes === undefined || usage === undefined ? undefined : { usedBytes: usage.workingSet, limitBytes };
  }

  /** Makes the group, and limits all in it and below it together. Infinity takes a limit away. */
  async limit({ cpu_millis, memory_bytes, pids }: ResourceAmounts & { pids?: number }): Promise<void> {
    if (this.#version === 2) await this.#makeV2();
    if (pids !== undefined) await this.#write(PROCESS_TREE_V1, "pids.max", pids);
    if (memory_bytes !== undefined)
      await this.#write(
        "memory",
        this.#version === 2 ? "memory.max" : "memory.limit_in_bytes",
        memory_bytes === Infinity ? (this.#version === 2 ? "max" : -1) : memory_bytes,
      );
    if (cpu_millis === undefined) return;
    const quota = cpu_millis === Infinity ? -1 : cpuQuotaUs(cpu_millis);
    if (this.#version === 2) await this.#write("cpu", "cpu.max", `${quota < 0 ? "max" : quota} ${CPU_PERIOD_US}`);
    else {
      await this.#write("cpu", "cpu.cfs_period_us", CPU_PERIOD_US);
      await this.#write("cpu", "cpu.cfs_quota_us", quota);
    }
  }

  /**
   * How much the group gets of the processors when others want them as well. It is no limit: v1 would refuse a group
   * below it one that is above it.
   */
  async weigh(cpuMillis: number): Promise<void> {
    if (this.#version === 2) await this.#write("cpu", "cpu.weight", cpuWeight(cpuMillis));
    else await this.#write("cpu", "cpu.shares", cpuShares(cpuMillis));
  }

  /** Of the disks it gets what any other group gets, where the host's scheduler shares them out by groups. */
  async shareDisks(): Promise<void> {
    if (this.#version === 1 && existsSync(join(ROOT, DISK_TREE_V1)))
      await mkdir(this.#dir(DISK_TREE_V1), { recursive: true });
  }

  /**
   * The files that a process which is to be in the group writes `0` to; what it starts from then on is in it, too. The
   * group has to be there.
   */
  entries(): string[] {
    const needed = this.#version === 2 ? [""] : ["cpu", "memory", PROCESS_TREE_V1];
    const dirs = needed.map((controller) => this.#dir(controller));
    if (this.#version === 1 && existsSync(this.#dir(DISK_TREE_V1))) dirs.push(this.#dir(DISK_TREE_V1));
    return dirs.map((dir) => join(dir, "cgroup.procs"));
  }

  /** Process ids of everything in the group and below it, as seen by this process. */
  async processes(): Promise<number[]> {
    return await processesBelow(this.#dir(PROCESS_TREE_V1));
  }

  /**
   * Kills everything in the group and below it; resolves when it is empty.
   * @throws ProviderError unavailable when some still run after five seconds of trying
   */
  async kill(clock: Clock): Promise<void> {
    let pids = await this.processes();
    for (let round = 0; pids.length > 0; round++) {
      if (round === KILL_ROUNDS)
        throw new ProviderError("unavailable", `processes ${pids.join(", ")} do not end after SIGKILL`);
      for (const pid of pids) {
        try {
          process.kill(pid, "SIGKILL");
        } catch {
          // It ended by itself in this instant.
        }
      }
      await this.#thaw();
      await clock.sleep(EMPTY_POLL_MS);
      pids = await this.processes();
    }
  }

  /** Removes the group and all below it from every tree; they must be empty. */
  async remove(): Promise<void> {
    for (const tree of await this.#trees()) await removeBelow(join(ROOT, tree, this.#path));
  }

  /** A frozen process does not die before it thaws (v1). */
  async #thaw(): Promise<void> {
    if (this.#version === 2) return;
    await writeFile(join(ROOT, "freezer", this.#path, "freezer.state"), "THAWED").catch(() => undefined);
  }

  async #trees(): Promise<string[]> {
    return this.#version === 2
      ? [""]
      : (await readdir(ROOT, { withFileTypes: true })).filter((entry) => entry.isDirectory()).map(({ name }) => name);
  }

  #dir(controller: string): string {
    return this.#version === 2 ? join(ROOT, this.#path) : join(ROOT, controller, this.#path);
  }

  /** A group has the controllers that the group above it gives to those below. */
  async #makeV2(): Promise<void> {
    let dir = ROOT;
    for (const name of this.#path.split("/").filter((part) => part !== "")) {
      await delegateControllers(dir, ROOT);
      await writeFile(join(dir, "cgroup.subtree_control"), "+io").catch(() => undefined);
      dir = join(dir, name);
      await mkdir(dir, { recursive: true });
    }
  }

  async #write(controller: string, file: string, value: string | number): Promise<void> {
    const dir = this.#dir(controller);
    await mkdir(dir, { recursive: true });
    await writeFile(join(dir, file), String(value));
  }

  #read(controller: string, file: string): Promise<string> {
    return readFile(join(this.#dir(controller), file), "utf8");
  }
}

async function processesBelow(dir: string): Promise<number[]> {
  try {
    const own = (await readFile(join(dir, "cgroup.procs"), "utf8"))
      .split("\n")
      .filter((line) => line !== "")
      .map(Number);
    const children = (await readdir(dir, { withFileTypes: true })).filter((entry) => entry.isDirectory());
    const below = await Promise.all(children.map(({ name }) => processesBelow(join(dir, name))));
    return [...own, ...below.flat()];
  } catch (thrown) {
    if (isGone(thrown)) return [];
    throw thrown;
  }
}

async function removeBelow(dir: string): Promise<void> {
  try {
    for (const entry of await readdir(dir, { withFileTypes: true }))
      if (entry.isDirectory()) await removeBelow(join(dir, entry.name));
    await rmdir(dir);
  } catch (thrown) {
    if (!isGone(thrown)) throw thrown;
  }
}

/** ENODEV: the group vanished between open and read. */
function isGone(thrown: unknown): boolean {
  return isMissing(thrown) || (thrown as NodeJS.ErrnoException | undefined)?.code === "ENODEV";
}

/** `name value` lines. */
function numbers(text: string): Map<string, number> {
  return new Map(
    text.split("\n").flatMap((line) => {
      const [name, value] = line.split(" ");
      return name === undefined || value === undefined ? [] : [[name, Number(value)] as const];
    }),
  );
}

/**
 * `some avg10=0.12 avg60=0.00 avg300=0.00 total=34`, and the same of `full`, which older kernels do not have for
 * processors.
 *
 * @internal
 */
export function stallOf(text: string): Stall | undefined {
  const lines = new Map(text.split("\n").map((line) => [line.split(" ", 1)[0], line]));
  const timeOf = (line = ""): Stall["some"] => {
    const figures = new Map(line.split(" ").map((part) => [part.split("=")[0], Number(part.split("=")[1])]));
    const of = (name: string, most: number) => Math.min(most, Math.max(0, figures.get(name) || 0));
    return {
      total_us: of("total", Number.MAX_SAFE_INTEGER),
      avg10: of("avg10", 100),
      avg60: of("avg60", 100),
      avg300: of("avg300", 100),
    };
  };
  return lines.has("some") ? { some: timeOf(lines.get("some")), full: timeOf(lines.get("full")) } : undefined;
}
