/** Opens the page of `vmlet ui` on this machine, for the command of that name and for `vmlet dev`. */
import { randomBytes } from "node:crypto";
import type { KubeConfig } from "../kube/kubeconfig.ts";
import { KubeTransport } from "../kube/transport.ts";
import type { Logger } from "../telemetry/logger.ts";
import { UiServer } from "../ui/server.ts";
import { systemClock } from "../util/clock.ts";
import { systemRandom } from "../util/random.ts";
import { VERSION } from "./version.ts";

const TOKEN_BYTES = 32;

interface Page {
  /** For the user alone: it holds the token. */
  readonly url: string;
  /** Until the signal aborts; then all is closed. */
  run(signal: AbortSignal): Promise<void>;
}

/** @param options `namespace`: undefined for all of them; `port`: 0 for a free one. @throws Error for a taken port */
export async function openPage(options: {
  kubeConfig: KubeConfig;
  namespace: string | undefined;
  port: number;
  logger: Logger;
}): Promise<Page> {
  const { kubeConfig, namespace, port, logger } = options;
  const kube = new KubeTransport({ kubeConfig, clock: systemClock, logger, version: VERSION });
  const server = new UiServer({
    kube,
    clock: systemClock,
    random: systemRandom,
    logger,
    port,
    token: randomBytes(TOKEN_BYTES).toString("base64url"),
    about: {
      server: kubeConfig.getCurrentCluster()?.server ?? "",
      context: kubeConfig.currentContext,
      version: VERSION,
    },
    namespace,
  });
  await server.listen();
  return {
    url: server.url,
    async run(signal) {
      await server.run(signal);
      await kube.close();
    },
  };
}
