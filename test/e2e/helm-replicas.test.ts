/**
 * Two replicas, as the chart runs them: whatever becomes of the leader, the node stays Ready and every pod has one
 * machine.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { recordHistory, type History } from "./cases/history.ts";
import { Pods, podSpec, serve, shell } from "./cases/pods.ts";
import { startBackend, type AgentProcess, type BackendProcess } from "./harness/agent.ts";
import type { Json } from "./harness/client.ts";
import { startCluster, type Cluster } from "./harness/cluster.ts";
import { must, passTime, waitFor } from "./harness/wait.ts";
import { installChart, type Installation } from "./helm-install.ts";

const node = "ha-node";
const deployments = "/apis/apps/v1/namespaces/default/deployments";
/** Longer than any lease here: what the leader did before is done, what it does after must be refused. */
const STOPPED_MS = 60_000;

let cluster: Cluster;
let backend: BackendProcess;
let chart: Installation;
let history: History;
let replicas: AgentProcess[];
let unready: string[];
const stopWatching = new AbortController();

beforeAll(async () => {
  cluster = await startCluster();
  backend = await startBackend({ sandbox: cluster.sandbox });
  chart = await installChart(cluster, "ha", {
    nodes: [
      {
        name: node,
        provider: backend.provider,
        capacity: { cpu: "64", memory: "64Gi", pods: "200" },
      },
    ],
  });
  replicas = [await chart.startAgent(), await chart.startAgent({ secondReplica: true })];
  await waitFor({ what: "the node to be Ready", timeoutMs: 60_000 }, async () =>
    must(isReady(await getNode()), "not Ready"),
  );
  unready = [];
  void watchNode();
  history = await recordHistory({ client: cluster.admin, machines: backend.machines });
  await cluster.admin.create(deployments, {
    metadata: { name: "load" },
    spec: {
      replicas: 10,
      selector: { matchLabels: { app: "load" } },
      template: {
        metadata: { labels: { app: "load" } },
        spec: podSpec(node, { terminationGracePeriodSeconds: 5, containers: [shell("main", serve)] }),
      },
    },
  });
  await untilAvailable(10);
}, 1_200_000);

afterAll(async () => {
  stopWatching.abort();
  await history?.stop();
  await cluster?.stop();
});

const getNode = () => cluster.admin.get(`/api/v1/nodes/${node}`);
const ready = (object: Json) => object.status.conditions?.find((each: Json) => each.type === "Ready");
const isReady = (object: Json) => ready(object)?.status === "True";

async function watchNode(): Promise<void> {
  while (!stopWatching.signal.aborted) {
    try {
      for await (const { object } of cluster.admin.watch(
        `/api/v1/nodes?fieldSelector=metadata.name%3D${node}`,
        stopWatching.signal,
      )) {
        if (object.kind === "Node" && !isReady(object)) unready.push(JSON.stringify(ready(object)));
      }
    } catch {
      await passTime(100, "an API server that restarts is not asked without a pause");
    }
  }
}

/** The replica that the Node's status names; the leader writes it. */
async function leader(): Promise<AgentProcess | undefined> {
  const { status } = await getNode();
  return replicas.find((replica) => replica.kubeletPort === status.daemonEndpoints?.kubeletEndpoint?.Port);
}

async function untilLedBy(replica: AgentProcess, since: number): Promise<number> {
  await waitFor({ what: "the standby to lead", timeoutMs: 60_000 }, async () =>
    must((await leader()) === replica, "the other leads"),
  );
  return (performance.now() - since) / 1000;
}

async function untilAvailable(count: number): Promise<void> {
  await waitFor({ what: `${count} replicas of the load to be available`, timeoutMs: 120_000 }, async () => {
    const { status, metadata } = await cluster.admin.get(`${deployments}/load`);
    must(
      status.observedGeneration >= metadata.generation &&
        (status.availableReplicas ?? 0) === count &&
        status.replicas === count,
      status,
    );
  });
}

const scale = (count: number) => cluster.admin.patch(`${deployments}/load/scale`, { spec: { replicas: count } });

/** Pods come and go at each change; at the end everything must be as if nothing had happened. */
async function judge(): Promise<void> {
  await untilAvailable(10);
  const pods = await waitFor({ what: "pods beyond the ten to be gone", timeoutMs: 60_000 }, async () => {
    const all = await new Pods(cluster.admin, "default", node).list("app=load");
    must(
      all.length === 10,
      all.map((pod) => [pod.metadata.name, pod.metadata.deletionTimestamp]),
    );
    return all;
  });
  expect(pods.map((pod) => [pod.status.phase, pod.status.containerStatuses[0].restartCount])).toEqual(
    pods.map(() => ["Running", 0]),
  );
  await history.check("default");
  expect(unready).toEqual([]);
}

async function roles(): Promise<{ leading: AgentProcess; standby: AgentProcess }> {
  const leading = (await leader())!;
  return { leading, standby: replicas.find((replica) => replica !== leading)! };
}

async function replace(old: AgentProcess): Promise<void> {
  // The first replica has the rendered ports, which are free again.
  const secondReplica = old !== replicas[0];
  const fresh = await chart.startAgent({ secondReplica });
  replicas[secondReplica ? 1 : 0] = fresh;
}

describe("under load, with two replicas,", () => {
  test("the leader's death goes unnoticed", async () => {
    const { leading, standby } = await roles();
    await scale(25);
    const start = performance.now();
    await leading.kill("SIGKILL");
    const seconds = await untilLedBy(standby, start);
    console.log(`takeover after SIGKILL: ${seconds.toFixed(1)} s`);
    await untilAvailable(25);
    await scale(10);
    await judge();
    await replace(leading);
  }, 240_000);

  test("a leader that stood still for a minute does nothing more, and ends", async () => {
    const { leading, standby } = await roles();
    await scale(25);
    const start = performance.now();
    process.kill(leading.pid, "SIGSTOP");
    const seconds = await untilLedBy(standby, start);
    console.log(`takeover after SIGSTOP: ${seconds.toFixed(1)} s`);
    await untilAvailable(25);
    await scale(10);
    await passTime(Math.max(0, STOPPED_MS - (performance.now() - start)), "standing still is what is tried");
    await scale(20);
    process.kill(leading.pid, "SIGCONT");
    await expect(leading.failed()).rejects.toThrow();
    await untilAvailable(20);
    await scale(10);
    await judge();
    await replace(leading);
  }, 300_000);

  test("both are replaced one after the other, as a rolling update does", async () => {
    for (let round = 0; round < 2; round++) {
      const { leading, standby } = await roles();
      await scale(round === 0 ? 25 : 10);
      const start = performance.now();
      const stopped = leading.stop(30_000);
      const seconds = await untilLedBy(standby, start);
      console.log(`takeover after SIGTERM: ${seconds.toFixed(1)} s`);
      await stopped;
      await replace(leading);
    }
    await judge();
  }, 240_000);
});
