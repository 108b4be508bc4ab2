/**
 * What the machines of `vmlet dev` run on: a backend that it starts for itself (dev-own-machines.ts), simulated ones
 * (dev-simulated.ts), or a backend that somebody is writing.
 */
import { randomBytes } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { configuredBy } from "../config/load.ts";
import { type ProviderConfig, providerSchema } from "../config/schema.ts";
import { LABEL_UID, ownerLabels } from "../provider/owner.ts";
import type { Machine } from "../provider/machine.ts";
import type { Provider } from "../provider/provider.ts";
import type { Logger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { systemRandom } from "../util/random.ts";
import type { PublishNames, ServiceProxyOptions } from "../devcluster/index.ts";
import type { EngineName } from "./dev-engine.ts";
import { createProvider } from "./providers.ts";

export interface DevMachines {
  /** `nodes[].provider` of the agent's configuration. */
  readonly provider: Record<string, unknown>;
  /** What that makes, where it is this process's: all nodes have it together. */
  readonly shared?: Provider | undefined;
  /** Absent: somebody else's backend. */
  readonly engine?: EngineName | undefined;
  /** Absent: one node, with what the backend has. */
  readonly nodes?: { count: number; capacity: Record<string, string> } | undefined;
  /** For the sentence "Machines are ...". */
  readonly kind: string;
  /** Why this engine, when nobody has named one. */
  readonly said?: string | undefined;
  /** Of the cluster that this folder is for. */
  list(signal: AbortSignal): Promise<readonly Machine[]>;
  /** Removes them all. What an earlier run has left belongs to a cluster that is gone. */
  remove(): Promise<void>;
  /** Absent: machines do not know Services by their names. */
  readonly publishNames?: PublishNames | undefined;
  /** Absent: ports of machines cannot be reached. */
  readonly dial: ServiceProxyOptions["dial"] | undefined;
  close(): Promise<void>;
}

const REMOVAL_MS = 30_000;

export interface ForeignBackend {
  /** The address of a Machine API. */
  backend?: string | undefined;
  tokenFile?: string | undefined;
  caFile?: string | undefined;
  /** A provider's module instead. */
  module?: string | undefined;
}

/**
 * Machines of a backend that others may use as well: only those of this node, and of a cluster's id that the folder
 * keeps, are listed and removed.
 * @throws ConfigError when the address or the module is no good
 */
export async function foreignMachines(
  { backend, module, tokenFile, caFile }: ForeignBackend,
  options: { clusterId: string; nodeName: string; logger: Logger },
): Promise<DevMachines> {
  const given =
    module === undefined
      ? { type: "http-vm", url: backend, tokenFile, caFile }
      : { type: "module", module: resolve(module) };
  const provider = await configuredBy(module === undefined ? "--backend" : "--module", () =>
    createProvider(parsed(given), { clock: systemClock, random: systemRandom, logger: options.logger }),
  );
  return {
    ...machinesOf(provider, ownerLabels(options.clusterId, options.nodeName)),
    provider: given,
    kind: `those of ${module ?? backend}`,
    close: () => provider.close(),
  };
}

function parsed(given: Record<string, unknown>): ProviderConfig {
  const { success, data, error } = providerSchema.safeParse(given);
  if (!success) throw new Error(error.issues.map(({ message }) => message).join("; "));
  return data;
}

/** The id that clusters of this folder have: made once, so that machines are found again after a run was killed. */
export async function clusterIdOf(stateDir: string): Promise<string> {
  const file = join(stateDir, "cluster-id");
  await writeFile(file, `dev-${randomBytes(8).toString("hex")}`, { flag: "wx" }).catch(
    (thrown: NodeJS.ErrnoException) => {
      if (thrown.code !== "EEXIST") throw thrown;
    },
  );
  return await readFile(file, "utf8");
}

/** @param labels of those that are meant */
export function machinesOf(
  provider: Provider,
  labels: Record<string, string>,
): Pick<DevMachines, "list" | "remove" | "dial"> {
  const list = async (signal: AbortSignal) => (await provider.getPods({ labels, signal })).items;
  return {
    list,
    async remove() {
      const signal = AbortSignal.timeout(REMOVAL_MS);
      for (const { id } of await list(signal)) await provider.deletePod(id, { force: true, signal });
      while ((await list(signal)).length > 0) await systemClock.sleep(50, signal);
    },
    dial:
      provider.portForward &&
      (async (podUid, port, signal) => {
        const { items } = await provider.getPods({ labels: { ...labels, [LABEL_UID]: podUid }, signal });
        if (items[0] === undefined) throw new Error(`the backend has no machine of pod ${podUid}`);
        return await provider.portForward!(items[0].id, port, { signal });
      }),
  };
}
