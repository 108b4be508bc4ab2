/** Patches of every type, and apply. */
import { expect } from "vitest";
import type { Json } from "../api.ts";
import {
  APPLY,
  JSON_PATCH,
  MERGE,
  STRATEGIC,
  configMap,
  expectStatus,
  mapsIn,
  must,
  pod,
  podsIn,
  type FidelityCase,
} from "../support.ts";

export const patchesCases: readonly FidelityCase[] = [
  {
    name: "a merge patch removes with null and replaces lists",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1", b: "2" }, { labels: { x: "y" } })), 201);
      const patched = await must(
        api.request("PATCH", mapsIn(ns, "m"), { data: { a: null, c: "3" }, metadata: { labels: null } }, MERGE),
        200,
      );
      expect(patched.data).toEqual({ b: "2", c: "3" });
      expect(patched.metadata).not.toHaveProperty("labels");
    },
  },
  {
    name: "a JSON patch applies its operations in order, and a failing test changes nothing",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1" })), 201);
      const patched = await must(
        api.request(
          "PATCH",
          mapsIn(ns, "m"),
          [
            { op: "test", path: "/data/a", value: "1" },
            { op: "replace", path: "/data/a", value: "2" },
            { op: "add", path: "/data/b", value: "3" },
          ],
          JSON_PATCH,
        ),
        200,
      );
      expect(patched.data).toEqual({ a: "2", b: "3" });
    },
  },
  {
    name: "a failing JSON patch is 422",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1" })), 201);
      const answer = await api.request(
        "PATCH",
        mapsIn(ns, "m"),
        [{ op: "test", path: "/data/a", value: "9" }],
        JSON_PATCH,
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: "the server rejected our request due to an error in our request",
      });
    },
  },
  {
    name: "a strategic merge patch merges conditions by type and container statuses not at all",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const first = {
        status: {
          conditions: [
            { type: "Ready", status: "False" },
            { type: "Custom", status: "True" },
          ],
          containerStatuses: [{ name: "a", image: "i", imageID: "", ready: false, restartCount: 0 }],
        },
      };
      await must(api.request("PATCH", `${podsIn(ns, "p")}/status`, first, STRATEGIC), 200);
      const second = {
        status: {
          conditions: [{ type: "Ready", status: "True" }],
          containerStatuses: [{ name: "b", image: "i", imageID: "", ready: true, restartCount: 0 }],
        },
      };
      const patched = await must(api.request("PATCH", `${podsIn(ns, "p")}/status`, second, STRATEGIC), 200);
      expect(patched.status.conditions.map((c: Json) => [c.type, c.status])).toEqual([
        ["Ready", "True"],
        ["Custom", "True"],
      ]);
      expect(patched.status.containerStatuses.map((c: Json) => c.name)).toEqual(["b"]);
    },
  },
  {
    name: "$patch: delete, $setElementOrder and $retainKeys do as they say",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const status = `${podsIn(ns, "p")}/status`;
      await must(
        api.request(
          "PATCH",
          status,
          { status: { conditions: ["A", "B", "C"].map((type) => ({ type, status: "True" })) } },
          STRATEGIC,
        ),
        200,
      );
      const patch = {
        status: {
          "$setElementOrder/conditions": [{ type: "C" }, { type: "A" }],
          conditions: [{ type: "B", $patch: "delete" }],
        },
      };
      const patched = await must(api.request("PATCH", status, patch, STRATEGIC), 200);
      expect(patched.status.conditions.map((c: Json) => c.type)).toEqual(["C", "A"]);
    },
  },
  {
    name: "$deleteFromPrimitiveList removes finalizers and a plain list adds them",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", {}, { finalizers: ["a.example/x"] })), 201);
      const added = await must(
        api.request("PATCH", mapsIn(ns, "m"), { metadata: { finalizers: ["a.example/y"] } }, STRATEGIC),
        200,
      );
      expect(added.metadata.finalizers).toEqual(["a.example/y", "a.example/x"]);
      const removed = await must(
        api.request(
          "PATCH",
          mapsIn(ns, "m"),
          { metadata: { "$deleteFromPrimitiveList/finalizers": ["a.example/x", "a.example/y"] } },
          STRATEGIC,
        ),
        200,
      );
      expect(removed.metadata).not.toHaveProperty("finalizers");
    },
  },
  {
    name: "a patch with another UID is 422, with an old resourceVersion 409",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const wrong = await api.request(
        "PATCH",
        `${podsIn(ns, "p")}/status`,
        { metadata: { uid: "00000000-0000-0000-0000-000000000000" }, status: { message: "m" } },
        STRATEGIC,
      );
      expectStatus(wrong, {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "p" is invalid: metadata.uid: Invalid value: "00000000-0000-0000-0000-000000000000": field is immutable',
      });
      await must(
        api.request(
          "PATCH",
          `${podsIn(ns, "p")}/status`,
          { metadata: { uid: created.metadata.uid }, status: { message: "m" } },
          STRATEGIC,
        ),
        200,
      );
      const stale = await api.request(
        "PATCH",
        `${podsIn(ns, "p")}/status`,
        { metadata: { resourceVersion: created.metadata.resourceVersion }, status: { message: "n" } },
        STRATEGIC,
      );
      expectStatus(stale, {
        code: 409,
        reason: "Conflict",
        message: /the object has been modified; please apply your changes to the latest version and try again$/,
      });
    },
  },
  {
    name: "server-side apply creates, merges by key and needs a field manager",
    async run(api, ns) {
      const body = { apiVersion: "v1", kind: "ConfigMap", metadata: { name: "m" }, data: { a: "1" } };
      expectStatus(await api.request("PATCH", mapsIn(ns, "m"), body, APPLY), {
        code: 422,
        reason: "Invalid",
        message: 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
      });
      expect((await api.request("PATCH", `${mapsIn(ns, "m")}?fieldManager=me`, body, APPLY)).status).toBe(201);
      await must(api.request("PATCH", mapsIn(ns, "m"), { data: { other: "9" } }, MERGE), 200);
      const applied = await must(
        api.request("PATCH", `${mapsIn(ns, "m")}?fieldManager=me`, { ...body, data: { a: "2" } }, APPLY),
        200,
      );
      expect(applied.data).toEqual({ a: "2", other: "9" });
    },
  },
];
