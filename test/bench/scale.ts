/**
 * What a node of very many pods goes through: their start, churn, restarts of the agent and of the API server, failover
 * to a standby, deletion. The machines are another process's (the Machine API in front of the in-process provider), for
 * they have to outlive the agent. After each event, what counts is how soon one more pod runs.
 */
import { join } from "node:path";
import { startAgent, type AgentProcess } from "../e2e/harness/agent.ts";
import type { Cluster } from "../e2e/harness/cluster.ts";
import { clientOf } from "../e2e/harness/client.ts";
import { freePort } from "../e2e/harness/ports.ts";
import { createSandbox, failWhenExited, type Sandbox } from "../e2e/harness/processes.ts";
import { waitFor } from "../e2e/harness/wait.ts";
import {
  benchPod,
  cpuSeconds,
  createNamespace,
  deletePod,
  formatMs,
  inParallel,
  PodWatch,
  printFigure,
  steadyCreation,
  untilNodeReady,
  usage,
} from "./measure.ts";
import { imageCommand } from "./targets.ts";

const NODE = "bench-scale";
const CHURN = { count: 300, perSecond: 20 };
const here = join(import.meta.dirname, "../..");

export async function scale(cluster: Cluster, pods: number): Promise<void> {
  const { admin } = cluster;
  // Two agents of one node: each has a folder of its own.
  await using standbySandbox = await createSandbox("bench-standby");
  const start = await agents(cluster);
  const namespace = await createNamespace(admin, NODE);
  const path = `/api/v1/namespaces/${namespace}/pods`;
  let watch = await PodWatch.start(admin, namespace);
  const elsewhere = await createNamespace(admin, `${NODE}-elsewhere`);
  const timeoutMs = 120_000 + pods * 100;
  const names = Array.from({ length: pods }, (_, index) => `bound-${index}`);

  let extra = 0;
  /** Milliseconds from `since` until a pod runs that is created by now. */
  const oneMore = async (since: number, of = namespace, seenBy = watch) => {
    const name = `one-more-${extra++}`;
    await admin.create(`/api/v1/namespaces/${of}/pods`, benchPod(name, NODE));
    await seenBy.all("runningAt", [name], timeoutMs);
    return seenBy.runningAt.get(name)! - since;
  };
  const perPod = (seconds: number) => `${((seconds / pods) * 1000).toFixed(2)} ms a pod`;

  let agent = await start(cluster.sandbox);
  await untilNodeReady(admin, NODE);
  const idle = await usage([agent.pid], 2);
  printFigure("agent without pods", `${idle.rssMiB.toFixed(0)} MiB`);

  let cpu = cpuSeconds([agent.pid]);
  let since = performance.now();
  const creating = inParallel(names, (name) => admin.create(path, benchPod(name, NODE)));
  await watch.all("runningAt", names.slice(0, Math.ceil(pods / 2)), timeoutMs);
  {
    await using seenBy = await PodWatch.start(admin, elsewhere);
    const after = await oneMore(performance.now(), elsewhere, seenBy);
    printFigure("one more of another namespace, while the others are created", formatMs(after));
  }
  printFigure("one more of theirs, behind them", formatMs(await oneMore(performance.now())));
  await creating;
  await watch.all("runningAt", names, timeoutMs);
  const startSeconds = (performance.now() - since) / 1000;
  printFigure(`created and Running, ${pods} pods`, `${(pods / startSeconds).toFixed(0)}/s`);
  printFigure("CPU of that", perPod(cpuSeconds([agent.pid]) - cpu));
  printFigure("agent with all", `${(await usage([agent.pid], 5)).rssMiB.toFixed(0)} MiB`);

  const { latencies, names: churned } = await steadyCreation({
    client: admin,
    namespace,
    nodeName: NODE,
    watch,
    ...CHURN,
    timeoutMs,
  });
  printFigure(`creation at ${CHURN.perSecond}/s, p50 / p99`, `${formatMs(latencies.p50)} / ${formatMs(latencies.p99)}`);
  since = performance.now();
  await inParallel(churned, (name) => deletePod(admin, namespace, name));
  await watch.all("goneAt", churned, timeoutMs);
  printFigure(`deletion of these ${CHURN.count}`, formatMs(performance.now() - since));

  since = performance.now();
  await agent.restart("SIGKILL");
  const readyAt = performance.now();
  printFigure("agent killed: ready again after", formatMs(readyAt - since));
  printFigure("one more, from then on", formatMs(await oneMore(readyAt)));

  // It would end with the API server.
  await watch[Symbol.asyncDispose]();
  await cluster.restartApiServer();
  const servesAt = performance.now();
  watch = await PodWatch.start(admin, namespace);
  printFigure("API server killed: one more, from when it serves", formatMs(await oneMore(servesAt)));
  await agent.stop();

  const electing = { leaderElection: { enabled: true } };
  agent = await start(cluster.sandbox, electing);
  await untilNodeReady(admin, NODE);
  const standby = await start(standbySandbox, electing);
  await oneMore(performance.now());
  await agent.kill("SIGKILL");
  printFigure("leader killed, lease of 15 s: one more after", formatMs(await oneMore(performance.now())));

  cpu = cpuSeconds([standby.pid]);
  since = performance.now();
  await inParallel(names, (name) => deletePod(admin, namespace, name));
  await watch.all("goneAt", names, timeoutMs);
  printFigure(`deletion of ${pods}`, `${(pods / ((performance.now() - since) / 1000)).toFixed(0)}/s`);
  printFigure("CPU of that", perPod(cpuSeconds([standby.pid]) - cpu));
  await standby.stop();
  await watch[Symbol.asyncDispose]();
}

/** Starts the Machine API; what is returned starts an agent before it. */
async function agents(cluster: Cluster): Promise<(sandbox: Sandbox, config?: object) => Promise<AgentProcess>> {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const api = cluster.sandbox.spawn("machine-api", process.execPath, [
    join(import.meta.dirname, "machine-api.ts"),
    String(port),
  ]);
  await Promise.race([failWhenExited(api), waitFor({ what: "the Machine API" }, () => clientOf(url).get("/v1/info"))]);
  const kubeconfig = await cluster.userKubeconfig(NODE, ["system:masters"]);
  const image = await imageCommand(here);
  return (sandbox, config = {}) =>
    startAgent({
      sandbox,
      kubeconfig,
      nodeName: NODE,
      provider: { type: "http-vm", url, requestsPerSecond: 5000 },
      identity: "direct",
      node: { capacity: { cpu: "1000", memory: "10000Gi", pods: "50000" } },
      config: { logLevel: "warn", api: { qps: 5000, burst: 5000 }, ...config },
      main: join(here, "dist/src/cli/main.js"),
      ...image,
    });
}
