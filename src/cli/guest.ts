/**
 * `vmlet guest`: the reference backend inside of a VM of a cloud, for the one machine that this VM is. Only the agent
 * gets to it: by a socket, which the cloud's own API leads to, or by TLS with certificates on both sides, for which it
 * waits: nothing listens before they are there.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { Command } from "commander";
import { GUEST_VOLUMES } from "../../providers/cloud/guest-files.ts";
import { GUEST_PORT, KEY_FILES } from "../../providers/cloud/guest-keys.ts";
import { oneMachine } from "../../providers/cloud/one-machine.ts";
import { startBackend } from "../../providers/local/backend.ts";
import { type BackendConfig, loadBackendConfig } from "../../providers/local/config.ts";
import { GivenVolumes } from "../../providers/local/volumes/given.ts";
import { ConfigError } from "../config/load.ts";
import { tlsFaults } from "../config/used-files.ts";
import { createLogger, type LogFormat, type Logger } from "../telemetry/logger.ts";
import { untilAborted } from "../util/abort.ts";
import { type Clock, systemClock } from "../util/clock.ts";
import { openNoDebugger, signalToStop } from "./exit.ts";
import { outliveFaults, PROGRAM_FOLDER } from "./faults.ts";
import { logFormatOption } from "./log-format.ts";
import { VERSION } from "./version.ts";

const POLL_MS = 200;

export function guestCommand(): Command {
  const command = new Command("guest");
  command.requiredOption("-c, --config <file>", "the backend's configuration file (kind: BackendConfig)");
  command.option("--keys <folder>", "where the VM has its guest's keys, if it was ordered with any");
  command.addOption(logFormatOption());
  return command.action((options: GuestOptions) => run(options));
}

interface GuestOptions {
  config: string;
  keys?: string;
  logFormat: LogFormat;
}

async function run({ config: path, keys, logFormat: format }: GuestOptions): Promise<void> {
  const stop = signalToStop();
  const config = withKeys(loadBackendConfig(path), keys);
  assertPrivate(config, path);
  assertInVm(config, path);
  if (config.tracing !== undefined)
    throw new ConfigError(`${path}: tracing: a guest sends no traces, for its VM is its tenant's: leave it out`);
  const logger = createLogger({ level: config.logLevel, format });
  openNoDebugger(logger);
  const { fatal } = outliveFaults(logger, { ownFolder: PROGRAM_FOLDER });
  const ending = AbortSignal.any([stop, fatal]);
  await untilKeysAreThere(config, { clock: systemClock, logger, signal: ending });
  if (ending.aborted) return;
  const backend = await startBackend(masterOfItsVm(config), {
    clock: systemClock,
    logger,
    version: VERSION,
    hasOneMachine: true,
    serve: (provider) => oneMachine(provider, config.stateDir),
    // None of the VM's own disk: what is on it goes with the VM.
    volumes: (place) => new GivenVolumes(GUEST_VOLUMES, place),
  });
  logger.info({ url: backend.url, engine: config.engine.type }, "The guest serves its machine");
  await untilAborted(ending);
  await backend.close();
  fatal.throwIfAborted();
}

/**
 * The VM is its pod's alone: which pods may have paths of it, or containers that are privileged in it, is said where
 * the agent is configured (`allowHostPath`, `provider.allowPrivileged`), and nobody else speaks to a guest.
 * @internal
 */
export function masterOfItsVm(config: BackendConfig): BackendConfig {
  const { engine } = config;
  if (engine.type !== "cri" && engine.type !== "oci") return config;
  return { ...config, engine: { ...engine, host: engine.host ?? { namespaces: ["*"] } } };
}

/**
 * With keys, the guest is reached at the VM's address, by those who have a certificate of the VM's own authority; its
 * socket is then nobody's.
 * @internal
 */
export function withKeys(config: BackendConfig, folder: string | undefined): BackendConfig {
  if (folder === undefined || !existsSync(join(folder, KEY_FILES.key))) return config;
  const [certFile, keyFile, clientCaFile] = [KEY_FILES.certificate, KEY_FILES.key, KEY_FILES.clientCa].map((each) =>
    join(folder, each),
  ) as [string, string, string];
  return { ...config, listen: { address: "0.0.0.0", port: GUEST_PORT }, tls: { certFile, keyFile, clientCaFile } };
}

/** A token would be the same in every VM of an image. @throws ConfigError */
export function assertPrivate({ listen, tls }: Pick<BackendConfig, "listen" | "tls">, path: string): void {
  if ("socket" in listen || tls?.clientCaFile !== undefined) return;
  throw new ConfigError(
    `${path}: listen: a guest is reached by a socket, or by TLS with certificates on both sides: set listen.socket, or tls with clientCaFile`,
  );
}

/** The pod has its VM's address, which a VM within that could not have. @throws ConfigError @internal */
export function assertInVm({ engine }: Pick<BackendConfig, "engine">, path: string): void {
  if (engine.type !== "vm") return;
  throw new ConfigError(`${path}: engine.type: a guest is in a VM already, whose address its pod has: choose cri`);
}

/** @internal */
export async function untilKeysAreThere(
  { tls }: Pick<BackendConfig, "tls">,
  { clock, logger, signal }: { clock: Clock; logger: Logger; signal: AbortSignal },
): Promise<void> {
  if (tls === undefined) return;
  const { certFile, keyFile, clientCaFile } = tls;
  const faults = () => tlsFaults("tls", { certFile, keyFile, ca: { field: "clientCaFile", path: clientCaFile } });
  if (faults().length > 0) logger.info({ certFile, keyFile, clientCaFile }, "The guest waits for its keys");
  while (!signal.aborted && faults().length > 0) await untilAborted(signal, clock.sleep(POLL_MS, signal));
}
