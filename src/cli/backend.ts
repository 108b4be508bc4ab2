/** `vmlet backend`: the reference backend, and what its host lacks for it. */
import { isatty } from "node:tty";
import { Command } from "commander";
import { checkPlugins, checkSecrets, startBackend } from "../../providers/local/backend.ts";
import { type BackendConfig, loadBackendConfig } from "../../providers/local/config.ts";
import { createEngine } from "../../providers/local/engines/index.ts";
import { checkHost } from "../../providers/local/check-host.ts";
import { ConfigError, configuredBy } from "../config/load.ts";
import { createLogger, silentLogger, type LogFormat, type Logger } from "../telemetry/logger.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import { untilAborted } from "../util/abort.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { checkBackendHost } from "./check-backend-host.ts";
import { backendServiceCommands } from "./backend-service.ts";
import { openNoDebugger, powerFailure, signalToStop } from "./exit.ts";
import { isHostStopping } from "./host-state.ts";
import { outliveFaults, PROGRAM_FOLDER } from "./faults.ts";
import { Report, withReportOptions, type ReportOptions } from "./report.ts";
import { logFormatOption } from "./log-format.ts";
import { Progress } from "./progress.ts";
import { VERSION } from "./version.ts";

export function backendCommand(): Command {
  const command = new Command("backend");
  command.requiredOption("-c, --config <file>", "the backend's configuration file (kind: BackendConfig)");
  command.addOption(logFormatOption());
  command.action((options: { config: string; logFormat: LogFormat }) => run(options.config, options.logFormat));
  const check = command
    .command("check")
    .description("say what this host lacks for the configured engine, and how to get it")
    .action((options: ReportOptions) => runCheck(command.opts<{ config: string }>().config, options));
  withReportOptions(check);
  for (const service of backendServiceCommands(() => command.opts<{ config: string }>().config))
    command.addCommand(service);
  return command;
}

async function run(path: string, format: LogFormat): Promise<void> {
  const stop = signalToStop();
  const power = powerFailure();
  const config = loadBackendConfig(path);
  const logger = createLogger({ level: config.logLevel, format });
  openNoDebugger(logger);
  const { fatal } = outliveFaults(logger, { ownFolder: PROGRAM_FOLDER });
  const tracing = config.tracing && (await openTracing(config.tracing, config.hostName, logger));
  const starting = startBackend(config, { clock: systemClock, logger, version: VERSION, tracing });
  // Elsewhere the log is all that there is, and programs read it.
  const shown = isatty(2) ? new Progress().of("Starting the backend", () => starting) : starting;
  const backend = await shown.catch((thrown: unknown) => {
    // When the operating system refuses a port or a file, the user has to change the configuration file.
    const error = toError(thrown);
    throw "syscall" in error
      ? new ConfigError(`${path}: ${fieldOf(error)}${error.message}`, { cause: thrown })
      : thrown;
  });
  logger.info(
    { url: backend.url, engine: config.engine.type, stateDir: config.stateDir },
    "The backend serves the Machine API",
  );
  await untilAborted(AbortSignal.any([stop, power, fatal]));
  if (!fatal.aborted && (power.aborted || (await isHostStopping()))) await backend.shutDown();
  else logger.info({}, "Stopping; machines run on and are found again at the next start");
  await backend.close();
  await tracing?.close();
  fatal.throwIfAborted();
}

/** Loaded only where it is asked for. @throws ConfigError when a file cannot be used */
async function openTracing(
  config: NonNullable<BackendConfig["tracing"]>,
  host: string,
  logger: Logger,
): Promise<Tracing> {
  const { SdkTracing } = await import("../telemetry/sdk-tracing.ts");
  const resource = { "service.name": "vmlet-backend", "service.version": VERSION, "host.name": host };
  const options = { ...config, resource, version: VERSION, clock: systemClock, logger };
  return await configuredBy("tracing", () => SdkTracing.open(options));
}

/** The field of the configuration that the operating system refused, as far as the call says it. */
function fieldOf({ syscall }: { syscall?: unknown }): string {
  if (syscall === "listen" || syscall === "bind") return "listen: ";
  return syscall === "mkdir" ? "stateDir: " : "";
}

async function runCheck(path: string, options: ReportOptions): Promise<void> {
  const config = loadBackendConfig(path);
  const report = new Report(options);
  report.section("This host: files, folders and ports");
  await checkBackendHost(config, report);
  const engine = createEngine(config.engine, { stateDir: config.stateDir, clock: systemClock, logger: silentLogger });
  report.section(`Engine ${engine.name}`);
  for (const { fatal, problem, cure } of [
    ...checkHost(),
    ...(await engine.check()),
    ...checkSecrets(config, engine),
    ...(await checkPlugins(config)),
  ])
    if (fatal) report.fault(problem, cure);
    else report.note(`${problem}: ${cure}`);
  const { capabilities } = engine;
  process.exitCode = report.end(`engine ${engine.name} can run here; capabilities: ${capabilities.join(", ")}`, {
    engine: engine.name,
    capabilities,
  });
  await engine.close();
}
