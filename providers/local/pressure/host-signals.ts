/** What this host has left of what machines take from it. */
import { readFile, statfs } from "node:fs/promises";
import type { Observation, Observations, Signal } from "./thresholds.ts";

interface HostSignalsOptions {
  /** On the file system of machines' disks. */
  stateDir: string;
  /** On that of images. Absent: the same. */
  imageDir?: (() => Promise<string>) | undefined;
  /** Of all machines together: undefined where they have no limit. */
  machinesMemory?: (() => Promise<{ usedBytes: number; limitBytes: number } | undefined>) | undefined;
}

/** Looks at everything; what cannot be measured just now is left out. */
export async function hostSignals({ stateDir, imageDir, machinesMemory }: HostSignalsOptions): Promise<Observations> {
  const observed = new Map<Signal, Observation>();
  const [memory, pids, disk, images, together] = await Promise.all([
    settled(hostMemory()),
    settled(hostPids()),
    settled(fileSystem(stateDir)),
    settled((async () => fileSystem((await imageDir?.()) ?? stateDir))()),
    settled(Promise.resolve(machinesMemory?.())),
  ]);
  if (memory !== undefined) observed.set("memory.available", memory);
  if (pids !== undefined) observed.set("pid.available", pids);
  for (const [name, use] of [["nodefs", disk] as const, ["imagefs", images] as const]) {
    if (use === undefined) continue;
    observed.set(`${name}.available`, use.bytes);
    // Some file systems make inodes as they are needed.
    if (use.inodes.capacity > 0) observed.set(`${name}.inodesFree`, use.inodes);
  }
  if (together !== undefined)
    observed.set("allocatableMemory.available", {
      available: together.limitBytes - together.usedBytes,
      capacity: together.limitBytes,
    });
  return observed;
}

function settled<T>(work: Promise<T>): Promise<T | undefined> {
  return work.catch(() => undefined);
}

/** As the kubelet counts it: all but the working set, which inactive page cache does not belong to. */
async function hostMemory(): Promise<Observation> {
  return memoryIn(await readFile("/proc/meminfo", "latin1"));
}

/** @internal */
export function memoryIn(meminfo: string): Observation {
  const kib = new Map(
    [...meminfo.matchAll(/^([\w()]+):\s+(\d+) kB$/gm)].map(([, name, value]) => [name, Number(value)]),
  );
  return {
    available: ((kib.get("MemFree") ?? 0) + (kib.get("Inactive(file)") ?? 0)) * 1024,
    capacity: (kib.get("MemTotal") ?? 0) * 1024,
  };
}

/** Threads count: each takes a process number. */
async function hostPids(): Promise<Observation> {
  const read = async (path: string) => await readFile(path, "latin1");
  const limits = await Promise.all(["pid_max", "threads-max"].map((name) => read(`/proc/sys/kernel/${name}`)));
  const capacity = Math.min(...limits.map(Number));
  const [, threads = "0"] = /^\S+ \S+ \S+ \d+\/(\d+) /.exec(await read("/proc/loadavg")) ?? [];
  return { available: capacity - Number(threads), capacity };
}

async function fileSystem(dir: string): Promise<{ bytes: Observation; inodes: Observation }> {
  const { blocks, bavail, bsize, files, ffree } = await statfs(dir);
  return {
    bytes: { available: bavail * bsize, capacity: blocks * bsize },
    inodes: { available: ffree, capacity: files },
  };
}
