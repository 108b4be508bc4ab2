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
  const isRunning = ({ metadata, status }: Json) =>
    status?.phase === "Running" && metadata.deletionTimestamp === undefined;
  const before = await waitFor({ what: "both pods to run", timeoutMs: TIMEOUT_MS }, async () => {
    const { body } = await api.request("GET", PODS);
    must((body.items as Json[]).filter(isRunning).length === 2, body.items);
    return body;
  });
  await waitFor({ what: "the budget to allow one", timeoutMs: TIMEOUT_MS }, async () => {
    const { body } = await api.request("GET", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web");
    must(body.status?.disruptionsAllowed === 1, body.status);
  });

  // Every state that there was, also one that was over at once.
  const pods = new Map<string, Json>(before.items.map((pod: Json) => [pod.metadata.uid, pod]));
  const old = new Set(pods.keys());
  const watch = await api.watch(`${PODS}?watch=true&resourceVersion=${before.metadata.resourceVersion}`);
  cleanup.defer(() => watch.close());
  for (const { id } of provider.machines)
    provider.setDisruption(id, { reason: "HostEvacuated", message: "host h1 is emptied" });
  let fewest = 2;
  const haveMoved = (running: readonly Json[]) => running.filter(({ metadata }) => !old.has(metadata.uid)).length === 2;
  for (let running: Json[] = []; !haveMoved(running);) {
    const { type, object } = await watch.nextChange(TIMEOUT_MS);
    if (type === "DELETED") pods.delete(object.metadata.uid);
    else pods.set(object.metadata.uid, object);
    running = [...pods.values()].filter(isRunning);
    fewest = Math.min(fewest, running.length);
  }
  expect(fewest).toBe(1);
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
