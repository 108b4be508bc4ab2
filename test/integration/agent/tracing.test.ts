/** Traces of pods from the agent to the backend's steps, as a collector gets them, with the agent killed in the middle. */
import { randomBytes } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { startDevCluster, type DevCluster } from "../../../src/devcluster/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { Pods, serve, shell } from "../../e2e/cases/pods.ts";
import { startAgent, startBackend, type AgentProcess, type BackendProcess } from "../../e2e/harness/agent.ts";
import { clientOf, type Client } from "../../e2e/harness/client.ts";
import { createSandbox, type Sandbox } from "../../e2e/harness/processes.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { OtlpCollector, type CollectedSpan } from "../../support/otlp-collector.ts";

const NAMESPACE = "traced";
const LONG_MS = 120_000;

let collector: OtlpCollector;
let sandbox: Sandbox;
let cluster: DevCluster;
let client: Client;
let backend: BackendProcess;
let agent: AgentProcess;
let pods: Pods;
beforeEach(async () => {
  collector = await OtlpCollector.open();
  const { endpoint } = collector;
  sandbox = await createSandbox("tracing");
  cluster = await startDevCluster({ clock: systemClock, logger: silentLogger, tls: false });
  const kubeconfig = join(sandbox.dir, "kubeconfig");
  await writeFile(kubeconfig, cluster.kubeConfigYaml, { mode: 0o600 });
  client = clientOf(cluster.url, { token: cluster.token });
  // It takes what its callers take, and nothing of its own.
  backend = await startBackend({ sandbox, config: { tracing: { endpoint } } });
  const tracing = { endpoint, samplingRatePerMillion: 1_000_000 };
  agent = await startAgent({ sandbox, kubeconfig, nodeName: "n", provider: backend.provider, config: { tracing } });
  await client.create("/api/v1/namespaces", { metadata: { name: NAMESPACE } });
  await waitFor({ what: "the default ServiceAccount" }, () =>
    client.get(`/api/v1/namespaces/${NAMESPACE}/serviceaccounts/default`),
  );
  pods = new Pods(client, NAMESPACE, "n");
}, LONG_MS);
afterEach(async () => {
  client?.close();
  await sandbox?.close();
  await cluster?.close();
  await collector?.[Symbol.asyncDispose]();
});

const path = (name: string) => `/api/v1/namespaces/${NAMESPACE}/pods/${name}`;

async function untilRunning(names: readonly string[]): Promise<void> {
  for (const name of names)
    await waitFor({ what: `${name} to run`, timeoutMs: 60_000 }, async () => {
      const { status } = await client.get(path(name));
      must(status.phase === "Running", status);
    });
}

/** Both programs send what they have left as they end. */
async function endAll(): Promise<void> {
  await agent.stop(30_000);
  await backend.stop(30_000);
}

const named = (name: string, pod: string): CollectedSpan[] =>
  collector.spans.filter((span) => span.name === name && span.attributes["k8s.pod.name"] === pod);
const only = (name: string, pod: string): CollectedSpan => {
  const found = named(name, pod);
  expect(found.map((each) => each.name)).toEqual([name]);
  return found[0]!;
};

test(
  "a pod's trace leads from its first sync to the machine's steps, and its end's to their end",
  {
    timeout: LONG_MS,
  },
  async () => {
    const secret = `canary-${randomBytes(8).toString("hex")}`;
    const env = [{ name: "PASSWORD", value: secret }];
    await pods.create("web", { containers: [shell("main", serve, { env })] });
    await untilRunning(["web"]);
    await client.delete(path("web"));
    await waitFor({ what: "web to be gone", timeoutMs: 60_000 }, async () => {
      const { items } = await client.get(`/api/v1/namespaces/${NAMESPACE}/pods`);
      must(items.length === 0, items.length);
    });
    await endAll();

    const put = ["syncPod", "create", "create_machine", "PUT /v1/machines/:id"];
    const [sandboxOpened, started] = [only("sandbox.open", "web"), only("container.start", "web")];
    expect(collector.wayTo(sandboxOpened)).toEqual([...put, "sandbox.open"]);
    expect(collector.wayTo(started)).toEqual([...put, "container.start"]);
    const parts = collector.spans.filter(({ parentSpanId }) => parentSpanId === started.spanId);
    expect(parts.map(({ name }) => name).toSorted()).toEqual(["container.create", "container.run"]);
    const sync = collector.spans.find(({ name, traceId }) => name === "syncPod" && traceId === started.traceId);
    expect(sync!.attributes).toMatchObject({
      "k8s.pod": `${NAMESPACE}/web`,
      "k8s.pod.name": "web",
      "k8s.pod.uid": started.attributes["k8s.pod.uid"],
      "k8s.namespace.name": NAMESPACE,
      "k8s.node.name": "n",
      "k8s.pod.update_type": "create",
    });
    expect(new Set([sync!.resource["service.name"], started.resource["service.name"]])).toEqual(
      new Set(["vmlet", "vmlet-backend"]),
    );
    const inCreate = collector.spans.filter(({ traceId }) => traceId === started.traceId).map(({ name }) => name);
    expect(inCreate).toEqual(expect.arrayContaining(["HTTP GET", "render", "HTTP PATCH"]));

    const ended = named("sandbox.destroy", "web").at(-1)!;
    expect(collector.wayTo(ended)[0]).toBe("syncTerminatingPod");
    expect(JSON.stringify([collector.spans, collector.requests])).not.toContain(secret);
  },
);

test(
  "each machine's steps are part of one PUT, also where the agent was killed in the middle",
  {
    timeout: LONG_MS,
  },
  async () => {
    const names = Array.from({ length: 12 }, (_, i) => `p-${i}`);
    for (const name of names) await pods.create(name, { containers: [shell("main", serve)] });
    await waitFor({ what: "the first machine", timeoutMs: 60_000 }, async () => {
      must((await backend.machines()).length > 0, "none");
    });
    await agent.restart("SIGKILL");
    await untilRunning(names);
    await pods.create("later", { containers: [shell("main", serve)] });
    await untilRunning(["later"]);
    await endAll();

    for (const name of [...names, "later"]) {
      const [sandboxOpened, started] = [only("sandbox.open", name), only("container.start", name)];
      const put = collector.parentOf(sandboxOpened)!;
      expect(put).toMatchObject({
        name: "PUT /v1/machines/:id",
        kind: 2,
        resource: { "service.name": "vmlet-backend" },
      });
      expect(put.attributes["vmlet.machine.id"]).toBe(sandboxOpened.attributes["vmlet.machine.id"]);
      expect(collector.parentOf(started)).toBe(put);
      // Of the agent's own spans, those are lost that it had not sent when it was killed: the trace is still the same.
      const way = collector.wayTo(put);
      expect(put.parentSpanId).toBeDefined();
      if (way.length > 1) expect(way).toEqual(["syncPod", "create", "create_machine", "PUT /v1/machines/:id"]);
    }
    expect(collector.wayTo(only("container.start", "later"))).toHaveLength(5);
  },
);
