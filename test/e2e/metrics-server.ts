/** metrics-server as its manifests install it, but as a process beside the control plane. */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { hostAddress } from "./harness/agent.ts";
import { buildMetricsServer } from "./harness/build.ts";
import type { Client } from "./harness/client.ts";
import type { Cluster } from "./harness/cluster.ts";
import { writeKubeconfig } from "./harness/kubeconfig.ts";
import { freePort } from "./harness/ports.ts";
import { failWhenExited } from "./harness/processes.ts";
import { must, waitFor } from "./harness/wait.ts";

/** What the API server needs to find it: without kube-proxy a Service's address leads nowhere, its endpoints do. */
export const aggregationFlags = ["--enable-aggregator-routing=true"];

/**
 * Starts it with the rights of its own manifests, verifying kubelets' certificates, and registers it. Resolves when the API
 * server reaches `metrics.k8s.io` through it.
 */
export async function startMetricsServer(cluster: Cluster): Promise<void> {
  const binary = await buildMetricsServer();
  const { admin, sandbox } = cluster;
  const token = await createAccount(admin);
  const kubeconfig = await writeKubeconfig(join(sandbox.dir, "metrics-server.kubeconfig"), cluster, { token });
  const certificates = join(sandbox.dir, "metrics-server");
  await mkdir(certificates);
  const port = await freePort();
  const address = hostAddress();
  const server = sandbox.spawn("metrics-server", binary, [
    `--kubeconfig=${kubeconfig}`,
    `--authentication-kubeconfig=${kubeconfig}`,
    `--authorization-kubeconfig=${kubeconfig}`,
    `--cert-dir=${certificates}`,
    `--bind-address=${address}`,
    `--secure-port=${port}`,
    `--kubelet-certificate-authority=${cluster.caFile}`,
    "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
    "--kubelet-use-node-status-port",
    // The least that it allows; its manifests say 15 s.
    "--metric-resolution=10s",
    "--kubelet-request-timeout=9s",
  ]);
  await register(admin, address, port);
  await Promise.race([
    failWhenExited(server),
    waitFor({ what: `metrics.k8s.io (log: ${server.logFile})`, timeoutMs: 60_000 }, async () => {
      const { status } = await admin.get("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io");
      const available = status?.conditions?.find(({ type }: { type: string }) => type === "Available");
      must(available?.status === "True", available);
    }),
  ]);
}

const namespace = "kube-system";
const name = "metrics-server";
const rbac = "/apis/rbac.authorization.k8s.io/v1";
const rbacGroup = "rbac.authorization.k8s.io";

/** The ServiceAccount, Roles and bindings of manifests/base/rbac.yaml. @returns a token of the account */
async function createAccount(admin: Client): Promise<string> {
  const account = `/api/v1/namespaces/${namespace}/serviceaccounts`;
  const subjects = [{ kind: "ServiceAccount", name, namespace }];
  await admin.create(account, { metadata: { name } });
  await admin.create(`${rbac}/namespaces/${namespace}/rolebindings`, {
    metadata: { name: "metrics-server-auth-reader" },
    roleRef: { apiGroup: rbacGroup, kind: "Role", name: "extension-apiserver-authentication-reader" },
    subjects,
  });
  await admin.create(`${rbac}/clusterrolebindings`, {
    metadata: { name: "metrics-server:system:auth-delegator" },
    roleRef: { apiGroup: rbacGroup, kind: "ClusterRole", name: "system:auth-delegator" },
    subjects,
  });
  await admin.create(`${rbac}/clusterroles`, {
    metadata: { name: "system:metrics-server" },
    rules: [
      { apiGroups: [""], resources: ["nodes/metrics"], verbs: ["get"] },
      { apiGroups: [""], resources: ["pods", "nodes"], verbs: ["get", "list", "watch"] },
    ],
  });
  await admin.create(`${rbac}/clusterrolebindings`, {
    metadata: { name: "system:metrics-server" },
    roleRef: { apiGroup: rbacGroup, kind: "ClusterRole", name: "system:metrics-server" },
    subjects,
  });
  const { status } = await admin.create(`${account}/${name}/token`, {
    apiVersion: "authentication.k8s.io/v1",
    kind: "TokenRequest",
    spec: {},
  });
  return status.token as string;
}

async function register(admin: Client, address: string, port: number): Promise<void> {
  await admin.create(`/api/v1/namespaces/${namespace}/services`, {
    metadata: { name },
    spec: { ports: [{ name: "https", port: 443, targetPort: port }] },
  });
  await admin.create(`/apis/discovery.k8s.io/v1/namespaces/${namespace}/endpointslices`, {
    metadata: { name, labels: { "kubernetes.io/service-name": name } },
    addressType: "IPv4",
    ports: [{ name: "https", port }],
    endpoints: [{ addresses: [address] }],
  });
  await admin.create("/apis/apiregistration.k8s.io/v1/apiservices", {
    metadata: { name: "v1beta1.metrics.k8s.io" },
    spec: {
      service: { name, namespace },
      group: "metrics.k8s.io",
      version: "v1beta1",
      insecureSkipTLSVerify: true,
      groupPriorityMinimum: 100,
      versionPriority: 100,
    },
  });
}
