/** Builds the two environments that the cases run in. */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { startDevCluster } from "../../../src/devcluster/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { startAgent, startBackend, type AgentProcess, type BackendProcess } from "../harness/agent.ts";
import { createClient, type Json } from "../harness/client.ts";
import { startCluster, type Cluster, type ClusterOptions } from "../harness/cluster.ts";
import { createSandbox, type Sandbox } from "../harness/processes.ts";
import { chosenEngine, removeEngine } from "../../support/engines.ts";
import type { Environment } from "./environment.ts";
import { recordHistory } from "./history.ts";
import { type EngineConfig, useEngine } from "./workload.ts";

/** A backend that ends takes its runtime and its network with it. */
const STOP_MS = 20_000;

export interface StartOptions {
  nodeName?: string | undefined;
  /** What the backend runs for an image when a container names no command. */
  images?: Record<string, string[]> | undefined;
  /**
   * The backend's `engine`. Default: the one that `VMLET_TEST_ENGINE` names, else, and where `images` are commands,
   * engine `process`.
   */
  engine?: EngineConfig | undefined;
  /** Merged over the node's entry of the agent's configuration. */
  node?: object | undefined;
  cluster?: ClusterOptions | undefined;
  /** Default: an agent whose credentials may do nothing but impersonate its node, and read the client CA. */
  startAgent?:
    | ((at: { cluster: Cluster; backend: BackendProcess; nodeName: string }) => Promise<AgentProcess>)
    | undefined;
}

/** The real control plane. */
export async function startRealEnvironment(options: StartOptions = {}): Promise<Environment & { cluster: Cluster }> {
  const cluster = await startCluster(options.cluster);
  try {
    const nodeName = options.nodeName ?? "vmlet-e2e";
    const backend = await startBackendOn(cluster.sandbox, options);
    const start =
      options.startAgent ?? (() => startImpersonating({ cluster, provider: backend.provider, nodeName }, options.node));
    const agent = await start({ cluster, backend, nodeName });
    const history = await recordHistory({ client: cluster.admin, machines: backend.machines });
    return {
      cluster,
      client: cluster.admin,
      kubeconfig: cluster.adminKubeconfig,
      nodeName,
      dir: cluster.sandbox.dir,
      agent,
      backend,
      history,
      restartApiServer: () => cluster.restartApiServer(),
      async [Symbol.asyncDispose]() {
        await history.stop();
        await agent.stop();
        await backend.end();
        await cluster.stop();
      },
    };
  } catch (thrown) {
    await cluster.stop();
    throw thrown;
  }
}

/** devcluster in this process, the agent and the backend as processes of their own. */
export async function startDevEnvironment(options: StartOptions = {}): Promise<Environment> {
  const sandbox = await createSandbox("integration");
  const cluster = await startDevCluster({ clock: systemClock, logger: silentLogger });
  const stop = async () => {
    await sandbox.close();
    await cluster.close();
  };
  try {
    const nodeName = options.nodeName ?? "vmlet-dev";
    const kubeconfig = join(sandbox.dir, "admin.kubeconfig");
    await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
    const client = await createClient(kubeconfig);
    const backend = await startBackendOn(sandbox, options);
    const agent = await startAgent({
      sandbox,
      kubeconfig,
      nodeName,
      provider: backend.provider,
      node: { ...options.node },
    });
    const history = await recordHistory({ client, machines: backend.machines });
    return {
      client,
      kubeconfig,
      nodeName,
      dir: sandbox.dir,
      agent,
      backend,
      history,
      restartApiServer() {
        throw new Error("devcluster keeps its objects in memory and cannot be restarted");
      },
      async [Symbol.asyncDispose]() {
        await history.stop();
        client.close();
        await agent.stop();
        await backend.end();
        await stop();
      },
    };
  } catch (thrown) {
    await stop();
    throw thrown;
  }
}

async function startBackendOn(
  sandbox: Sandbox,
  { images, engine: asked }: StartOptions,
): Promise<BackendProcess & { end(): Promise<void> }> {
  const chosen = images === undefined ? chosenEngine("process") : "process";
  const made = asked !== undefined || chosen === "process" ? undefined : await useEngine(chosen);
  const engine = asked ?? made?.engine;
  try {
    const backend = await startBackend({ sandbox, images, engine });
    return Object.assign(backend, {
      /** With all that its engine has left on this host. */
      async end() {
        await backend.stop(STOP_MS);
        if (engine !== undefined)
          await removeEngine(engine.type, { stateDir: backend.stateDir, network: engine.network });
        await made?.stop();
      },
    });
  } catch (thrown) {
    await made?.stop();
    throw thrown;
  }
}

/** An agent whose credentials may do nothing but impersonate its node, and read the client CA. */
export async function startImpersonating(
  { cluster, provider, nodeName }: { cluster: Cluster; provider: Json; nodeName: string },
  node: object = {},
): Promise<AgentProcess> {
  await allowImpersonation(cluster, nodeName);
  return startAgent({
    sandbox: cluster.sandbox,
    kubeconfig: await cluster.userKubeconfig("vmlet-agent"),
    nodeName,
    provider,
    node: { ...node },
  });
}

/** The whole of what vmlet-agent may do; everything else it does as the node, held to the Node authorizer. */
async function allowImpersonation({ admin }: Cluster, nodeName: string): Promise<void> {
  const rbac = "/apis/rbac.authorization.k8s.io/v1";
  const subjects = [{ apiGroup: "rbac.authorization.k8s.io", kind: "User", name: "vmlet-agent" }];
  await admin.create(`${rbac}/clusterroles`, {
    metadata: { name: "vmlet-agent" },
    rules: [
      { apiGroups: [""], resources: ["users"], verbs: ["impersonate"], resourceNames: [`system:node:${nodeName}`] },
      { apiGroups: [""], resources: ["groups"], verbs: ["impersonate"], resourceNames: ["system:nodes"] },
    ],
  });
  await admin.create(`${rbac}/clusterrolebindings`, {
    metadata: { name: "vmlet-agent" },
    roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "vmlet-agent" },
    subjects,
  });
  await admin.create(`${rbac}/namespaces/kube-system/rolebindings`, {
    metadata: { name: "vmlet-agent" },
    roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "Role", name: "extension-apiserver-authentication-reader" },
    subjects,
  });
}
