/** HorizontalPodAutoscalers where nobody measures pods: what they do without, and what they say. Those of pods that are measured are in e2e/cases. */
import { expect } from "vitest";
import type { Api, Json } from "../../api.ts";
import { must, type FidelityCase } from "../../support.ts";
import { appsIn, conditionOf, until, workload } from "./support.ts";

const autoscalersIn = (ns: string, name?: string) =>
  `/apis/autoscaling/v2/namespaces/${ns}/horizontalpodautoscalers${name === undefined ? "" : `/${name}`}`;

async function autoscale(api: Api, ns: string, target: string, spec: Json = {}): Promise<void> {
  const scaleTargetRef = { apiVersion: "apps/v1", kind: "Deployment", name: target };
  const body = { metadata: { name: target }, spec: { scaleTargetRef, maxReplicas: 4, ...spec } };
  await must(api.request("POST", autoscalersIn(ns), body), 201);
}

const deploy = (api: Api, ns: string, replicas: number) =>
  must(api.request("POST", appsIn(ns, "deployments"), workload("Deployment", "web", { replicas })), 201);

const told = (type: string, reason: string) => (object: Json) => conditionOf(object, type)?.reason === reason;

export const autoscalerCases: readonly FidelityCase[] = [
  {
    name: "an autoscaler has defaults",
    async run(api, ns) {
      await autoscale(api, ns, "web");
      const { spec } = await must(api.request("GET", autoscalersIn(ns, "web")), 200);
      expect(spec).toMatchObject({ minReplicas: 1, maxReplicas: 4 });
      expect(spec.metrics).toEqual([
        { type: "Resource", resource: { name: "cpu", target: { type: "Utilization", averageUtilization: 80 } } },
      ]);
    },
  },
  {
    name: "an autoscaler scales what has fewer replicas than its least",
    async run(api, ns) {
      await deploy(api, ns, 1);
      await autoscale(api, ns, "web", { minReplicas: 2, maxReplicas: 3 });
      await until(api, appsIn(ns, "deployments", "web"), "to have 2", ({ spec }) => spec.replicas === 2);
      const path = autoscalersIn(ns, "web");
      const object = await until(api, path, "to say so", told("AbleToScale", "SucceededRescale"));
      expect(object.status).toMatchObject({ currentReplicas: 1, desiredReplicas: 2 });
      expect(conditionOf(object, "AbleToScale")).toMatchObject({
        status: "True",
        message: "the HPA controller was able to update the target scale to 2",
      });
    },
  },
  {
    name: "an autoscaler without its target says that it is not found",
    async run(api, ns) {
      await autoscale(api, ns, "web");
      const object = await until(api, autoscalersIn(ns, "web"), "to say so", told("AbleToScale", "FailedGetScale"));
      expect(conditionOf(object, "AbleToScale")).toMatchObject({
        status: "False",
        message: `the HPA controller was unable to get the target's current scale: deployments.apps "web" not found`,
      });
    },
  },
  {
    name: "an autoscaler leaves what was scaled to nothing alone, and says so",
    async run(api, ns) {
      await deploy(api, ns, 0);
      await autoscale(api, ns, "web");
      const object = await until(api, autoscalersIn(ns, "web"), "to say so", told("ScalingActive", "ScalingDisabled"));
      expect(conditionOf(object, "ScalingActive")).toMatchObject({
        status: "False",
        message: "scaling is disabled since the replica count of the target is zero",
      });
      expect((await must(api.request("GET", appsIn(ns, "deployments", "web")), 200)).spec.replicas).toBe(0);
    },
  },
];
