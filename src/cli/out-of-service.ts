/** What the owner of a node says of it by the taint `node.kubernetes.io/out-of-service`. */
import { loadKubeConfig } from "../kube/kubeconfig.ts";
import { nodePath } from "../kube/paths.ts";
import { KubeTransport } from "../kube/transport.ts";
import type { Node } from "../kube/wire.ts";
import type { Logger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { VERSION } from "./version.ts";

const TAINT = "node.kubernetes.io/out-of-service";
/** A caller of CSI asks again. */
const TIMEOUT_MS = 5_000;

interface OutOfService {
  /** False of a node that cannot be read now, or is gone: nobody has said it of that one. */
  isOutOfService(nodeName: string, signal: AbortSignal): Promise<boolean>;
  close(): Promise<void>;
}

/** @param kubeconfig absent: as other clients find the cluster, in a pod by its account @throws KubeConfigError */
export function readOutOfService({
  kubeconfig,
  logger,
}: {
  kubeconfig: string | undefined;
  logger: Logger;
}): OutOfService {
  const kubeConfig = loadKubeConfig({ path: kubeconfig });
  const kube = new KubeTransport({ kubeConfig, clock: systemClock, logger, version: VERSION });
  return {
    async isOutOfService(nodeName, signal) {
      const limit = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]);
      try {
        const path = nodePath(nodeName);
        const { spec } = await kube.request<Node>({ method: "GET", path, signal: limit });
        return spec?.taints?.some(({ key }) => key === TAINT) === true;
      } catch (thrown) {
        logger.warn(
          { node: nodeName, err: thrown },
          "Cannot tell whether a node is out of service: it counts as in service",
        );
        return false;
      }
    },
    close: () => kube.close(),
  };
}
