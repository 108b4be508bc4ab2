/** Autoscalers whose pods run and are measured: on devcluster by itself, on the real control plane by the real metrics-server. */
import { expect } from "vitest";
import type { Json } from "../harness/client.ts";
import { must, waitFor } from "../harness/wait.ts";
import type { Case } from "./pod-cases.ts";
import { podSpec, shell } from "./pods.ts";

/** Busy for about a third of a core: well above what the autoscaler is told to aim at, without taking the machine. */
const busy = "trap 'exit 0' TERM; while :; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; sleep 0.1; done";

export const autoscalerCases: readonly Case[] = [
  {
    name: "a HorizontalPodAutoscaler adds replicas to a Deployment whose pods are busy, up to its most [M02]",
    async run({ env, pods, disturb }) {
      const { client, nodeName } = env;
      const apps = `/apis/apps/v1/namespaces/${pods.namespace}/deployments`;
      const containers = [shell("main", busy, { resources: { requests: { cpu: "100m" } } })];
      await client.create(apps, {
        metadata: { name: "busy" },
        spec: {
          replicas: 1,
          selector: { matchLabels: { app: "busy" } },
          template: {
            metadata: { labels: { app: "busy" } },
            spec: podSpec(nodeName, { containers, terminationGracePeriodSeconds: 1 }),
          },
        },
      });
      const autoscalers = `/apis/autoscaling/v2/namespaces/${pods.namespace}/horizontalpodautoscalers`;
      await client.create(autoscalers, {
        metadata: { name: "busy" },
        spec: {
          scaleTargetRef: { apiVersion: "apps/v1", kind: "Deployment", name: "busy" },
          maxReplicas: 2,
          metrics: [
            { type: "Resource", resource: { name: "cpu", target: { type: "Utilization", averageUtilization: 50 } } },
          ],
        },
      });
      await disturb();
      const path = `${autoscalers}/busy`;
      await waitFor({ what: "the Deployment to be scaled", timeoutMs: 150_000, intervalMs: 500 }, async () => {
        const { status } = await client.get(`${apps}/busy`);
        must(status.readyReplicas === 2, (await client.get(path)).status);
      });
      // What it says of the metric is as old as its last look.
      await waitFor({ what: "the autoscaler to say so", timeoutMs: 60_000, intervalMs: 500 }, async () => {
        const { status } = await client.get(path);
        const reason = (type: string) => status.conditions?.find((each: Json) => each.type === type)?.reason;
        must(status.currentReplicas === 2 && reason("ScalingActive") === "ValidMetricFound", status);
        const [{ type, resource }] = status.currentMetrics;
        expect([type, resource.name]).toEqual(["Resource", "cpu"]);
        expect(resource.current.averageUtilization).toBeGreaterThan(0);
      });
      await client.delete(path);
      await client.delete(`${apps}/busy`);
    },
  },
];
