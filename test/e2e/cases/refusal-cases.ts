/** Cases of pods that cannot run here: what their controllers, which know nothing of the reason, make of it. */
import { expect } from "vitest";
import type { Json } from "../harness/client.ts";
import { must, waitFor } from "../harness/wait.ts";
import type { Case, CaseContext } from "./pod-cases.ts";
import { podSpec, serve, shell } from "./pods.ts";

/** No machine has its host's network. */
const IMPOSSIBLE = { hostNetwork: true, terminationGracePeriodSeconds: 1, containers: [shell("main", serve)] };
/** No node has so much, and by name it comes here without the scheduler. */
const tooLarge = ({ env }: CaseContext) => ({
  nodeName: env.nodeName,
  terminationGracePeriodSeconds: 1,
  containers: [{ ...shell("main", serve), resources: { requests: { cpu: "100000" } } }],
});

/** Makes an object that makes pods, with an own label `app`. */
async function controller(
  { env, pods }: CaseContext,
  [group, resource]: readonly [group: string, resource: string],
  template: Json,
  spec: Json,
): Promise<void> {
  const name = resource;
  await env.client.create(`/${group}/namespaces/${pods.namespace}/${resource}`, {
    metadata: { name },
    spec: {
      ...(resource !== "jobs" && { selector: { matchLabels: { app: name } } }),
      template: { metadata: { labels: { app: name } }, spec: podSpec(env.nodeName, template) },
      ...spec,
    },
  });
}

/** How many pods each controller has ever had. */
function podsEver({ env, pods }: CaseContext): Record<string, number> {
  const uids = new Map<string, Set<string>>();
  for (const { pod } of env.history.versions(pods.namespace)) {
    const app = pod.metadata.labels?.app ?? "nobody";
    uids.set(app, (uids.get(app) ?? new Set()).add(pod.metadata.uid));
  }
  return Object.fromEntries([...uids].map(([app, each]) => [app, each.size]));
}

/** Waits until a pod of this controller has been told so often that it stays Pending. It is told after 0, 5, 15 and 35 seconds. */
async function untilTold({ env, pods }: CaseContext, app: string, times: number): Promise<void> {
  await waitFor({ what: `${times} events that a pod of ${app} stays Pending`, timeoutMs: 120_000 }, async () => {
    const { items } = await env.client.get(`/api/v1/namespaces/${pods.namespace}/events`);
    const told = items.filter(
      ({ involvedObject, message }: Json) =>
        involvedObject.name.startsWith(`${app}-`) && message.includes("stays Pending"),
    );
    const most = Math.max(0, ...told.map(({ count = 1 }: Json) => count));
    must(most >= times, told);
  });
}

export const refusalCases: readonly Case[] = [
  {
    name: "pods that can never run here make no storm, whoever controls them",
    async run(context) {
      const { env, pods, disturb } = context;
      const HELD = ["deployments", "statefulsets", "daemonsets"];
      await controller(context, ["apis/apps/v1", "deployments"], IMPOSSIBLE, { replicas: 1 });
      await controller(context, ["apis/apps/v1", "statefulsets"], IMPOSSIBLE, { replicas: 1, serviceName: "none" });
      await controller(context, ["apis/apps/v1", "daemonsets"], IMPOSSIBLE, {});
      await controller(
        context,
        ["apis/batch/v1", "jobs"],
        { ...IMPOSSIBLE, restartPolicy: "Never" },
        { backoffLimit: 1 },
      );
      await pods.create("bare", IMPOSSIBLE);
      await disturb();

      for (const app of HELD) await untilTold(context, app, 3);
      await pods.untilPhase("bare", "Failed");
      await waitFor({ what: "the Job to give up", timeoutMs: 120_000 }, async () => {
        const { status } = await env.client.get(`/apis/batch/v1/namespaces/${pods.namespace}/jobs/jobs`);
        must(
          (status.conditions ?? []).some(({ type, status: is }: Json) => type === "Failed" && is === "True"),
          status,
        );
      });
      expect(podsEver(context)).toEqual({ ...Object.fromEntries(HELD.map((app) => [app, 1])), jobs: 2, nobody: 1 });
      for (const pod of await pods.list()) {
        if (!HELD.includes(pod.metadata.labels?.app)) continue;
        expect(pod.status.phase).toBe("Pending");
      }
    },
  },
  {
    name: "pods for which there is no room here are replaced later and later",
    async run(context) {
      const { pods, disturb } = context;
      const PACED = ["deployments", "statefulsets"];
      const spec = tooLarge(context);
      await controller(context, ["apis/apps/v1", "deployments"], spec, { replicas: 1 });
      await controller(context, ["apis/apps/v1", "statefulsets"], spec, { replicas: 1, serviceName: "none" });
      await pods.create("bare", spec);
      await disturb();

      // The first fails, and its replacement after 10 s.
      for (const app of PACED) await untilTold(context, app, 2);
      await pods.untilPhase("bare", "Failed");
      const { nobody, ...ever } = podsEver(context);
      expect(nobody).toBe(1);
      // An agent that was killed has forgotten what it saw.
      for (const app of PACED) expect(ever[app]).toBeLessThanOrEqual(4);
    },
  },
];
