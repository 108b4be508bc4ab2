/** What the runtime has measured of a sandbox, in the words of the Machine API. */
import type { MachineStats } from "../../../../src/provider/kit/index.ts";
import type { ContainerRef, SandboxStats } from "../../engine.ts";
import type { PodSandboxStats } from "./api.gen.js";
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
      },
    ];
  });
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
