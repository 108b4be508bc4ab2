/** What volumes and images have in common for a client's scope: they belong to a cluster, and to no node. */
import { isProviderError, LABEL_CLUSTER } from "../../../src/provider/kit/index.ts";

/** @param clusters values of the cluster's label; undefined: all */
export function ofClusters(clusters: ReadonlySet<string> | undefined): (labels: Record<string, string>) => boolean {
  return (labels) => clusters === undefined || clusters.has(labels[LABEL_CLUSTER] ?? "");
}

/** For what is done of an absent thing as well. @throws what the read throws, unless that nothing is there */
export async function ownOrAbsent(own: Promise<unknown>): Promise<void> {
  await own.catch((thrown: unknown) => {
    if (!isProviderError(thrown, "not_found")) throw thrown;
  });
}
