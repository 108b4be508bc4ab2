/** `vmlet webhook`: places the pods of namespaces that have a policy for bursts. */
import { readFile } from "node:fs/promises";
import { Command, InvalidArgumentError, Option } from "commander";
import { ConfigError, configuredBy } from "../config/load.ts";
import { isLabelValue, isQualifiedName } from "../resources/names.ts";
import { startHealthServer, HealthChecks } from "../telemetry/health.ts";
import { createLogger, type LogFormat, type LogLevel } from "../telemetry/logger.ts";
import { untilAborted } from "../util/abort.ts";
import { systemClock } from "../util/clock.ts";
import { followFiles } from "../util/reloadable.ts";
import { BURST_LABEL } from "../webhook/placement.ts";
import { WebhookServer } from "../webhook/server.ts";
import { openNoDebugger, portNumber, signalToStop } from "./exit.ts";
import { outliveFaults, PROGRAM_FOLDER } from "./faults.ts";
import { logFormatOption } from "./log-format.ts";
import { webhookSecretCommand } from "./webhook-secret.ts";

interface Flags {
  certFile?: string | undefined;
  keyFile?: string | undefined;
  address: string;
  port: number;
  healthPort: number;
  nodeLabel: { key: string; value: string };
  taint: string;
  logLevel: LogLevel;
  logFormat: LogFormat;
}

export function webhookCommand(): Command {
  return new Command("webhook")
    .option(
      "--cert-file <file>",
      "certificate for the name by which the API server asks (PEM); read again when it changes",
    )
    .option("--key-file <file>", "its key (PEM)")
    .option("--address <address>", "what it listens on", "0.0.0.0")
    .option("--port <port>", "port for the API server; 0 picks a free one", portNumber, 9443)
    .option(
      "--health-port <port>",
      "port of /livez, /readyz and /metrics (plain HTTP); 0 picks a free one",
      portNumber,
      10249,
    )
    .addOption(
      new Option("--node-label <key=value>", "label that virtual nodes have, and no others")
        .argParser(nodeLabel)
        .default(nodeLabel("type=virtual-kubelet"), "type=virtual-kubelet"),
    )
    .option("--taint <key>", "key of the taint that keeps pods off them", taintKey, "virtual-kubelet.io/provider")
    .addOption(
      new Option("--log-level <level>", "what is logged").choices(["debug", "info", "warn", "error"]).default("info"),
    )
    .addOption(logFormatOption())
    .addHelpText(
      "after",
      `\nNamespaces say where their pods go, by label: ${BURST_LABEL}=enforce, on virtual nodes; ${BURST_LABEL}=overflow, there\nwhen other nodes are full. The chart (webhook.enabled) tells the API server to ask.`,
    )
    .addCommand(webhookSecretCommand())
    .action(run);
}

async function run(flags: Flags): Promise<void> {
  const stop = signalToStop();
  const { certFile, keyFile, address: host, port, healthPort, nodeLabel: label, taint } = flags;
  if (certFile === undefined || keyFile === undefined)
    throw new ConfigError(
      "--cert-file and --key-file are missing: API servers ask over TLS only; `vmlet webhook secret` makes a pair",
    );
  const logger = createLogger({ level: flags.logLevel, format: flags.logFormat });
  openNoDebugger(logger);
  const { fatal } = outliveFaults(logger, { ownFolder: PROGRAM_FOLDER });
  let server: WebhookServer | undefined;
  const certificate = await configuredBy("--cert-file, --key-file", () =>
    followFiles({
      read: async () => ({ cert: await readFile(certFile, "utf8"), key: await readFile(keyFile, "utf8") }),
      check: (tls) => {
        server ??= new WebhookServer({ host, port, tls, nodes: { label, taint }, clock: systemClock, logger });
        server.setTls(tls);
      },
      onLoaded: () => logger.info({ certFile }, "Serving certificate loaded"),
      onFailed: (thrown) =>
        logger.warn({ certFile, err: thrown }, "Serving certificate not reloaded, the old one stays"),
      clock: systemClock,
    }),
  );
  const webhook = server!;
  const { registry } = webhook;
  const { url } = await configuredBy("--address, --port", () => webhook.listen());
  const health = await configuredBy("--address, --health-port", () =>
    startHealthServer({
      host,
      port: healthPort,
      livez: new HealthChecks("livez"),
      readyz: new HealthChecks("readyz"),
      metrics: { registry, render: () => registry.metrics() },
      logger,
    }),
  );
  logger.info({ url, healthPort: health.port, label: `${label.key}=${label.value}`, taint }, "The webhook answers");
  const end = AbortSignal.any([stop, fatal]);
  void certificate.run(end);
  await untilAborted(end);
  await webhook.close();
  await health.close();
  fatal.throwIfAborted();
}

function nodeLabel(text: string): { key: string; value: string } {
  const [key = "", value, ...rest] = text.split("=");
  if (!isQualifiedName(key) || value === undefined || rest.length > 0 || !isLabelValue(value))
    throw new InvalidArgumentError("it must be KEY=VALUE of a label.");
  return { key, value };
}

function taintKey(text: string): string {
  if (!isQualifiedName(text))
    throw new InvalidArgumentError("it must be a taint's key, such as virtual-kubelet.io/provider.");
  return text;
}
