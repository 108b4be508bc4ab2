/**
 * What this node does, in the words of a kubelet's configuration file: for `/configz`. What has no meaning here is left
 * out.
 */
import type { NodeConfig } from "../config/schema.ts";
import { ALLOW_TTL_MS, DENY_TTL_MS, TOKEN_TTL_MS } from "../kubelet/auth.ts";
import { DEFAULT_LIMITS } from "../kubelet/options.ts";
import { LEASE_DURATION_SECONDS } from "../node/lease.ts";
import { STATUS_REPORT_MS, STATUS_UPDATE_MS } from "../node/node-controller.ts";
import { RESYNC_MS } from "../pods/controller.ts";
import { formatDuration, parseDuration } from "../resources/duration.ts";

/**
 * A `kubelet.config.k8s.io/v1beta1` KubeletConfiguration without kind and apiVersion. Durations are Go's.
 *
 * @param facts what the file alone does not say: the port listened on, and how many pods the Node has room for
 */
export function kubeletConfiguration(node: NodeConfig, facts: { port: number; maxPods: number | undefined }): object {
  const { kubelet, dns, crashLoopBackoff } = node;
  return {
    enableServer: true,
    address: kubelet.address,
    port: facts.port,
    readOnlyPort: 0,
    ...(kubelet.certFile !== undefined && { tlsCertFile: kubelet.certFile, tlsPrivateKeyFile: kubelet.keyFile }),
    tlsMinVersion: "VersionTLS12",
    serverTLSBootstrap: (kubelet.certificate ?? (kubelet.certFile === undefined ? "csr" : "files")) === "csr",
    authentication: {
      x509: { ...(kubelet.clientCAFile !== undefined && { clientCAFile: kubelet.clientCAFile }) },
      webhook: { enabled: true, cacheTTL: formatDuration(TOKEN_TTL_MS) },
      anonymous: { enabled: false },
    },
    authorization: {
      mode: "Webhook",
      webhook: {
        cacheAuthorizedTTL: formatDuration(ALLOW_TTL_MS),
        cacheUnauthorizedTTL: formatDuration(DENY_TTL_MS),
      },
    },
    enableDebuggingHandlers: true,
    streamingConnectionIdleTimeout: formatDuration(DEFAULT_LIMITS.streamIdleMs),
    registerNode: true,
    registerWithTaints: node.taints,
    syncFrequency: formatDuration(RESYNC_MS),
    nodeStatusUpdateFrequency: formatDuration(STATUS_UPDATE_MS),
    nodeStatusReportFrequency: formatDuration(STATUS_REPORT_MS),
    nodeLeaseDurationSeconds: LEASE_DURATION_SECONDS,
    ...(facts.maxPods !== undefined && { maxPods: facts.maxPods }),
    clusterDNS: dns.clusterDns,
    clusterDomain: dns.clusterDomain,
    resolvConf: "/etc/resolv.conf",
    configMapAndSecretChangeDetectionStrategy: "Watch",
    allowedUnsafeSysctls: node.allowedUnsafeSysctls,
    enableControllerAttachDetach: true,
    ...(crashLoopBackoff && {
      crashLoopBackOff: { maxContainerRestartPeriod: formatDuration(parseDuration(crashLoopBackoff.max)) },
    }),
    // Machines share no resources that could run out on this node.
    evictionHard: {},
    cgroupsPerQOS: false,
    failSwapOn: false,
    cpuManagerPolicy: "none",
    memoryManagerPolicy: "None",
    topologyManagerPolicy: "none",
  };
}
