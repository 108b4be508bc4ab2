/**
 * A devcluster with the page on it: nodes and pods are written as an agent would leave them, so that all is as the test
 * says.
 */
import { KubeConfig } from "@kubernetes/client-node";
import { startDevCluster, type DevCluster } from "../../src/devcluster/index.ts";
import { openPage } from "../../src/cli/page.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";

type Json = Record<string, unknown>;

export interface Stage extends AsyncDisposable {
  cluster: DevCluster;
  url: string;
  node(name: string, more?: { annotations?: Json; backend?: Json; ready?: boolean }): void;
  /** `ago` and `ran` in seconds. */
  pod(name: string, options: { node?: string; phase?: string; ago?: number; ran?: number; more?: Json }): void;
  remove(name: string): void;
}

export async function openStage(): Promise<Stage> {
  const cluster = await startDevCluster({
    ...{ clock: systemClock, logger: silentLogger, binder: false, controllers: false },
  });
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromString(cluster.kubeConfigYaml);
  const page = await openPage({ kubeConfig, namespace: undefined, port: 0, logger: silentLogger });
  const stop = new AbortController();
  const running = page.run(stop.signal);
  const at = (secondsAgo: number) => new Date(Date.now() - secondsAgo * 1_000).toISOString().replace(/\.\d+Z$/, "Z");
  return {
    cluster,
    url: page.url,
    node(name, { annotations = {}, backend = { status: "True" }, ready = true } = {}) {
      const conditions = [
        { type: "BackendReady", ...backend },
        { type: "Ready", status: ready ? "True" : "False" },
      ];
      cluster.storage.put("/nodes", name, {
        ...{ apiVersion: "v1", kind: "Node" },
        metadata: { name, uid: `node-${name}`, annotations, creationTimestamp: at(86_400 * 12) },
        spec: { providerID: `vmlet://dev/${name}` },
        status: {
          conditions,
          allocatable: { cpu: "64", memory: "256Gi", pods: "500" },
          nodeInfo: { kubeletVersion: "v1.36.0+vmlet.0.1.0", containerRuntimeVersion: "vmlet-backend/vm://0.1.0" },
        },
      } as never);
    },
    pod(name, { node, phase = "Running", ago = 60, ran = 0, more = {} }) {
      const startedAt = at(Math.max(0, ago - 2));
      const isOver = phase === "Succeeded" || phase === "Failed";
      const exitCode = phase === "Failed" ? 1 : 0;
      const reason = phase === "Failed" ? "Error" : "Completed";
      const state = isOver
        ? { terminated: { exitCode, reason, startedAt, finishedAt: at(ago - 2 - ran) } }
        : phase === "Running"
          ? { running: { startedAt } }
          : { waiting: { reason: "ContainerCreating" } };
      cluster.storage.put("/pods", `default/${name}`, {
        ...{ apiVersion: "v1", kind: "Pod" },
        metadata: {
          ...{ name, uid: `pod-${name}`, namespace: "default", creationTimestamp: at(ago) },
          annotations: node === undefined ? {} : { "vmlet.dev/machine": `m-${name}`, "vmlet.dev/host": "rack-4-u12" },
        },
        spec: {
          ...(node !== undefined && { nodeName: node }),
          containers: [
            { name: "main", image: "registry.example/render:7", resources: { requests: { cpu: "2", memory: "4Gi" } } },
          ],
        },
        status: {
          phase,
          ...(node !== undefined && {
            containerStatuses: [{ name: "main", ready: phase === "Running", restartCount: 0, state }],
          }),
        },
        ...more,
      } as never);
    },
    remove(name) {
      cluster.storage.delete("/pods", `default/${name}`);
    },
    async [Symbol.asyncDispose]() {
      stop.abort(new Error("the test is over"));
      await running;
      await cluster.close();
    },
  };
}
