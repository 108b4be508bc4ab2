/** A host is emptied: the pods of its machines move, as far as their budget allows at any time. */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { Agent } from "../../../src/agent/agent.ts";
import { loadConfig } from "../../../src/config/load.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import type { Json } from "../../e2e/harness/client.ts";
import { freePorts } from "../../e2e/harness/ports.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { create, PODS, runDevCluster } from "../devcluster/support.ts";

const LABELS = { app: "web" };
const TIMEOUT_MS = 120_000;

test("pods of machines that are about to go move one after the other, as their budget has it", async () => {
  await using cleanup = new AsyncDisposableStack();
  const folder = mkdtempSync(join(tmpdir(), "vmlet-disruption-"));
  cleanup.defer(() => rmSync(folder, { recursive: true }));
  const { api, cluster } = cleanup.use(await runDevCluster());
  const provider = new MemoryProvider();
  const stop = new AbortController();
  const { ended } = await startAgent({ folder, cluster, provider, signal: stop.signal });
  cleanup.defer(async () => {
    stop.abort(new Error("over"));
    await ended;
  });

  const template = {
    metadata: { labels: LABELS },
    spec: {
      containers: [{ name: "a", image: "busybox:1.36" }],
      tolerations: [{ operator: "Exists" }],
      terminationGracePeriodSeconds: 1,
    },
  };
  const selector = { matchLabels: LABELS };
  await create(api, "/apis/apps/v1/namespaces/default/deployments", {
    metadata: { name: "web" },
    spec: { replicas: 2, selector, template },
  });
  await create(api, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", {
    metadata: { name: "web" },
    spec: { minAvailable: 1, selector },
  });
  const running = async () => {
    const { body } = await api.request("GET", PODS);
    return (body.items as Json[]).filter(
      ({ metadata, status }) => status?.phase === "Running" && metadata.deletionTimestamp === undefined,
    );
  };
  const before = await waitFor({ what: "both pods to run", timeoutMs: TIMEOUT_MS }, async () => {
    const pods = await running();
    must(pods.length === 2, pods.length);
    return pods.map(({ metadata }) => metadata.uid as string);
  });
  await waitFor({ what: "the budget to allow one", timeoutMs: TIMEOUT_MS }, async () => {
    const { body } = await api.request("GET", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web");
    must(body.status?.disruptionsAllowed === 1, body.status);
  });

  const fewest = { running: 2 };
  for (const { id } of provider.machines)
    provider.setDisruption(id, { reason: "HostEvacuated", message: "host h1 is emptied" });
  await waitFor({ what: "both to have moved", timeoutMs: TIMEOUT_MS }, async () => {
    const pods = await running();
    fewest.running = Math.min(fewest.running, pods.length);
    const moved = pods.filter(({ metadata }) => !before.includes(metadata.uid));
    must(
      moved.length === 2,
      pods.map(({ metadata }) => metadata.uid),
    );
  });
  // Between two looks a pod may have gone and another have come.
  expect(fewest.running).toBeGreaterThanOrEqual(1);
}, 300_000);

interface Started {
  readonly folder: string;
  readonly cluster: { readonly url: string; readonly token: string };
  readonly provider: MemoryProvider;
  readonly signal: AbortSignal;
}

/** One of node `n`. @returns `ended`: resolves when it has ended */
async function startAgent({ folder, cluster, provider, signal }: Started): Promise<{ ended: Promise<unknown> }> {
  const [health, kubelet] = await freePorts(2);
  const write = (name: string, content: object) => {
    writeFileSync(join(folder, name), JSON.stringify(content));
    chmodSync(join(folder, name), 0o600);
    return join(folder, name);
  };
  const kubeconfig = write("kubeconfig", {
    "current-context": "c",
    clusters: [{ name: "c", cluster: { server: cluster.url } }],
    contexts: [{ name: "c", context: { cluster: "c", user: "u" } }],
    users: [{ name: "u", user: { token: cluster.token } }],
  });
  const node = { name: "n", provider: { type: "memory" }, kubelet: { port: kubelet, certificate: "self-signed" } };
  const file = write("vmlet.yaml", {
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    kubeconfig,
    clusterId: "c1",
    health: { address: "127.0.0.1", port: health },
    nodes: [node],
  });
  const agent = await Agent.open({
    config: loadConfig(file, {}, {}),
    createProvider: () => Promise.resolve(provider),
    clock: systemClock,
    random: Math.random,
    logger: silentLogger,
    version: "1",
    signal,
  });
  return { ended: agent.run(signal).catch(() => undefined) };
}
