/** The chart on a real control plane: each identity lets the agent do its work, and nothing else. */
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Json } from "./harness/client.ts";
import { startBackend, type BackendProcess } from "./harness/agent.ts";
import { startCluster, type Cluster } from "./harness/cluster.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { must, waitFor } from "./harness/wait.ts";
import { installChart, type AgentReplica, type Installation } from "./helm-install.ts";
import { ciValues, render } from "../unit/helm/render.ts";

let cluster: Cluster;
let backend: BackendProcess;
let auditLog: string;

beforeAll(async () => {
  const dir = await mkdtemp(join(tmpdir(), "vmlet-audit-"));
  auditLog = join(dir, "audit.log");
  const policy = join(dir, "policy.yaml");
  await writeFile(
    policy,
    JSON.stringify({
      apiVersion: "audit.k8s.io/v1",
      kind: "Policy",
      omitStages: ["RequestReceived"],
      rules: [{ level: "Metadata" }],
    }),
  );
  cluster = await startCluster({ apiServerFlags: [`--audit-policy-file=${policy}`, `--audit-log-path=${auditLog}`] });
  backend = await startBackend({ sandbox: cluster.sandbox });
  await createOtherNode();
}, 1_200_000);
afterAll(() => cluster?.stop());

const otherPod = "/api/v1/namespaces/default/pods/elsewhere";

/** A node of somebody else, with a pod that refers to a secret. */
async function createOtherNode(): Promise<void> {
  const { admin } = cluster;
  await admin.create("/api/v1/nodes", { metadata: { name: "other" } });
  await admin.create("/api/v1/namespaces/default/secrets", {
    metadata: { name: "foreign" },
    stringData: { key: "value" },
  });
  await admin.create("/api/v1/namespaces/default/pods", {
    metadata: { name: "elsewhere" },
    spec: {
      nodeName: "other",
      tolerations: [{ operator: "Exists" }],
      containers: [{ name: "main", image: "busybox", envFrom: [{ secretRef: { name: "foreign" } }] }],
    },
  });
}

const nodeReady = (name: string) =>
  waitFor({ what: `node ${name} to be Ready`, timeoutMs: 60_000 }, async () => {
    const node = await cluster.admin.get(`/api/v1/nodes/${name}`);
    must(
      node.status.conditions?.some((each: Json) => each.type === "Ready" && each.status === "True"),
      node.status.conditions,
    );
    return node;
  });

/** What every attempt must be answered with. */
async function expectForbidden(kubectl: Kubectl, args: readonly string[]): Promise<void> {
  const { code, stderr } = await kubectl.try(args);
  expect(stderr).toMatch(/forbidden|denied/i);
  expect(code).toBe(1);
}

describe("what the chart renders", () => {
  const withoutOperator = (object: Json) => !object.apiVersion.startsWith("monitoring.coreos.com/");
  test("is accepted by the API server, for all values that it is tested with", async () => {
    const kubectl = await createKubectl(cluster.adminKubeconfig);
    await cluster.admin.create("/api/v1/namespaces", { metadata: { name: "vmlet-system" } });
    await cluster.admin.create("/api/v1/namespaces", { metadata: { name: "batch" } });
    for (const [name, file] of await ciValues()) {
      const objects = (await render(file)).filter(withoutOperator);
      // Pods are refused before their ServiceAccount is there.
      const accounts = objects.filter((object) => object.kind === "ServiceAccount");
      for (const account of accounts) await kubectl.run(["apply", "--filename=-"], { input: JSON.stringify(account) });
      const input = objects.map((object) => JSON.stringify(object)).join("\n---\n");
      const { code, stderr } = await kubectl.try(
        ["apply", "--dry-run=server", "--validate=strict", "--filename", "-"],
        { input },
      );
      for (const { metadata } of accounts) {
        await kubectl.run(["delete", "serviceaccount", metadata.name, "--namespace", metadata.namespace]);
      }
      expect(stderr.replaceAll(/^Warning:.*$/gm, "").trim(), name).toBe("");
      expect(code).toBe(0);
    }
  });
});

describe("identity.mode node", () => {
  const node = "burst-node";
  let chart: Installation;
  let agent: AgentReplica;
  let asProcess: Kubectl;
  let asNode: Kubectl;
  beforeAll(async () => {
    chart = await installChart(cluster, "burst", {
      nodes: [{ name: node, provider: { type: "http-vm", url: backend.url } }],
    });
    agent = await chart.startAgent();
    asProcess = await createKubectl(await chart.credentials("burst-vmlet"));
    asNode = await createKubectl(
      await chart.credentials("burst-vmlet", { user: `system:node:${node}`, groups: ["system:nodes"] }),
    );
    await nodeReady(node);
  });
  afterAll(() => agent?.process.stop());

  test("takes the cluster's identity from Helm's look at kube-system", async () => {
    const { metadata } = await cluster.admin.get("/api/v1/namespaces/kube-system");
    expect(chart.config.clusterId).toBe(metadata.uid);
  });

  test("the agent's pods wait for a real node rather than run on the virtual one", async () => {
    await waitFor({ what: "the scheduler to refuse the agent's pods" }, async () => {
      const { items } = await cluster.admin.get("/api/v1/namespaces/vmlet-system/pods");
      must(
        items.length === 2 &&
          items.every((pod: Json) => pod.status.conditions?.some((each: Json) => each.reason === "Unschedulable")),
        items.map((pod: Json) => pod.status),
      );
    });
  });

  test("helm test's pod sees a pod come, speak and go", async () => {
    const result = await chart.runHook("burst-vmlet-smoke");
    expect(result.stdout + result.stderr).toMatch(
      /pod \S+ created[^]*pod runs[^]*log read through the API server[^]*pod deleted/,
    );
    expect(result.code).toBe(0);
  });

  test("helm test fails when the node does not run pods, and leaves none behind", async () => {
    const result = await chart.runHook("burst-vmlet-smoke", (args) => [
      ...args.filter((arg) => arg !== node && !arg.startsWith("--timeout")),
      "--timeout=3s",
      "other",
    ]);
    expect(result.stdout).toContain("FAILED: no more time to wait for the pod to run");
    expect(result.code).toBe(1);
    const { items } = await cluster.admin.get(
      "/api/v1/namespaces/vmlet-system/pods?labelSelector=app.kubernetes.io/component%3Dsmoke-pod",
    );
    expect(items.filter((pod: Json) => !pod.metadata.deletionTimestamp)).toEqual([]);
  });

  test.each([
    ["read all secrets", ["get", "secrets", "--all-namespaces"]],
    ["read a secret", ["get", "secret", "foreign"]],
    ["read pods", ["get", "pods"]],
    ["create pods", ["run", "mine", "--image=busybox"]],
    ["be another node", ["get", "nodes", "--as=system:node:other", "--as-group=system:nodes"]],
    ["be an administrator", ["get", "secrets", "--as=admin", "--as-group=system:masters"]],
    ["be another ServiceAccount", ["get", "pods", "--as=system:serviceaccount:kube-system:default"]],
    ["write another lease", ["patch", "lease", "other", "--namespace=kube-node-lease", "--type=merge", "--patch={}"]],
    ["get tokens", ["create", "token", "default"]],
  ])("the agent's ServiceAccount may not %s", async (_, args) => expectForbidden(asProcess, args));

  test.each([
    ["read the secret of another node's pod", ["get", "secret", "foreign"]],
    ["read all secrets", ["get", "secrets", "--all-namespaces"]],
    [
      "write the status of another node's pod",
      ["patch", "pod", "elsewhere", "--subresource=status", "--type=merge", '--patch={"status":{"phase":"Failed"}}'],
    ],
    ["delete another node's pod", ["delete", "pod", "elsewhere"]],
    ["create pods", ["run", "mine", "--image=busybox"]],
    ["read all pods", ["get", "pods", "--all-namespaces"]],
    ["write another node", ["label", "node", "other", "a=b"]],
    ["take its own taints away", ["taint", "node", node, "virtual-kubelet.io/provider-"]],
    ["delete its own Node", ["delete", "node", node]],
    ["get tokens of no pod", ["create", "token", "default"]],
  ])("the agent as the node may not %s", async (_, args) => expectForbidden(asNode, args));

  test("every right is used", async () => {
    const used = await usedRights("system:serviceaccount:vmlet-system:burst-vmlet");
    expect(used.impersonated).toEqual([`system:node:${node} system:nodes,system:authenticated`]);
    expect(used.rights).toEqual([
      "create coordination.k8s.io/leases",
      "get /configmaps extension-apiserver-authentication",
      "get coordination.k8s.io/leases burst-vmlet",
      "update coordination.k8s.io/leases burst-vmlet",
    ]);
  });

  test("helm uninstall is refused while pods run on the node, and allowed when they are gone", async () => {
    await cluster.admin.create("/api/v1/namespaces/default/pods", {
      metadata: { name: "still-here" },
      spec: {
        nodeName: node,
        containers: [{ name: "main", image: "busybox", command: ["sleep", "600"] }],
        terminationGracePeriodSeconds: 0,
        tolerations: [{ operator: "Exists" }],
      },
    });
    const refused = await chart.runHook("burst-vmlet-drained");
    expect([refused.code, refused.stderr]).toEqual([1, expect.stringContaining("default/still-here")]);
    await cluster.admin.delete("/api/v1/namespaces/default/pods/still-here");
    await waitFor({ what: "the pod to be gone" }, async () => {
      const { items } = await cluster.admin.get(`/api/v1/pods?fieldSelector=spec.nodeName%3D${node}`);
      must(items.length === 0, items);
    });
    expect((await chart.runHook("burst-vmlet-drained")).code).toBe(0);
  });

  test("the Node is gone after the agent and the uninstall hook", async () => {
    await agent.process.stop();
    const { code, stderr } = await chart.runHook("burst-vmlet-remove");
    expect(stderr).toBe("");
    expect(code).toBe(0);
    await expect(cluster.admin.get(`/api/v1/nodes/${node}`)).rejects.toThrow("404");
  });
});

describe("identity.mode certificate", () => {
  const node = "cert-node";
  let chart: Installation;
  let agent: AgentReplica;
  beforeAll(async () => {
    chart = await installChart(cluster, "cert", {
      identity: { mode: "certificate", autoApprove: true },
      nodes: [{ name: node, provider: { type: "http-vm", url: backend.url } }],
    });
    agent = await chart.startAgent();
  });
  afterAll(() => agent?.process.stop());

  test("the node is Ready and runs pods", async () => {
    await nodeReady(node);
    const result = await chart.runHook("cert-vmlet-smoke");
    expect(result.stdout + result.stderr).toContain("pod deleted");
    expect(result.code).toBe(0);
  });

  test("the cluster signed a client certificate for the ServiceAccount's request", async () => {
    const { items } = await cluster.admin.get("/apis/certificates.k8s.io/v1/certificatesigningrequests");
    const mine = items.filter((each: Json) => each.spec.signerName === "kubernetes.io/kube-apiserver-client-kubelet");
    expect(mine.map((each: Json) => [each.spec.username, each.status.conditions[0].type])).toEqual([
      ["system:serviceaccount:vmlet-system:cert-vmlet", "Approved"],
    ]);
  });

  test("the agent as the node may renew its own certificate without anybody's help", async () => {
    const review = await cluster.admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {
      spec: {
        user: `system:node:${node}`,
        groups: ["system:nodes"],
        resourceAttributes: {
          group: "certificates.k8s.io",
          resource: "certificatesigningrequests",
          subresource: "selfnodeclient",
          verb: "create",
        },
      },
    });
    expect(review.status.allowed).toBe(true);
  });

  test("every right is used", async () => {
    const used = await usedRights("system:serviceaccount:vmlet-system:cert-vmlet");
    expect(used.rights).toEqual([
      "create certificates.k8s.io/certificatesigningrequests",
      "create coordination.k8s.io/leases",
      "get /configmaps extension-apiserver-authentication",
      "get certificates.k8s.io/certificatesigningrequests *",
      "get coordination.k8s.io/leases cert-vmlet",
      "update coordination.k8s.io/leases cert-vmlet",
    ]);
  });
});

describe("identity.mode serviceAccount", () => {
  const node = "sa-node";
  let chart: Installation;
  let agent: AgentReplica;
  let asAgent: Kubectl;
  beforeAll(async () => {
    // The in-process provider: the backend's engine has no files, and a token is a file.
    chart = await installChart(cluster, "sa", {
      identity: { mode: "serviceAccount", workloadNamespaces: ["default"] },
      nodes: [{ name: node, provider: { type: "memory" } }],
    });
    agent = await chart.startAgent();
    asAgent = await createKubectl(await chart.credentials("sa-vmlet"));
    await nodeReady(node);
  });
  afterAll(() => agent?.process.stop());

  test("a pod with secrets, configuration, a token and a runtime class runs and goes", async () => {
    const { admin } = cluster;
    await admin.create("/api/v1/namespaces/default/secrets", {
      metadata: { name: "mine" },
      stringData: { key: "value" },
    });
    await admin.create("/api/v1/namespaces/default/configmaps", { metadata: { name: "mine" }, data: { key: "value" } });
    await admin.create("/apis/node.k8s.io/v1/runtimeclasses", { metadata: { name: "plain" }, handler: "runc" });
    await admin.create("/api/v1/namespaces/default/pods", {
      metadata: { name: "full" },
      spec: {
        nodeName: node,
        tolerations: [{ operator: "Exists" }],
        containers: [
          {
            name: "main",
            image: "busybox",
            envFrom: [{ secretRef: { name: "mine" } }, { configMapRef: { name: "mine" } }],
          },
        ],
        terminationGracePeriodSeconds: 0,
      },
    });
    await waitFor({ what: "the pod to run", timeoutMs: 60_000 }, async () => {
      const { status } = await admin.get("/api/v1/namespaces/default/pods/full");
      must(status.phase === "Running", status);
    });
    await admin.delete("/api/v1/namespaces/default/pods/full");
    await waitFor({ what: "the pod to be gone", timeoutMs: 60_000 }, () =>
      expect(admin.get("/api/v1/namespaces/default/pods/full")).rejects.toThrow("404"),
    );
  });

  test.each([
    ["read all secrets", ["get", "secrets", "--all-namespaces"]],
    ["list secrets where its pods are", ["get", "secrets"]],
    ["read secrets where it has no pods", ["get", "secret", "any", "--namespace=kube-system"]],
    ["create pods", ["run", "mine", "--image=busybox"]],
    [
      "write the status of another node's pod",
      ["patch", "pod", "elsewhere", "--subresource=status", "--type=merge", '--patch={"status":{"phase":"Failed"}}'],
    ],
    ["delete another node's pod", ["delete", "pod", "elsewhere"]],
    [
      "register another node",
      ["create", "--filename=-"],
      { apiVersion: "v1", kind: "Node", metadata: { name: "third" } },
    ],
    [
      "give itself a role",
      [
        "patch",
        "node",
        node,
        "--subresource=status",
        "--type=merge",
        '--patch={"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}',
      ],
    ],
    [
      "take another node's lease",
      ["create", "--filename=-"],
      {
        apiVersion: "coordination.k8s.io/v1",
        kind: "Lease",
        metadata: { name: "other", namespace: "kube-node-lease" },
      },
    ],
    ["get tokens of no pod", ["create", "token", "default"]],
    ["impersonate", ["get", "pods", "--as=admin"]],
  ] as [string, string[], object?][])("the agent may not %s", async (_, args, object) => {
    const { code, stderr } = await asAgent.try(args, object === undefined ? {} : { input: JSON.stringify(object) });
    expect(stderr).toMatch(/forbidden|denied/i);
    expect(code).toBe(1);
  });

  test("the pod of the other node is as it was", async () => {
    const { metadata, status } = await cluster.admin.get(otherPod);
    expect([metadata.deletionTimestamp, status.phase]).toEqual([undefined, "Pending"]);
  });
});

/** What this user was allowed and did, from the API server's audit log: rights, and the identities that it acted as. */
async function usedRights(user: string): Promise<{ rights: string[]; impersonated: string[] }> {
  const rights = new Set<string>();
  const impersonated = new Set<string>();
  for (const line of (await readFile(auditLog, "utf8")).split("\n").filter(Boolean)) {
    const event = JSON.parse(line);
    if (event.user.username !== user || !event.userAgent.startsWith("vmlet/")) continue;
    if (event.annotations?.["authorization.k8s.io/decision"] !== "allow") continue;
    if (event.impersonatedUser) {
      impersonated.add(`${event.impersonatedUser.username} ${event.impersonatedUser.groups.join()}`);
      continue;
    }
    const { apiGroup = "", resource, subresource, name } = event.objectRef ?? {};
    if (resource === undefined) continue;
    const shown = event.verb === "create" ? "" : ` ${resource === "certificatesigningrequests" ? "*" : name}`;
    rights.add(`${event.verb} ${apiGroup}/${resource}${subresource ? `/${subresource}` : ""}${shown}`);
  }
  return { rights: [...rights].toSorted(), impersonated: [...impersonated].toSorted() };
}
