/**
 * Starts and stops the reference backend: this host's machines, by the configured engine, served by the Machine API.
 */
import { readFileSync, realpathSync, statSync } from "node:fs";
import { resolve } from "node:path";
import { networkInterfaces, totalmem } from "node:os";
import { createSecureContext, type SecureContextOptions } from "node:tls";
import {
  type Clock,
  ConfigError,
  followFiles,
  type Logger,
  type Provider,
  type Reloadable,
  toError,
  type Tracing,
} from "../../src/provider/kit/index.ts";
import type { ServerAuth, ServerTls } from "../http-vm/server/options.ts";
import { MachineApiServer } from "../http-vm/server/server.ts";
import {
  capacityOf,
  evictionOf,
  isLoopback,
  logBytesOf,
  prewarmOf,
  secretBytesOf,
  shutdownGraceOf,
  systemReservedOf,
  type BackendConfig,
} from "./config.ts";
import type { Engine, HostProblem } from "./engine.ts";
import { createEngine } from "./engines/index.ts";
import { makeFolder } from "./host/files.ts";
import { keepUntilLast } from "./host/oom-score.ts";
import { memoryFolder, memoryFolderSize, memoryPlace } from "./host/memory-folder.ts";
import { FrontDoor } from "./network/front-door.ts";
import { HostServices } from "./network/host-services.ts";
import { DEFAULT_BRIDGE } from "./network/network.ts";
import { isServed, pluginSocket } from "./plugins/registration.ts";
import { checkHost } from "./check-host.ts";
import { LocalProvider } from "./provider.ts";
import type { HostVolumes, VolumePlace } from "./volume-contents.ts";

/** Of the host's memory. */
const SECRETS_SHARE = 0.05;

interface BackendOptions {
  clock: Clock;
  logger: Logger;
  version: string;
  /** Absent: nothing is traced. The caller closes it, after the backend. */
  tracing?: Tracing | undefined;
  /** Who starts it has said already that plain processes are not isolated. */
  isForDevelopment?: boolean | undefined;
  /** This host has one machine, whose address is the host's. */
  hasOneMachine?: boolean | undefined;
  /** What is served of the machines, in place of all. */
  serve?: ((provider: LocalProvider) => Provider) | undefined;
  /** Where volumes' bytes are, in place of the engine's own. */
  volumes?: ((place: VolumePlace) => HostVolumes) | undefined;
}

export interface RunningBackend {
  /** What a client's `url` has to be. */
  url: string;
  provider: LocalProvider;
  /** The host goes down: ends all machines, and goes on serving meanwhile, so that their owners are told. */
  shutDown(): Promise<void>;
  /** Stops serving; machines run on. */
  close(): Promise<void>;
}

/** What a host has that is one Node's machines' alone, or one machine's. */
function ownOf(
  { engine }: Pick<BackendConfig, "engine">,
  {
    hasOneMachine = false,
    isTold,
    ownPorts,
    stateDir,
    clock,
    logger,
  }: {
    /** Absent: by who has told first. */
    isTold: ((labels: Readonly<Record<string, string>>) => boolean) | undefined;
    ownPorts: readonly number[];
    stateDir: string;
  } & Pick<BackendOptions, "hasOneMachine" | "clock" | "logger">,
): { frontDoor?: FrontDoor; services?: HostServices } {
  if (engine.type === "process") return {};
  const { bridge = DEFAULT_BRIDGE, services: areServed = false } = engine.network ?? {};
  const services = hasOneMachine || areServed ? new HostServices({ stateDir, bridge, isTold, logger }) : undefined;
  if (!hasOneMachine || services === undefined) return { ...(services && { services }) };
  const onLead = (outside: string, inside: string) => services.lead(outside, inside);
  return { services, frontDoor: new FrontDoor({ bridge, ownPorts, onLead, clock, logger }) };
}

/** The host lacks something without which the engine cannot work. */
class HostProblemError extends ConfigError {
  constructor(engine: string, problems: readonly HostProblem[]) {
    super(
      `this host cannot run engine ${engine}:\n${problems.map(({ problem, cure }) => `  ${problem}\n    cure: ${cure}`).join("\n")}`,
    );
  }
}

/** Opens the state directory, finds what runs already, and serves the Machine API. */
export async function startBackend(config: BackendConfig, options: BackendOptions): Promise<RunningBackend> {
  const { clock, logger, version, tracing } = options;
  // Containers of any user must reach the files made for them; secrets get their mode where they are written.
  process.umask(0o022);
  makeFolder(resolve(config.stateDir), 0o700);
  // As the kernel spells it in its list of mounts.
  const stateDir = realpathSync(config.stateDir);
  const hostAddress = addressFor(config.listen);
  const reservedPorts = "port" in config.listen ? [config.listen.port] : [];
  const { hasOneMachine } = options;
  const ofNode = (labels: Readonly<Record<string, string>>) => engine.nodeRange?.isOf(labels) === true;
  const isTold = hasOneMachine === true ? undefined : ofNode;
  const own = ownOf(config, { hasOneMachine, isTold, ownPorts: reservedPorts, stateDir, clock, logger });
  const engine: Engine = createEngine(config.engine, {
    stateDir,
    clock,
    logger,
    tracing,
    capacity: capacityOf(config)?.allocatable,
    systemReserved: systemReservedOf(config),
    hostAddress,
    reservedPorts,
    frontDoor: own.frontDoor,
    logLimits: { maxBytes: logBytesOf(config), maxFiles: config.logs.maxFiles },
  });
  const problems = [...checkHost(), ...(await engine.check()), ...checkSecrets(config, engine)];
  const fatal = problems.filter((problem) => problem.fatal);
  if (fatal.length > 0) throw new HostProblemError(engine.name, fatal);
  for (const { problem, cure } of problems) logger.warn({ problem, cure }, "This host lacks something");
  if (engine.name !== "process") keepUntilLast();
  else if (options.isForDevelopment !== true) {
    logger.warn(
      {},
      "Engine process isolates nothing: containers are plain processes of this host with the backend's rights. For development only",
    );
  }
  const capacity = capacityOf(config);
  await own.services?.restore();
  const provider = await LocalProvider.open({
    engine,
    stateDir,
    secrets: secretsOf(config, stateDir, engine),
    clock,
    logger,
    tracing,
    host: config.hostName,
    version,
    persistentVolumes: config.persistentVolumes,
    volumes: options.volumes,
    services: own.services,
    zone: config.zone,
    startConcurrency: config.startConcurrency,
    logMaxBytes: logBytesOf(config),
    logMaxFiles: config.logs.maxFiles,
    capacity,
    eviction: evictionOf(config),
    prewarm: prewarmOf(config),
    plugins: "plugins" in config.engine ? config.engine.plugins : undefined,
  });
  try {
    const { listen } = config;
    const tls = config.tls && (await followTls(config.tls, options));
    const server = new MachineApiServer({
      provider: options.serve?.(provider) ?? provider,
      logger,
      clock,
      tracing,
      auth: authOf(config, logger),
      auditCommands: config.audit.commands,
      tls: tls?.current(),
    });
    const { url } = await server.listen(
      "socket" in listen ? { socketPath: listen.socket } : { host: listen.address, port: listen.port },
    );
    const closing = new AbortController();
    tls?.onChange((next) => server.setTls(next));
    void tls?.run(closing.signal);
    return {
      url,
      provider,
      shutDown: () => provider.shutDown(shutdownGraceOf(config)),
      async close() {
        closing.abort();
        await server.close();
        await provider.close();
        await own.services?.close();
      },
    };
  } catch (thrown) {
    await provider.close();
    throw thrown;
  }
}

function secretsPlace({ secrets: { medium, dir } }: BackendConfig, engine: Engine): string | undefined {
  if (medium === "disk") return undefined;
  const place = memoryPlace(engine.capabilities.includes("volumes.files"), dir);
  // In most containers none permits programs: there, plain processes do without those in their volumes.
  return place ?? (engine.name === "process" ? memoryPlace(false, dir) : undefined);
}

/** Who else serves the plugins of this host. */
export async function checkPlugins({ engine }: BackendConfig): Promise<HostProblem[]> {
  const { directory } = ("plugins" in engine ? engine.plugins : undefined) ?? {};
  if (directory === undefined) return [];
  const socket = pluginSocket(directory);
  if (!(await isServed(socket))) return [];
  const problem = `${socket} is served already: by a kubelet, or by a backend that runs`;
  return [{ fatal: false, problem, cure: "stop it before this backend is started, or set engine.plugins.directory" }];
}

/** What this host lacks for machines' secrets. */
export function checkSecrets(config: BackendConfig, engine: Engine): HostProblem[] {
  if (config.secrets.medium === "disk" || secretsPlace(config, engine) !== undefined) return [];
  const { dir = "/dev/shm or /run" } = config.secrets;
  return [
    {
      fatal: true,
      problem: `machines' secrets are kept in memory, and ${dir} is no tmpfs that this user may write to, mounted without noexec`,
      cure: "set secrets.dir to one, or secrets.medium to disk",
    },
  ];
}

/** @throws ConfigError where another user has taken the folder */
function secretsOf(
  config: BackendConfig,
  stateDir: string,
  engine: Engine,
): { dir: string; maxBytes: number } | undefined {
  const place = secretsPlace(config, engine);
  if (place === undefined) return undefined;
  const dir = memoryFolder(place, stateDir);
  const maxBytes = Math.min(totalmem() * SECRETS_SHARE, memoryFolderSize(dir) / 2);
  return { dir, maxBytes: secretBytesOf(config) ?? Math.floor(maxBytes) };
}

/** The address by which other hosts reach this one; undefined when the API is not served to them. */
function addressFor(listen: BackendConfig["listen"]): string | undefined {
  if ("socket" in listen || isLoopback(listen.address)) return undefined;
  if (!["0.0.0.0", "::"].includes(listen.address)) return listen.address;
  const outside = Object.values(networkInterfaces())
    .flatMap((list) => list ?? [])
    .filter(({ internal, address }) => !internal && !address.startsWith("fe80:"));
  return (outside.find(({ family }) => family === "IPv4") ?? outside[0])?.address;
}

type TlsFiles = NonNullable<BackendConfig["tls"]>;

/** @throws ConfigError when a file cannot be read */
function readTls(files: TlsFiles): ServerTls {
  const read = (field: keyof TlsFiles): Buffer => {
    try {
      return readFileSync(files[field]!);
    } catch (thrown) {
      throw new ConfigError(`tls.${field}: ${toError(thrown).message}`, { cause: thrown });
    }
  };
  const clientCa = files.clientCaFile === undefined ? undefined : read("clientCaFile");
  return { cert: read("certFile"), key: read("keyFile"), clientCa };
}

/** @throws ConfigError when certificate and key do not belong together, or the client CA is none */
function checkTls(files: TlsFiles, { cert, key, clientCa }: ServerTls): void {
  const check = (options: SecureContextOptions, what: string) => {
    try {
      createSecureContext(options);
    } catch (thrown) {
      throw new ConfigError(`tls: ${what}: ${toError(thrown).message}`, { cause: thrown });
    }
  };
  check({ cert, key }, `${files.certFile} and ${files.keyFile} are not a certificate and its key`);
  if (clientCa !== undefined) check({ ca: clientCa }, `${files.clientCaFile} is not a CA's certificate`);
}

/** What the files hold, now and later. @throws ConfigError when that cannot be used now */
function followTls(files: TlsFiles, { clock, logger }: BackendOptions): Promise<Reloadable<ServerTls>> {
  return followFiles({
    read: async () => readTls(files),
    check: (tls) => checkTls(files, tls),
    onLoaded: () => logger.info({ certFile: files.certFile }, "Serving certificate loaded"),
    // One file may be written and the other not yet.
    onFailed: (thrown) => logger.warn({ err: thrown }, "Serving certificate not reloaded, the old one stays"),
    clock,
  });
}

function authOf({ tokenFile, clients = [] }: BackendConfig, logger: Logger): ServerAuth {
  const bearerTokens = (path: string | undefined) => (path === undefined ? undefined : tokensOf(path, logger));
  return {
    bearerTokens: bearerTokens(tokenFile),
    clients: clients.map(({ tokenFile: path, ...client }) => ({ ...client, bearerTokens: bearerTokens(path) })),
  };
}

/**
 * The file's lines, read again when the file has changed. A file that cannot be read lets no client in, and is logged
 * once.
 */
function tokensOf(path: string, logger: Logger): () => readonly string[] {
  let seen: string | undefined;
  let tokens: readonly string[] = [];
  const tell = (key: string, fault: string) => {
    if (seen !== key) logger.warn({ path, fault }, "This file holds no bearer token, so it lets no client in");
    seen = key;
  };
  const read = () => {
    try {
      const { mtimeMs, ino, size } = statSync(path);
      const key = `${mtimeMs}:${ino}:${size}`;
      if (key === seen) return tokens;
      tokens = readFileSync(path, "utf8")
        .split("\n")
        .map((line) => line.trim())
        .filter((line) => line !== "");
      if (tokens.length === 0) tell(key, "it is empty");
      seen = key;
    } catch (thrown) {
      tokens = [];
      tell("unreadable", toError(thrown).message);
    }
    return tokens;
  };
  read();
  return read;
}
