/** Deployments, StatefulSets and DaemonSets: what they make, in which order, and how they come from one template to the next. */
import { expect } from "vitest";
import type { Api, Json } from "../../api.ts";
import { MERGE, STRATEGIC, TABLE, expectStatus, must, podsIn, type FidelityCase } from "../../support.ts";
import { appsIn, becomeReady, conditionOf, keepReady, pods, template, until, workload, withNode } from "./support.ts";

const REVISION = "deployment.kubernetes.io/revision";

const isDone = ({ metadata, spec, status }: Json): boolean =>
  status.observedGeneration >= metadata.generation &&
  (status.updatedReplicas ?? 0) === spec.replicas &&
  (status.availableReplicas ?? 0) === spec.replicas &&
  (status.replicas ?? 0) === spec.replicas;

const replicaSets = async (api: Api, ns: string): Promise<Json[]> =>
  (await must(api.request("GET", appsIn(ns, "replicasets")), 200)).items;

/** Another template, by an annotation. */
const retemplate = (api: Api, path: string, mark: string) =>
  must(api.request("PATCH", path, { spec: { template: { metadata: { annotations: { mark } } } } }, STRATEGIC), 200);

export const rolloutCases: readonly FidelityCase[] = [
  {
    name: "a Deployment has defaults, and makes one ReplicaSet for its template and pods by that",
    async run(api, ns) {
      const created = await must(
        api.request("POST", appsIn(ns, "deployments"), workload("Deployment", "web", { replicas: 2 })),
        201,
      );
      expect(created.metadata.generation).toBe(1);
      expect(created.spec).toMatchObject({
        strategy: { type: "RollingUpdate", rollingUpdate: { maxSurge: "25%", maxUnavailable: "25%" } },
        revisionHistoryLimit: 10,
        progressDeadlineSeconds: 600,
      });
      expect(created.spec.template.spec).toMatchObject({ restartPolicy: "Always", dnsPolicy: "ClusterFirst" });
      expect(created.spec.template.spec).not.toHaveProperty("enableServiceLinks");
      const made = await pods(api, ns, "web", 2);
      const [set] = await replicaSets(api, ns);
      const hash = set!.metadata.labels["pod-template-hash"] as string;
      expect(set!.metadata.name).toBe(`web-${hash}`);
      expect(set!.metadata.annotations).toEqual({
        [REVISION]: "1",
        "deployment.kubernetes.io/desired-replicas": "2",
        "deployment.kubernetes.io/max-replicas": "3",
      });
      expect(set!.spec.selector.matchLabels).toEqual({ app: "web", "pod-template-hash": hash });
      const owner = (kind: string, { metadata }: Json) => [
        {
          apiVersion: "apps/v1",
          kind,
          name: metadata.name,
          uid: metadata.uid,
          controller: true,
          blockOwnerDeletion: true,
        },
      ];
      expect(set!.metadata.ownerReferences).toEqual(owner("Deployment", created));
      for (const pod of made) {
        expect(pod.metadata.generateName).toBe(`web-${hash}-`);
        expect(pod.metadata.labels).toEqual({ app: "web", "pod-template-hash": hash });
        expect(pod.metadata.ownerReferences).toEqual(owner("ReplicaSet", set));
      }
    },
  },
  {
    name: "a Deployment says how far it is: unavailable, progressing, available",
    async run(api, ns) {
      const path = appsIn(ns, "deployments", "web");
      await must(api.request("POST", appsIn(ns, "deployments"), workload("Deployment", "web", { replicas: 2 })), 201);
      const made = await pods(api, ns, "web", 2);
      const waiting = await until(api, path, "to count them", ({ status }) => status.unavailableReplicas === 2);
      expect(conditionOf(waiting, "Available")).toMatchObject({
        status: "False",
        reason: "MinimumReplicasUnavailable",
        message: "Deployment does not have minimum availability.",
      });
      for (const pod of made) await becomeReady(api, pod);
      const done = await until(
        api,
        path,
        "to be done",
        (d) => isDone(d) && conditionOf(d, "Progressing")?.reason === "NewReplicaSetAvailable",
      );
      const [set] = await replicaSets(api, ns);
      expect(conditionOf(done, "Progressing")).toMatchObject({
        status: "True",
        message: `ReplicaSet "${set!.metadata.name}" has successfully progressed.`,
      });
      expect(conditionOf(done, "Available")).toMatchObject({ status: "True", reason: "MinimumReplicasAvailable" });
      expect(done.metadata.annotations[REVISION]).toBe("1");
      expect(done.status).toMatchObject({ replicas: 2, readyReplicas: 2, updatedReplicas: 2, availableReplicas: 2 });
    },
  },
  {
    name: "a rollout keeps to its bounds, and going back takes the old ReplicaSet again",
    async run(api, ns) {
      const path = appsIn(ns, "deployments", "web");
      const strategy = { rollingUpdate: { maxSurge: 1, maxUnavailable: 0 } };
      const body = workload("Deployment", "web", { replicas: 3, strategy });
      const { spec } = await must(api.request("POST", appsIn(ns, "deployments"), body), 201);
      const stop = keepReady(api, ns, "web");
      try {
        await until(api, path, "to be done", isDone);
        await retemplate(api, path, "two");
        const second = await until(
          api,
          path,
          "to be rolled out",
          (d) => isDone(d) && d.metadata.annotations[REVISION] === "2",
        );
        expect(second.status.replicas).toBe(3);
        const sets = await replicaSets(api, ns);
        const sizes = Object.fromEntries(sets.map((s) => [s.metadata.annotations[REVISION], s.spec.replicas]));
        expect(sizes).toEqual({ "1": 0, "2": 3 });
        const first = sets.find((s) => s.metadata.annotations[REVISION] === "1")!;
        const back = { spec: { template: { ...spec.template, $patch: "replace" } } };
        await must(api.request("PATCH", path, back, STRATEGIC), 200);
        await until(api, path, "to be rolled back", (d) => isDone(d) && d.metadata.annotations[REVISION] === "3");
        const again = (await replicaSets(api, ns)).find((s) => s.metadata.uid === first.metadata.uid)!;
        expect(again.spec.replicas).toBe(3);
        expect(again.metadata.annotations).toMatchObject({
          [REVISION]: "3",
          "deployment.kubernetes.io/revision-history": "1",
        });
        const { items } = await must(api.request("GET", `/api/v1/namespaces/${ns}/events`), 200);
        const told = items
          .filter((event: Json) => event.reason === "ScalingReplicaSet")
          .map((event: Json) => event.message);
        expect(told).toContain(`Scaled up replica set ${first.metadata.name} from 0 to 3`);
        expect(told).toContain(`Scaled down replica set ${first.metadata.name} from 3 to 2`);
      } finally {
        await stop();
      }
    },
  },
  {
    name: "a paused Deployment scales, but takes no new template until it is resumed",
    async run(api, ns) {
      const path = appsIn(ns, "deployments", "web");
      await must(api.request("POST", appsIn(ns, "deployments"), workload("Deployment", "web", { replicas: 1 })), 201);
      await pods(api, ns, "web", 1);
      await must(api.request("PATCH", path, { spec: { paused: true } }, MERGE), 200);
      await until(api, path, "to be paused", (d) => conditionOf(d, "Progressing")?.reason === "DeploymentPaused");
      await retemplate(api, path, "two");
      await must(api.request("PATCH", path, { spec: { replicas: 2 } }, MERGE), 200);
      await pods(api, ns, "web", 2);
      expect(await replicaSets(api, ns)).toHaveLength(1);
      await must(api.request("PATCH", path, { spec: { paused: false } }, MERGE), 200);
      await until(api, appsIn(ns, "replicasets"), "to be two", ({ items }) => items.length === 2);
    },
  },
  {
    name: "a Recreate rollout stops the old pods before it makes new ones",
    async run(api, ns) {
      const path = appsIn(ns, "deployments", "web");
      const body = workload("Deployment", "web", { replicas: 2, strategy: { type: "Recreate" } });
      await must(api.request("POST", appsIn(ns, "deployments"), body), 201);
      const before = await pods(api, ns, "web", 2);
      await retemplate(api, path, "two");
      const isNew = ({ items }: Json) =>
        items.length === 2 && items.every((pod: Json) => pod.metadata.annotations?.mark === "two");
      const after = await until(api, `/api/v1/namespaces/${ns}/pods`, "to be new", isNew);
      const uids = after.items.map((pod: Json) => pod.metadata.uid);
      expect(before.some((pod) => uids.includes(pod.metadata.uid))).toBe(false);
    },
  },
  {
    name: "the subresource scale reads and writes the replicas of a Deployment",
    async run(api, ns) {
      const path = `${appsIn(ns, "deployments", "web")}/scale`;
      await must(api.request("POST", appsIn(ns, "deployments"), workload("Deployment", "web", { replicas: 0 })), 201);
      const scale = await must(api.request("GET", path), 200);
      expect(scale).toMatchObject({
        apiVersion: "autoscaling/v1",
        kind: "Scale",
        metadata: { name: "web", namespace: ns },
        status: { replicas: 0, selector: "app=web" },
      });
      expect(scale.spec).toEqual({});
      const scaled = await must(api.request("PATCH", path, { spec: { replicas: 2 } }, MERGE), 200);
      expect(scaled.spec).toEqual({ replicas: 2 });
      await pods(api, ns, "web", 2);
      const stale = { ...scale, spec: { replicas: 5 } };
      expectStatus(await api.request("PUT", path, stale), { code: 409, reason: "Conflict" });
    },
  },
  {
    name: "a StatefulSet makes its pods in order, under names that stay, and replaces them from the last",
    async run(api, ns) {
      const path = appsIn(ns, "statefulsets", "db");
      const body = workload("StatefulSet", "db", { replicas: 2, serviceName: "db" });
      await must(api.request("POST", appsIn(ns, "statefulsets"), body), 201);
      const [first, ...none] = await pods(api, ns, "db", 1);
      expect(none).toEqual([]);
      expect(first!.metadata.name).toBe("db-0");
      expect(first!.spec).toMatchObject({ hostname: "db-0", subdomain: "db" });
      expect(first!.metadata.labels).toMatchObject({
        app: "db",
        "statefulset.kubernetes.io/pod-name": "db-0",
        "apps.kubernetes.io/pod-index": "0",
      });
      const revision = first!.metadata.labels["controller-revision-hash"] as string;
      await must(api.request("GET", appsIn(ns, "controllerrevisions", revision)), 200);
      const stop = keepReady(api, ns, "db");
      try {
        const ready = await until(api, path, "to be ready", ({ status }) => status.readyReplicas === 2);
        expect(ready.status.currentRevision).toBe(revision);
        await retemplate(api, path, "two");
        const updated = await until(
          api,
          path,
          "to be replaced",
          ({ status }) =>
            status.updatedReplicas === 2 &&
            status.readyReplicas === 2 &&
            status.currentRevision === status.updateRevision &&
            status.currentRevision !== revision,
        );
        expect(updated.status).toMatchObject({ replicas: 2, currentReplicas: 2, availableReplicas: 2 });
        const after = await pods(api, ns, "db", 2);
        const created = after.map(({ metadata }) => metadata.creationTimestamp as string);
        expect(created[1]! <= created[0]!).toBe(true);
        expect(after[0]!.metadata.uid).not.toBe(first!.metadata.uid);
      } finally {
        await stop();
      }
    },
  },
  {
    name: "a StatefulSet with a partition leaves the pods below it as they are",
    async run(api, ns) {
      const path = appsIn(ns, "statefulsets", "db");
      const updateStrategy = { type: "RollingUpdate", rollingUpdate: { partition: 1 } };
      const body = workload("StatefulSet", "db", { replicas: 2, podManagementPolicy: "Parallel", updateStrategy });
      await must(api.request("POST", appsIn(ns, "statefulsets"), body), 201);
      const stop = keepReady(api, ns, "db");
      try {
        await until(api, path, "to be ready", ({ status }) => status.readyReplicas === 2);
        const [before] = await pods(api, ns, "db", 2);
        await retemplate(api, path, "two");
        const isMoved = ({ metadata, status }: Json) =>
          status.observedGeneration >= metadata.generation &&
          status.updatedReplicas === 1 &&
          status.readyReplicas === 2;
        await until(api, path, "to have one of the new", isMoved);
        const [zero, one] = await pods(api, ns, "db", 2);
        expect(zero!.metadata.uid).toBe(before!.metadata.uid);
        expect(one!.metadata.annotations).toMatchObject({ mark: "two" });
      } finally {
        await stop();
      }
    },
  },
  {
    name: "the selector of a Deployment and most of a StatefulSet's spec cannot change, and selectors must select",
    async run(api, ns) {
      await must(api.request("POST", appsIn(ns, "deployments"), workload("Deployment", "web", { replicas: 0 })), 201);
      const selector = { matchLabels: { app: "other" } };
      const moved = await api.request(
        "PATCH",
        appsIn(ns, "deployments", "web"),
        { spec: { selector, template: { metadata: { labels: { app: "other" } } } } },
        MERGE,
      );
      expectStatus(moved, {
        code: 422,
        reason: "Invalid",
        message:
          'Deployment.apps "web" is invalid: spec.selector: Invalid value: {"matchLabels":{"app":"other"}}: field is immutable',
      });
      await must(api.request("POST", appsIn(ns, "statefulsets"), workload("StatefulSet", "db", { replicas: 0 })), 201);
      const renamed = await api.request(
        "PATCH",
        appsIn(ns, "statefulsets", "db"),
        { spec: { serviceName: "x" } },
        MERGE,
      );
      expectStatus(renamed, {
        code: 422,
        reason: "Invalid",
        message: 'StatefulSet.apps "db" is invalid: spec.serviceName: Invalid value: "x": field is immutable',
      });
      const astray = await api.request(
        "POST",
        appsIn(ns, "replicasets"),
        workload("ReplicaSet", "astray", { template: template("other") }),
      );
      expectStatus(astray, {
        code: 422,
        reason: "Invalid",
        message:
          'ReplicaSet.apps "astray" is invalid: spec.template.metadata.labels: Invalid value: {"app":"other"}: `selector` does not match template `labels`',
      });
    },
  },
  {
    name: "a DaemonSet makes one pod for each node that fits, bound to it by affinity",
    async run(api, ns) {
      await withNode(api, async (node) => {
        const body = workload("DaemonSet", "agent", { template: template("agent", { nodeSelector: { name: node } }) });
        const set = await must(api.request("POST", appsIn(ns, "daemonsets"), body), 201);
        expect(set.spec.updateStrategy).toEqual({
          type: "RollingUpdate",
          rollingUpdate: { maxSurge: 0, maxUnavailable: 1 },
        });
        const [pod] = await pods(api, ns, "agent", 1);
        expect(pod!.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution).toEqual({
          nodeSelectorTerms: [{ matchFields: [{ key: "metadata.name", operator: "In", values: [node] }] }],
        });
        expect(pod!.spec.tolerations).toContainEqual({
          key: "node.kubernetes.io/unschedulable",
          operator: "Exists",
          effect: "NoSchedule",
        });
        expect(pod!.metadata.labels["pod-template-generation"]).toBe("1");
        const { name } = pod!.metadata;
        const binding = { apiVersion: "v1", kind: "Binding", metadata: { name }, target: { kind: "Node", name: node } };
        await must(api.request("POST", `${podsIn(ns, name)}/binding`, binding), 201);
        await becomeReady(api, pod);
        const path = appsIn(ns, "daemonsets", "agent");
        const ready = await until(api, path, "to be ready", ({ status }) => status.numberAvailable === 1);
        expect(ready.status).toMatchObject({
          currentNumberScheduled: 1,
          desiredNumberScheduled: 1,
          numberMisscheduled: 0,
          numberReady: 1,
          updatedNumberScheduled: 1,
        });
        await must(api.request("PATCH", `/api/v1/nodes/${node}`, { metadata: { labels: { name: null } } }, MERGE), 200);
        await pods(api, ns, "agent", 0);
        await api.request("DELETE", podsIn(ns, name), { gracePeriodSeconds: 0 });
      });
    },
  },
  {
    name: "tables of workloads have kubectl's columns",
    async run(api, ns) {
      await must(api.request("POST", appsIn(ns, "deployments"), workload("Deployment", "web", { replicas: 1 })), 201);
      await pods(api, ns, "web", 1);
      const path = appsIn(ns, "deployments", "web");
      await until(api, path, "to count", ({ status }) => status.updatedReplicas === 1);
      const columns = async (at: string) => {
        const { columnDefinitions, rows } = await must(api.request("GET", at, undefined, TABLE), 200);
        return {
          names: columnDefinitions.map((c: Json) => `${c.name} ${c.type} ${c.priority}`),
          cells: rows[0].cells as Json[],
        };
      };
      const deployment = await columns(path);
      expect(deployment.names).toEqual([
        "Name string 0",
        "Ready string 0",
        "Up-to-date string 0",
        "Available string 0",
        "Age string 0",
        "Containers string 1",
        "Images string 1",
        "Selector string 1",
      ]);
      expect(deployment.cells.toSpliced(4, 1)).toEqual(["web", "0/1", 1, 0, "a", "busybox:1.36", "app=web"]);
      const set = await columns(appsIn(ns, "replicasets"));
      expect(set.cells.slice(1, 4)).toEqual([1, 1, 0]);
    },
  },
];
