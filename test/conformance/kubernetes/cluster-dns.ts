/** The cluster's name server, behind the Service `kube-dns` as anywhere: CoreDNS on this host, or in pods of the nodes. */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { buildCoreDns } from "../../e2e/harness/build.ts";
import type { Json } from "../../e2e/harness/client.ts";
import type { Cluster } from "../../e2e/harness/cluster.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import type { TestRegistry } from "../../support/registry.ts";
import { hostAddress } from "./namespaces.ts";

export const dnsAddress = "10.96.0.10";
export const clusterDomain = "cluster.local";

const SYSTEM = "/api/v1/namespaces/kube-system";
const SLICE = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
const POD_LABELS = { "k8s-app": "kube-dns" };
const IMAGE = "dns/coredns:1";

/** On this host. */
export async function startDns(cluster: Cluster): Promise<void> {
  const { sandbox, admin, adminKubeconfig } = cluster;
  const corefile = join(sandbox.dir, "Corefile");
  await writeFile(
    corefile,
    `.:53 {
  bind ${hostAddress}
  errors
  kubernetes ${clusterDomain} in-addr.arpa {
    endpoint https://127.0.0.1:${new URL(cluster.url).port}
    kubeconfig ${adminKubeconfig}
  }
}
`,
  );
  sandbox.spawn("coredns", await buildCoreDns(), ["-conf", corefile]);
  const metadata = { name: "kube-dns", namespace: "kube-system" };
  const ports = [
    { name: "dns", port: 53, protocol: "UDP" },
    { name: "dns-tcp", port: 53, protocol: "TCP" },
  ];
  await admin.create(`${SYSTEM}/services`, {
    apiVersion: "v1",
    kind: "Service",
    metadata,
    spec: { clusterIP: dnsAddress, ports },
  });
  await admin.create(SLICE, {
    apiVersion: "discovery.k8s.io/v1",
    kind: "EndpointSlice",
    metadata: { ...metadata, labels: { "kubernetes.io/service-name": metadata.name } },
    addressType: "IPv4",
    endpoints: [{ addresses: [hostAddress], conditions: { ready: true } }],
    ports,
  });
}

/** In a Deployment, from here on, with its configuration in a ConfigMap, as kubeadm has it. */
export async function moveDnsIntoPods({ admin }: Pick<Cluster, "admin">, registry: TestRegistry): Promise<void> {
  await registry.push(IMAGE, {
    layers: [[{ path: "coredns", content: await readFile(await buildCoreDns()), mode: 0o755 }]],
    config: { Entrypoint: ["/coredns"] },
  });
  const metadata = { name: "coredns", namespace: "kube-system" };
  const rbac = "/apis/rbac.authorization.k8s.io/v1";
  await admin.create(`${SYSTEM}/serviceaccounts`, { apiVersion: "v1", kind: "ServiceAccount", metadata });
  await admin.create(`${rbac}/clusterroles`, {
    ...{ apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRole", metadata: { name: "system:coredns" } },
    rules: [
      { apiGroups: [""], resources: ["services", "pods", "namespaces"], verbs: ["list", "watch"] },
      { apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"] },
    ],
  });
  await admin.create(`${rbac}/clusterrolebindings`, {
    ...{ apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRoleBinding", metadata: { name: "system:coredns" } },
    roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "system:coredns" },
    subjects: [{ kind: "ServiceAccount", ...metadata }],
  });
  await admin.create(`${SYSTEM}/configmaps`, {
    ...{ apiVersion: "v1", kind: "ConfigMap", metadata },
    data: {
      Corefile: `.:53 {
  errors
  health
  ready
  kubernetes ${clusterDomain} in-addr.arpa ip6.arpa {
    pods insecure
  }
}
`,
    },
  });
  await admin.create("/apis/apps/v1/namespaces/kube-system/deployments", deployment(registry));
  await waitFor({ what: "CoreDNS' pods to be ready", timeoutMs: 120_000 }, async () => {
    const { status }: Json = await admin.get("/apis/apps/v1/namespaces/kube-system/deployments/coredns");
    must(status.readyReplicas === 2, status);
  });
  await admin.patch(`${SYSTEM}/services/kube-dns`, { spec: { selector: POD_LABELS } });
  await admin.delete(`${SLICE}/kube-dns`);
}

const deployment = (registry: TestRegistry): Json => ({
  ...{ apiVersion: "apps/v1", kind: "Deployment", metadata: { name: "coredns", namespace: "kube-system" } },
  spec: {
    replicas: 2,
    selector: { matchLabels: POD_LABELS },
    template: {
      metadata: { labels: POD_LABELS },
      spec: {
        ...{ serviceAccountName: "coredns", dnsPolicy: "Default", priorityClassName: "system-cluster-critical" },
        containers: [
          {
            ...{ name: "coredns", image: `${registry.host}/${IMAGE}`, args: ["-conf", "/etc/coredns/Corefile"] },
            ports: [
              { name: "dns", containerPort: 53, protocol: "UDP" },
              { name: "dns-tcp", containerPort: 53, protocol: "TCP" },
            ],
            readinessProbe: { httpGet: { path: "/ready", port: 8181 }, periodSeconds: 2 },
            livenessProbe: { httpGet: { path: "/health", port: 8080 }, failureThreshold: 5 },
            securityContext: {
              allowPrivilegeEscalation: false,
              readOnlyRootFilesystem: true,
              capabilities: { add: ["NET_BIND_SERVICE"], drop: ["ALL"] },
            },
            volumeMounts: [{ name: "config", mountPath: "/etc/coredns", readOnly: true }],
          },
        ],
        volumes: [{ name: "config", configMap: { name: "coredns" } }],
      },
    },
  },
});
