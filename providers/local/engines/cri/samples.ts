/** What the runtime has measured of a sandbox, in the words of the Machine API. */
import type { MachineStats, Pressure, Stall } from "../../../../src/provider/kit/index.ts";
import type { ContainerRef, SandboxStats } from "../../engine.ts";
import type { PodSandboxStats, PsiData, PsiStats } from "./api.gen.js";
import { LABEL_INSTANCE } from "./labels.ts";

type Sample = PodSandboxStats | undefined;

export function containerSamples(sample: Sample, containers: readonly ContainerRef[]): SandboxStats["containers"] {
  return containers.flatMap(({ name, id }) => {
    const own = find(sample, id);
    if (own?.memory === undefined) return [];
    const { memory, cpu, writableLayer } = own;
    return [
      {
        name,
        cpu_usage_ns_total: Number(cpu?.usageCoreNanoSeconds?.value ?? 0n),
        memory_working_set_bytes: Number(memory.workingSetBytes?.value ?? 0n),
        memory_usage_bytes: Number(memory.usageBytes?.value ?? 0n),
        memory_rss_bytes: Number(memory.rssBytes?.value ?? 0n),
        fs_used_bytes: Number(writableLayer?.usedBytes?.value ?? 0n),
        ...pressureOf(own),
      },
    ];
  });
}

/** Of the whole sandbox. */
export const sandboxPressure = (sample: Sample): Pick<MachineStats, "pressure"> => pressureOf(sample?.linux);

interface Measured {
  cpu?: { psi?: PsiStats | undefined } | undefined;
  memory?: { psi?: PsiStats | undefined } | undefined;
  io?: { psi?: PsiStats | undefined } | undefined;
}

function pressureOf(measured: Measured | undefined): Pick<MachineStats, "pressure"> {
  const pressure: Pressure = {};
  for (const resource of ["cpu", "memory", "io"] as const) {
    const psi = measured?.[resource]?.psi;
    if (psi !== undefined) pressure[resource] = { some: stallTime(psi.Some), full: stallTime(psi.Full) };
  }
  return Object.keys(pressure).length > 0 ? { pressure } : {};
}

function stallTime(data: PsiData | undefined): Stall["some"] {
  const { Total: total = 0n, Avg10: avg10 = 0, Avg60: avg60 = 0, Avg300: avg300 = 0 } = data ?? {};
  // What is no percentage would have the whole sample refused.
  const percent = (value: number) => Math.min(100, Math.max(0, value || 0));
  return {
    total_us: Math.min(Number(total), Number.MAX_SAFE_INTEGER),
    avg10: percent(avg10),
    avg60: percent(avg60),
    avg300: percent(avg300),
  };
}

export function networkSample(sample: Sample): MachineStats["network"] {
  const counted = sample?.linux?.network?.defaultInterface;
  if (counted === undefined) return undefined;
  return { rx_bytes: Number(counted.rxBytes?.value ?? 0n), tx_bytes: Number(counted.txBytes?.value ?? 0n) };
}

/** By the container's name. */
export function layerInodes(sample: Sample, containers: readonly ContainerRef[]): Map<string, number> {
  return new Map(
    containers.map(({ name, id }) => [name, Number(find(sample, id)?.writableLayer?.inodesUsed?.value ?? 0n)]),
  );
}

function find(sample: Sample, instance: string) {
  return sample?.linux?.containers.find(({ attributes }) => attributes?.labels[LABEL_INSTANCE] === instance);
}
