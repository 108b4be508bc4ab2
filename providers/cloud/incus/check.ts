/** What an Incus project lacks before VMs can be had there, with the cure. */
import type { CallOptions } from "../../../src/provider/kit/index.ts";
import { IncusClient, type IncusServer } from "./client.ts";

interface IncusPlaces extends IncusServer {
  readonly image: string;
  readonly storagePool: string;
  readonly network: string;
  readonly volumes?: { readonly pools: readonly string[]; readonly member?: string | undefined } | undefined;
}

interface IncusProblem {
  readonly problem: string;
  readonly cure: string;
}

/** @throws ProviderError unavailable when there is no answer; ConfigError when a file cannot be read */
export async function incusProblems(places: IncusPlaces, { signal }: CallOptions): Promise<IncusProblem[]> {
  const client = new IncusClient(places);
  const { project, image, storagePool, network } = places;
  const lackOf = async (path: string) => (await client.ask({ method: "GET", path, signal })).error;
  try {
    const server = await client.ask({ method: "GET", path: "", signal });
    const { auth } = (server.metadata ?? {}) as { auth?: string };
    if (auth !== "trusted")
      return [
        {
          problem: "the server does not trust cloud.certFile",
          cure: `incus config trust add-certificate CERTIFICATE --restricted --projects ${project}`,
        },
      ];
    // Without rights on the project nothing else can be said of it.
    const refused = await lackOf("profiles");
    if (refused !== undefined)
      return [
        {
          problem: `project ${project}: ${refused}`,
          cure: `incus project create ${project}; with a restricted certificate, add the project to it: incus config trust edit`,
        },
      ];
    const rows = [
      { path: `storage-pools/${encodeURIComponent(storagePool)}`, what: "storagePool", cure: "incus storage list" },
      { path: `networks/${encodeURIComponent(network)}`, what: "network", cure: "incus network list" },
      {
        path: /^[0-9a-f]{64}$/.test(image) ? `images/${image}` : `images/aliases/${encodeURIComponent(image)}`,
        what: "image",
        cure: "vmlet cloud image --config FILE",
      },
    ] as const;
    const problems: IncusProblem[] = [];
    for (const { path, what, cure } of rows) {
      const error = await lackOf(path);
      if (error !== undefined) problems.push({ problem: `cloud.${what} ${places[what]}: ${error}`, cure });
    }
    return [...problems, ...(await volumeProblems(client, places, { signal }))];
  } finally {
    await client.close();
  }
}

/** Drivers of pools that every member of a cluster reaches. */
const REMOTE: readonly string[] = ["ceph", "cephfs", "cephobject", "linstor", "lvmcluster", "truenas"];

async function volumeProblems(
  client: IncusClient,
  { volumes }: IncusPlaces,
  { signal }: CallOptions,
): Promise<IncusProblem[]> {
  if (volumes === undefined) return [];
  const problems: IncusProblem[] = [];
  for (const pool of volumes.pools) {
    const path = `storage-pools/${encodeURIComponent(pool)}`;
    const { error, metadata } = await client.ask({ method: "GET", path, signal });
    const { driver = "", locations = [] } = (metadata ?? {}) as { driver?: string; locations?: string[] };
    if (error !== undefined)
      problems.push({ problem: `cloud.volumes.pools ${pool}: ${error}`, cure: "incus storage list" });
    else if (!REMOTE.includes(driver) && locations.length > 1 && volumes.member === undefined)
      problems.push({
        problem: `cloud.volumes.pools ${pool}: each member has disks of its own there (${driver})`,
        cure: `set cloud.volumes.member to one of ${locations.join(", ")}, and run a node for each that is to have volumes`,
      });
    else if (volumes.member !== undefined && !locations.includes(volumes.member))
      problems.push({
        problem: `cloud.volumes.member ${volumes.member}: pool ${pool} is not there (it is on ${locations.join(", ")})`,
        cure: "name a member of the cluster, as incus cluster list has it; leave it out on a single host",
      });
  }
  return problems;
}
