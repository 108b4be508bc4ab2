/** `vmlet backend`: the reference backend, and what its host lacks for it. */
import { Command } from "commander";
import { startBackend } from "../../providers/local/backend.ts";
import { loadBackendConfig } from "../../providers/local/config.ts";
import { createEngine } from "../../providers/local/engines/index.ts";
import { checkHost } from "../../providers/local/provider.ts";
import { ConfigError } from "../config/load.ts";
import { createLogger, silentLogger } from "../telemetry/logger.ts";
import { untilAborted } from "../util/abort.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { openNoDebugger, signalToStop } from "./exit.ts";
import { outliveFaults, PROGRAM_FOLDER } from "./faults.ts";
import { VERSION } from "./version.ts";

export function backendCommand(): Command {
  const command = new Command("backend");
  command.requiredOption("-c, --config <file>", "the backend's configuration file (kind: BackendConfig)");
  command.action((options: { config: string }) => run(options.config));
  command
    .command("check")
    .description("say what this host lacks for the configured engine, and how to get it")
    .action(() => check(command.opts<{ config: string }>().config));
  return command;
}

async function run(path: string): Promise<void> {
  const stop = signalToStop();
  const config = loadBackendConfig(path);
  const logger = createLogger({ level: config.logLevel });
  openNoDebugger(logger);
  const { fatal } = outliveFaults(logger, { ownFolder: PROGRAM_FOLDER });
  const backend = await startBackend(config, { clock: systemClock, logger, version: VERSION }).catch(
    (thrown: unknown) => {
      // When the operating system refuses a port or a file, the user has to change the configuration file.
      const error = toError(thrown);
      throw "syscall" in error ? new ConfigError(`${path}: ${error.message}`, { cause: thrown }) : thrown;
    },
  );
  logger.info(
    { url: backend.url, engine: config.engine.type, stateDir: config.stateDir },
    "The backend serves the Machine API",
  );
  await untilAborted(AbortSignal.any([stop, fatal]));
  logger.info({}, "Stopping; machines run on and are found again at the next start");
  await backend.close();
  fatal.throwIfAborted();
}

async function check(path: string): Promise<void> {
  const config = loadBackendConfig(path);
  const engine = createEngine(config.engine, { stateDir: config.stateDir, clock: systemClock, logger: silentLogger });
  const problems = [...checkHost(), ...(await engine.check())];
  for (const { fatal, problem, cure } of problems)
    console.log(`  ${fatal ? "FAULT  " : "note   "} ${problem}\n          ${cure}`);
  const faults = problems.filter(({ fatal }) => fatal).length;
  console.log(
    faults === 0
      ? `engine ${engine.name} can run here; capabilities: ${engine.capabilities.join(", ")}`
      : `Faults to fix: ${faults}.`,
  );
  await engine.close();
  process.exitCode = faults === 0 ? 0 : 2;
}
