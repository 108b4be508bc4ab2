/**
 * What the machines of `vmlet dev` run on: a backend that it starts for itself (dev-own-machines.ts), simulated ones
 * (dev-simulated.ts), or a backend that somebody is writing.
 */
import { randomBytes } from "node:crypto";
import { readFile, rename, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import PQueue from "p-queue";
import { configuredBy } from "../config/load.ts";
import { providerSchema } from "../config/provider-schema.ts";
import type { ProviderConfig } from "../config/schema.ts";
import { LABEL_UID, ownerLabels } from "../provider/owner.ts";
import type { Machine } from "../provider/machine.ts";
import type { Provider } from "../provider/provider.ts";
import { isSubset } from "../resources/labels.ts";
import { isProviderError } from "../provider/errors.ts";
import type { Logger } from "../telemetry/logger.ts";
import { toError } from "../util/errors.ts";
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
  /** Whose volumes claims get, where the cluster is this process's as well. */
  readonly volumes?: Provider | undefined;
  /** Absent: somebody else's backend. */
  readonly engine?: EngineName | undefined;
  /** Absent: 1. */
  readonly nodeCount?: number | undefined;
  /** Of each node. Absent: what the backend has. */
  readonly capacity?: Record<string, string> | undefined;
  /** For the sentence "Machines are ...". */
  readonly kind: string;
  /** Why this engine, when nobody has named one. */
  readonly said?: string | undefined;
  /** Of the cluster that this folder is for. */
  list(signal: AbortSignal): Promise<readonly Machine[]>;
  /** Removes them all, and their volumes. What an earlier run has left belongs to a cluster that is gone. */
  remove(): Promise<void>;
  /** Name servers for pods that want the cluster's: those of this host, where machines need to be told of any. */
  readonly nameservers?: readonly string[] | undefined;
  /** Absent: machines do not know Services by their names. */
  readonly publishNames?: PublishNames | undefined;
  /** Absent: ports of machines cannot be reached. */
  readonly dial: ServiceProxyOptions["dial"] | undefined;
  close(): Promise<void>;
}

const REMOVAL_MS = 30_000;
const REMOVED_AT_ONCE = 16;
const ANSWER_MS = 10_000;
const CLUSTER_ID = /^dev-[0-9a-f]{16}$/;

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
  const flag = module === undefined ? "--backend" : "--module";
  const provider = await configuredBy(flag, () =>
    createProvider(parsed(given), { clock: systemClock, random: systemRandom, logger: options.logger }),
  );
  try {
    if (backend !== undefined) await configuredBy(flag, () => mustAnswer(provider, backend));
  } catch (thrown) {
    await provider.close();
    throw thrown;
  }
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

/** Its first command would fail otherwise, by an error that names neither what was asked nor why. */
async function mustAnswer(provider: Provider, url: string): Promise<void> {
  try {
    await provider.getInfo({ signal: AbortSignal.timeout(ANSWER_MS) });
  } catch (thrown) {
    const cure = isProviderError(thrown, "unauthorized")
      ? "--token-file names the file with the token that it asks for"
      : "start the backend, or give the address that it listens on";
    throw new Error(`${url} does not answer: ${toError(thrown).message}; ${cure}`, { cause: thrown });
  }
}

/**
 * The id that clusters of this folder have: made once, so that machines are found again after a run was killed. The
 * caller holds the folder's lock.
 */
export async function clusterIdOf(stateDir: string, logger: Logger): Promise<string> {
  const file = join(stateDir, "cluster-id");
  const known = await readFile(file, "utf8").catch((thrown: NodeJS.ErrnoException) => {
    if (thrown.code !== "ENOENT") throw thrown;
  });
  if (known !== undefined && CLUSTER_ID.test(known)) return known;
  // What had the old id is nobody's now; a wrong one would make another cluster's machines ours.
  if (known !== undefined)
    logger.warn(
      { file },
      "The cluster's id was torn and is made again: machines of the earlier one stay where they are",
    );
  const id = `dev-${randomBytes(8).toString("hex")}`;
  await writeFile(`${file}.new`, id, { flush: true });
  await rename(`${file}.new`, file);
  return id;
}

/** @param labels of those that are meant */
export function machinesOf(
  provider: Provider,
  labels: Record<string, string>,
): Pick<DevMachines, "list" | "dial"> & { remove(isKept?: (machine: Machine) => boolean): Promise<void> } {
  // A backend that somebody writes may not look at labels yet, and have others' machines.
  const having = async (own: Record<string, string>, signal: AbortSignal) => {
    const { items } = await provider.getPods({ labels: own, signal });
    return items.filter((machine) => isSubset(own, machine.labels));
  };
  const list = (signal: AbortSignal) => having(labels, signal);
  return {
    list,
    async remove(isKept = () => false) {
      const signal = AbortSignal.timeout(REMOVAL_MS);
      const places = new PQueue({ concurrency: REMOVED_AT_ONCE });
      const left = async () => (await list(signal)).filter((machine) => !isKept(machine));
      const removals = (await left()).map(({ id }) =>
        places.add(() => provider.deletePod(id, { force: true, signal })),
      );
      await Promise.allSettled(removals);
      // Throws what the first failed with.
      await Promise.all(removals);
      while ((await left()).length > 0) await systemClock.sleep(50, signal);
    },
    dial:
      provider.portForward &&
      (async (podUid, port, signal) => {
        const [machine] = await having({ ...labels, [LABEL_UID]: podUid }, signal);
        if (machine === undefined) throw new Error(`the backend has no machine of pod ${podUid}`);
        return await provider.portForward!(machine.id, port, { signal });
      }),
  };
}
