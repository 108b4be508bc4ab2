/** Cases that need kube-controller-manager: what its controllers conclude from the statuses that the agent writes. */
import { expect } from "vitest";
import type { Json } from "../harness/client.ts";
import { createKubectl } from "../harness/kubectl.ts";
import { must, waitFor } from "../harness/wait.ts";
import type { Case, CaseContext } from "./pod-cases.ts";
import { containerStatus, isReady, podSpec, serve, shell } from "./pods.ts";

const apps = ({ pods }: CaseContext, resource: string) => `/apis/apps/v1/namespaces/${pods.namespace}/${resource}`;
const jobs = ({ pods }: CaseContext) => `/apis/batch/v1/namespaces/${pods.namespace}/jobs`;

function template({ env }: CaseContext, app: string, spec: Json): Json {
  return { metadata: { labels: { app } }, spec: podSpec(env.nodeName, spec) };
}

async function until(
  { env, pods }: CaseContext,
  path: string,
  what: string,
  condition: (object: Json) => boolean,
): Promise<Json> {
  return waitFor({ what: `${path} ${what}`, timeoutMs: 120_000 * pods.patience }, async () => {
    const object = await env.client.get(path);
    // Until the controller has seen the change, its status speaks of the object before.
    const isCurrent = (object.status.observedGeneration ?? 0) >= object.metadata.generation || object.kind === "Job";
    must(isCurrent && condition(object), object.status);
    return object;
  });
}

/** As those of node agents: no taint keeps it away. */
function daemonSet(context: CaseContext, name: string, spec: Json): Promise<Json> {
  return context.env.client.create(apps(context, "daemonsets"), {
    metadata: { name },
    spec: {
      selector: { matchLabels: { app: name } },
      template: template(context, name, {
        terminationGracePeriodSeconds: 1,
        containers: [shell("main", serve)],
        ...spec,
      }),
    },
  });
}

/** How many pods the namespace has ever had. */
function podsEver({ env, pods }: CaseContext): number {
  return new Set(env.history.versions(pods.namespace).map(({ pod }) => pod.metadata.uid)).size;
}

/** The fewest pods that were ready and not being deleted at once, since `count` of them were for the first time. */
function fewestReady({ env, pods }: CaseContext, count: number): number {
  const ready = new Set<string>();
  let fewest = Infinity;
  for (const { type, pod } of env.history.versions(pods.namespace)) {
    const { uid, deletionTimestamp } = pod.metadata;
    if (type !== "DELETED" && deletionTimestamp === undefined && isReady(pod)) ready.add(uid);
    else ready.delete(uid);
    if (fewest !== Infinity || ready.size === count) fewest = Math.min(fewest, ready.size);
  }
  return fewest;
}

export const controllerCases: readonly Case[] = [
  {
    name: "a DaemonSet that tolerates everything gets one pod on the node, which runs",
    async run(context) {
      await daemonSet(context, "agent", {});
      await context.disturb();
      const path = `${apps(context, "daemonsets")}/agent`;
      await until(context, path, "to have a ready pod", ({ status }) => status.numberReady === 1);
      expect(podsEver(context)).toBe(1);
    },
  },
  {
    name: "a DaemonSet whose pod cannot run here keeps one that is Pending and says why, and makes no other",
    async run(context) {
      const { env, pods } = context;
      await daemonSet(context, "host-agent", { hostNetwork: true, hostPID: true });
      await context.disturb();
      // The event is repeated after 5 s and then after 10 s; the controller replaces a pod that failed within a second.
      await waitFor({ what: "three events DaemonSetNotSupported", timeoutMs: 90_000 }, async () => {
        const { items } = await env.client.get(`/api/v1/namespaces/${pods.namespace}/events`);
        const told = items.filter((event: Json) => event.reason === "DaemonSetNotSupported");
        must(told.reduce((sum: number, event: Json) => sum + (event.count ?? 1), 0) >= 3, told);
        expect(told[0].message).toContain("spec.hostNetwork");
      });
      const [pod] = await pods.list();
      expect(pod!.status.phase).toBe("Pending");
      expect(podsEver(context)).toBe(1);
    },
  },
  {
    name: "a Deployment is scaled from 0 to 20 and back to 0",
    restartsApiServer: true,
    async run(context) {
      const { env, pods, disturb } = context;
      const path = `${apps(context, "deployments")}/burst`;
      await env.client.create(apps(context, "deployments"), {
        metadata: { name: "burst" },
        spec: {
          replicas: 0,
          selector: { matchLabels: { app: "burst" } },
          template: template(context, "burst", {
            terminationGracePeriodSeconds: 10,
            containers: [shell("main", serve)],
          }),
        },
      });
      await env.client.patch(`${path}/scale`, { spec: { replicas: 20 } });
      await disturb();
      await until(context, path, "to have 20 available replicas", ({ status }) => status.availableReplicas === 20);
      expect((await pods.list("app=burst")).map((pod) => pod.spec.nodeName)).toEqual(Array(20).fill(env.nodeName));
      await env.client.patch(`${path}/scale`, { spec: { replicas: 0 } });
      await disturb();
      await waitFor({ what: "the pods of the Deployment to be gone", timeoutMs: 120_000 * pods.patience }, async () => {
        const left = await pods.list("app=burst");
        must(
          left.length === 0,
          left.map((pod) => pod.metadata.name),
        );
      });
    },
  },
  {
    name: "a Job with completions completes, each pod once",
    restartsApiServer: true,
    async run(context) {
      const { env, disturb } = context;
      await env.client.create(jobs(context), {
        metadata: { name: "work" },
        spec: {
          completions: 6,
          parallelism: 3,
          backoffLimit: 0,
          template: template(context, "work", {
            restartPolicy: "Never",
            containers: [shell("main", "sleep 1; exit 0")],
          }),
        },
      });
      await disturb();
      const job = await until(context, `${jobs(context)}/work`, "to be complete", ({ status }) =>
        (status.conditions ?? []).some((each: Json) => each.type === "Complete" && each.status === "True"),
      );
      // backoffLimit 0: one pod that was counted as failed, or made twice, would have failed the Job.
      expect(job.status).toMatchObject({ succeeded: 6 });
      expect(job.status.failed ?? 0).toBe(0);
    },
  },
  {
    name: "a Job whose podFailurePolicy names an exit code fails at the first pod that ends with it",
    async run(context) {
      const { env, disturb } = context;
      await env.client.create(jobs(context), {
        metadata: { name: "fatal" },
        spec: {
          completions: 3,
          parallelism: 1,
          backoffLimit: 5,
          podFailurePolicy: {
            rules: [{ action: "FailJob", onExitCodes: { containerName: "main", operator: "In", values: [42] } }],
          },
          template: template(context, "fatal", {
            restartPolicy: "Never",
            containers: [shell("main", "sleep 1; exit 42")],
          }),
        },
      });
      await disturb();
      const job = await until(context, `${jobs(context)}/fatal`, "to have failed", ({ status }) =>
        (status.conditions ?? []).some((each: Json) => each.type === "Failed" && each.status === "True"),
      );
      expect(job.status.conditions.find((each: Json) => each.type === "Failed").reason).toBe("PodFailurePolicy");
      expect(job.status.failed).toBe(1);
    },
  },
  {
    name: "a StatefulSet restarts its pods one by one, from the last to the first",
    restartsApiServer: true,
    async run(context) {
      const { env, pods, disturb } = context;
      const path = `${apps(context, "statefulsets")}/ordered`;
      await env.client.create(apps(context, "statefulsets"), {
        metadata: { name: "ordered" },
        spec: {
          replicas: 3,
          serviceName: "ordered",
          selector: { matchLabels: { app: "ordered" } },
          template: template(context, "ordered", {
            terminationGracePeriodSeconds: 10,
            containers: [shell("main", serve)],
          }),
        },
      });
      await until(context, path, "to have 3 ready replicas", ({ status }) => status.readyReplicas === 3);
      const before = await pods.list("app=ordered");
      await env.client.patch(path, { spec: { template: { metadata: { annotations: { restarted: "yes" } } } } });
      await disturb();
      await until(
        context,
        path,
        "to have restarted",
        ({ status }) =>
          status.updatedReplicas === 3 &&
          status.readyReplicas === 3 &&
          status.currentRevision === status.updateRevision,
      );
      const after = await pods.list("app=ordered");
      const uids = (list: Json[]) => list.map((pod) => pod.metadata.uid);
      expect(uids(after).filter((uid) => uids(before).includes(uid))).toEqual([]);
      const order = env.history
        .versions(pods.namespace)
        .filter(({ type, pod }) => type === "DELETED" && uids(before).includes(pod.metadata.uid))
        .map(({ pod }) => pod.metadata.name);
      expect(order).toEqual(["ordered-2", "ordered-1", "ordered-0"]);
    },
  },
  {
    name: "kubectl drain keeps to a PodDisruptionBudget: it waits until a replacement is ready before it takes the next pod",
    async run(context) {
      const { env, pods, disturb } = context;
      await env.client.create(apps(context, "deployments"), {
        metadata: { name: "guarded" },
        spec: {
          replicas: 2,
          selector: { matchLabels: { app: "guarded" } },
          // They tolerate everything, also that the node is cordoned: the replacements come to the same node.
          template: template(context, "guarded", {
            terminationGracePeriodSeconds: 10,
            containers: [shell("main", serve)],
          }),
        },
      });
      const budgets = `/apis/policy/v1/namespaces/${pods.namespace}/poddisruptionbudgets`;
      await env.client.create(budgets, {
        metadata: { name: "guarded" },
        spec: { minAvailable: 1, selector: { matchLabels: { app: "guarded" } } },
      });
      await until(context, `${budgets}/guarded`, "to allow one", ({ status }) => status.disruptionsAllowed === 1);
      const before = (await pods.list("app=guarded")).map(({ metadata }) => metadata.uid);
      const kubectl = await createKubectl(env.kubeconfig);
      try {
        const draining = kubectl.run(["drain", env.nodeName, "--pod-selector=app=guarded", "--timeout=150s"]);
        await Promise.all([disturb(), draining]);
        await waitFor({ what: "an event NodeNotSchedulable", timeoutMs: 30_000 }, async () => {
          const { items } = await env.client.get("/api/v1/namespaces/default/events");
          must(
            items.some((event: Json) => event.reason === "NodeNotSchedulable"),
            items.map((event: Json) => event.reason),
          );
        });
      } finally {
        await kubectl.run(["uncordon", env.nodeName]);
      }
      await until(
        context,
        `${apps(context, "deployments")}/guarded`,
        "to be whole again",
        ({ status }) => status.availableReplicas === 2,
      );
      const after = (await pods.list("app=guarded")).map(({ metadata }) => metadata.uid);
      expect(after.filter((uid) => before.includes(uid))).toEqual([]);
      expect(podsEver(context)).toBe(4);
      expect(fewestReady(context, 2)).toBe(1);
    },
  },
  {
    name: "a NoExecute taint takes the running pods that do not tolerate it, and leaves the others as they are",
    async run({ env, pods, disturb }) {
      await pods.create("stays", { containers: [shell("main", serve)] });
      const leaves = await pods.create("leaves", {
        tolerations: [{ key: "virtual-kubelet.io/provider", operator: "Exists" }],
        containers: [shell("main", serve)],
      });
      const stays = await pods.untilReady("stays");
      await pods.untilReady("leaves");
      const kubectl = await createKubectl(env.kubeconfig);
      await kubectl.run(["taint", "node", env.nodeName, "maintenance=yes:NoExecute"]);
      try {
        await disturb();
        await pods.untilGone("leaves", leaves.metadata.uid);
      } finally {
        await kubectl.run(["taint", "node", env.nodeName, "maintenance-"]);
      }
      const versions = env.history.versions(pods.namespace).map(({ pod }) => pod);
      const last = versions.findLast(({ metadata }) => metadata.uid === leaves.metadata.uid)!;
      expect(last.status.conditions).toContainEqual(
        expect.objectContaining({ type: "DisruptionTarget", status: "True", reason: "DeletionByTaintManager" }),
      );
      const now = await pods.get("stays");
      expect(now.metadata.uid).toBe(stays.metadata.uid);
      expect(containerStatus(now, "main")).toEqual(containerStatus(stays, "main"));
    },
  },
];
