/** The chart as `helm install` puts it into a cluster, and its programs run with exactly what it rendered: configuration, arguments, identity. */
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parse, stringify } from "yaml";
import { hostAddress } from "./harness/agent.ts";
import { helmBinary } from "./harness/binaries.ts";
import { clientOf, type Json } from "./harness/client.ts";
import type { Cluster } from "./harness/cluster.ts";
import { runCommand, tryCommand, type CommandResult } from "./harness/exec.ts";
import { writeKubeconfig } from "./harness/kubeconfig.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { freePort } from "./harness/ports.ts";
import { failWhenExited, type ManagedProcess } from "./harness/processes.ts";
import { waitFor } from "./harness/wait.ts";

const chart = join(import.meta.dirname, "../../helm/vmlet");
const program = join(import.meta.dirname, "../../src/cli/main.ts");

export interface Installation {
  readonly release: string;
  readonly namespace: string;
  /** The agent's configuration, from its ConfigMap. */
  readonly config: Json;
  /** The chart's hooks: what `helm test` and `helm uninstall` would create. */
  readonly hooks: Json[];
  readonly kubectl: Kubectl;
  /** A kubeconfig with a token of one of the chart's ServiceAccounts, as the pod would mount it. */
  credentials(account: string, as?: { user: string; groups: readonly string[] }): Promise<string>;
  startAgent(options?: { secondReplica?: boolean }): Promise<AgentReplica>;
  /** Creates the identity that a hook's pod has, and runs its container's arguments to the end. */
  runHook(name: string, changeArgs?: (args: string[]) => string[]): Promise<CommandResult>;
}

export interface AgentReplica {
  readonly process: ManagedProcess;
  readonly kubeletPort: number;
  readonly healthUrl: string;
}

/** `values` lack what depends on the host: ports are added to the first node. */
export async function installChart(cluster: Cluster, release: string, values: Json): Promise<Installation> {
  const namespace = "vmlet-system";
  const dir = await mkdtemp(join(cluster.sandbox.dir, `${release}-`));
  const [first, ...others] = values.nodes as Json[];
  const nodes = [{ ...first, kubelet: { ...first.kubelet, port: await freePort() } }, ...others];
  const valuesFile = join(dir, "values.json");
  await writeFile(valuesFile, JSON.stringify({ ...values, health: { port: await freePort() }, nodes }));
  const helm = await helmBinary();
  const env = { PATH: process.env["PATH"], KUBECONFIG: cluster.adminKubeconfig, HOME: tmpdir() };
  await runCommand(
    helm,
    ["install", release, chart, "--namespace", namespace, "--create-namespace", "--values", valuesFile],
    { env },
  );
  const { stdout } = await runCommand(helm, ["get", "hooks", release, "--namespace", namespace], { env });
  const hooks = stdout
    .split(/^---$/m)
    .map((text) => parse(text))
    .filter((object) => object !== null);
  const name = `${release}-vmlet`;
  const { data } = await cluster.admin.get(`/api/v1/namespaces/${namespace}/configmaps/${name}`);
  const config = parse(data["vmlet.yaml"]);
  const kubectl = await createKubectl(cluster.adminKubeconfig);
  let serial = 0;

  const credentials: Installation["credentials"] = async (account, as) => {
    const token = (await kubectl.run(["create", "token", account, "--namespace", namespace, "--duration=1h"])).trim();
    return writeKubeconfig(join(dir, `${account}-${serial++}.kubeconfig`), cluster, { token }, as);
  };

  return {
    release,
    namespace,
    config,
    hooks,
    kubectl,
    credentials,
    async startAgent({ secondReplica = false } = {}) {
      const own = structuredClone(config);
      if (secondReplica) {
        // Replicas have a network namespace each; here they share one.
        own.health.port = await freePort();
        own.nodes[0].kubelet.port = await freePort();
      }
      const replica = `${release}-agent-${serial++}`;
      const file = join(dir, `${replica}.yaml`);
      await writeFile(file, secondReplica ? stringify(own) : data["vmlet.yaml"]);
      const child = cluster.sandbox.spawn(replica, process.execPath, [program, "run", "--config", file], {
        env: {
          PATH: process.env["PATH"],
          VMLET_KUBECONFIG: await credentials(name),
          // As the Deployment sets it from status.podIPs.
          VMLET_NODE_ADDRESS: hostAddress(),
          VMLET_LOG_LEVEL: "debug",
        },
      });
      const healthUrl = `http://127.0.0.1:${own.health.port}`;
      const health = clientOf(healthUrl);
      const ready = new AbortController();
      try {
        await Promise.race([
          failWhenExited(child),
          waitFor(
            { what: `${replica} to be ready (log: ${child.logFile})`, timeoutMs: 60_000, signal: ready.signal },
            () => health.text("/readyz"),
          ),
        ]);
      } finally {
        ready.abort();
        health.close();
      }
      return { process: child, kubeletPort: own.nodes[0].kubelet.port, healthUrl };
    },
    async runHook(hookName, changeArgs = (args) => args) {
      const hook = hooks.find((each) => ["Pod", "Job"].includes(each.kind) && each.metadata.name === hookName);
      if (!hook)
        throw new Error(`the chart has no hook ${hookName}: ${hooks.map((each) => each.metadata.name).join()}`);
      const spec = hook.spec.template?.spec ?? hook.spec;
      const kind = hook.metadata.annotations["helm.sh/hook"];
      const identity = hooks.filter(
        (each) => !["Pod", "Job"].includes(each.kind) && each.metadata.annotations["helm.sh/hook"].includes(kind),
      );
      await kubectl.run(["apply", "--filename", "-"], { input: identity.map((each) => stringify(each)).join("---\n") });
      const kubeconfig = await credentials(spec.serviceAccountName);
      return tryCommand(process.execPath, [program, ...changeArgs(spec.containers[0].args)], {
        env: { PATH: process.env["PATH"], KUBECONFIG: kubeconfig, HOME: dir },
      });
    },
  };
}
