/** What the cases about controllers share: objects, and the part of kubelet that they play. */
import { setInterval } from "node:timers/promises";
import { randomUUID } from "node:crypto";
import { must as require, waitFor } from "../../../harness/wait.ts";
import type { Api, Json } from "../../api.ts";
import { MERGE, must, podsIn } from "../../support.ts";

export const appsIn = (namespace: string, resource: string, name?: string) =>
  `/apis/apps/v1/namespaces/${namespace}/${resource}${name === undefined ? "" : `/${name}`}`;
export const jobsIn = (namespace: string, name?: string) =>
  `/apis/batch/v1/namespaces/${namespace}/jobs${name === undefined ? "" : `/${name}`}`;

/** A template that no scheduler takes. */
export const template = (app: string, spec: Json = {}, annotations?: Json): Json => ({
  metadata: { labels: { app }, ...(annotations && { annotations }) },
  spec: { schedulerName: "nobody", containers: [{ name: "a", image: "busybox:1.36" }], ...spec },
});

export const workload = (kind: string, name: string, spec: Json = {}): Json => ({
  apiVersion: "apps/v1",
  kind,
  metadata: { name },
  spec: { selector: { matchLabels: { app: name } }, template: template(name), ...spec },
});

/** Waits until what the API answers at `path` is as it should be. */
export function until(api: Api, path: string, what: string, condition: (object: Json) => boolean): Promise<Json> {
  return waitFor({ what: `${path} ${what}`, timeoutMs: 30_000 }, async () => {
    const { body } = await api.request("GET", path);
    require(condition(body), JSON.stringify(body.status ?? body.items?.map((each: Json) => each.status) ?? body));
    return body;
  });
}

export const untilGone = (api: Api, path: string) => until(api, path, "to be gone", ({ code }) => code === 404);

/** The pods of an app that are not on their way out, once there are so many; ordered by name. */
export async function pods(api: Api, ns: string, app: string, count: number): Promise<Json[]> {
  const path = `${podsIn(ns)}?labelSelector=app%3D${app}`;
  const staying = ({ items = [] }: Json) => items.filter((pod: Json) => !pod.metadata.deletionTimestamp);
  const list = await until(api, path, `to be ${count}`, (body) => staying(body).length === count);
  return staying(list).toSorted((a: Json, b: Json) => (a.metadata.name < b.metadata.name ? -1 : 1));
}

const setStatus = (api: Api, pod: Json, status: Json) =>
  must(api.request("PATCH", `${podsIn(pod.metadata.namespace, pod.metadata.name)}/status`, { status }, MERGE), 200);

/** As a kubelet says that a pod runs and is ready. */
export function becomeReady(api: Api, pod: Json, podIP = "10.1.2.3"): Promise<Json> {
  const now = new Date(Date.now() - 1000).toISOString().replace(/\.\d+/, "");
  const conditions = [{ type: "Ready", status: "True", lastTransitionTime: now }];
  return setStatus(api, pod, { phase: "Running", podIP, podIPs: [{ ip: podIP }], conditions });
}

/** As a kubelet says that the only container has ended. */
export function end(api: Api, pod: Json, exitCode = 0): Promise<Json> {
  const at = new Date(Date.now() - 1000).toISOString().replace(/\.\d+/, "");
  const terminated = { exitCode, startedAt: at, finishedAt: at, reason: exitCode === 0 ? "Completed" : "Error" };
  const container = {
    name: "a",
    image: "busybox:1.36",
    imageID: "",
    ready: false,
    restartCount: 0,
    state: { terminated },
  };
  const phase = exitCode === 0 ? "Succeeded" : "Failed";
  return setStatus(api, pod, { phase, containerStatuses: [container] });
}

/** Until it is stopped, every new pod of an app becomes ready. */
export function keepReady(api: Api, ns: string, app: string): () => Promise<void> {
  let isStopped = false;
  const path = `${podsIn(ns)}?labelSelector=app%3D${app}`;
  const running = (async () => {
    for await (const _ of setInterval(30)) {
      const { body } = await api.request("GET", path);
      for (const pod of body.items ?? []) {
        if (pod.status.phase !== "Pending" || pod.metadata.deletionTimestamp) continue;
        // It may go between the look and the word about it.
        await becomeReady(api, pod).catch(() => undefined);
      }
      if (isStopped) return;
    }
  })();
  return async () => {
    isStopped = true;
    await running;
  };
}

export const conditionOf = (object: Json, type: string): Json =>
  object.status?.conditions?.find((condition: Json) => condition.type === type);

/** A node that is ready, for as long as the work takes. */
export async function withNode(api: Api, work: (name: string) => Promise<void>): Promise<void> {
  const name = `node-${randomUUID().slice(0, 8)}`;
  const conditions = [{ type: "Ready", status: "True", reason: "KubeletReady", message: "", lastHeartbeatTime: null }];
  const node = { apiVersion: "v1", kind: "Node", metadata: { name, labels: { name } }, status: { conditions } };
  await must(api.request("POST", "/api/v1/nodes", node), 201);
  try {
    // The API server has a taint for every new node; it goes when the node is seen to be ready.
    await until(api, `/api/v1/nodes/${name}`, "to have no taints", ({ spec }) => !spec.taints?.length);
    await work(name);
  } finally {
    await api.request("DELETE", `/api/v1/nodes/${name}`);
  }
}
