/** Who owns what: replacement, adoption, release, and what becomes of dependents. */
import { expect } from "vitest";
import type { Json } from "../../api.ts";
import { MERGE, configMap, mapsIn, must, pod, podsIn, type FidelityCase } from "../../support.ts";
import { appsIn, becomeReady, end, jobsIn, pods, template, until, untilGone, workload } from "./support.ts";

const background = { propagationPolicy: "Background" };

export const ownershipCases: readonly FidelityCase[] = [
  {
    name: "a failed pod of a ReplicaSet is replaced at once",
    async run(api, ns) {
      await must(api.request("POST", appsIn(ns, "replicasets"), workload("ReplicaSet", "rs", { replicas: 1 })), 201);
      const [first] = await pods(api, ns, "rs", 1);
      await end(api, first, 1);
      const both = await pods(api, ns, "rs", 2);
      expect(both.map(({ status }) => status.phase as string)).toEqual(expect.arrayContaining(["Failed", "Pending"]));
    },
  },
  {
    name: "a ReplicaSet adopts pods that it selects, and lets go those that it selects no more",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("orphan", {}, { labels: { app: "rs" } })), 201);
      const set = await must(
        api.request("POST", appsIn(ns, "replicasets"), workload("ReplicaSet", "rs", { replicas: 1 })),
        201,
      );
      const owns = ({ metadata }: Json) => metadata.ownerReferences?.[0]?.uid === set.metadata.uid;
      await until(api, podsIn(ns, "orphan"), "to be adopted", owns);
      await pods(api, ns, "rs", 1);
      await must(api.request("PATCH", podsIn(ns, "orphan"), { metadata: { labels: { app: "free" } } }, MERGE), 200);
      await until(api, podsIn(ns, "orphan"), "to be free", ({ metadata }) => metadata.ownerReferences === undefined);
      const [replacement] = await pods(api, ns, "rs", 1);
      expect(replacement!.metadata.name).not.toBe("orphan");
    },
  },
  {
    name: "scaling down takes pods that are not ready, then those that cost least",
    async run(api, ns) {
      const path = appsIn(ns, "replicasets", "rs");
      await must(api.request("POST", appsIn(ns, "replicasets"), workload("ReplicaSet", "rs", { replicas: 3 })), 201);
      const [cheap, dear] = await pods(api, ns, "rs", 3);
      for (const each of [cheap!, dear!]) await becomeReady(api, each);
      const annotations = { "controller.kubernetes.io/pod-deletion-cost": "-5" };
      await must(api.request("PATCH", podsIn(ns, cheap!.metadata.name), { metadata: { annotations } }, MERGE), 200);
      await until(api, path, "to see them", ({ status }) => status.readyReplicas === 2);
      await must(api.request("PATCH", path, { spec: { replicas: 2 } }, MERGE), 200);
      const two = await pods(api, ns, "rs", 2);
      expect(two.map(({ metadata }) => metadata.name)).toEqual([cheap!.metadata.name, dear!.metadata.name]);
      await must(api.request("PATCH", path, { spec: { replicas: 1 } }, MERGE), 200);
      const [left] = await pods(api, ns, "rs", 1);
      expect(left!.metadata.name).toBe(dear!.metadata.name);
    },
  },
  {
    name: "a ReplicaSet that cannot make its pods says why",
    async run(api, ns) {
      const body = workload("ReplicaSet", "rs", { template: template("rs", { serviceAccountName: "missing" }) });
      await must(api.request("POST", appsIn(ns, "replicasets"), body), 201);
      const failed = await until(api, appsIn(ns, "replicasets", "rs"), "to have failed", ({ status }) =>
        Boolean(status.conditions?.length),
      );
      expect(failed.status.conditions[0]).toMatchObject({
        type: "ReplicaFailure",
        status: "True",
        reason: "FailedCreate",
        message: expect.stringContaining('serviceaccount "missing" not found') as unknown,
      });
    },
  },
  {
    name: "what a deleted Deployment made goes with it",
    async run(api, ns) {
      const path = appsIn(ns, "deployments", "web");
      await must(api.request("POST", appsIn(ns, "deployments"), workload("Deployment", "web")), 201);
      await pods(api, ns, "web", 1);
      await must(api.request("DELETE", path, background), 200);
      await untilGone(api, path);
      await pods(api, ns, "web", 0);
      await until(api, appsIn(ns, "replicasets"), "to be none", ({ items }) => items.length === 0);
    },
  },
  {
    name: "orphaned dependents stay, without their owner",
    async run(api, ns) {
      const path = appsIn(ns, "replicasets", "rs");
      await must(api.request("POST", appsIn(ns, "replicasets"), workload("ReplicaSet", "rs")), 201);
      const [made] = await pods(api, ns, "rs", 1);
      await must(api.request("DELETE", path, { propagationPolicy: "Orphan" }), 200);
      await untilGone(api, path);
      const [left] = await pods(api, ns, "rs", 1);
      expect(left!.metadata.uid).toBe(made!.metadata.uid);
      expect(left!.metadata).not.toHaveProperty("ownerReferences");
    },
  },
  {
    name: "an owner that is deleted in the foreground waits for its dependents",
    async run(api, ns) {
      const path = appsIn(ns, "replicasets", "rs");
      const body = workload("ReplicaSet", "rs", { template: { ...template("rs") } });
      body.spec.template.metadata.finalizers = ["example.com/held"];
      await must(api.request("POST", appsIn(ns, "replicasets"), body), 201);
      const [held] = await pods(api, ns, "rs", 1);
      const deleted = await must(api.request("DELETE", path, { propagationPolicy: "Foreground" }), 200);
      expect(deleted.metadata.finalizers).toEqual(["foregroundDeletion"]);
      const at = podsIn(ns, held!.metadata.name);
      await until(api, at, "to be deleted", ({ metadata }) => Boolean(metadata?.deletionTimestamp));
      await must(api.request("GET", path), 200);
      await must(api.request("PATCH", at, { metadata: { finalizers: null } }, MERGE), 200);
      await untilGone(api, path);
    },
  },
  {
    name: "an object whose owner is not there is taken away",
    async run(api, ns) {
      const owner = await must(api.request("POST", mapsIn(ns), configMap("owner")), 201);
      const reference = { apiVersion: "v1", kind: "ConfigMap", name: "owner", uid: owner.metadata.uid };
      const foreign = { apiVersion: "example.com/v1", kind: "Widget", name: "w", uid: owner.metadata.uid };
      await must(api.request("POST", mapsIn(ns), configMap("kept", {}, { ownerReferences: [foreign] })), 201);
      await must(api.request("POST", mapsIn(ns), configMap("owned", {}, { ownerReferences: [reference] })), 201);
      const wrong = { ...reference, uid: "00000000-0000-4000-8000-000000000000" };
      await must(api.request("POST", mapsIn(ns), configMap("stray", {}, { ownerReferences: [wrong] })), 201);
      await untilGone(api, mapsIn(ns, "stray"));
      await must(api.request("GET", mapsIn(ns, "owned")), 200);
      await must(api.request("DELETE", mapsIn(ns, "owner")), 200);
      await untilGone(api, mapsIn(ns, "owned"));
      await must(api.request("GET", mapsIn(ns, "kept")), 200);
    },
  },
  {
    name: "a Job that is deleted without a word about its pods leaves them, and warns",
    async run(api, ns) {
      const body = {
        apiVersion: "batch/v1",
        kind: "Job",
        metadata: { name: "j" },
        spec: { template: template("j", { restartPolicy: "Never" }) },
      };
      await must(api.request("POST", jobsIn(ns), body), 201);
      const [made] = await pods(api, ns, "j", 1);
      const answer = await api.request("DELETE", jobsIn(ns, "j"));
      expect(answer.status).toBe(200);
      expect(answer.headers["warning"]).toContain("child pods are preserved by default when jobs are deleted");
      await untilGone(api, jobsIn(ns, "j"));
      const left = await until(
        api,
        podsIn(ns, made!.metadata.name),
        "to be free",
        ({ metadata }) => metadata.finalizers === undefined,
      );
      expect(left.metadata).not.toHaveProperty("ownerReferences");
    },
  },
];
