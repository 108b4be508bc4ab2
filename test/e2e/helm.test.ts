/** The chart on a real control plane: each identity lets the agent do its work, and nothing else. */
import { X509Certificate } from "node:crypto";
import { readFile } from "node:fs/promises";
import https from "node:https";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { parse } from "yaml";
import { auditLog, type AuditLog } from "./harness/audit.ts";
import { createClient, type Client, type Json } from "./harness/client.ts";
import { hostAddress, startBackend, type AgentProcess, type BackendProcess } from "./harness/agent.ts";
import { startCluster, type Cluster } from "./harness/cluster.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { must, waitFor } from "./harness/wait.ts";
import { installChart, type Installation } from "./helm-install.ts";
import { ciValues, render } from "../unit/helm/render.ts";
import { keyOf, rightsOf, roleWithout, type Right } from "../unit/helm/rights.ts";

const ci = await ciValues();
let cluster: Cluster;
let backend: BackendProcess;
let audit: AuditLog;

beforeAll(async () => {
  audit = await auditLog();
  cluster = await startCluster({
    apiServerFlags: [
      ...audit.flags,
      // On by themselves from Kubernetes 1.37 on.
      "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true",
      "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true",
    ],
    // So short that a client certificate has to be renewed before the tests end.
    controllerManagerFlags: ["--cluster-signing-duration=1m"],
  });
  backend = await startBackend({ sandbox: cluster.sandbox });
  await createOtherNode();
  for (const name of ["vmlet-system", "batch"])
    await cluster.admin.create("/api/v1/namespaces", { metadata: { name } });
  for (const kind of ["ServiceMonitor", "PrometheusRule"]) await createMonitoringKind(kind);
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

/** As Prometheus' operator would, but for the schema. */
async function createMonitoringKind(kind: string): Promise<void> {
  const plural = `${kind.toLowerCase()}s`;
  const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
  const name = `${plural}.monitoring.coreos.com`;
  await cluster.admin.create(path, {
    metadata: { name },
    spec: {
      group: "monitoring.coreos.com",
      scope: "Namespaced",
      names: { kind, plural },
      versions: [
        {
          name: "v1",
          served: true,
          storage: true,
          schema: { openAPIV3Schema: { type: "object", "x-kubernetes-preserve-unknown-fields": true } },
        },
      ],
    },
  });
  await waitFor({ what: `${name} to be served` }, () => cluster.admin.get(`/apis/monitoring.coreos.com/v1/${plural}`));
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
  test("is accepted by the API server, for all values that it is tested with", async () => {
    const kubectl = await createKubectl(cluster.adminKubeconfig);
    for (const [name, file] of ci) {
      const objects = await render(file);
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

describe("with the values of", () => {
  // The backend's own run as pods, in helm-in-cluster.test.ts, and the driver of volumes runs in volumes.test.ts.
  const runnable = ci.filter(([name]) => !name.startsWith("backend") && name !== "csi");

  test.each(runnable)("%s, the agent serves its nodes, and helm test passes", async (name, file) => {
    const given = parse(await readFile(file, "utf8"));
    // Only addresses are other ones, and a smoke test that the backend's engine can keep.
    const values = {
      ...given,
      smokeTest: { restricted: false },
      nodes: given.nodes.map((node: Json) => ({
        ...node,
        ...(node.addresses && { addresses: [hostAddress()] }),
        ...(node.provider.type === "http-vm" && { provider: backend.provider }),
      })),
    };
    if (given.serviceAccount?.create === false)
      await cluster.admin.create("/api/v1/namespaces/vmlet-system/serviceaccounts", {
        metadata: { name: given.serviceAccount.name },
      });
    const chart = await installChart(cluster, name, values);
    const agent = await chart.startAgent();
    for (const node of given.nodes) await nodeReady(node.name);
    const { code, stdout, stderr } = await chart.runHook(`${name}-vmlet-smoke`);
    expect(stderr + stdout).toContain("pod deleted");
    expect(code).toBe(0);
    await agent.stop();
    await chart.uninstall();
    for (const node of given.nodes) await cluster.admin.delete(`/api/v1/nodes/${node.name}`);
  });

  test("full, the three nodes share one watch of the Services", async () => {
    const watchers = (await audit.events()).filter(
      ({ verb, objectRef }) => verb === "watch" && objectRef?.resource === "services",
    );
    const ofFull = watchers.flatMap(({ impersonatedUser }) => impersonatedUser?.username ?? []);
    expect(new Set(ofFull)).toEqual(new Set(["system:node:burst-0"]));
  });
});

describe("identity.mode node", () => {
  const node = "burst-node";
  let chart: Installation;
  let agent: AgentProcess;
  let asProcess: Kubectl;
  let asNode: Kubectl;
  beforeAll(async () => {
    chart = await installChart(cluster, "burst", {
      nodes: [{ name: node, provider: backend.provider }],
    });
    agent = await chart.startAgent();
    asProcess = await createKubectl(await chart.credentials("burst-vmlet"));
    asNode = await createKubectl(
      await chart.credentials("burst-vmlet", { user: `system:node:${node}`, groups: ["system:nodes"] }),
    );
    await nodeReady(node);
  });
  afterAll(() => agent?.stop());

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
    ["delete another node's pod", ["delete", "pod", "elsewhere"]],
    ["create pods", ["run", "mine", "--image=busybox"]],
    ["read all pods", ["get", "pods", "--all-namespaces"]],
    ["write another node", ["label", "node", "other", "a=b"]],
    ["take its own taints away", ["taint", "node", node, "virtual-kubelet.io/provider-"]],
    ["delete its own Node", ["delete", "node", node]],
    ["get tokens of no pod", ["create", "token", "default"]],
  ])("the agent as the node may not %s", async (_, args) => expectForbidden(asNode, args));

  test("the agent as the node may not write the status of another node's pod", async () => {
    const pod = await cluster.admin.get(otherPod);
    const input = JSON.stringify({ ...pod, status: { ...pod.status, phase: "Failed" } });
    const { code, stderr } = await asNode.try(["replace", "--raw", `${otherPod}/status`, "--filename=-"], { input });
    expect(stderr).toContain("can only update pod status for pods with spec.nodeName set to itself");
    expect(code).toBe(1);
  });

  test("every right is used", () =>
    expectAllUsed("system:serviceaccount:vmlet-system:burst-vmlet", rightsOf(chart.objects, "burst-vmlet")));

  test("vmlet check misses every right that is taken away", () => expectAllMissed(chart));

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
    await agent.stop();
    const { code, stderr } = await chart.runHook("burst-vmlet-remove");
    expect(stderr).toBe("");
    expect(code).toBe(0);
    await expect(cluster.admin.get(`/api/v1/nodes/${node}`)).rejects.toThrow("404");
  });

  test.each(["burst-vmlet-smoke", "burst-vmlet-uninstall"])("every right of %s is used", (account) =>
    expectAllUsed(`system:serviceaccount:vmlet-system:${account}`, rightsOf(chart.hooks, account)),
  );
});

describe("identity.mode certificate", () => {
  const node = "cert-node";
  let chart: Installation;
  let agent: AgentProcess;
  beforeAll(async () => {
    chart = await installChart(cluster, "cert", {
      identity: { mode: "certificate", autoApprove: true },
      nodes: [{ name: node, provider: backend.provider }],
    });
    agent = await chart.startAgent();
  });
  afterAll(() => agent?.stop());

  test("the node is Ready and runs pods", async () => {
    await nodeReady(node);
    const result = await chart.runHook("cert-vmlet-smoke");
    expect(result.stdout + result.stderr).toContain("pod deleted");
    expect(result.code).toBe(0);
  });

  const requestsOf = async (user: string) => {
    const { items } = await cluster.admin.get("/apis/certificates.k8s.io/v1/certificatesigningrequests");
    return items.filter(
      ({ spec }: Json) => spec.signerName === "kubernetes.io/kube-apiserver-client-kubelet" && spec.username === user,
    );
  };

  test("the cluster signed a client certificate for the ServiceAccount's one request", async () => {
    const requests = await requestsOf("system:serviceaccount:vmlet-system:cert-vmlet");
    expect(requests.map(({ status }: Json) => status.conditions[0].type)).toEqual(["Approved"]);
  });

  test("vmlet check misses every right that is taken away", () => expectAllMissed(chart));

  test("the node renews its certificate itself, and works on with the new one when the first has ended", async () => {
    const [first] = await requestsOf("system:serviceaccount:vmlet-system:cert-vmlet");
    const { validToDate } = new X509Certificate(Buffer.from(first.status.certificate, "base64"));
    const lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/cert-node";
    await waitFor(
      { what: "the lease to be renewed after the first certificate's end", timeoutMs: 180_000 },
      async () => {
        const { spec } = await cluster.admin.get(lease);
        must(Date.parse(spec.renewTime) > validToDate.getTime() + 1_000, spec.renewTime);
      },
    );
    const renewals = await requestsOf(`system:node:${node}`);
    expect(renewals.length).toBeGreaterThan(0);
    await nodeReady(node);
  }, 200_000);

  test("every right is used", async () => {
    await expectAllUsed("system:serviceaccount:vmlet-system:cert-vmlet", rightsOf(chart.objects, "cert-vmlet"));
    await expectAllUsed(`system:node:${node}`, rightsOf(chart.objects, `system:node:${node}`));
  });
});

describe("identity.mode serviceAccount", () => {
  const node = "sa-node";
  let chart: Installation;
  let agent: AgentProcess;
  let asAgent: Kubectl;
  let client: Client;
  beforeAll(async () => {
    // The in-process provider: the backend's engine has no files, and a token is a file.
    chart = await installChart(cluster, "sa", {
      identity: { mode: "serviceAccount", workloadNamespaces: ["default"] },
      nodes: [{ name: node, provider: { type: "memory" }, runtimeHandlers: ["runc"] }],
    });
    agent = await chart.startAgent();
    const credentials = await chart.credentials("sa-vmlet");
    asAgent = await createKubectl(credentials);
    client = await createClient(credentials);
    await nodeReady(node);
  });
  afterAll(async () => {
    client?.close();
    await agent?.stop();
  });

  test("a pod with secrets, configuration, a token, trust anchors and a runtime class runs and goes", async () => {
    const { admin } = cluster;
    await admin.create("/api/v1/namespaces/default/secrets", {
      metadata: { name: "mine" },
      stringData: { key: "value" },
    });
    await admin.create("/api/v1/namespaces/default/configmaps", { metadata: { name: "mine" }, data: { key: "value" } });
    await admin.create("/apis/node.k8s.io/v1/runtimeclasses", { metadata: { name: "plain" }, handler: "runc" });
    await admin.create("/apis/certificates.k8s.io/v1beta1/clustertrustbundles", {
      metadata: { name: "mine" },
      spec: { trustBundle: await readFile(cluster.caFile, "utf8") },
    });
    await admin.create("/api/v1/namespaces/default/pods", {
      metadata: { name: "full" },
      spec: {
        nodeName: node,
        runtimeClassName: "plain",
        tolerations: [{ operator: "Exists" }],
        containers: [
          {
            name: "main",
            image: "busybox",
            envFrom: [{ secretRef: { name: "mine" } }, { configMapRef: { name: "mine" } }],
            volumeMounts: [{ name: "trusted", mountPath: "/trusted" }],
          },
        ],
        volumes: [
          { name: "trusted", projected: { sources: [{ clusterTrustBundle: { name: "mine", path: "ca.pem" } }] } },
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
    ["impersonate", ["get", "pods", "--as=admin"]],
  ])("its roles do not let the agent %s", async (_, args) => expectForbidden(asAgent, args));

  test.each<[what: string, why: string, attempt: (client: Client) => Promise<Json>]>([
    [
      "write the status of another node's pod",
      "this agent may write only pods of its own nodes",
      (client) => client.patch(`${otherPod}/status`, { status: { phase: "Failed" } }),
    ],
    [
      "delete another node's pod",
      "this agent may write only pods of its own nodes",
      (client) => client.delete(otherPod),
    ],
    [
      "register another node",
      "this agent may write only its own nodes",
      (client) => client.create("/api/v1/nodes", { metadata: { name: "third" } }),
    ],
    [
      "give itself a role",
      "a node may not give itself labels that say what it is trusted with",
      (client) =>
        client.patch(`/api/v1/nodes/${node}/status`, {
          metadata: { labels: { "node-role.kubernetes.io/control-plane": "" } },
        }),
    ],
    [
      "have its node deleted with something that it may delete",
      "a node may not say with what it is to be deleted",
      (client) =>
        client.patch(`/api/v1/nodes/${node}/status`, {
          metadata: { ownerReferences: [{ apiVersion: "v1", kind: "ConfigMap", name: "none", uid: "none" }] },
        }),
    ],
    [
      "take another node's lease",
      "this agent may write only the leases of its own nodes and of its election",
      (client) =>
        client.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", {
          metadata: { name: "other" },
        }),
    ],
    [
      "get tokens of no pod",
      "this agent may ask only for tokens that are bound to a pod and end within a day",
      (client) => client.create("/api/v1/namespaces/default/serviceaccounts/default/token", { spec: {} }),
    ],
  ])("the admission policy does not let the agent %s", async (_, why, attempt) => {
    await expect(attempt(client)).rejects.toMatchObject({ status: 403, message: expect.stringContaining(why) });
  });

  test("a pod whose Secret is missing says so, again and again, by events that count", async () => {
    const { admin } = cluster;
    await admin.create("/api/v1/namespaces/default/pods", {
      metadata: { name: "waiting" },
      spec: {
        nodeName: node,
        tolerations: [{ operator: "Exists" }],
        containers: [{ name: "main", image: "busybox", envFrom: [{ secretRef: { name: "missing" } }] }],
      },
    });
    await waitFor({ what: "an event that counts", timeoutMs: 60_000 }, async () => {
      const { items } = await admin.get(
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dwaiting,type%3DWarning",
      );
      must(items.length > 0 && items.every((event: Json) => event.count > 1), items);
    });
    await admin.delete("/api/v1/namespaces/default/pods/waiting");
  });

  test("the kubelet API knows its callers by their tokens, and asks the cluster what they may do", async () => {
    const call = async (account: string) => {
      const { users } = parse(await readFile(await chart.credentials(account), "utf8"));
      return statusOf(`https://${hostAddress()}:${agent.kubeletPort}/pods`, users[0].user.token);
    };
    expect(await call("sa-vmlet")).toBe(403);
    await chart.kubectl.run([
      "create",
      "clusterrolebinding",
      "caller",
      "--clusterrole=system:kubelet-api-admin",
      "--serviceaccount=vmlet-system:default",
    ]);
    expect(await call("default")).toBe(200);
  });

  test("every right is used", async () => {
    const elsewhere = [
      // reload.test.ts: taints and cordons follow a configuration that changes.
      `patch /nodes ${node}`,
      // volumes.test.ts: pods with persistent volumes.
      "get /persistentvolumeclaims *",
      "get /persistentvolumes *",
      "get storage.k8s.io/volumeattachments *",
      `patch storage.k8s.io/csinodes ${node}`,
      // e2e/plugins: pods with ResourceClaims, and with inline volumes of CSI drivers.
      "patch /persistentvolumeclaims/status *",
      "get resource.k8s.io/resourceclaims *",
      "get storage.k8s.io/csidrivers *",
    ];
    const granted = rightsOf(chart.objects, "sa-vmlet");
    expect(granted.map(keyOf)).toEqual(expect.arrayContaining(elsewhere));
    const others = granted.filter((right) => !elsewhere.includes(keyOf(right)));
    await expectAllUsed("system:serviceaccount:vmlet-system:sa-vmlet", others);
  });

  test("vmlet check misses every right that is taken away", () => expectAllMissed(chart), 300_000);

  test("the pod of the other node is as it was", async () => {
    const { metadata, status } = await cluster.admin.get(otherPod);
    expect([metadata.deletionTimestamp, status.phase]).toEqual([undefined, "Pending"]);
  });
});

/** Nothing is granted that was never needed. */
async function expectAllUsed(user: string, granted: readonly Right[]): Promise<void> {
  const used = await usedRights(user);
  expect(granted.length).toBeGreaterThan(0);
  expect(granted.map(keyOf).filter((key) => !used.has(key))).toEqual([]);
}

/** Takes each right away for a moment: `vmlet check`, which found nothing missing before, must name just that one. */
async function expectAllMissed(chart: Installation): Promise<void> {
  const missing = async () => {
    const said = await chart.checkPermissions();
    expect(said).toMatch(/\d+ of \d+ permissions granted/);
    return said.match(/may not .*(?=:)/g) ?? [];
  };
  expect(await missing()).toEqual([]);
  for (const right of rightsOf(chart.objects, `${chart.release}-vmlet`)) {
    await withoutRight(chart, right, async () => {
      const resource = right.group === "" ? right.resource : `${right.resource}.${right.group}`;
      expect([keyOf(right), ...(await missing())]).toEqual([
        keyOf(right),
        expect.stringContaining(`may not ${right.verb} ${resource}`),
      ]);
    });
  }
}

async function withoutRight(chart: Installation, right: Right, look: () => Promise<void>): Promise<void> {
  const { kubectl, namespace, release } = chart;
  const apply = (object: Json) => kubectl.run(["apply", "--filename=-"], { input: JSON.stringify(object) });
  const user = `system:serviceaccount:${namespace}:${release}-vmlet`;
  const isAllowed = async () => {
    const [resource, subresource] = right.resource.split("/");
    const { status } = await cluster.admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {
      spec: {
        user,
        groups: ["system:serviceaccounts", "system:authenticated"],
        resourceAttributes: { ...right, resource, subresource, binding: undefined, role: undefined },
      },
    });
    return status.allowed as boolean;
  };
  const until = (allowed: boolean) =>
    waitFor({ what: `${keyOf(right)} to be ${allowed ? "allowed" : "refused"}` }, async () =>
      must((await isAllowed()) === allowed, "not yet"),
    );
  const { kind, metadata } = right.binding;
  if (right.role) await apply(roleWithout({ ...right, role: right.role }));
  else await kubectl.run(["delete", kind, metadata.name, "--namespace", metadata.namespace]);
  try {
    await until(false);
    await look();
  } finally {
    await apply(right.role ?? right.binding);
    await until(true);
  }
}

/** The rights that this user made use of, from the API server's audit log, as `keyOf` writes them, each with and without the name. */
async function usedRights(user: string): Promise<Set<string>> {
  const keys = new Set<string>();
  const add = (verb: string, { apiGroup, group = apiGroup ?? "", resource, subresource, name }: Json) => {
    for (const each of [name, undefined])
      keys.add(keyOf({ verb, group, resource: subresource ? `${resource}/${subresource}` : resource, name: each }));
  };
  for (const event of await audit.events()) {
    const review = event.objectRef?.resource === "subjectaccessreviews" ? event.responseObject : undefined;
    // Asked by the controller-manager, before it approves a certificate.
    if (review?.status?.allowed && review.spec.user === user && review.spec.resourceAttributes)
      add(review.spec.resourceAttributes.verb, review.spec.resourceAttributes);
    if (event.user.username !== user || !event.userAgent?.startsWith("vmlet/")) continue;
    if (event.annotations?.["authorization.k8s.io/decision"] !== "allow") continue;
    const { impersonatedUser, objectRef } = event;
    if (impersonatedUser) {
      add("impersonate", { resource: "users", name: impersonatedUser.username });
      for (const name of impersonatedUser.groups) add("impersonate", { resource: "groups", name });
    } else if (objectRef?.resource) add(event.verb, objectRef);
  }
  return keys;
}

/** What an HTTPS server that nobody vouches for answers to a bearer of this token. */
function statusOf(url: string, token: string): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${token}` };
    https
      .get(url, { headers, rejectUnauthorized: false, agent: false }, (reply) => {
        reply.resume().once("end", () => resolve(reply.statusCode));
      })
      .once("error", reject);
  });
}
