/** The figures that a node gives: to metrics-server, kubectl top and the autoscaler, to dashboards, and to Prometheus. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { autoscalerCases } from "./cases/autoscaler-cases.ts";
import { Pods, serve, shell } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { hostAddress } from "./harness/agent.ts";
import type { KeyPair } from "./harness/certs.ts";
import { clientOf } from "./harness/client.ts";
import { tryCommand } from "./harness/exec.ts";
import { createKubectl, type Kubectl } from "./harness/kubectl.ts";
import { must, waitFor } from "./harness/wait.ts";
import { approveServingCertificate, ask, versions, type Endpoint } from "./kubectl-support.ts";
import { aggregationFlags, startMetricsServer } from "./metrics-server.ts";

let env: Awaited<ReturnType<typeof startRealEnvironment>>;
let pods: Pods;
let kubectl: Kubectl;
let admin: KeyPair;
let kubelet: Endpoint;

beforeAll(async () => {
  env = await startRealEnvironment({
    nodeName: "vmlet-metrics",
    node: { taints: [] },
    cluster: {
      apiServerFlags: aggregationFlags,
      controllerManagerFlags: ["--horizontal-pod-autoscaler-sync-period=3s"],
    },
  });
  kubectl = await createKubectl(env.kubeconfig);
  pods = new Pods(env.client, "default", env.nodeName);
  admin = await env.cluster.clientCertificate("metrics-admin", ["system:masters"]);
  kubelet = { url: `https://${hostAddress()}:${env.agent.kubeletPort}`, caFile: env.cluster.caFile };
  await approveServingCertificate(kubectl, env.client, kubelet);
  await pods.create("idle", { containers: [shell("main", serve), shell("side", serve)] });
  await pods.untilReady("idle");
  await startMetricsServer(env.cluster);
}, 1_200_000);
afterAll(() => env?.[Symbol.asyncDispose]());

describe.each(versions)("kubectl (%s) top", (version) => {
  let top: Kubectl;
  beforeAll(async () => {
    top = await createKubectl(env.kubeconfig, version);
  });

  test("pod shows what the containers use [M01]", async () => {
    const lines = await waitFor({ what: "kubectl top pod", timeoutMs: 90_000, intervalMs: 1000 }, () =>
      top.run(["top", "pod", "idle", "--containers", "--no-headers"]),
    );
    const rows = lines
      .trim()
      .split("\n")
      .toSorted()
      .map((line) => line.split(/\s+/));
    expect(rows.map(([pod, container]) => [pod, container])).toEqual([
      ["idle", "main"],
      ["idle", "side"],
    ]);
    for (const [, , cpu, memory] of rows) {
      expect(cpu).toMatch(/^\d+m$/);
      expect(Number.parseInt(memory!)).toBeGreaterThan(0);
    }
  });

  test("node shows what all of them use, in figures and shares [M01]", async () => {
    const line = await waitFor({ what: "kubectl top node", timeoutMs: 90_000, intervalMs: 1000 }, () =>
      top.run(["top", "node", env.nodeName, "--no-headers"]),
    );
    const [, cpu, cpuShare, memory, memoryShare] = line.trim().split(/\s+/);
    expect(Number.parseInt(cpu!)).toBeGreaterThan(0);
    expect(Number.parseInt(memory!)).toBeGreaterThan(0);
    for (const share of [cpuShare, memoryShare]) expect(share).toMatch(/^\d+%$/);
  });
});

test.each(autoscalerCases)("$name", { timeout: 240_000 }, ({ run }) =>
  run({ env, pods, disturb: () => Promise.resolve() }),
);

test("/stats/summary, through the API server, describes the node and each of its running pods [M03]", async () => {
  const summary = JSON.parse(await kubectl.run(["get", "--raw", `/api/v1/nodes/${env.nodeName}/proxy/stats/summary`]));
  expect(summary.node.nodeName).toBe(env.nodeName);
  expect(summary.node.cpu.usageCoreNanoSeconds).toBeGreaterThan(0);
  expect(summary.node.memory.workingSetBytes).toBeGreaterThan(0);
  const idle = summary.pods.find((each: { podRef: { name: string } }) => each.podRef.name === "idle");
  expect(idle.podRef).toEqual({ name: "idle", namespace: "default", uid: (await pods.get("idle")).metadata.uid });
  expect(idle.containers.map((each: { name: string }) => each.name).toSorted()).toEqual(["main", "side"]);
  for (const { cpu, memory, startTime } of idle.containers) {
    expect(cpu.usageCoreNanoSeconds).toBeGreaterThan(0);
    expect(memory.workingSetBytes).toBeGreaterThan(0);
    expect(Math.abs(Date.now() - Date.parse(startTime))).toBeLessThan(600_000);
  }
});

test("the outcomes of the backend's probes are counted by pod, container and kind", async () => {
  const probe = { exec: { command: ["true"] }, periodSeconds: 1 };
  await pods.create("probed", {
    containers: [shell("main", serve, { readinessProbe: probe, livenessProbe: { exec: { command: ["false"] } } })],
  });
  await pods.untilReady("probed");
  const { uid } = (await pods.get("probed")).metadata;
  const series = (type: string, result: string) =>
    `prober_probe_total{container="main",namespace="default",pod="probed",pod_uid="${uid}",probe_type="${type}",result="${result}"} `;
  await waitFor({ what: "both probes to be counted", intervalMs: 500 }, async () => {
    const { body } = await ask(kubelet, "/metrics/probes", { as: admin });
    must(body.includes(series("Readiness", "successful")) && body.includes(series("Liveness", "failed")), body);
  });
});

test.each([
  ["healthz", /^ok$/],
  ["pods", /"kind":"PodList".*"name":"idle"/],
  ["runningpods/", /"kind":"PodList".*"name":"idle"/],
  ["configz", /"kubeletconfig":\{"kind":"KubeletConfiguration".*"nodeStatusUpdateFrequency":"10s"/],
  ["metrics", /^kubelet_running_pods \d+$/m],
  ["metrics/resource", /^node_cpu_usage_seconds_total /m],
  ["metrics/cadvisor", /^container_cpu_usage_seconds_total\{/m],
])("the kubelet's /%s can be had through the API server [K02]", async (path, content) => {
  expect(await kubectl.run(["get", "--raw", `/api/v1/nodes/${env.nodeName}/proxy/${path}`])).toMatch(content);
});

test("a completed pod is in no figure, because its last ones would be taken for usage", async () => {
  await pods.create("completed", { restartPolicy: "Never", containers: [shell("main", "true")] });
  await pods.untilPhase("completed", "Succeeded");
  for (const path of ["/metrics/resource", "/metrics/cadvisor", "/stats/summary"])
    expect((await ask(kubelet, path, { as: admin })).body).not.toContain("completed");
});

const hasPromtool = (await tryCommand("promtool", ["--version"]).catch(() => undefined)) !== undefined;

describe.skipIf(!hasPromtool)("promtool (Debian package prometheus) finds no fault", () => {
  test.each(["/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes"])(
    "in the kubelet's %s",
    async (path) => {
      const { status, body } = await ask(kubelet, path, { as: admin });
      expect(status).toBe(200);
      expect(await check(body)).toBe("");
    },
  );

  test("in the health port's /metrics", async () => {
    const health = clientOf(env.agent.healthUrl);
    expect(await check(await health.text("/metrics"))).toBe("");
    health.close();
  });

  /** Its complaints, of syntax and of style. */
  async function check(exposition: string): Promise<string> {
    const { stdout, stderr } = await tryCommand("promtool", ["check", "metrics"], { input: exposition });
    return stdout + stderr;
  }
});
