/** Services' endpoints, disruption budgets, and pods that have to leave a node. */
import { expect } from "vitest";
import type { Api, Json } from "../../api.ts";
import { MERGE, expectStatus, inNamespace, must, pod, podsIn, type FidelityCase } from "../../support.ts";
import { becomeReady, conditionOf, until, untilGone, withNode } from "./support.ts";

const evict = (api: Api, ns: string, name: string) =>
  api.request("POST", `${podsIn(ns, name)}/eviction`, {
    apiVersion: "policy/v1",
    kind: "Eviction",
    metadata: { name, namespace: ns },
  });

const taint = { key: "maintenance", value: "yes", effect: "NoExecute" };

export const clusterCases: readonly FidelityCase[] = [
  {
    name: "a Service has Endpoints and a slice with the addresses of its pods, ready ones apart from others",
    async run(api, ns) {
      await withNode(api, async (node) => {
        const ports = [{ name: "http", port: 80, targetPort: "web" }];
        const spec = { selector: { app: "web" }, ports };
        const service = { apiVersion: "v1", kind: "Service", metadata: { name: "web", labels: { of: "web" } }, spec };
        await must(api.request("POST", inNamespace(ns, "services"), service), 201);
        const containers = [{ name: "a", image: "busybox", ports: [{ name: "web", containerPort: 8080 }] }];
        for (const name of ["one", "two"])
          await must(
            api.request("POST", podsIn(ns), pod(name, { nodeName: node, containers }, { labels: { app: "web" } })),
            201,
          );
        const one = await becomeReady(api, { metadata: { namespace: ns, name: "one" } }, "10.9.0.1");
        const status = { phase: "Running", podIP: "10.9.0.2", podIPs: [{ ip: "10.9.0.2" }] };
        await must(api.request("PATCH", `${podsIn(ns, "two")}/status`, { status }, MERGE), 200);
        const isWhole = ({ subsets }: Json) =>
          subsets?.[0]?.addresses?.length === 1 && subsets[0].notReadyAddresses?.length === 1;
        const endpoints = await until(api, inNamespace(ns, "endpoints", "web"), "to be whole", isWhole);
        expect(endpoints.metadata.labels).toMatchObject({ of: "web" });
        expect(endpoints.subsets[0]).toMatchObject({
          addresses: [
            { ip: "10.9.0.1", targetRef: { kind: "Pod", namespace: ns, name: "one", uid: one.metadata.uid } },
          ],
          notReadyAddresses: [{ ip: "10.9.0.2" }],
          ports: [{ name: "http", port: 8080, protocol: "TCP" }],
        });
        const slices = `/apis/discovery.k8s.io/v1/namespaces/${ns}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dweb`;
        const list = await until(api, slices, "to be whole", ({ items }) => items[0]?.endpoints?.length === 2);
        const [slice] = list.items as Json[];
        expect(slice!.metadata.labels).toEqual({
          "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
          "kubernetes.io/service-name": "web",
          of: "web",
        });
        expect(slice!.metadata.ownerReferences[0]).toMatchObject({ kind: "Service", name: "web", controller: true });
        expect(slice!.addressType).toBe("IPv4");
        expect(slice!.ports).toEqual([{ name: "http", port: 8080, protocol: "TCP" }]);
        const byAddress = Object.fromEntries(slice!.endpoints.map((e: Json) => [e.addresses[0], e.conditions]));
        expect(byAddress).toEqual({
          "10.9.0.1": { ready: true, serving: true, terminating: false },
          "10.9.0.2": { ready: false, serving: false, terminating: false },
        });
        await must(api.request("DELETE", inNamespace(ns, "services", "web")), 200);
        await untilGone(api, inNamespace(ns, "endpoints", "web"));
        await until(api, slices, "to be none", ({ items }) => items.length === 0);
        for (const name of ["one", "two"]) await api.request("DELETE", podsIn(ns, name), { gracePeriodSeconds: 0 });
      });
    },
  },
  {
    name: "a disruption budget counts its pods, and an eviction beyond it is refused",
    async run(api, ns) {
      const budgets = `/apis/policy/v1/namespaces/${ns}/poddisruptionbudgets`;
      const spec = { minAvailable: 1, selector: { matchLabels: { app: "kept" } } };
      const body = { apiVersion: "policy/v1", kind: "PodDisruptionBudget", metadata: { name: "kept" }, spec };
      await must(api.request("POST", budgets, body), 201);
      for (const name of ["one", "two"]) {
        await must(api.request("POST", podsIn(ns), pod(name, {}, { labels: { app: "kept" } })), 201);
        await becomeReady(api, { metadata: { namespace: ns, name } });
      }
      const path = `${budgets}/kept`;
      const counted = await until(api, path, "to count two", ({ status }) => status.currentHealthy === 2);
      expect(counted.status).toMatchObject({ desiredHealthy: 1, disruptionsAllowed: 1, expectedPods: 2 });
      expect(conditionOf(counted, "DisruptionAllowed")).toMatchObject({ status: "True", reason: "SufficientPods" });
      await must(evict(api, ns, "one"), 201);
      await untilGone(api, podsIn(ns, "one"));
      await until(api, path, "to count one", ({ status }) => status.currentHealthy === 1 && status.expectedPods === 1);
      const refused = await evict(api, ns, "two");
      expectStatus(refused, {
        code: 429,
        reason: "TooManyRequests",
        message: "Cannot evict pod as it would violate the pod's disruption budget.",
      });
      expect(refused.body.details.causes).toEqual([
        { reason: "DisruptionBudget", message: "The disruption budget kept needs 1 healthy pods and has 1 currently" },
      ]);
    },
  },
  {
    name: "pods leave a node with a NoExecute taint: at once, when their time is over, or not at all",
    async run(api, ns) {
      await withNode(api, async (node) => {
        const tolerates = (more: Json) => ({ tolerations: [{ key: "maintenance", operator: "Exists", ...more }] });
        const specs = {
          leaves: {},
          waits: tolerates({ effect: "NoExecute", tolerationSeconds: 2 }),
          stays: tolerates({}),
        };
        for (const [name, spec] of Object.entries(specs))
          await must(api.request("POST", podsIn(ns), pod(name, { nodeName: node, ...spec })), 201);
        await must(api.request("PATCH", `/api/v1/nodes/${node}`, { spec: { taints: [taint] } }, MERGE), 200);
        const isLeaving = ({ metadata }: Json) => metadata.deletionTimestamp !== undefined;
        const left = await until(api, podsIn(ns, "leaves"), "to leave", isLeaving);
        expect(conditionOf(left, "DisruptionTarget")).toMatchObject({
          status: "True",
          reason: "DeletionByTaintManager",
          message: "Taint manager: deleting due to NoExecute taint",
        });
        const early = await must(api.request("GET", podsIn(ns, "waits")), 200);
        expect(isLeaving(early)).toBe(false);
        await until(api, podsIn(ns, "waits"), "to leave", isLeaving);
        expect(isLeaving(await must(api.request("GET", podsIn(ns, "stays")), 200))).toBe(false);
        for (const name of ["leaves", "waits", "stays"])
          await api.request("DELETE", podsIn(ns, name), { gracePeriodSeconds: 0 });
      });
    },
  },
  {
    name: "a cordoned node has a taint that says so",
    async run(api) {
      await withNode(api, async (node) => {
        const path = `/api/v1/nodes/${node}`;
        await must(api.request("PATCH", path, { spec: { unschedulable: true } }, MERGE), 200);
        const cordoned = await until(api, path, "to be tainted", ({ spec }) => spec.taints?.length === 1);
        expect(cordoned.spec.taints[0]).toMatchObject({
          key: "node.kubernetes.io/unschedulable",
          effect: "NoSchedule",
        });
        await must(api.request("PATCH", path, { spec: { unschedulable: false } }, MERGE), 200);
        await until(api, path, "to be free", ({ spec }) => !spec.taints?.length);
      });
    },
  },
];
