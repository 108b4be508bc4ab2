/** How a command reaches a backend of the Machine API: its options, and the client that they make. */
import { readFileSync } from "node:fs";
import type { Command } from "commander";
import { HttpVmProvider } from "../../providers/http-vm/index.ts";
import { ConfigError, configuredBy, parseFile } from "../config/load.ts";
import { volumeBackendsSchema } from "../config/provider-schema.ts";
import type { Provider } from "../provider/provider.ts";
import type { Logger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { systemRandom } from "../util/random.ts";

export interface BackendClientFlags {
  backend?: string | undefined;
  tokenFile?: string | undefined;
  caFile?: string | undefined;
  certFile?: string | undefined;
  keyFile?: string | undefined;
  allowPlainHttp?: boolean | undefined;
}

/** All but `--backend`, of which each command says what it is for. */
export function withCredentialOptions(command: Command): Command {
  return command
    .option("--token-file <file>", "file with the bearer token")
    .option("--ca-file <file>", "CA that signed the backend's certificate; no other is trusted")
    .option("--cert-file <file>", "client certificate")
    .option("--key-file <file>", "client key")
    .option("--allow-plain-http", "http:// beyond loopback, which shows every token to the network");
}

/** @throws ConfigError when it is not said which backend, or its URL or credentials cannot be used */
export async function openBackend(flags: BackendClientFlags, what: string): Promise<HttpVmProvider> {
  const { backend, tokenFile, caFile, certFile, keyFile } = flags;
  if (backend === undefined) throw new ConfigError(`--backend is missing: the URL of ${what}`);
  const credentials = { tokenFile, caFile, certFile, keyFile };
  const allowPlainHttp = flags.allowPlainHttp === true;
  return await configuredBy("--backend", () =>
    Promise.resolve(new HttpVmProvider({ url: backend, allowPlainHttp, credentials })),
  );
}

/** All of a file of kind VolumeBackends. @throws ConfigError when one of them cannot be used */
export async function openVolumeBackends(file: string, logger: Logger): Promise<[Provider, ...Provider[]]> {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (thrown) {
    throw new ConfigError(`cannot read the backends ${file}: ${toError(thrown).message}`, { cause: thrown });
  }
  const { backends } = parseFile(volumeBackendsSchema, text, file);
  const [first, ...rest] = await configuredBy(file, () =>
    Promise.all(
      backends.map(async (backend) => {
        if ("url" in backend) {
          const { url, ...credentials } = backend;
          return new HttpVmProvider({ url, credentials });
        }
        const { createCloudProvider } = await import("./cloud-provider.ts");
        return createCloudProvider(backend, { clock: systemClock, random: systemRandom, logger });
      }),
    ),
  );
  return [first!, ...rest];
}
