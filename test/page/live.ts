/** A small cluster with the page on it, whose machines are plain processes of this host: what is logged and typed is real. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { KubeConfig } from "@kubernetes/client-node";
import { Agent } from "../../src/agent/agent.ts";
import { ownMachines } from "../../src/cli/dev-own-machines.ts";
import { openPage } from "../../src/cli/page.ts";
import { createProvider } from "../../src/cli/providers.ts";
import { parseConfig } from "../../src/config/load.ts";
import { startDevCluster } from "../../src/devcluster/index.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { systemRandom } from "../../src/util/random.ts";
import { connect } from "../e2e/fidelity/api.ts";
import { create, podWhen, PODS } from "../integration/devcluster/support.ts";

export interface Live extends AsyncDisposable {
  url: string;
  /** Runs each script once in a container of its name; resolves when the pod runs. */
  run(pod: string, scripts: Record<string, string>): Promise<void>;
}

const shared = { clock: systemClock, random: systemRandom, logger: silentLogger };

export async function openLive(): Promise<Live> {
  const stateDir = mkdtempSync(join(tmpdir(), "vmlet-page-"));
  const machines = await ownMachines("process", {
    ...{ stateDir, standIns: false, isForgotten: true, logger: silentLogger },
  });
  const cluster = await startDevCluster({
    clock: systemClock,
    logger: silentLogger,
    automountServiceAccountToken: false,
  });
  const kubeconfig = join(stateDir, "kubeconfig");
  writeFileSync(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
  const kubelet = { port: 0, address: "127.0.0.1", certificate: "self-signed" };
  const nodes = [{ name: "n", provider: machines.provider, addresses: ["127.0.0.1"], taints: [], kubelet }];
  const config = {
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    clusterId: "page",
    kubeconfig,
    health: { port: 0 },
  };
  const stop = new AbortController();
  const agent = await Agent.open({
    ...shared,
    config: parseConfig(JSON.stringify({ ...config, nodes }), "(test)"),
    createProvider: (provider, events) => createProvider(provider, { ...shared, ...events }),
    version: "1",
    signal: stop.signal,
  });
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromString(cluster.kubeConfigYaml);
  const page = await openPage({ kubeConfig, namespace: undefined, port: 0, logger: silentLogger });
  const running = Promise.all([agent.run(stop.signal), page.run(stop.signal)]);
  await agent.ready(stop.signal);
  const api = connect({ url: cluster.url, token: cluster.token, ca: cluster.caBundle! });
  return {
    url: page.url,
    async run(pod, scripts) {
      const containers = Object.entries(scripts).map(([name, script]) => ({
        ...{ name, image: "none", command: ["/bin/sh", "-c", script] },
      }));
      const spec = { containers, restartPolicy: "Never", terminationGracePeriodSeconds: 0 };
      await create(api, PODS, { metadata: { name: pod }, spec });
      await podWhen(api, pod, ({ status }) => status?.phase === "Running");
    },
    async [Symbol.asyncDispose]() {
      stop.abort(new Error("the test is over"));
      await running;
      api.close();
      await machines.remove();
      await machines.close();
      await cluster.close();
      rmSync(stateDir, { recursive: true, force: true });
    },
  };
}
