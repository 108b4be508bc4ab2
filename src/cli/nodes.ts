/** `vmlet nodes`: the virtual nodes, what their backends say, and how full they are. */
import { Command } from "commander";
import { nodesPath } from "../kube/paths.ts";
import type { Node } from "../kube/wire.ts";
import { isVmletNode, nodeRow, type NodeRow } from "../ui/rows.ts";
import { systemClock } from "../util/clock.ts";
import { humanDuration } from "../util/human-duration.ts";
import { withClusterOptions, withKube, type ClusterOptions } from "./cluster-options.ts";
import { listAll, machinesOf } from "./cluster-rows.ts";
import { formatBytes, formatCpu } from "./sizes.ts";
import { listText, withOutputOption, type OutputOptions } from "./table.ts";

export function nodesCommand(): Command {
  return withOutputOption(withClusterOptions(new Command("nodes")))
    .option("-l, --selector <selector>", "with these labels")
    .action(async (options: ClusterOptions & OutputOptions & { selector?: string | undefined }) => {
      await withKube(options, async (kube, _namespace, signal) => {
        const nodes = await listAll<Node>(kube, nodesPath(), { labelSelector: options.selector }, signal);
        const rows = nodes.filter(isVmletNode).map(nodeRow);
        const machines = (await machinesOf(kube, { namespace: undefined }, signal)).map(({ row }) => row);
        const full = rows.map((row) => {
          const asked = machines.filter(
            ({ node, phase }) => node === row.name && phase !== "Succeeded" && phase !== "Failed",
          );
          const requested = {
            pods: asked.length,
            cpuMillis: asked.reduce((sum, { size }) => sum + size.cpuMillis, 0),
            memoryBytes: asked.reduce((sum, { size }) => sum + size.memoryBytes, 0),
          };
          return { ...row, requested };
        });
        process.stdout.write(nodesText(full, options));
      });
    });
}

type FullNode = NodeRow & { requested: NodeRow["capacity"] };

function nodesText(rows: readonly FullNode[], { output }: OutputOptions): string {
  const now = systemClock.now();
  const share = (used: string, all: string) => `${used}/${all}`;
  return listText(rows, {
    kind: "NodeList",
    output,
    empty: "No vmlet nodes in this cluster.",
    columns: [
      { title: "NAME", cell: ({ name }) => name },
      { title: "STATUS", cell: ({ state, cordoned }) => `${state}${cordoned ? ",SchedulingDisabled" : ""}` },
      { title: "BACKEND", cell: ({ backend }) => backend.state },
      { title: "PODS", cell: ({ requested, capacity }) => share(String(requested.pods), String(capacity.pods)) },
      {
        title: "CPU",
        cell: ({ requested, capacity }) => share(formatCpu(requested.cpuMillis), formatCpu(capacity.cpuMillis)),
      },
      {
        title: "MEMORY",
        cell: ({ requested, capacity }) => share(formatBytes(requested.memoryBytes), formatBytes(capacity.memoryBytes)),
      },
      { title: "AGE", cell: ({ created }) => humanDuration(now - created) },
      { title: "RUNTIME", cell: ({ runtime }) => runtime, isWide: true },
      { title: "VERSION", cell: ({ version }) => version, isWide: true },
      { title: "TAINTS", cell: ({ taints }) => taints.join(","), isWide: true },
      { title: "MESSAGE", cell: ({ backend }) => backend.message, isWide: true },
    ],
  });
}
