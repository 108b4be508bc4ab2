/** Several releases of the chart in one cluster: each serves its own nodes, and a Node that has two names is served by one. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { Pods, serve, shell } from "./cases/pods.ts";
import { startBackend, type AgentProcess, type BackendProcess } from "./harness/agent.ts";
import type { Json } from "./harness/client.ts";
import { startCluster, type Cluster } from "./harness/cluster.ts";
import { createSandbox, type Sandbox } from "./harness/processes.ts";
import { must, waitFor } from "./harness/wait.ts";
import { installChart, type Installation } from "./helm-install.ts";

interface Release {
  chart: Installation;
  agent: AgentProcess;
  backend: BackendProcess;
  pods: Pods;
}

let cluster: Cluster;
const sandboxes: Sandbox[] = [];
let first: Release;
let second: Release;

/** In a folder of its own, as on a host of its own. */
async function startOwnBackend(): Promise<BackendProcess> {
  const sandbox = await createSandbox("releases");
  sandboxes.push(sandbox);
  return await startBackend({ sandbox });
}

const nodeOf = (name: string, backend: BackendProcess) => ({
  name,
  provider: backend.provider,
  capacity: { cpu: "8", memory: "8Gi", pods: "20" },
});

async function install(release: string, nodeName: string): Promise<Release> {
  const backend = await startOwnBackend();
  const chart = await installChart(cluster, release, { nodes: [nodeOf(nodeName, backend)] });
  const agent = await chart.startAgent();
  const pods = new Pods(cluster.admin, "default", nodeName);
  await untilReady(nodeName);
  return { chart, agent, backend, pods };
}

const getNode = (name: string): Promise<Json> => cluster.admin.get(`/api/v1/nodes/${name}`);

async function untilReady(name: string): Promise<void> {
  await waitFor({ what: `node ${name} to be Ready`, timeoutMs: 60_000 }, async () => {
    const { status } = await getNode(name);
    must(status.conditions?.find(({ type }: Json) => type === "Ready")?.status === "True", status);
  });
}

const machinesOf = async ({ backend }: Release): Promise<string[]> =>
  (await backend.machines()).filter(({ state }) => state === "running").map(({ id }) => id);

beforeAll(async () => {
  cluster = await startCluster();
  first = await install("one", "burst-one");
  second = await install("two", "burst-two");
  for (const { pods, chart } of [first, second]) {
    const name = `of-${chart.release}`;
    await pods.create(name, { containers: [shell("main", serve)] });
    await pods.untilReady(name);
  }
}, 1_200_000);

afterAll(async () => {
  await cluster?.stop();
  for (const sandbox of sandboxes) await sandbox.close();
});

test("each runs its own pods on its own backend", async () => {
  expect([(await machinesOf(first)).length, (await machinesOf(second)).length]).toEqual([1, 1]);
});

test.each([
  ["a further release", {}],
  ["a further release without an election", { leaderElection: { enabled: false }, replicas: 1 }],
])(
  "%s that names a Node of another one ends, with whose it is, and touches neither",
  { timeout: 300_000 },
  async (_, values) => {
    const backend = await startOwnBackend();
    const chart = await installChart(cluster, "late", { ...values, nodes: [nodeOf("burst-one", backend)] });
    const before = (await getNode("burst-one")).metadata;
    await expect(chart.startAgent().then((agent) => agent.failed())).rejects.toThrow(
      /nodes\[burst-one\]\.name: release vmlet-system\/one-vmlet answers for this Node/,
    );
    const after = (await getNode("burst-one")).metadata;
    expect([after.uid, after.annotations["vmlet.dev/release"]]).toEqual([before.uid, "vmlet-system/one-vmlet"]);
    expect(await backend.machines()).toEqual([]);
    expect(await machinesOf(first)).toHaveLength(1);
    await chart.uninstall();
  },
);

test("one that goes takes nothing of the other with it", { timeout: 300_000 }, async () => {
  await second.agent.stop();
  await second.chart.uninstall();
  expect(await first.chart.checkPermissions()).not.toContain("may not");
  await first.pods.create("later", { containers: [shell("main", serve)] });
  await first.pods.untilReady("later");
});
