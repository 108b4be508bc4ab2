import { mkdirSync, readFileSync, realpathSync, statSync } from "node:fs";
import { networkInterfaces } from "node:os";
import { type Clock, ConfigError, type Logger } from "../../../src/provider/kit/index.ts";
import { createMachineApiServer } from "../server/server.ts";
import { capacityOf, isLoopback, logBytesOf, type BackendConfig } from "./config.ts";
import type { HostProblem } from "./engine.ts";
import { createEngine } from "./engines/registry.ts";
import { checkHost, LocalProvider } from "./local-provider.ts";

export interface BackendSurroundings {
  clock: Clock;
  logger: Logger;
  version: string;
}

export interface RunningBackend {
  /** What a client's `url` has to be. */
  url: string;
  provider: LocalProvider;
  /** Stops serving; machines run on. */
  close(): Promise<void>;
}

/** The host lacks something without which the engine cannot work. */
export class HostProblemError extends ConfigError {
  constructor(engine: string, problems: readonly HostProblem[]) {
    super(
      `this host cannot run engine ${engine}:\n${problems.map(({ problem, cure }) => `  ${problem}\n    cure: ${cure}`).join("\n")}`,
    );
  }
}

/** Opens the state directory, finds what runs already, and serves the Machine API. */
export async function startBackend(config: BackendConfig, surroundings: BackendSurroundings): Promise<RunningBackend> {
  const { clock, logger, version } = surroundings;
  // Containers of any user reach what is made for them; what is secret gets its mode where it is written.
  process.umask(0o022);
  mkdirSync(config.stateDir, { recursive: true, mode: 0o700 });
  // As the kernel spells it in its list of mounts.
  const stateDir = realpathSync(config.stateDir);
  const hostAddress = addressFor(config.listen);
  const engine = createEngine(config.engine, {
    stateDir,
    clock,
    logger,
    ...(hostAddress !== undefined && { hostAddress }),
  });
  const problems = [...checkHost(), ...(await engine.check())];
  const fatal = problems.filter((problem) => problem.fatal);
  if (fatal.length > 0) throw new HostProblemError(engine.name, fatal);
  for (const { problem, cure } of problems) logger.warn({ cure }, problem);
  if (engine.name === "process") {
    logger.warn(
      {},
      "engine process isolates nothing: containers are plain processes of this host with the backend's rights. For development only",
    );
  }
  const capacity = capacityOf(config);
  const provider = await LocalProvider.open({
    engine,
    stateDir,
    clock,
    logger,
    host: config.hostName,
    version,
    startConcurrency: config.startConcurrency,
    logMaxBytes: logBytesOf(config),
    logMaxFiles: config.logs.maxFiles,
    ...(capacity === undefined ? {} : { capacity }),
  });
  try {
    const { tls, tokenFile, listen } = config;
    const server = createMachineApiServer({
      provider,
      logger,
      clock,
      ...(tokenFile === undefined ? {} : { auth: { bearerTokens: tokensOf(tokenFile) } }),
      ...(tls === undefined
        ? {}
        : {
            tls: {
              cert: readFileSync(tls.certFile),
              key: readFileSync(tls.keyFile),
              ...(tls.clientCaFile === undefined ? {} : { clientCa: readFileSync(tls.clientCaFile) }),
            },
          }),
    });
    const { url } = await server.listen(
      "socket" in listen ? { socketPath: listen.socket } : { host: listen.address, port: listen.port },
    );
    return {
      url,
      provider,
      async close() {
        await server.close();
        await provider.close();
      },
    };
  } catch (error) {
    await provider.close();
    throw error;
  }
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

/** The file's lines, read again when the file has changed. A file that cannot be read lets nobody in. */
function tokensOf(path: string): () => readonly string[] {
  let seen = "";
  let tokens: readonly string[] = [];
  return () => {
    try {
      const { mtimeMs, ino, size } = statSync(path);
      const key = `${mtimeMs}:${ino}:${size}`;
      if (key !== seen) {
        tokens = readFileSync(path, "utf8")
          .split("\n")
          .map((line) => line.trim())
          .filter((line) => line !== "");
        seen = key;
      }
    } catch {
      tokens = [];
      seen = "";
    }
    return tokens;
  };
}
