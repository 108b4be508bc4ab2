/** The fidelity suite against the real kube-apiserver: it says whether the suite, and so devcluster, tells the truth. */
import { readFile } from "node:fs/promises";
import { afterAll, beforeAll, describe, test } from "vitest";
import { connect, type Api } from "./fidelity/api.ts";
import { controllerFidelityCases } from "./fidelity/controllers.ts";
import { fidelityCases, prepareNamespace } from "./fidelity/suite.ts";
import { startCluster, type Cluster } from "./harness/cluster.ts";

const ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts";

describe("kube-apiserver", () => {
  let cluster: Cluster;
  let api: Api;
  beforeAll(async () => {
    // Without controllers and scheduler: the suite asks what the API server itself does.
    cluster = await startCluster({ controllerManager: false, scheduler: false });
    api = connect({ url: cluster.url, token: await adminToken(cluster), ca: await readFile(cluster.caFile, "utf8") });
  });
  afterAll(async () => {
    api?.close();
    await cluster?.stop();
  });

  test.for(fidelityCases)("$name", async ({ run }) => {
    await run(api, await prepareNamespace(api));
  });
});

describe("kube-controller-manager", () => {
  let cluster: Cluster;
  let api: Api;
  beforeAll(async () => {
    // Without a scheduler: the cases name the nodes of their pods themselves.
    cluster = await startCluster({ scheduler: false });
    api = connect({ url: cluster.url, token: await adminToken(cluster), ca: await readFile(cluster.caFile, "utf8") });
  });
  afterAll(async () => {
    api?.close();
    await cluster?.stop();
  });

  test.concurrent.for(controllerFidelityCases)("$name", { timeout: 60_000 }, async ({ run }) => {
    await run(api, await prepareNamespace(api));
  });
});

/** A bearer token, not a certificate: beside a good certificate the server would never look at a wrong token. */
async function adminToken({ admin }: Cluster): Promise<string> {
  await admin.create(ACCOUNTS, { metadata: { name: "fidelity" } });
  await admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {
    metadata: { name: "fidelity" },
    roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "cluster-admin" },
    subjects: [{ kind: "ServiceAccount", namespace: "kube-system", name: "fidelity" }],
  });
  const issued = await admin.create(`${ACCOUNTS}/fidelity/token`, { spec: { expirationSeconds: 3600 } });
  return issued.status.token as string;
}
