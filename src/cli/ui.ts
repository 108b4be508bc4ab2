/** `vmlet ui`: the page, on this machine, with the rights of the user's own kubeconfig. */
import { Command, Option } from "commander";
import { configuredBy } from "../config/load.ts";
import { createLogger, type LogFormat, type LogLevel } from "../telemetry/logger.ts";
import { clusterOf, withClusterOptions, type ClusterOptions } from "./cluster-options.ts";
import { portNumber, signalToStop } from "./exit.ts";
import { logFormatOption } from "./log-format.ts";
import { openPage } from "./page.ts";

export function uiCommand(): Command {
  return withClusterOptions(new Command("ui"))
    .option("--port <port>", "port of the page, on 127.0.0.1; 0 picks a free one", portNumber, 0)
    .addOption(
      new Option("--log-level <level>", "what is logged").choices(["debug", "info", "warn", "error"]).default("error"),
    )
    .addOption(logFormatOption())
    .action(async (options: ClusterOptions & { port: number; logLevel: LogLevel; logFormat: LogFormat }) => {
      const { kubeConfig } = clusterOf(options);
      const logger = createLogger({ level: options.logLevel, format: options.logFormat });
      // Of all namespaces unless one is asked for: what is looked at first are nodes, which have none.
      const { namespace, port } = options;
      const page = await configuredBy("--port", () => openPage({ kubeConfig, namespace, port, logger }));
      console.log(
        `The page is at\n\n  ${page.url}\n\nfor you alone, until Ctrl-C: who has this address has your rights in the cluster.`,
      );
      await page.run(signalToStop());
    });
}
