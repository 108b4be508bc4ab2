/** The chart as `helm install` puts it into a cluster, and its programs run with exactly what it rendered: configuration, arguments, identity. */
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parse, parseAllDocuments, stringify } from "yaml";
import { connect } from "../../src/agent/agent.ts";
import { checkPermissions } from "../../src/cli/check.ts";
import { Report } from "../../src/cli/report.ts";
import { parseConfig } from "../../src/config/load.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { hostAddress, restartable, type AgentProcess } from "./harness/agent.ts";
import { helmBinary } from "./harness/binaries.ts";
import { clientOf, type Json } from "./harness/client.ts";
import type { Cluster } from "./harness/cluster.ts";
import { runCommand, tryCommand, type CommandResult } from "./harness/exec.ts";
import { writeKubeconfig } from "./harness/kubeconfig.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { freePort, freePorts } from "./harness/ports.ts";

const chart = join(import.meta.dirname, "../../helm/vmlet");
const program = join(import.meta.dirname, "../../src/cli/main.ts");

export interface Installation {
  readonly release: string;
  readonly namespace: string;
  /** The agent's configuration, from its ConfigMap. */
  readonly config: Json;
  /** Every object but the hooks. */
  readonly objects: Json[];
  /** The chart's hooks: what `helm test` and `helm uninstall` would create. */
  readonly hooks: Json[];
  readonly kubectl: Kubectl;
  /** A kubeconfig with a token of one of the chart's ServiceAccounts, as the pod would mount it. */
  credentials(account: string, as?: { user: string; groups: readonly string[] }): Promise<string>;
  startAgent(options?: { secondReplica?: boolean }): Promise<AgentProcess>;
  /** What `vmlet check` says of permissions, with the rendered configuration, as the agent's ServiceAccount. */
  checkPermissions(): Promise<string>;
  /** Without its hooks: what they would do is `runHook`'s. */
  uninstall(): Promise<void>;
  /** Creates the identity that a hook's pod has, and runs its container's arguments to the end. */
  runHook(name: string, changeArgs?: (args: string[]) => string[]): Promise<CommandResult>;
}

/** `values` lack what depends on the host: every node is given a port. */
export async function installChart(cluster: Cluster, release: string, values: Json): Promise<Installation> {
  const namespace = "vmlet-system";
  const dir = await mkdtemp(join(cluster.sandbox.dir, `${release}-`));
  const [port, probePort, ...ports] = await freePorts(2 + values.nodes.length);
  const nodes = (values.nodes as Json[]).map((node, index) => ({
    ...node,
    kubelet: { ...node.kubelet, port: ports[index] },
  }));
  const valuesFile = join(dir, "values.json");
  // No image is pulled here: the chart's programs run from the checkout.
  const image = { repository: "registry.example.com/vmlet" };
  await writeFile(valuesFile, JSON.stringify({ image, ...values, health: { port, probePort }, nodes }));
  const helm = await helmBinary();
  const env = { PATH: process.env["PATH"], KUBECONFIG: cluster.adminKubeconfig, HOME: tmpdir() };
  await runCommand(
    helm,
    ["install", release, chart, "--namespace", namespace, "--create-namespace", "--values", valuesFile],
    { env },
  );
  const get = async (what: "hooks" | "manifest"): Promise<Json[]> => {
    const { stdout } = await runCommand(helm, ["get", what, release, "--namespace", namespace], { env });
    return parseAllDocuments(stdout)
      .map((document) => document.toJS())
      .filter((object) => object !== null);
  };
  const [objects, hooks] = await Promise.all([get("manifest"), get("hooks")]);
  const name = `${release}-vmlet`;
  const { serviceAccountName: account } = objects.find(
    ({ kind, metadata }) => kind === "Deployment" && metadata.name === name,
  )!.spec.template.spec;
  const { data } = await cluster.admin.get(`/api/v1/namespaces/${namespace}/configmaps/${name}`);
  const config = parse(data["vmlet.yaml"]);
  const kubectl = await createKubectl(cluster.adminKubeconfig);
  let serial = 0;
  let checker: string | undefined;

  const credentials: Installation["credentials"] = async (whose, as) => {
    const token = (await kubectl.run(["create", "token", whose, "--namespace", namespace, "--duration=1h"])).trim();
    return writeKubeconfig(join(dir, `${whose}-${serial++}.kubeconfig`), cluster, { token }, as);
  };

  return {
    release,
    namespace,
    config,
    objects,
    hooks,
    kubectl,
    credentials,
    async startAgent({ secondReplica = false } = {}) {
      const own = structuredClone(config);
      if (secondReplica) {
        // Replicas have a network namespace each; here they share one.
        [own.health.port, own.health.probePort] = [await freePort(), await freePort()];
        for (const node of own.nodes) node.kubelet.port = await freePort();
      }
      const replica = `${release}-agent-${serial++}`;
      const file = join(dir, `${replica}.yaml`);
      await writeFile(file, secondReplica ? stringify(own) : data["vmlet.yaml"]);
      const healthUrl = `http://127.0.0.1:${own.health.port}`;
      const health = clientOf(healthUrl);
      const agent = restartable(cluster.sandbox, replica, ["run", "--config", file], () => health.text("/readyz"), {
        env: {
          PATH: process.env["PATH"],
          VMLET_KUBECONFIG: await credentials(account),
          // As the Deployment sets it from status.podIPs.
          VMLET_NODE_ADDRESS: hostAddress(),
          VMLET_LOG_LEVEL: "debug",
        },
      });
      await agent.start();
      return Object.assign(agent, { healthUrl, kubeletPort: own.nodes[0].kubelet.port as number });
    },
    async checkPermissions() {
      const parsed = parseConfig(data["vmlet.yaml"], "vmlet.yaml", {
        nodeAddress: hostAddress(),
        kubeconfig: (checker ??= await credentials(account)),
      });
      const [node] = parsed.nodes;
      const connection = { config: parsed, clock: systemClock, logger: silentLogger, version: "0" };
      const [kube, self] = [connect({ ...connection, node: node! }), connect(connection)];
      const lines: string[] = [];
      try {
        await checkPermissions(parsed, node!, { kube, self }, new Report({}, (line) => lines.push(line)));
      } finally {
        await Promise.all([kube.close(), self.close()]);
      }
      return lines.join("\n");
    },
    async uninstall() {
      await runCommand(helm, ["uninstall", release, "--namespace", namespace, "--no-hooks"], { env });
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
