/** devcluster in this process, machines that are only remembered in another, and an agent between them that can be killed. */
import { join } from "node:path";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { recordHistory, type History } from "../../e2e/cases/history.ts";
import { startAgent, type AgentOptions, type AgentProcess } from "../../e2e/harness/agent.ts";
import { clientOf, type Client, type Json } from "../../e2e/harness/client.ts";
import { writeKubeconfig } from "../../e2e/harness/kubeconfig.ts";
import { freePort } from "../../e2e/harness/ports.ts";
import { createSandbox, type Sandbox } from "../../e2e/harness/processes.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { startApiProxy, type ApiProxy } from "../hostile/api-proxy.ts";

export const NODE = "burst-0";
/** Far beyond what anything here takes on a busy machine. */
const PATIENCE_MS = 60_000;

export interface Place extends AsyncDisposable {
  readonly cluster: DevCluster;
  readonly client: Client;
  /** Between the agent and its API server. */
  readonly proxy: ApiProxy;
  readonly history: History;
  startAgent(options?: Pick<AgentOptions, "env" | "config">): Promise<AgentProcess>;
  /** Tombstones left out. */
  machines(): Promise<Json[]>;
  createNamespace(name: string): Promise<void>;
  createPod(namespace: string, name: string, change?: Json): Promise<Json>;
  pods(namespace?: string): Promise<Json[]>;
  /** The value of an agent's metric that has no labels; NaN when there is none. */
  metric(agent: AgentProcess, name: string): Promise<number>;
  /** Waits until all pods of the namespace run, and returns them. */
  untilAllRun(namespace: string): Promise<Json[]>;
}

export async function startPlace(): Promise<Place> {
  const sandbox = await createSandbox("agent");
  const cluster = await startDevCluster({ clock: systemClock, logger: silentLogger, tls: false });
  const proxy = await startApiProxy(cluster.url);
  try {
    return await furnish(sandbox, cluster, proxy);
  } catch (thrown) {
    await sandbox.close();
    await proxy.close();
    await cluster.close();
    throw thrown;
  }
}

async function furnish(sandbox: Sandbox, cluster: DevCluster, proxy: ApiProxy): Promise<Place> {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const program = join(import.meta.dirname, "../hostile/memory-backend.ts");
  sandbox.spawn("memory-backend", process.execPath, [program, String(port)]);
  const backend = clientOf(url);
  await waitFor({ what: "the backend" }, () => backend.get("/v1/info"));
  const client = clientOf(cluster.url, { token: cluster.token });
  const kubeconfig = await writeKubeconfig(
    join(sandbox.dir, "kubeconfig"),
    { url: proxy.url },
    { token: cluster.token },
  );
  const machines = async () => {
    const all: Json[] = [];
    for (let from = ""; ;) {
      const page: Json = await backend.get(`/v1/machines?limit=500${from}`);
      all.push(...page.items);
      if (!page.next_cursor) return all;
      from = `&cursor=${encodeURIComponent(page.next_cursor as string)}`;
    }
  };
  const pods = async (namespace?: string): Promise<Json[]> =>
    (await client.get(namespace === undefined ? "/api/v1/pods" : `/api/v1/namespaces/${namespace}/pods`)).items;
  const history = await recordHistory({ client, machines });
  return {
    cluster,
    client,
    proxy,
    history,
    machines,
    pods,
    startAgent: ({ env, config } = {}) =>
      startAgent({
        sandbox,
        kubeconfig,
        nodeName: NODE,
        provider: { type: "http-vm", url },
        identity: "direct",
        config: { logLevel: "info", ...config },
        env,
      }),
    async createNamespace(name) {
      await client.create("/api/v1/namespaces", { metadata: { name } });
    },
    createPod: (namespace, name, { metadata, spec }: Json = {}) =>
      client.create(`/api/v1/namespaces/${namespace}/pods`, {
        metadata: { name, ...metadata },
        spec: {
          nodeName: NODE,
          terminationGracePeriodSeconds: 1,
          tolerations: [{ operator: "Exists" }],
          containers: [{ name: "main", image: "busybox", command: ["sh", "-c", "sleep 1000"] }],
          ...spec,
        },
      }),
    async metric({ healthUrl }, name) {
      const health = clientOf(healthUrl);
      try {
        const lines = (await health.text("/metrics")).split("\n");
        return Number(lines.find((line) => line.startsWith(`${name} `))?.slice(name.length));
      } finally {
        health.close();
      }
    },
    untilAllRun: (namespace) =>
      waitFor({ what: `the pods of ${namespace} to run`, timeoutMs: PATIENCE_MS }, async () => {
        const all = await pods(namespace);
        const waiting = all.filter(({ metadata, status }) => metadata.deletionTimestamp || status.phase !== "Running");
        must(
          waiting.length === 0,
          waiting.slice(0, 3).map(({ metadata, status }) => [metadata.name, metadata.deletionTimestamp, status]),
        );
        return all;
      }),
    async [Symbol.asyncDispose]() {
      await history.stop();
      await sandbox.close();
      for (const each of [client, backend]) each.close();
      await proxy.close();
      await cluster.close();
    },
  };
}
