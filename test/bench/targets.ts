/** The agents that the bench measures: vmlet in its variants, and the peers. */
import { readFile, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { buildKwok, buildVirtualKubelet } from "../e2e/harness/build.ts";
import type { Cluster } from "../e2e/harness/cluster.ts";
import { startAgent, startBackend, type AgentProcess } from "../e2e/harness/agent.ts";
import { clientOf, HttpError, type Json } from "../e2e/harness/client.ts";
import { freePort } from "../e2e/harness/ports.ts";
import { failWhenExited, type ManagedProcess, type Sandbox } from "../e2e/harness/processes.ts";
import { waitFor } from "../e2e/harness/wait.ts";

/** `npm run bench` builds it first: what users run is compiled, as the peers are. */
const here = join(import.meta.dirname, "../..");

export interface Target {
  readonly name: string;
  readonly nodeName: string;
  /** What has to be there before the agent: built programs, credentials, a backend. Not timed. */
  prepare(cluster: Cluster): Promise<void>;
  /** Starts the agent; timed. */
  startAgent(): Promise<void>;
  stopAgent(): Promise<void>;
  /** Rejects when the agent that was started last ends; never resolves. */
  failed(): Promise<never>;
  /** The agent's processes, without its backend. */
  pids(): number[];
  /** The backend's processes, where there is one outside the agent. */
  backendPids(): number[];
  /** Stops everything. */
  close(): Promise<void>;
}

/** kwok 0.7: invents the statuses of pods by itself and calls no backend at all. */
export function kwok(): Target {
  const nodeName = "bench-kwok";
  let cluster: Cluster;
  let binary: string;
  let kubeconfig: string;
  let agent: ManagedProcess | undefined;
  return {
    name: "kwok 0.7",
    nodeName,
    async prepare(where) {
      cluster = where;
      binary = await buildKwok();
      kubeconfig = await cluster.userKubeconfig("bench-kwok", ["system:masters"]);
      await cluster.admin.create("/api/v1/nodes", {
        metadata: { name: nodeName, annotations: { "kwok.x-k8s.io/node": "fake" } },
      });
    },
    async startAgent() {
      // Every start of kwok is another lease holder and would wait 40 s for the lease of the one before to run out.
      await cluster.admin
        .delete(`/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/${nodeName}`)
        .catch(ignoreAbsence);
      agent = cluster.sandbox.spawn("kwok", binary, [
        `--kubeconfig=${kubeconfig}`,
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        `--server-address=127.0.0.1:${await freePort()}`,
      ]);
    },
    async stopAgent() {
      await agent?.stop();
    },
    failed: () => failWhenExited(agent!),
    pids: () => (agent ? [agent.pid] : []),
    backendPids: () => [],
    async close() {
      await agent?.stop();
      await cluster.admin.delete(`/api/v1/nodes/${nodeName}`);
    },
  };
}

/** virtual-kubelet 1.13 with its mock provider and its default settings. */
export function virtualKubelet(): Target {
  const nodeName = "bench-virtual-kubelet";
  let cluster: Cluster;
  let binary: string;
  let kubeconfig: string;
  let providerConfig: string;
  let serving: { certFile: string; keyFile: string };
  let agent: ManagedProcess | undefined;
  return {
    name: "virtual-kubelet 1.13",
    nodeName,
    async prepare(where) {
      cluster = where;
      binary = await buildVirtualKubelet();
      kubeconfig = await cluster.userKubeconfig("bench-virtual-kubelet", ["system:masters"]);
      serving = await cluster.clientCertificate("bench-virtual-kubelet-serving");
      providerConfig = join(cluster.sandbox.dir, "virtual-kubelet.json");
      await writeFile(providerConfig, JSON.stringify({ [nodeName]: { cpu: "100", memory: "1000Gi", pods: "20000" } }));
    },
    async startAgent() {
      agent = cluster.sandbox.spawn(
        "virtual-kubelet",
        binary,
        ["--provider", "mock", "--provider-config", providerConfig, "--nodename", nodeName, "--disable-taint"],
        {
          env: {
            PATH: process.env["PATH"],
            KUBECONFIG: kubeconfig,
            APISERVER_CERT_LOCATION: serving.certFile,
            APISERVER_KEY_LOCATION: serving.keyFile,
            VKUBELET_POD_IP: "127.0.0.1",
            KUBELET_PORT: String(await freePort()),
          },
        },
      );
    },
    async stopAgent() {
      await agent?.stop();
    },
    failed: () => failWhenExited(agent!),
    pids: () => (agent ? [agent.pid] : []),
    backendPids: () => [],
    async close() {
      await agent?.stop();
    },
  };
}

/** What an agent that costs nothing would leave to all others: see `least.ts`. */
export function least(): Target {
  const nodeName = "bench-least";
  let sandbox: Sandbox;
  let kubeconfig: string;
  let agent: ManagedProcess | undefined;
  return {
    name: "least",
    nodeName,
    async prepare(cluster) {
      sandbox = cluster.sandbox;
      kubeconfig = await cluster.userKubeconfig(nodeName, ["system:masters"]);
      await cluster.admin.create("/api/v1/nodes", { metadata: { name: nodeName } });
    },
    async startAgent() {
      agent = sandbox.spawn("least", process.execPath, [join(import.meta.dirname, "least.ts"), kubeconfig, nodeName]);
    },
    async stopAgent() {
      await agent?.stop();
    },
    failed: () => failWhenExited(agent!),
    pids: () => (agent ? [agent.pid] : []),
    backendPids: () => [],
    async close() {
      await agent?.stop();
    },
  };
}

function ignoreAbsence(error: unknown): void {
  if (!(error instanceof HttpError && error.status === 404)) throw error;
}

/**
 * vmlet, this checkout's or an older one's that was built. `memory`: the provider in the agent's own process. `http`: the same provider behind the Machine API in another
 * process. `process`: the reference backend, which starts a real process for every container.
 */
export function vmlet(variant: "memory" | "http" | "process", checkout?: string): Target {
  const nodeName = checkout === undefined ? `bench-vmlet-${variant}` : `bench-vmlet-${variant}-against`;
  let sandbox: Sandbox;
  let start: () => Promise<AgentProcess>;
  let agent: AgentProcess | undefined;
  let backendPid: number | undefined;
  return {
    name: checkout === undefined ? `vmlet (${variant})` : `vmlet (${variant}) of ${basename(checkout)}`,
    nodeName,
    async prepare(cluster) {
      sandbox = cluster.sandbox;
      let provider: Json = { type: "memory" };
      if (variant === "http") {
        const port = await freePort();
        const url = `http://127.0.0.1:${port}`;
        const api = sandbox.spawn("machine-api", process.execPath, [
          join(checkout ?? here, "test/bench/machine-api.ts"),
          String(port),
        ]);
        backendPid = api.pid;
        await Promise.race([
          failWhenExited(api),
          waitFor({ what: "the Machine API" }, () => clientOf(url).get("/v1/info")),
        ]);
        provider = { type: "http-vm", url, ...unlimited };
      } else if (variant === "process") {
        const backend = await startBackend({ sandbox });
        backendPid = backend.pid;
        provider = { ...backend.provider, ...unlimited };
      }
      const kubeconfig = await cluster.userKubeconfig(nodeName, ["system:masters"]);
      const image = await imageCommand(checkout ?? here);
      start = () =>
        startAgent({
          sandbox,
          kubeconfig,
          nodeName,
          provider,
          identity: "direct",
          node: { capacity: { cpu: "100", memory: "1000Gi", pods: "20000" } },
          // The peers limit themselves to what their defaults say; kwok's defaults do not limit it at all.
          config: { logLevel: "warn", api: { qps: 5000, burst: 5000 } },
          main: join(checkout ?? here, "dist/src/cli/main.js"),
          ...image,
        });
    },
    async startAgent() {
      agent = await start();
    },
    async stopAgent() {
      await agent?.stop();
    },
    failed: () => agent!.failed(),
    pids: () => (agent ? [agent.pid] : []),
    backendPids: () => (backendPid === undefined ? [] : [backendPid]),
    async close() {
      await agent?.stop();
    },
  };
}

/** How the agent's image starts Node: what users run is that. */
export async function imageCommand(checkout: string): Promise<{ nodeFlags: string[]; env: NodeJS.ProcessEnv }> {
  const dockerfile = await readFile(join(checkout, "Dockerfile"), "utf8");
  const agent = dockerfile.slice(dockerfile.search(/^FROM .* AS agent$/m));
  const command = JSON.parse(/^ENTRYPOINT (\[.*\])$/m.exec(agent)![1]!) as string[];
  const env = Object.fromEntries([...agent.matchAll(/^ENV (\w+)=(\S+)$/gm)].map(([, name, value]) => [name, value]));
  return { nodeFlags: command.slice(1, -1), env };
}

/** Limits of the client that would be measured instead of the agent. */
const unlimited = { requestsPerSecond: 5000 };
