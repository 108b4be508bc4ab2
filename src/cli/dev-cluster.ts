/** The small cluster of `vmlet dev`: on which port, and with what of its machines. */
import { ConfigError, configuredBy } from "../config/load.ts";
import { type DevCluster, startDevCluster } from "../devcluster/index.ts";
import type { Logger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { systemRandom } from "../util/random.ts";
import type { DevMachines } from "./dev-machines.ts";
import { volumeDriverOf } from "./dev-volumes.ts";
import { portFault } from "./ports.ts";

const ADDRESS = "127.0.0.1";
/** What API servers listen on everywhere, other small clusters of this host among them. */
export const FIRST_PORT = 6443;
const PORTS = 10;
const NETWORKS = 100;

/** @param options `port`: undefined for the first of the usual ones that nobody has */
export async function startSmallCluster(options: {
  port: number | undefined;
  machines: DevMachines;
  /** As its agent has it. */
  clusterId: string;
  logger: Logger;
}): Promise<DevCluster> {
  const { machines, clusterId, logger } = options;
  const port = options.port ?? (await firstFree());
  // Not seen by machines that have a network of their own; from this machine they answer.
  const serviceProxy = machines.dial && { network: serviceNetwork(port), dial: machines.dial };
  // A place for it would cost a plain process more than its own start, and hardly any uses it.
  const automountServiceAccountToken = machines.engine === "process" ? false : undefined;
  const volumeDriver = machines.volumes && (await volumeDriverOf(machines.volumes, clusterId));
  return await configuredBy("--port", () =>
    startDevCluster({
      ...{ clock: systemClock, logger, port, serviceProxy, automountServiceAccountToken },
      publishNames: machines.publishNames,
      volumeDriver,
    }),
  );
}

async function firstFree(): Promise<number> {
  for (let port = FIRST_PORT; port < FIRST_PORT + PORTS; port++)
    if ((await portFault({ address: ADDRESS, port })) === undefined) return port;
  return 0;
}

/** @param port undefined: any will do @throws ConfigError when it is taken */
export async function mustBeFree(port: number | undefined): Promise<void> {
  const fault = port === undefined ? undefined : await portFault({ address: ADDRESS, port });
  if (fault !== undefined) throw new ConfigError(`--port: ${fault}; without --port the next free one is taken`);
}

/** Apart from the addresses of machines, 127.64.0.0/10, and as a rule from those of another such cluster. */
function serviceNetwork(port: number): string {
  return `127.${128 + (port === 0 ? Math.floor(systemRandom() * NETWORKS) : port % NETWORKS)}`;
}
