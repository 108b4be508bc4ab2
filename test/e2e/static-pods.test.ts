/**
 * Static pods before a real API server: what the Node authorizer, NodeRestriction and its admission of ServiceAccounts
 * let a node create, and what the chart's policy does where the agent is no node.
 */
import { mkdir, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Environment } from "./cases/environment.ts";
import { Pods, serve, shell } from "./cases/pods.ts";
import { startRealEnvironment } from "./cases/start.ts";
import type { AgentProcess } from "./harness/agent.ts";
import { createClient, type Client, type Json } from "./harness/client.ts";
import type { Cluster } from "./harness/cluster.ts";
import { createSandbox, type Sandbox } from "./harness/processes.ts";
import { must, waitFor } from "./harness/wait.ts";
import { installChart } from "./helm-install.ts";

const NODE = "vmlet-static";
const POD = `web-${NODE}`;
const PATIENCE_MS = 60_000;
const START_MS = 1_200_000;

let files: Sandbox;
let folder: string;
let place: Environment & { cluster: Cluster };
let pods: Pods;

const until = <T>(what: string, work: () => Promise<T>) => waitFor({ what, timeoutMs: PATIENCE_MS }, work);
/** As everybody should: in one step. */
async function write(name: string, spec: Json, at = folder): Promise<void> {
  const text = JSON.stringify({ apiVersion: "v1", kind: "Pod", metadata: { name }, spec });
  await writeFile(join(at, `.${name}.yaml`), text);
  await rename(join(at, `.${name}.yaml`), join(at, `${name}.yaml`));
}
const web = (script = serve): Json => ({ terminationGracePeriodSeconds: 1, containers: [shell("main", script)] });
/** The machines of the node that have not ended. */
const running = async () => (await place.backend.machines()).filter(({ state }: Json) => state === "running");
const refusal = (file: string, at: Client = place.client) =>
  until(`an event that refuses ${file}`, async () => {
    const { items } = await at.get("/api/v1/events");
    const found = items.find(({ reason, message }: Json) => reason === "StaticPodRefused" && message.includes(file));
    must(found !== undefined, file);
    return found;
  });
/** Another one than `before`, and its machine alone. */
async function another(before: string): Promise<Json> {
  await pods.untilGone(POD, before);
  const pod = await until("another pod", () => pods.untilReady(POD));
  await until("the machine of the other pod alone", async () => {
    const machines = await running();
    must(machines.length === 1 && machines[0]!.labels["vmlet.dev/uid"] === pod.metadata.uid, machines);
  });
  return pod;
}

beforeAll(async () => {
  files = await createSandbox("static");
  folder = join(files.dir, "pods");
  await mkdir(folder);
  await write("web", web());
  place = await startRealEnvironment({ nodeName: NODE, node: { staticPodPath: folder } });
  pods = new Pods(place.client, "default", NODE);
}, START_MS);
afterAll(async () => {
  await place?.[Symbol.asyncDispose]();
  await files?.close();
});

describe("as the node itself", () => {
  test(
    "a file becomes a pod that the Node owns, and that a machine runs",
    async () => {
      const pod = await pods.untilReady(POD);
      const { uid } = (await place.client.get(`/api/v1/nodes/${NODE}`)).metadata;
      expect(pod.metadata.ownerReferences).toEqual([
        { apiVersion: "v1", kind: "Node", name: NODE, uid, controller: true },
      ]);
      expect(pod.metadata.annotations["kubernetes.io/config.source"]).toBe("file");
      expect(pod.spec.serviceAccountName).toBeUndefined();
      expect(await running()).toHaveLength(1);
    },
    PATIENCE_MS,
  );

  test(
    "a file that refers to a Secret is refused on the Node, by its field",
    async () => {
      await write("secretive", { ...web(), volumes: [{ name: "v", secret: { secretName: "s" } }] });
      const { involvedObject, message } = await refusal("secretive.yaml");
      expect(involvedObject).toMatchObject({ kind: "Node", name: NODE });
      expect(message).toContain("spec.volumes[0].secret: a static pod may not refer to secrets");
      expect((await pods.list()).map(({ metadata }) => metadata.name)).toEqual([POD]);
      await rm(join(folder, "secretive.yaml"));
    },
    PATIENCE_MS,
  );

  test(
    "what the API server does not take is told in its words",
    async () => {
      await write("Wrong_Name", web());
      expect((await refusal("Wrong_Name.yaml")).message).toContain("metadata.name: Invalid value");
      await rm(join(folder, "Wrong_Name.yaml"));
    },
    PATIENCE_MS,
  );

  test(
    "its pod changes with it, and comes back when it was deleted or changed in the API",
    async () => {
      let { uid } = (await pods.untilReady(POD)).metadata;
      await write("web", web(`: another; ${serve}`));
      ({ uid } = (await another(uid)).metadata);
      await pods.delete(POD);
      const back = await another(uid);
      await place.client.patch(`${pods.path}/${POD}`, { spec: { activeDeadlineSeconds: 100_000 } });
      const restored = await another(back.metadata.uid);
      expect(restored.spec.activeDeadlineSeconds).toBeUndefined();
    },
    4 * PATIENCE_MS,
  );

  test(
    "its pod outlives the agent and the folder, and goes when the folder is there without the file",
    async () => {
      const { uid } = (await pods.untilReady(POD)).metadata;
      await rename(folder, `${folder}.away`);
      await place.agent.restart("SIGKILL");
      expect((await refusal("ENOENT")).message).toContain(`${folder}: cannot be read`);
      expect((await pods.get(POD)).metadata).toMatchObject({ uid });
      expect((await pods.get(POD)).metadata.deletionTimestamp).toBeUndefined();
      await rm(join(`${folder}.away`, "web.yaml"));
      await rename(`${folder}.away`, folder);
      await pods.untilGone(POD, uid);
      await until("its machine to be gone", async () => {
        const machines = await running();
        must(machines.length === 0, machines);
      });
    },
    2 * PATIENCE_MS,
  );
});

describe("with the chart's roles and policy, where the agent is no node", () => {
  const node = "static-sa";
  let agent: AgentProcess;
  let client: Client;

  beforeAll(async () => {
    const at = join(files.dir, "chart");
    await mkdir(at);
    await write("web", { terminationGracePeriodSeconds: 0, containers: [{ name: "main", image: "busybox" }] }, at);
    const chart = await installChart(place.cluster, "static", {
      identity: { mode: "serviceAccount", workloadNamespaces: ["default"] },
      nodes: [{ name: node, provider: { type: "memory" }, staticPodPath: at }],
    });
    agent = await chart.startAgent();
    client = await createClient(await chart.credentials("static-vmlet"));
  }, 2 * PATIENCE_MS);
  afterAll(async () => {
    client?.close();
    await agent?.stop();
  });

  test(
    "static pods run",
    async () => {
      await new Pods(place.client, "default", node).untilReady(`web-${node}`);
    },
    PATIENCE_MS,
  );

  const mirror = (metadata: Json = {}, spec: Json = {}): Json => ({
    metadata: {
      name: "other",
      annotations: { "kubernetes.io/config.mirror": "0" },
      ownerReferences: [{ apiVersion: "v1", kind: "Node", name: node, uid: "0", controller: true }],
      ...metadata,
    },
    spec: { nodeName: node, containers: [{ name: "main", image: "busybox" }], ...spec },
  });
  const own = "this agent may create only mirror pods of its own nodes";
  const alone = "this agent may create only pods that refer to no other objects";
  test.each<[what: string, why: string, pod: Json]>([
    ["a pod that is no mirror", own, mirror({ annotations: {} })],
    ["a pod of another node", own, mirror({}, { nodeName: NODE })],
    ["a pod that the scheduler places", own, mirror({ annotations: {} }, { nodeName: undefined })],
    ["a pod that is nobody's", own, mirror({ ownerReferences: [] })],
    [
      "a pod with a claim",
      alone,
      mirror({}, { volumes: [{ name: "v", persistentVolumeClaim: { claimName: "theirs" } }] }),
    ],
  ])(
    "the policy does not let the agent create %s",
    async (_, why, pod) => {
      await expect(client.create("/api/v1/namespaces/default/pods", pod)).rejects.toMatchObject({
        status: 403,
        message: expect.stringContaining(why),
      });
    },
    PATIENCE_MS,
  );
});
