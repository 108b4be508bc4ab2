/** `vmlet csi`: the CSI controller in front of a backend's volumes. */
import { Command, Option } from "commander";
import { Registry } from "prom-client";
import { ConfigError, configuredBy } from "../config/load.ts";
import { Backends } from "../csi/backends.ts";
import { CsiServer } from "../csi/server.ts";
import type { Provider } from "../provider/provider.ts";
import { HealthChecks, startHealthServer, type HealthServer } from "../telemetry/health.ts";
import { createLogger, type Logger, type LogFormat, type LogLevel } from "../telemetry/logger.ts";
import { collectProcessFigures } from "../telemetry/process-figures.ts";
import { untilAborted } from "../util/abort.ts";
import { type BackendClientFlags, openBackend, openVolumeBackends, withCredentialOptions } from "./backend-client.ts";
import { openNoDebugger, portNumber, signalToStop } from "./exit.ts";
import { outliveFaults, PROGRAM_FOLDER } from "./faults.ts";
import { logFormatOption } from "./log-format.ts";
import { readOutOfService } from "./out-of-service.ts";
import { VERSION } from "./version.ts";

/** Less than a probe waits. */
const READY_TIMEOUT_MS = 4_000;

interface Flags extends BackendClientFlags {
  backends?: string | undefined;
  endpoint: string;
  clusterId?: string | undefined;
  address: string;
  healthPort?: number | undefined;
  outOfService?: boolean | undefined;
  kubeconfig?: string | undefined;
  logLevel: LogLevel;
  logFormat: LogFormat;
}

export function csiCommand(): Command {
  const command = new Command("csi")
    .description(
      "serve CSI's controller (driver volumes.vmlet.dev) for csi-provisioner, csi-attacher, csi-resizer and csi-snapshotter; it keeps nothing, so any number may run",
    )
    .option("--endpoint <address>", "unix socket on which the sidecars ask", "unix:///csi/csi.sock")
    .option("--backend <url>", "Machine API with the volumes: https://host:port, http:// on loopback, or unix:///path")
    .option(
      "--backends <file>",
      "instead of --backend: Machine APIs and clouds with volumes, of several each in a zone of its own, in a file of kind VolumeBackends",
    )
    .option("--cluster-id <id>", "as the agents have it (clusterId): whose volumes these are");
  return withCredentialOptions(command)
    .option(
      "--out-of-service",
      "stop the machines of a node with the taint node.kubernetes.io/out-of-service, to detach its volumes; reads nodes of the API server",
    )
    .option("--kubeconfig <file>", "for --out-of-service (default: KUBECONFIG, ~/.kube/config, or the pod's account)")
    .option("--address <address>", "what the health port listens on", "0.0.0.0")
    .option(
      "--health-port <port>",
      "port of /livez, /readyz (does a backend answer?) and /metrics (plain HTTP); 0 picks a free one. Default: none",
      portNumber,
    )
    .addOption(
      new Option("--log-level <level>", "what is logged").choices(["debug", "info", "warn", "error"]).default("info"),
    )
    .addOption(logFormatOption())
    .action(run);
}

async function run(flags: Flags): Promise<void> {
  const stop = signalToStop();
  const { clusterId, endpoint } = flags;
  if (clusterId === undefined || clusterId === "")
    throw new ConfigError("--cluster-id is missing: give the agents' clusterId, by default the UID of kube-system");
  const socket = /^(?:unix:(?:\/\/)?)?(\/.+)$/.exec(endpoint)?.[1];
  if (socket === undefined) throw new ConfigError(`--endpoint: ${endpoint} is no unix socket, as unix:///csi/csi.sock`);
  const logger = createLogger({ level: flags.logLevel, format: flags.logFormat });
  openNoDebugger(logger);
  const { fatal } = outliveFaults(logger, { ownFolder: PROGRAM_FOLDER });
  const providers = await openAll(flags, logger);
  const backends = new Backends(providers);
  const { kubeconfig } = flags;
  const nodes =
    flags.outOfService === true
      ? await configuredBy("--kubeconfig", () => Promise.resolve(readOutOfService({ kubeconfig, logger })))
      : undefined;
  const server = new CsiServer({
    ...{ backends, clusterId, version: VERSION, logger },
    isOutOfService: nodes && ((name, signal) => nodes.isOutOfService(name, signal)),
  });
  await configuredBy("--endpoint", () => server.listen(socket));
  const health = await configuredBy("--address, --health-port", () => serveHealth(flags, backends, logger));
  logger.info(
    { endpoint, backend: flags.backends ?? flags.backend, healthPort: health?.port },
    "The CSI driver answers",
  );
  await untilAborted(AbortSignal.any([stop, fatal]));
  await health?.close();
  await server.close();
  await nodes?.close();
  for (const provider of providers) await provider.close();
  fatal.throwIfAborted();
}

/** @throws ConfigError when it is not said which, or one cannot be used */
async function openAll(flags: Flags, logger: Logger): Promise<[Provider, ...Provider[]]> {
  const { backends, backend, tokenFile, caFile, certFile, keyFile } = flags;
  if (backends === undefined) return [await openBackend(flags, "the Machine API with the volumes")];
  if ([backend, tokenFile, caFile, certFile, keyFile].some((each) => each !== undefined))
    throw new ConfigError("--backends: the file has all backends and their credentials; leave the options of one out");
  return await openVolumeBackends(backends, logger);
}

/** Ready while a backend answers and has volumes: that it is away must restart nothing. */
async function serveHealth(
  { address: host, healthPort }: Flags,
  backends: Backends,
  logger: Logger,
): Promise<HealthServer | undefined> {
  if (healthPort === undefined) return undefined;
  const registry = new Registry();
  collectProcessFigures(registry);
  const readyz = new HealthChecks("readyz");
  readyz.add("backend", () => backends.whyNotReady(AbortSignal.timeout(READY_TIMEOUT_MS)));
  return await startHealthServer({
    host,
    port: healthPort,
    livez: new HealthChecks("livez"),
    readyz,
    metrics: { registry, render: () => registry.metrics() },
    logger,
  });
}
