/** vmlet's volumes for a suite: `vmlet csi` and the sidecars, and a class of them that claims get which name none. */
import type { Json } from "../../e2e/harness/client.ts";
import type { Cluster } from "../../e2e/harness/cluster.ts";
import { startVolumeDriver } from "../../e2e/volume-driver.ts";
import { nodeNames } from "./environment.ts";

/** As the harness' agents have it. */
const CLUSTER = "e2e";

/**
 * @param engine of the nodes' backends, or `incus`
 * @param providers where the nodes' volumes are, in the order of their names: one of all, or one of each
 */
export async function startVolumes(cluster: Cluster, engine: string, providers: readonly Json[]): Promise<void> {
  const csi = {
    storageClasses: [
      {
        name: "vmlet",
        annotations: { "storageclass.kubernetes.io/is-default-class": "true" },
        ...(engine === "cri" && { parameters: { class: "shared" } }),
        // A clone is made while no pod has its source: bound with its pod, it would wait for the source's to end.
        volumeBindingMode: "Immediate",
      },
    ],
  };
  const nodes = providers.map((provider, index) => ({ name: nodeNames[index]!, provider }));
  await startVolumeDriver({ cluster, nodes, clusterId: CLUSTER, csi });
}
