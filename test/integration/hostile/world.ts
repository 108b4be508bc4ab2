/**
 * One agent with two nodes, each with a backend of its own, as processes; an API server in this process. Two tenants: one that does
 * its worst, in namespaces of its own for each case, and a neighbour, who notices nothing.
 */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { hostAddress, restartable, startBackend, type RestartableProcess } from "../../e2e/harness/agent.ts";
import { clientOf, type Client, type Json } from "../../e2e/harness/client.ts";
import { writeKubeconfig } from "../../e2e/harness/kubeconfig.ts";
import { freePorts } from "../../e2e/harness/ports.ts";
import { createSandbox, type Sandbox } from "../../e2e/harness/processes.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { startApiProxy, type ApiProxy } from "./api-proxy.ts";
import type { Place } from "./exec.ts";
import { watchPulse, type Pulse } from "./pulse.ts";

/** `memory` can nearly all that a pod may ask for; `process` runs real processes, whose streams can be filled. */
export const NODES = ["memory", "process"] as const;
export type NodeName = (typeof NODES)[number];

/** What the chart gives the agent (values.yaml, `resources.limits.memory`), in bytes. */
export const MEMORY_LIMIT = 512 * 2 ** 20;
/** What Node.js takes for its heap where that is the limit: half of it. Without a limit it would never be short of memory here. */
const HEAP_MIB = 256;

export interface World extends AsyncDisposable {
  readonly client: Client;
  readonly api: Place;
  readonly proxy: ApiProxy;
  readonly agent: RestartableProcess;
  readonly pulse: Pulse;
  /** Greatest memory that the agent has ever had, in bytes. */
  agentPeakMemory(): Promise<number>;
  /** Where somebody without credentials can knock. */
  readonly ports: { kubelets: Record<NodeName, number>; health: number; machineApi: number };
  createNamespace(name: string): Promise<void>;
}

export async function startWorld(): Promise<World> {
  const sandbox = await createSandbox("hostile");
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

async function furnish(sandbox: Sandbox, cluster: DevCluster, proxy: ApiProxy): Promise<World> {
  const client = clientOf(cluster.url, { token: cluster.token });
  const [health, memoryKubelet, processKubelet, machineApi] = (await freePorts(4)) as [number, number, number, number];
  const kubelets = { memory: memoryKubelet, process: processKubelet };
  const memoryUrl = `http://127.0.0.1:${machineApi}`;
  sandbox.spawn("memory-backend", process.execPath, [
    join(import.meta.dirname, "memory-backend.ts"),
    String(machineApi),
  ]);
  const backend = await startBackend({ sandbox });
  const providers = { memory: { type: "http-vm", url: memoryUrl }, process: backend.provider };
  const config = join(sandbox.dir, "agent.yaml");
  await writeFile(
    config,
    JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "AgentConfig",
      clusterId: "hostile",
      kubeconfig: await writeKubeconfig(join(sandbox.dir, "kubeconfig"), { url: proxy.url }, { token: cluster.token }),
      logLevel: "info",
      health: { address: "127.0.0.1", port: health },
      nodes: NODES.map((name) => ({
        name,
        provider: providers[name],
        addresses: [hostAddress()],
        capacity: { cpu: "1k", memory: "1Ti", pods: "10k", "ephemeral-storage": "10Ti" },
        kubelet: { address: "0.0.0.0", port: kubelets[name] },
      })),
    }),
  );
  const healthClient = clientOf(`http://127.0.0.1:${health}`);
  const memoryClient = clientOf(memoryUrl);
  await waitFor({ what: "the backend of node memory" }, () => memoryClient.get("/v1/info"));
  const env = { ...process.env, NODE_OPTIONS: `--max-old-space-size=${HEAP_MIB}` };
  const agent = restartable(sandbox, "agent", ["run", "--config", config], () => healthClient.text("/readyz"), {
    env,
  });
  await agent.start();
  const pulse = watchPulse({ client, nodeNames: NODES, livez: () => healthClient.text("/livez"), agent });
  await waitFor({ what: "both nodes to be Ready" }, () => must(pulse.ready, pulse.takeFaults()));

  return {
    client,
    api: { url: cluster.url, token: cluster.token },
    proxy,
    agent,
    pulse,
    ports: { kubelets, health, machineApi },
    async agentPeakMemory() {
      const status = await readFile(`/proc/${agent.pid}/status`, "utf8");
      return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)![1]) * 1024;
    },
    async createNamespace(name) {
      await client.create("/api/v1/namespaces", { metadata: { name } });
      await waitFor({ what: `the default ServiceAccount of ${name}` }, () =>
        client.get(`/api/v1/namespaces/${name}/serviceaccounts/default`),
      );
    },
    async [Symbol.asyncDispose]() {
      await pulse.stop();
      await sandbox.close();
      for (const each of [client, healthClient, memoryClient, backend.client]) each.close();
      await proxy.close();
      await cluster.close();
    },
  };
}

/** A pod for one of the nodes, which ends at once when it is asked to. */
export function podOn(node: NodeName, spec: Json): Json {
  return {
    nodeName: node,
    restartPolicy: "Never",
    terminationGracePeriodSeconds: 1,
    tolerations: [{ operator: "Exists" }],
    ...spec,
  };
}
