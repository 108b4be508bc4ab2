/** What an Incus project lacks before VMs can be had there, with the cure. */
import type { CallOptions } from "../../../src/provider/kit/index.ts";
import { IncusClient, type IncusServer } from "./client.ts";

interface IncusPlaces extends IncusServer {
  readonly image: string;
  readonly storagePool: string;
  readonly network: string;
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
    return problems;
  } finally {
    await client.close();
  }
}
