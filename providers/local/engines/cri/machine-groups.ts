/**
 * The control groups of machines, as the runtime has those of containers made: by itself, or by systemd. systemd takes
 * for its own what lies in its tree, and writes its own limits there: a machine is a slice then, and systemd is told
 * what it may have, as a kubelet and runc do (opencontainers/cgroups, systemd/common.go).
 */
import { join } from "node:path";
import type { Clock, ResourceAmounts } from "../../../../src/provider/kit/index.ts";
import { Cgroup, cgroupVersion } from "../../bundle/cgroup.ts";
import { cpuShares, cpuWeight } from "../../bundle/host-reserve.ts";
import { CommandError, run } from "../../host/command.ts";

type Limits = ResourceAmounts & { pids?: number };

export interface MachineGroups {
  /** All machines of this backend together. */
  readonly all: Cgroup;
  /** CRI's `cgroup_parent` of the machine's sandbox; a path below the root of each tree, too. */
  parentOf(machineId: string): string;
  limitAll(limits: Limits & { cpuShareMillis: number }): Promise<void>;
  /** What is not named is not changed; Infinity takes a limit away. */
  limit(machineId: string, limits: Limits): Promise<void>;
  /** Removes the group of a machine; everything in it is killed before. */
  remove(machineId: string): Promise<void>;
  /** Removes the group of all of them, when it is empty. */
  removeAll(): Promise<void>;
}

/** @param backend hexadecimal */
export function machineGroups(driver: "cgroupfs" | "systemd", clock: Clock, backend: string): MachineGroups {
  return driver === "systemd" ? new Slices(clock, backend) : new Folders(clock, backend);
}

class Folders implements MachineGroups {
  readonly all: Cgroup;
  readonly #clock: Clock;
  readonly #root: string;

  constructor(clock: Clock, backend: string) {
    this.#clock = clock;
    this.#root = `/vmlet-${backend}`;
    this.all = new Cgroup(this.#root);
  }

  parentOf(machineId: string): string {
    return join(this.#root, groupName(machineId));
  }

  async limitAll({ cpuShareMillis, ...limits }: Limits & { cpuShareMillis: number }): Promise<void> {
    await this.all.limit(limits);
    await this.all.weigh(cpuShareMillis);
  }

  async limit(machineId: string, limits: Limits): Promise<void> {
    await new Cgroup(this.parentOf(machineId)).limit(limits);
  }

  async remove(machineId: string): Promise<void> {
    const group = new Cgroup(this.parentOf(machineId));
    await group.kill(this.#clock);
    await group.remove();
  }

  async removeAll(): Promise<void> {
    await this.all.remove();
  }
}

class Slices implements MachineGroups {
  readonly all: Cgroup;
  readonly #clock: Clock;
  readonly #slice: string;

  constructor(clock: Clock, backend: string) {
    this.#clock = clock;
    this.#slice = `vmlet-${backend}.slice`;
    this.all = new Cgroup(slicePath(this.#slice));
  }

  parentOf(machineId: string): string {
    return slicePath(this.#sliceOf(machineId));
  }

  async limitAll({ cpuShareMillis, ...limits }: Limits & { cpuShareMillis: number }): Promise<void> {
    await makeSlice(this.#slice, sliceProperties(limits, { cpuShareMillis }));
  }

  async limit(machineId: string, limits: Limits): Promise<void> {
    await makeSlice(this.#sliceOf(machineId), sliceProperties(limits));
  }

  async remove(machineId: string): Promise<void> {
    const group = new Cgroup(this.parentOf(machineId));
    await group.kill(this.#clock);
    await stopSlice(this.#sliceOf(machineId));
  }

  async removeAll(): Promise<void> {
    await stopSlice(this.#slice);
  }

  #sliceOf(machineId: string): string {
    return this.#slice.replace(".slice", `-${sliceName(machineId)}.slice`);
  }
}

/**
 * A machine's id is in the name of its group, and so is its pod's UID: programs of the host look for that, as for a
 * kubelet's `podUID`.
 * @internal
 */
export const groupName = (machineId: string): string => `pod${machineId}`;

/**
 * A hyphen would begin a slice in the slice, and an underscore is in no machine's id.
 * @internal
 */
export const sliceName = (machineId: string): string => groupName(machineId).replaceAll("-", "_");

/**
 * Where systemd has a slice: each part of its name is a slice in the one before.
 * @internal
 */
export function slicePath(slice: string): string {
  const parts = slice.replace(/\.slice$/, "").split("-");
  return `/${parts.map((_, index) => `${parts.slice(0, index + 1).join("-")}.slice`).join("/")}`;
}

type Property = readonly [name: string, type: "s" | "t", value: string | number];

/**
 * Limits as systemd's properties; those of cgroup v1 and v2 have different names.
 * @internal
 */
export function sliceProperties(
  { cpu_millis, memory_bytes, pids }: Limits,
  { cpuShareMillis, version = cgroupVersion() }: { cpuShareMillis?: number | undefined; version?: 1 | 2 } = {},
): Property[] {
  const isV2 = version === 2;
  const properties: Property[] = [["Description", "s", "Machines of vmlet"]];
  // systemd has its greatest number for no limit.
  const whole = (value: number) => (value === Infinity ? "18446744073709551615" : value);
  const add = (name: string, value: number | string) => properties.push([name, "t", value]);
  if (memory_bytes !== undefined) add(isV2 ? "MemoryMax" : "MemoryLimit", whole(memory_bytes));
  if (pids !== undefined) add("TasksMax", pids);
  if (cpu_millis !== undefined) add("CPUQuotaPerSecUSec", whole(cpu_millis * 1000));
  if (cpuShareMillis !== undefined)
    add(isV2 ? "CPUWeight" : "CPUShares", isV2 ? cpuWeight(cpuShareMillis) : cpuShares(cpuShareMillis));
  return properties;
}

/** A slice that is there already, of a backend before this one, gets the limits, and is started if it has ended. */
async function makeSlice(slice: string, properties: readonly Property[]): Promise<void> {
  const given = [String(properties.length), ...properties.flat().map(String)];
  try {
    await systemd("StartTransientUnit", "ssa(sv)a(sa(sv))", [slice, "replace", ...given, "0"]);
  } catch (thrown) {
    if (!says(thrown, "already")) throw thrown;
    const limits = properties.filter(([name]) => name !== "Description");
    await systemd("SetUnitProperties", "sba(sv)", [slice, "true", String(limits.length), ...limits.flat().map(String)]);
    await systemd("StartUnit", "ss", [slice, "replace"]);
  }
}

async function stopSlice(slice: string): Promise<void> {
  try {
    await systemd("StopUnit", "ss", [slice, "replace"]);
  } catch (thrown) {
    if (!says(thrown, "not loaded")) throw thrown;
  }
}

async function systemd(method: string, signature: string, args: readonly string[]): Promise<void> {
  const manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];
  await run("busctl", ["--quiet", "call", ...manager, method, signature, ...args]);
}

function says(thrown: unknown, words: string): boolean {
  return thrown instanceof CommandError && thrown.stderr.includes(words);
}
