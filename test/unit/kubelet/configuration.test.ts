import { expect, test } from "vitest";
import { nodeSchema } from "../../../src/config/schema.ts";
import { kubeletConfiguration } from "../../../src/agent/kubelet-configuration.ts";

const configuration = (node: object = {}) =>
  kubeletConfiguration(nodeSchema.parse({ name: "vm-1", provider: { type: "memory" }, ...node }), {
    port: 10250,
    maxPods: 110,
  });

test("the settings that e2e tests and comparing tools read of a kubelet are those that the node keeps", () => {
  expect(configuration()).toMatchObject({
    port: 10250,
    readOnlyPort: 0,
    authentication: { anonymous: { enabled: false }, webhook: { enabled: true, cacheTTL: "2m0s" } },
    authorization: { mode: "Webhook", webhook: { cacheAuthorizedTTL: "5m0s", cacheUnauthorizedTTL: "30s" } },
    streamingConnectionIdleTimeout: "4h0m0s",
    nodeStatusUpdateFrequency: "10s",
    nodeStatusReportFrequency: "5m0s",
    nodeLeaseDurationSeconds: 40,
    serverTLSBootstrap: true,
    maxPods: 110,
    evictionHard: {},
  });
});

test("what the configuration file says is told in the kubelet's words", () => {
  const node = {
    kubelet: { certFile: "/pki/cert", keyFile: "/pki/key", clientCAFile: "/pki/ca" },
    dns: { clusterDns: ["10.0.0.10"], clusterDomain: "example.org" },
    crashLoopBackoff: { initial: "1s", max: "90s" },
    taints: [],
  };
  expect(configuration(node)).toMatchObject({
    tlsCertFile: "/pki/cert",
    tlsPrivateKeyFile: "/pki/key",
    serverTLSBootstrap: false,
    authentication: { x509: { clientCAFile: "/pki/ca" } },
    clusterDNS: ["10.0.0.10"],
    clusterDomain: "example.org",
    crashLoopBackOff: { maxContainerRestartPeriod: "1m30s" },
    registerWithTaints: [],
  });
});
