/** What a guest tells of its containers' and volumes' use. It may print anything: only numbers count. */
import type { MachineHome, SandboxStats } from "../../engine.ts";

/** @param text of `vmlet stats`. What it tells of volumes that the machine does not have is left out */
export function sandboxStats(
  text: string,
  spec: MachineHome["spec"],
  containers: readonly { id: string; name: string }[],
): Pick<SandboxStats, "containers" | "volumes"> {
  const parsed = parseStats(text);
  const samples = containers.flatMap(({ id, name }) => {
    const values = parsed.containers.get(id);
    return values === undefined ? [] : [{ name, ...sample(values) }];
  });
  const named = (wanted: string) =>
    new Set((spec.volumes ?? []).filter(({ type }) => type === wanted).map(({ name }) => name));
  const [emptyDirs, persistent] = [named("empty_dir"), named("persistent")];
  const folders = [...parsed.volumes]
    .filter(([name]) => emptyDirs.has(name))
    .map(([name, kib]) => ({ name, used_bytes: times(kib, 1024) }));
  const disks = [...parsed.disks]
    .filter(([name]) => persistent.has(name))
    .map(([name, counts]) => ({ name, ...diskSample(counts) }));
  return { containers: samples, volumes: [...folders, ...disks] };
}

/** @param counts as statfs(2) has them: blocks, free ones, those free for all, bytes of one, inodes, free ones */
function diskSample([blocks = 0, free = 0, available = 0, blockBytes = 0, inodes = 0, inodesFree = 0]: number[]) {
  return {
    used_bytes: times(Math.max(0, blocks - free), blockBytes),
    capacity_bytes: times(blocks, blockBytes),
    available_bytes: times(available, blockBytes),
    inodes,
    inodes_used: Math.max(0, inodes - inodesFree),
    inodes_free: inodesFree,
  };
}

function sample(values: ReadonlyMap<string, number>) {
  const current = values.get("current") ?? 0;
  return {
    cpu_usage_ns_total: times(values.get("usage_usec"), 1000),
    memory_usage_bytes: current,
    memory_working_set_bytes: Math.max(0, current - (values.get("inactive_file") ?? 0)),
    memory_rss_bytes: values.get("anon") ?? 0,
    fs_used_bytes: times(values.get("fs"), 1024),
  };
}

/** @internal */
export function parseStats(text: string): {
  containers: Map<string, Map<string, number>>;
  volumes: Map<string, number>;
  disks: Map<string, number[]>;
} {
  const containers = new Map<string, Map<string, number>>();
  const volumes = new Map<string, number>();
  const disks = new Map<string, number[]>();
  let current: Map<string, number> | undefined;
  for (const line of text.split("\n")) {
    const [key, first, second, ...rest] = line.split(" ");
    if (key === "container" && first !== undefined) containers.set(first, (current = new Map()));
    else if (key === "disk" && first !== undefined) disks.set(first, [second, ...rest].map(whole));
    else if (key === "volume" && first !== undefined) volumes.set(first, whole(second));
    else if (key !== undefined && key !== "" && first !== undefined) current?.set(key, whole(first));
  }
  return { containers, volumes, disks };
}

/** In another unit, never more than what is exact: the guest may say anything. */
const times = (value: number = 0, factor: number): number => Math.min(value * factor, Number.MAX_SAFE_INTEGER);

function whole(text: string | undefined): number {
  const value = Number(text);
  return Number.isSafeInteger(value) && value >= 0 ? value : 0;
}
