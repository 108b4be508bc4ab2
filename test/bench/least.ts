/**
 * `node test/bench/least.ts KUBECONFIG NODE`: a client that does the least that an agent can do which asks before it
 * makes a machine and tells how a machine ended: two requests until a pod runs, two for its end. It knows nothing of its
 * pods but what the watch says, makes no machines, handles no failure. What an agent is above that is the agent's own.
 */
import { Pool } from "undici";
import { CredentialSource } from "../../src/kube/credentials.ts";
import { loadKubeConfig } from "../../src/kube/kubeconfig.ts";
import { systemClock } from "../../src/util/clock.ts";
import type { Json } from "../e2e/harness/client.ts";

const [, , kubeconfig, node] = process.argv;
const { server, tls } = await new CredentialSource(loadKubeConfig({ path: kubeconfig! }), systemClock).get();
const watching = new Pool(server, { connections: 1, connect: tls, bodyTimeout: 0 });
const pool = new Pool(server, { connections: 16, connect: tls });
const METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

async function call(method: "GET" | "PATCH" | "DELETE", path: string, body?: Json): Promise<void> {
  const reply = await pool.request({
    method,
    path,
    headers: {
      accept: METADATA,
      "content-type": method === "PATCH" ? "application/merge-patch+json" : "application/json",
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const text = await reply.body.text();
  if (reply.statusCode >= 300) throw new Error(`${method} ${path}: ${reply.statusCode} ${text}`);
}

const now = () => new Date().toISOString().replace(/\.\d+/, "");

async function run({ metadata }: Json): Promise<void> {
  const path = `/api/v1/namespaces/${metadata.namespace}/pods/${metadata.name}`;
  await call("GET", path);
  const conditions = ["Ready", "ContainersReady", "Initialized", "PodReadyToStartContainers"].map((type) => ({
    type,
    status: "True",
    lastTransitionTime: now(),
  }));
  const state = { running: { startedAt: now() } };
  const main = { name: "main", image: "none", imageID: "", ready: true, started: true, restartCount: 0, state };
  const status = { phase: "Running", startTime: now(), conditions, containerStatuses: [main] };
  await call("PATCH", `${path}/status`, { metadata: { uid: metadata.uid }, status });
}

async function end({ metadata, status }: Json): Promise<void> {
  const path = `/api/v1/namespaces/${metadata.namespace}/pods/${metadata.name}`;
  const terminated = { exitCode: 0, reason: "Completed", startedAt: now(), finishedAt: now() };
  const main = { ...status.containerStatuses?.[0], ready: false, started: false, state: { terminated } };
  await call("PATCH", `${path}/status`, {
    metadata: { uid: metadata.uid },
    status: { phase: "Succeeded", containerStatuses: [main] },
  });
  await call("DELETE", path, {
    kind: "DeleteOptions",
    apiVersion: "v1",
    gracePeriodSeconds: 0,
    preconditions: { uid: metadata.uid },
  });
}

const [begun, ended] = [new Set<string>(), new Set<string>()];
/** What fails ends the process: the bench would measure something else. */
function see(pod: Json): void {
  const { uid, deletionTimestamp } = pod.metadata;
  const [done, next] = deletionTimestamp === undefined ? [begun, run] : [ended, end];
  if (done.has(uid)) return;
  done.add(uid);
  void next(pod);
}

async function beat(): Promise<void> {
  const condition = { type: "Ready", status: "True", lastHeartbeatTime: now(), lastTransitionTime: now() };
  await call("PATCH", `/api/v1/nodes/${node}/status`, { status: { conditions: [condition] } });
}

setInterval(() => void beat(), 5_000);
await beat();
const query = `/api/v1/pods?fieldSelector=spec.nodeName%3D${node}`;
const list: Json = await (await watching.request({ method: "GET", path: query })).body.json();
for (const pod of list.items) see(pod);
let version: string = list.metadata.resourceVersion;
// The API server ends the watch of a client that it finds slow; the next one goes on where that ended.
for (;;) {
  const watch = await watching.request({ method: "GET", path: `${query}&watch=true&resourceVersion=${version}` });
  if (watch.statusCode !== 200) throw new Error(`watch: ${watch.statusCode} ${await watch.body.text()}`);
  watch.body.setEncoding("utf8");
  let rest = "";
  for await (const piece of watch.body) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop()!;
    for (const line of lines) {
      const { type, object } = JSON.parse(line);
      if (type === "ERROR") throw new Error(`watch: ${line}`);
      version = object.metadata.resourceVersion;
      if (type !== "DELETED") see(object);
    }
  }
}
