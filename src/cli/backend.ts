import { Command } from "commander";
import { createEngine, HostProblemError, startBackend } from "../../providers/http-vm/backend/backend.ts";
import { loadBackendConfig } from "../../providers/http-vm/backend/config.ts";
import { ConfigError } from "../config/load.ts";
import { createLogger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";

const EXIT_CONFIG = 2;
const EXIT_FAILED = 1;

/** `vmlet backend`: one host's machines, served as the Machine API. */
export function backendCommand(version: string): Command {
  const command = new Command("backend").description("Run machines on this host and serve the Machine API");
  command.requiredOption("--config <file>", "the backend's configuration file (kind: BackendConfig)");
  command.action((options: { config: string }) => run(options.config, version));
  command
    .command("check")
    .description("Say what this host lacks for the configured engine, and how to get it")
    .action(() => check(command.opts<{ config: string }>().config, version));
  return command;
}

async function run(path: string, version: string): Promise<void> {
  try {
    const config = loadBackendConfig(path);
    const logger = createLogger({ level: config.logLevel });
    const backend = await startBackend(config, { clock: systemClock, logger, version });
    logger.info({ url: backend.url, engine: config.engine, stateDir: config.stateDir }, "the backend serves");
    const stopped = new Promise<void>((resolve) => {
      for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => resolve());
    });
    await stopped;
    logger.info({}, "stopping; machines run on and are found again at the next start");
    await backend.close();
  } catch (thrown) {
    fail(thrown);
  }
}

async function check(path: string, version: string): Promise<void> {
  try {
    const config = loadBackendConfig(path);
    const engine = createEngine(config, { clock: systemClock, logger: createLogger({ level: "error" }), version });
    const problems = await engine.check();
    for (const { fatal, problem, cure } of problems) {
      process.stdout.write(`${fatal ? "missing" : "note"}: ${problem}\n  cure: ${cure}\n`);
    }
    const fatal = problems.filter((problem) => problem.fatal).length;
    process.stdout.write(fatal === 0 ? `engine ${engine.name}: ready; capabilities: ${engine.capabilities.join(", ")}\n` : `engine ${engine.name}: ${fatal} problem(s)\n`);
    await engine.close();
    process.exitCode = fatal === 0 ? 0 : EXIT_FAILED;
  } catch (thrown) {
    fail(thrown);
  }
}

function fail(thrown: unknown): void {
  const error = toError(thrown);
  process.stderr.write(`vmlet backend: ${error.message}\n`);
  process.exitCode = thrown instanceof ConfigError || thrown instanceof HostProblemError ? EXIT_CONFIG : EXIT_FAILED;
}
