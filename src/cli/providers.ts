/**
 * From a provider's configuration to a provider: the one place that knows which providers ship with vmlet. Each is
 * loaded only where it is asked for.
 */
import type { CredentialFiles } from "../../providers/http-vm/index.ts";
import { ConfigError } from "../config/load.ts";
import type { ProviderConfig } from "../config/schema.ts";
import type { ProviderEvents } from "../agent/agent.ts";
import type { Provider } from "../provider/provider.ts";
import { parseDuration } from "../resources/duration.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";
import { toError } from "../util/errors.ts";
import { createModuleProvider } from "./provider-module.ts";

/** @throws ConfigError when the provider cannot be made from its configuration */
export async function createProvider(
  config: ProviderConfig,
  collaborators: {
    clock: Clock;
    random: Random;
    logger: Logger;
    tracing?: Tracing | undefined;
  } & Partial<ProviderEvents>,
): Promise<Provider> {
  switch (config.type) {
    case "http-vm": {
      const { HttpVmProvider } = await import("../../providers/http-vm/index.ts");
      try {
        return new HttpVmProvider({
          url: config.url,
          credentials: credentialFiles(config),
          pacing: {
            concurrency: config.concurrency,
            perSecond: config.requestsPerSecond,
            burst: 2 * config.requestsPerSecond,
          },
          ...collaborators,
          onExchange: (exchange) => collaborators.logger.debug(exchange, "Request to the backend"),
        });
      } catch (thrown) {
        throw new ConfigError(`provider.url: ${toError(thrown).message}`, { cause: thrown });
      }
    }
    case "memory": {
      const { MemoryProvider } = await import("../../providers/memory/index.ts");
      return new MemoryProvider({
        clock: collaborators.clock,
        stages: { creatingMs: parseDuration(config.startDelay) },
      });
    }
    case "cloud": {
      const { createCloudProvider } = await import("./cloud-provider.ts");
      return createCloudProvider(config, collaborators);
    }
    case "module":
      return createModuleProvider(config.module, config.options);
  }
}

/** Only the files that the configuration names. */
function credentialFiles(config: Extract<ProviderConfig, { type: "http-vm" }>): CredentialFiles {
  const { tokenFile, caFile, certFile, keyFile } = config;
  return Object.fromEntries(
    Object.entries({ tokenFile, caFile, certFile, keyFile }).filter(([, path]) => path !== undefined),
  );
}
