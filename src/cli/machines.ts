/** `vmlet machines`: pods as machines; with a configuration, the backend's machines beside their pods. */
import { Command } from "commander";
import { formatSize } from "./sizes.ts";
import { withKube, type ClusterOptions, withClusterOptions } from "./cluster-options.ts";
import { machinesOf } from "./cluster-rows.ts";
import { listText, withOutputOption, type OutputOptions } from "./table.ts";
import type { PodRow } from "../ui/rows.ts";
import { systemClock } from "../util/clock.ts";
import { humanDuration } from "../util/human-duration.ts";

type Flags = ClusterOptions & OutputOptions & { selector?: string | undefined; config?: string | undefined };

export function machinesCommand(): Command {
  return withOutputOption(withClusterOptions(new Command("machines")))
    .option("-A, --all-namespaces", "of all namespaces")
    .option("-l, --selector <selector>", "of pods with these labels")
    .option("-c, --config <file>", "for the operator of an agent: also what its backends have, by its configuration")
    .action(async (options: Flags) => {
      if (options.config !== undefined) {
        const { backendMachines } = await import("./backend-machines.ts");
        process.stdout.write(await backendMachines(options.config, options.output));
        return;
      }
      await withKube(options, async (kube, namespace, signal) => {
        const machines = await machinesOf(kube, { namespace, selector: options.selector }, signal);
        process.stdout.write(
          machinesText(
            machines.map(({ row }) => row),
            options,
          ),
        );
      });
    });
}

/** @internal */
export function machinesText(rows: readonly PodRow[], { output, allNamespaces }: Flags): string {
  const now = systemClock.now();
  return listText(rows, {
    kind: "MachineList",
    output,
    empty: allNamespaces ? "No machines." : "No machines in this namespace: -A shows those of all.",
    columns: [
      ...(allNamespaces ? [{ title: "NAMESPACE", cell: ({ namespace }: PodRow) => namespace }] : []),
      { title: "NAME", cell: ({ name }) => name },
      { title: "READY", cell: ({ ready }) => ready },
      { title: "STATUS", cell: ({ status }) => status },
      { title: "RESTARTS", cell: ({ restarts }) => String(restarts) },
      { title: "AGE", cell: ({ created }) => humanDuration(now - created) },
      { title: "SIZE", cell: ({ instanceType, size }) => instanceType || formatSize(size) },
      { title: "NODE", cell: ({ node }) => node },
      { title: "HOST", cell: ({ host }) => host },
      { title: "MACHINE", cell: ({ machine }) => machine, isWide: true },
      { title: "IP", cell: ({ ip }) => ip, isWide: true },
      { title: "MESSAGE", cell: ({ message }) => message, isWide: true },
    ],
  });
}
