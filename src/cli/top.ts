/** `vmlet top`: what machines use, beside what they ask for; by metrics-server, as `kubectl top`. */
import { Command } from "commander";
import { isNotFound, isKubeApiError } from "../kube/errors.ts";
import { resourcePath } from "../kube/paths.ts";
import type { KubeObject } from "../kube/wire.ts";
import { Quantity } from "../resources/quantity.ts";
import type { PodRow } from "../ui/rows.ts";
import { VmletError } from "../util/errors.ts";
import { withClusterOptions, withKube, type ClusterOptions } from "./cluster-options.ts";
import { listAll, machinesOf } from "./cluster-rows.ts";
import { formatBytes, formatCpu } from "./sizes.ts";
import { listText, withOutputOption, type OutputOptions } from "./table.ts";

class NoMetricsError extends VmletError {
  readonly code = "NO_METRICS";
}

type PodMetrics = KubeObject & { containers?: { usage?: { cpu?: string; memory?: string } }[] };
type Flags = ClusterOptions & OutputOptions & { selector?: string | undefined };
type Used = PodRow & { used: { cpuMillis: number; memoryBytes: number } };

export function topCommand(): Command {
  return withOutputOption(withClusterOptions(new Command("top")))
    .option("-A, --all-namespaces", "of all namespaces")
    .option("-l, --selector <selector>", "of pods with these labels")
    .action(async (options: Flags) => {
      await withKube(options, async (kube, namespace, signal) => {
        const { selector } = options;
        const group = { group: "metrics.k8s.io", version: "v1beta1", resource: "pods" };
        const path = resourcePath({ ...group, ...(namespace !== undefined && { namespace }) });
        const query = { labelSelector: selector };
        const metrics = await listAll<PodMetrics>(kube, path, query, signal).catch(explainAbsence);
        const machines = await machinesOf(kube, { namespace, selector }, signal);
        process.stdout.write(
          topText(
            metrics,
            machines.map(({ row }) => row),
            options,
          ),
        );
      });
    });
}

function explainAbsence(thrown: unknown): never {
  if (isNotFound(thrown) || (isKubeApiError(thrown) && thrown.status === 503))
    throw new NoMetricsError("this cluster has no metrics-server, or it does not answer: kubectl top needs it as well");
  throw thrown;
}

/** @internal */
export function topText(metrics: readonly PodMetrics[], machines: readonly PodRow[], options: Flags): string {
  const used = new Map(metrics.map((each) => [`${each.metadata?.namespace}/${each.metadata?.name}`, usageOf(each)]));
  const rows = machines
    .flatMap((row): Used[] => {
      const found = used.get(`${row.namespace}/${row.name}`);
      return found === undefined ? [] : [{ ...row, used: found }];
    })
    .toSorted((a, b) => b.used.cpuMillis - a.used.cpuMillis);
  return listText(rows, {
    kind: "MachineUsageList",
    output: options.output,
    empty: "Nothing is known yet of what machines use.",
    columns: [
      ...(options.allNamespaces ? [{ title: "NAMESPACE", cell: ({ namespace }: Used) => namespace }] : []),
      { title: "NAME", cell: ({ name }) => name },
      { title: "CPU", cell: ({ used }) => formatCpu(used.cpuMillis) },
      { title: "CPU%", cell: ({ used, size }) => percent(used.cpuMillis, size.cpuMillis) },
      { title: "MEMORY", cell: ({ used }) => formatBytes(used.memoryBytes) },
      { title: "MEMORY%", cell: ({ used, size }) => percent(used.memoryBytes, size.memoryBytes) },
      { title: "NODE", cell: ({ node }) => node },
      { title: "HOST", cell: ({ host }) => host, isWide: true },
    ],
  });
}

function usageOf({ containers = [] }: PodMetrics): Used["used"] {
  const sum = (name: "cpu" | "memory") =>
    containers.reduce((total, { usage }) => total + (Quantity.tryParse(usage?.[name] ?? "0")?.nano ?? 0n), 0n);
  return { cpuMillis: Number(sum("cpu") / 1_000_000n), memoryBytes: Number(sum("memory") / 1_000_000_000n) };
}

/** Of what is asked for; empty when nothing is. */
const percent = (used: number, asked: number): string => (asked === 0 ? "" : `${Math.round((used / asked) * 100)}%`);
