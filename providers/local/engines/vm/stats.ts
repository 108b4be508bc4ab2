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
  const known = new Set((spec.volumes ?? []).filter(({ type }) => type === "empty_dir").map(({ name }) => name));
  const volumes = [...parsed.volumes]
    .filter(([name]) => known.has(name))
    .map(([name, kib]) => ({ name, used_bytes: times(kib, 1024) }));
  return { containers: samples, volumes };
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
} {
  const containers = new Map<string, Map<string, number>>();
  const volumes = new Map<string, number>();
  let current: Map<string, number> | undefined;
  for (const line of text.split("\n")) {
    const [key, first, second] = line.split(" ");
    if (key === "container" && first !== undefined) containers.set(first, (current = new Map()));
    else if (key === "volume" && first !== undefined) volumes.set(first, whole(second));
    else if (key !== undefined && key !== "" && first !== undefined) current?.set(key, whole(first));
  }
  return { containers, volumes };
}

/** In another unit, never more than what is exact: the guest may say anything. */
const times = (value: number = 0, factor: number): number => Math.min(value * factor, Number.MAX_SAFE_INTEGER);

function whole(text: string | undefined): number {
  const value = Number(text);
  return Number.isSafeInteger(value) && value >= 0 ? value : 0;
}
