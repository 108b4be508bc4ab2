/**
 * What the API server itself bears in this run: pods are brought to Running by a client that does nothing else, one
 * status patch each, over connections that are kept, with replies that nobody reads. No agent can be faster.
 */
import { Pool } from "undici";
import { CredentialSource } from "../../src/kube/credentials.ts";
import { loadKubeConfig } from "../../src/kube/kubeconfig.ts";
import { systemClock } from "../../src/util/clock.ts";
import type { Cluster } from "../e2e/harness/cluster.ts";
import { benchPod, createNamespace, deletePod, inParallel } from "./measure.ts";

const NODE = "bench-limit";
/** More make it no faster on two cores. */
const CONNECTIONS = 32;

export interface Limit {
  perSecond: number;
  /** Of the client, for one patch. */
  cpuMs: number;
}

/** @throws Error when a patch fails */
export async function apiServerLimit({ admin, adminKubeconfig }: Cluster, pods: number): Promise<Limit> {
  const { server, tls } = await new CredentialSource(loadKubeConfig({ path: adminKubeconfig }), systemClock).get();
  // Pods of a Node that does not exist are collected as garbage.
  await admin.create("/api/v1/nodes", { metadata: { name: NODE } });
  const namespace = await createNamespace(admin, NODE);
  const path = `/api/v1/namespaces/${namespace}/pods`;
  const names = Array.from({ length: pods }, (_, index) => `limit-${index}`);
  await inParallel(names, (name) => admin.create(path, benchPod(name, NODE)));
  const pool = new Pool(server, { connections: CONNECTIONS, connect: tls });
  try {
    const cpu = process.cpuUsage();
    const started = performance.now();
    await inParallel(names, (name) => patch(pool, `${path}/${name}/status`), CONNECTIONS);
    const seconds = (performance.now() - started) / 1000;
    const { user, system } = process.cpuUsage(cpu);
    return { perSecond: pods / seconds, cpuMs: (user + system) / 1000 / pods };
  } finally {
    await pool.close();
    await inParallel(names, (name) => deletePod(admin, namespace, name, { force: true }));
    await admin.delete(`/api/v1/nodes/${NODE}`);
  }
}

async function patch(pool: Pool, path: string): Promise<void> {
  const now = new Date().toISOString().replace(/\.\d+/, "");
  const conditions = ["Ready", "ContainersReady", "Initialized", "PodReadyToStartContainers"].map((type) => ({
    type,
    status: "True",
    lastTransitionTime: now,
  }));
  const state = { running: { startedAt: now } };
  const main = { name: "main", image: "none", imageID: "", ready: true, started: true, restartCount: 0, state };
  const status = { phase: "Running", startTime: now, conditions, containerStatuses: [main] };
  const reply = await pool.request({
    method: "PATCH",
    path,
    headers: {
      accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
      "content-type": "application/merge-patch+json",
    },
    body: JSON.stringify({ status }),
  });
  const text = await reply.body.text();
  if (reply.statusCode !== 200) throw new Error(`PATCH ${path}: ${reply.statusCode} ${text}`);
}
