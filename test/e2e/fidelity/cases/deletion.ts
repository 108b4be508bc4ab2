/** Deletion: grace, preconditions, finalizers, collections. */
import { expect } from "vitest";
import type { Json } from "../api.ts";
import {
  MERGE,
  STRATEGIC,
  configMap,
  expectStatus,
  inNamespace,
  mapsIn,
  must,
  pod,
  podsIn,
  seconds,
  type FidelityCase,
} from "../support.ts";

export const deletionCases: readonly FidelityCase[] = [
  {
    name: "deleting a bound pod gives it its grace, and bumps the generation",
    async run(api, ns) {
      await must(
        api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere", terminationGracePeriodSeconds: 40 })),
        201,
      );
      const before = Date.now() / 1000;
      const answer = await must(api.request("DELETE", podsIn(ns, "p")), 200);
      expect(answer.metadata.deletionGracePeriodSeconds).toBe(40);
      expect(answer.metadata.generation).toBe(2);
      expect(Math.abs(seconds(answer.metadata.deletionTimestamp) - before - 40)).toBeLessThan(5);
      expect((await api.request("GET", podsIn(ns, "p"))).status).toBe(200);
    },
  },
  {
    name: "a second deletion can only shorten the grace",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const first = await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 60 }), 200);
      const longer = await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 90 }), 200);
      expect(longer.metadata.deletionGracePeriodSeconds).toBe(60);
      expect(longer.metadata.resourceVersion).toBe(first.metadata.resourceVersion);
      const shorter = await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 20 }), 200);
      expect(shorter.metadata.deletionGracePeriodSeconds).toBe(20);
      expect(seconds(first.metadata.deletionTimestamp) - seconds(shorter.metadata.deletionTimestamp)).toBe(40);
      expect(shorter.metadata.generation).toBe(2);
    },
  },
  {
    name: "a negative grace counts as one second",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      expect(
        (await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: -5 }), 200)).metadata
          .deletionGracePeriodSeconds,
      ).toBe(1);
    },
  },
  {
    name: "a pod that is not bound is deleted at once, and so is one that has ended",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("unbound")), 201);
      await must(api.request("DELETE", podsIn(ns, "unbound")), 200);
      expect((await api.request("GET", podsIn(ns, "unbound"))).status).toBe(404);
      await must(api.request("POST", podsIn(ns), pod("ended", { nodeName: "nowhere" })), 201);
      await must(
        api.request("PATCH", `${podsIn(ns, "ended")}/status`, { status: { phase: "Succeeded" } }, STRATEGIC),
        200,
      );
      await must(api.request("DELETE", podsIn(ns, "ended")), 200);
      expect((await api.request("GET", podsIn(ns, "ended"))).status).toBe(404);
    },
  },
  {
    name: "deleting with grace 0 shows watchers the deletion timestamp and then the deletion",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const watch = await api.watch(`${podsIn(ns)}?watch=true&resourceVersion=${created.metadata.resourceVersion}`);
      await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 0 }), 200);
      const modified = await watch.nextChange();
      expect(modified.type).toBe("MODIFIED");
      expect(modified.object.metadata.deletionGracePeriodSeconds).toBe(0);
      const deleted = await watch.nextChange();
      expect(deleted.type).toBe("DELETED");
      expect(Number(deleted.object.metadata.resourceVersion)).toBeGreaterThan(
        Number(modified.object.metadata.resourceVersion),
      );
      watch.close();
    },
  },
  {
    name: "preconditions of a deletion that do not hold are 409",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const wrong = await api.request("DELETE", podsIn(ns, "p"), {
        gracePeriodSeconds: 0,
        preconditions: { uid: "other" },
      });
      expectStatus(wrong, {
        code: 409,
        reason: "Conflict",
        message: `Operation cannot be fulfilled on Pod "p": the UID in the precondition (other) does not match the UID in record (${created.metadata.uid}). The object might have been deleted and then recreated`,
      });
      await must(
        api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 0, preconditions: { uid: created.metadata.uid } }),
        200,
      );
    },
  },
  {
    name: "a finalizer holds a deleted pod until it is removed, and none can be added meanwhile",
    async run(api, ns) {
      await must(
        api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" }, { finalizers: ["a.example/hold"] })),
        201,
      );
      await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 0 }), 200);
      expect((await must(api.request("GET", podsIn(ns, "p")), 200)).metadata.deletionGracePeriodSeconds).toBe(0);
      expectStatus(
        await api.request("PATCH", podsIn(ns, "p"), { metadata: { finalizers: ["a.example/more"] } }, STRATEGIC),
        {
          code: 422,
          reason: "Invalid",
          message:
            /metadata\.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \[\]string\{"a\.example\/more"\}$/,
        },
      );
      await must(api.request("PATCH", podsIn(ns, "p"), { metadata: { finalizers: null } }, MERGE), 200);
      expect((await api.request("GET", podsIn(ns, "p"))).status).toBe(404);
    },
  },
  {
    name: "a ConfigMap with a finalizer is marked, not deleted",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", {}, { finalizers: ["a.example/hold"] })), 201);
      const answer = await must(api.request("DELETE", mapsIn(ns, "m")), 200);
      expect(answer.kind).toBe("ConfigMap");
      expect(answer.metadata.deletionGracePeriodSeconds).toBe(0);
      await must(api.request("PATCH", mapsIn(ns, "m"), { metadata: { finalizers: null } }, MERGE), 200);
      expect((await api.request("GET", mapsIn(ns, "m"))).status).toBe(404);
    },
  },
  {
    name: "deleting a ConfigMap answers with a Status that names it",
    async run(api, ns) {
      const created = await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      const answer = await must(api.request("DELETE", mapsIn(ns, "m")), 200);
      expect(answer).toMatchObject({
        kind: "Status",
        status: "Success",
        details: { name: "m", kind: "configmaps", uid: created.metadata.uid },
      });
    },
  },
  {
    name: "deletecollection deletes what the selector selects and answers with the list",
    async run(api, ns) {
      for (const [name, color] of [
        ["m1", "red"],
        ["m2", "blue"],
        ["m3", "red"],
      ] as const)
        await must(api.request("POST", mapsIn(ns), configMap(name, {}, { labels: { color } })), 201);
      const answer = await must(api.request("DELETE", `${mapsIn(ns)}?labelSelector=color%3Dred`), 200);
      expect(answer.kind).toBe("ConfigMapList");
      const left = await must(api.request("GET", `${mapsIn(ns)}?labelSelector=color`), 200);
      expect(left.items.map((item: Json) => item.metadata.name)).toEqual(["m2"]);
    },
  },
  {
    name: "an eviction marks the pod as disrupted and deletes it with grace",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const answer = await must(
        api.request("POST", `${podsIn(ns, "p")}/eviction`, {
          apiVersion: "policy/v1",
          kind: "Eviction",
          metadata: { name: "p" },
          deleteOptions: { gracePeriodSeconds: 7 },
        }),
        201,
      );
      expect(answer).toMatchObject({ kind: "Status", status: "Success" });
      const after = await must(api.request("GET", podsIn(ns, "p")), 200);
      expect(after.metadata.deletionGracePeriodSeconds).toBe(7);
      expect(after.status.conditions).toMatchObject([
        {
          type: "DisruptionTarget",
          status: "True",
          reason: "EvictionByEvictionAPI",
          message: "Eviction API: evicting",
        },
      ]);
    },
  },
  {
    name: "nothing new is accepted in a namespace that is being deleted",
    async run(api, ns) {
      // The finalizer keeps the namespace in Terminating on a server that empties it, too.
      await must(
        api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" }, { finalizers: ["a.example/hold"] })),
        201,
      );
      await must(api.request("DELETE", `/api/v1/namespaces/${ns}`), 200);
      const answer = await api.request("POST", inNamespace(ns, "events"), {
        metadata: { name: "e" },
        involvedObject: { kind: "Pod", namespace: ns, name: "p" },
        reason: "R",
        type: "Normal",
      });
      expectStatus(answer, {
        code: 403,
        reason: "Forbidden",
        message: `events "e" is forbidden: unable to create new content in namespace ${ns} because it is being terminated`,
      });
      expect(answer.body.details.causes).toEqual([
        { reason: "NamespaceTerminating", message: `namespace ${ns} is being terminated`, field: "metadata.namespace" },
      ]);
      await must(api.request("PATCH", podsIn(ns, "p"), { metadata: { finalizers: null } }, MERGE), 200);
    },
  },
];
