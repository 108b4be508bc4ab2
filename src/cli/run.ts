/** `vmlet run`: the agent, from its configuration file until a signal ends it. */
import { hostname } from "node:os";
import { Command } from "commander";
import { Agent } from "../agent/agent.ts";
import { ConfigFile } from "../agent/config-file.ts";
import { configuredBy, ENVIRONMENT, loadConfig, type ConfigOverrides } from "../config/load.ts";
import type { AgentConfig } from "../config/schema.ts";
import { createLogger, createLogSink, type LogFormat, type Logger } from "../telemetry/logger.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import { systemClock } from "../util/clock.ts";
import { systemRandom } from "../util/random.ts";
import { openNoDebugger, signalToStop } from "./exit.ts";
import { outliveFaults } from "./faults.ts";
import { logFormatOption } from "./log-format.ts";
import { createProvider } from "./providers.ts";
import { VERSION } from "./version.ts";

/** Flags that override the configuration file; `run` and `check` share them. */
export function withConfigOptions(command: Command): Command {
  return command
    .requiredOption("-c, --config <file>", "configuration file")
    .option(
      "--kubeconfig <file>",
      "kubeconfig of the cluster (default: KUBECONFIG, ~/.kube/config, or the service account)",
    )
    .option("--cluster-id <id>", "tells clusters apart that share a backend")
    .option("--node-name <name>", "name of the node, when the file lists one node")
    .option("--node-address <ips>", "addresses of the nodes, separated by commas")
    .option("--log-level <level>", "debug, info, warn or error")
    .addHelpText(
      "after",
      `\nA flag goes over its variable, and both go over the file: ${Object.keys(ENVIRONMENT).join(", ")}.`,
    );
}

export function runCommand(): Command {
  const command = withConfigOptions(new Command("run")).addOption(logFormatOption());
  return command.action(async (flags: ConfigOverrides & { config: string; logFormat: LogFormat }) => {
    const { config: path, logFormat, ...overrides } = flags;
    const config = loadConfig(path, overrides);
    const sink = createLogSink();
    const logger = createLogger({ level: config.logLevel, sink, format: logFormat });
    openNoDebugger(logger);
    const { fatal, counts } = outliveFaults(logger);
    const signal = AbortSignal.any([signalToStop(), fatal]);
    const tracing = config.tracing && (await openTracing(config.tracing, logger));
    const creating = Agent.open({
      config,
      file: new ConfigFile({ path, flags: overrides, config, clock: systemClock, logger }),
      createProvider: (provider, events) =>
        createProvider(provider, { clock: systemClock, random: systemRandom, logger, tracing, ...events }),
      clock: systemClock,
      random: systemRandom,
      logger,
      version: VERSION,
      signal,
      tracing,
      vitals: () => ({ droppedLogLines: sink.dropped, unhandledErrors: counts }),
    });
    const agent = await creating.catch((thrown: unknown) => {
      // Stopping an agent that still waits for its cluster is not a failure.
      if (!signal.aborted) throw thrown;
    });
    try {
      await agent?.run(signal);
    } finally {
      await tracing?.close();
    }
    fatal.throwIfAborted();
    // A provider module may have left timers or connections behind.
    process.exit();
  });
}

/** Loaded only where it is asked for. @throws ConfigError when a file cannot be used */
async function openTracing(config: NonNullable<AgentConfig["tracing"]>, logger: Logger): Promise<Tracing> {
  const { SdkTracing } = await import("../telemetry/sdk-tracing.ts");
  const resource = { "service.name": "vmlet", "service.version": VERSION, "host.name": hostname() };
  const options = { ...config, resource, version: VERSION, clock: systemClock, logger };
  return await configuredBy("tracing", () => SdkTracing.open(options));
}
