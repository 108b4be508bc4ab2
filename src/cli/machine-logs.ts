/** `vmlet logs MACHINE`: the log of a machine's container, found by its pod's name or its own. */
import { once } from "node:events";
import { Command, InvalidArgumentError } from "commander";
import { resourcePath } from "../kube/paths.ts";
import { printable } from "../streaming/plain-text.ts";
import { withClusterOptions, withKube, type ClusterOptions } from "./cluster-options.ts";
import { findMachine } from "./cluster-rows.ts";

type Flags = ClusterOptions & {
  container?: string | undefined;
  follow?: boolean | undefined;
  previous?: boolean | undefined;
  tail?: number | undefined;
};

export function logsCommand(): Command {
  return withClusterOptions(new Command("logs"))
    .argument("<machine>", "NAME, NAMESPACE/NAME of the pod, or the machine's id")
    .option("-c, --container <name>", "container (default: the pod's first)")
    .option("-f, --follow", "go on with what comes")
    .option("-p, --previous", "of the run before the last restart")
    .option("--tail <lines>", "the last lines only", lineCount)
    .action(async (name: string, options: Flags) => {
      await withKube(options, async (kube, namespace, signal) => {
        const { metadata, spec } = await findMachine(kube, name, { namespace }, signal);
        const path = resourcePath({
          ...{ resource: "pods", namespace: metadata?.namespace ?? "default", name: metadata?.name },
          subresource: "log",
        });
        const { follow, previous, tail } = options;
        const container = options.container ?? spec?.containers?.[0]?.name;
        const query = { container, follow, previous, tailLines: tail };
        const decoder = new TextDecoder();
        for await (const piece of kube.stream({ path, query, signal })) {
          // A terminal would obey what a container writes; a file or a program gets it as it is.
          const text = process.stdout.isTTY ? printable(decoder.decode(piece, { stream: true })) : piece;
          if (!process.stdout.write(text)) await once(process.stdout, "drain", { signal });
        }
      });
    });
}

function lineCount(text: string): number {
  const lines = Number(text);
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError("it must be a number of lines.");
  return lines;
}
