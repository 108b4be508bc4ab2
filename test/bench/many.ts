/**
 * What many nodes cost: ten of them in one process beside one with as many pods, and an API server with fifty agents, each a
 * process of its own. The machines are in the agents (provider `memory`), so what is measured is the agents' and the API
 * server's alone.
 */
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { startAgent, type AgentProcess } from "../e2e/harness/agent.ts";
import type { Cluster } from "../e2e/harness/cluster.ts";
import { freePort } from "../e2e/harness/ports.ts";
import {
  benchPod,
  cpuSeconds,
  createNamespace,
  deletePod,
  formatMs,
  inParallel,
  PodWatch,
  printFigure,
  untilNodeReady,
  usage,
} from "./measure.ts";
import { imageCommand } from "./targets.ts";

const NODES = 10;
const AGENTS = 50;
/** Of those that start at once: each loads its program, on as many processors as there are. */
const STARTING = 4;
/** Leases are renewed every ten seconds, statuses told again every five minutes. */
const IDLE_S = 60;
const here = join(import.meta.dirname, "../..");

export async function many(cluster: Cluster, pods: number): Promise<void> {
  const start = await starter(cluster);
  for (const count of [1, NODES]) {
    const names = nodesOf(`bench-in-one-of-${count}`, count);
    const agent = await start(names);
    await measured(cluster, `one process, ${count} ${count === 1 ? "node" : "nodes"}`, [agent], names, pods);
    await agent.stop();
  }

  const names = nodesOf("bench-alone", AGENTS);
  const agents: AgentProcess[] = [];
  const since = performance.now();
  await inParallel(names, async (name) => agents.push(await start([name])), STARTING);
  await Promise.all(names.map((name) => untilNodeReady(cluster.admin, name)));
  printFigure(
    `${AGENTS} agents, started ${STARTING} at a time: all nodes Ready after`,
    formatMs(performance.now() - since),
  );
  await measured(cluster, `${AGENTS} agents of one node`, agents, names, pods);
  await Promise.all(agents.map((agent) => agent.stop()));
}

/** Idle, with pods, and their end; of the agents together, and of the API server. */
async function measured(
  cluster: Cluster,
  what: string,
  agents: readonly AgentProcess[],
  nodes: readonly string[],
  pods: number,
): Promise<void> {
  const { admin } = cluster;
  const pids = agents.map(({ pid }) => pid);
  const apiServer = [cluster.processes()["kube-apiserver"]!.pid];
  const namespace = await createNamespace(admin, nodes[0]!);
  await using watch = await PodWatch.start(admin, namespace);
  await Promise.all(nodes.map((name) => untilNodeReady(admin, name)));
  const idle = async (of: string) => {
    // What a start or pods have left to be sent.
    await sleep(15_000);
    const before = await requests(cluster);
    const [own, server] = await Promise.all([usage(pids, IDLE_S), usage(apiServer, IDLE_S)]);
    const sent = (await requests(cluster)) - before;
    printFigure(`${what}, ${of}: memory together; of a core`, `${mib(own.rssMiB)}; ${own.cpuPercent.toFixed(1)} %`);
    printFigure(
      "  the API server: memory; of a core; requests a second, all clients'",
      `${mib(server.rssMiB)}; ${server.cpuPercent.toFixed(1)} %; ${(sent / IDLE_S).toFixed(1)}`,
    );
  };
  const perPod = (before: readonly [number, number]) =>
    [pids, apiServer]
      .map((of, index) => `${(((cpuSeconds(of) - before[index]!) / pods) * 1000).toFixed(2)} ms`)
      .join(", ");
  const cpuNow = (): [number, number] => [cpuSeconds(pids), cpuSeconds(apiServer)];

  await idle("no pods");
  const podNodes = new Map(
    Array.from({ length: pods }, (_, index) => [`bound-${index}`, nodes[index % nodes.length]!]),
  );
  const podNames = [...podNodes.keys()];
  let [before, since] = [cpuNow(), performance.now()];
  const path = `/api/v1/namespaces/${namespace}/pods`;
  await inParallel([...podNodes], ([name, node]) => admin.create(path, benchPod(name, node)));
  await watch.all("runningAt", podNames, 60_000 + pods * 100);
  printFigure(`  ${pods} pods created and Running`, `${(pods / ((performance.now() - since) / 1000)).toFixed(0)}/s`);
  printFigure("  CPU a pod: agents, API server", perPod(before));
  await idle(`${pods} pods`);
  [before, since] = [cpuNow(), performance.now()];
  await inParallel(podNames, (name) => deletePod(admin, namespace, name));
  await watch.all("goneAt", podNames, 60_000 + pods * 100);
  printFigure(`  deletion of ${pods}`, `${(pods / ((performance.now() - since) / 1000)).toFixed(0)}/s`);
  printFigure("  CPU a pod: agents, API server", perPod(before));
}

/** That the API server has answered so far, watches left out. */
async function requests({ admin }: Cluster): Promise<number> {
  const text = await admin.text("/metrics");
  let sum = 0;
  for (const [, labels, value] of text.matchAll(/^apiserver_request_total\{([^}]*)\} (\S+)$/gm))
    if (!labels!.includes('verb="WATCH"')) sum += Number(value);
  return sum;
}

/** What is returned starts one process with these nodes. */
async function starter(cluster: Cluster): Promise<(nodes: readonly string[]) => Promise<AgentProcess>> {
  const kubeconfig = await cluster.userKubeconfig("bench-many", ["system:masters"]);
  const image = await imageCommand(here);
  const provider = { type: "memory" };
  const capacity = { cpu: "1000", memory: "10000Gi", pods: "50000" };
  return async ([nodeName, ...others]) =>
    startAgent({
      ...{
        sandbox: cluster.sandbox,
        kubeconfig,
        nodeName: nodeName!,
        provider,
        identity: "direct",
        node: { capacity },
      },
      otherNodes: await Promise.all(
        others.map(async (name) => ({ name, provider, capacity, kubelet: { port: await freePort() } })),
      ),
      config: { logLevel: "warn", api: { qps: 5000, burst: 5000 } },
      main: join(here, "dist/src/cli/main.js"),
      ...image,
    });
}

const nodesOf = (prefix: string, count: number): string[] =>
  Array.from({ length: count }, (_, index) => `${prefix}-${index}`);
const mib = (value: number): string => `${value.toFixed(0)} MiB`;
