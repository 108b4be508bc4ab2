/** Optimistic concurrency and updates. */
import { expect } from "vitest";
import { MERGE, configMap, expectStatus, leasesIn, mapsIn, must, pod, podsIn, type FidelityCase } from "../support.ts";

export const updatesCases: readonly FidelityCase[] = [
  {
    name: "a PUT with an old resourceVersion is 409 Conflict",
    async run(api, ns) {
      const first = await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1" })), 201);
      await must(api.request("PUT", mapsIn(ns, "m"), { ...first, data: { a: "2" } }), 200);
      const stale = await api.request("PUT", mapsIn(ns, "m"), { ...first, data: { a: "3" } });
      expectStatus(stale, {
        code: 409,
        reason: "Conflict",
        message:
          'Operation cannot be fulfilled on configmaps "m": the object has been modified; please apply your changes to the latest version and try again',
      });
    },
  },
  {
    name: "a PUT without resourceVersion overwrites a ConfigMap but not a Lease",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      await must(api.request("PUT", mapsIn(ns, "m"), configMap("m", { a: "1" })), 200);
      await must(api.request("POST", leasesIn(ns), { metadata: { name: "l" }, spec: { holderIdentity: "me" } }), 201);
      const answer = await api.request("PUT", leasesIn(ns, "l"), {
        metadata: { name: "l" },
        spec: { holderIdentity: "you" },
      });
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: /metadata\.resourceVersion: Invalid value: .*must be specified for an update$/,
      });
    },
  },
  {
    name: "a PUT to a Lease that does not exist creates it, to a ConfigMap it is 404",
    async run(api, ns) {
      expect((await api.request("PUT", leasesIn(ns, "l"), { metadata: { name: "l" }, spec: {} })).status).toBe(201);
      expect((await api.request("PUT", mapsIn(ns, "m"), configMap("m"))).status).toBe(404);
    },
  },
  {
    name: "a PUT with another UID is 409",
    async run(api, ns) {
      const created = await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      const answer = await api.request(
        "PUT",
        mapsIn(ns, "m"),
        configMap("m", {}, { uid: "00000000-0000-0000-0000-000000000000" }),
      );
      expectStatus(answer, {
        code: 409,
        reason: "Conflict",
        message: new RegExp(
          `Precondition failed: UID in precondition: 00000000-0000-0000-0000-000000000000, UID in object meta: ${created.metadata.uid}$`,
        ),
      });
    },
  },
  {
    name: "a write that changes nothing makes no new version",
    async run(api, ns) {
      const created = await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1" })), 201);
      const patched = await must(api.request("PATCH", mapsIn(ns, "m"), { data: { a: "1" } }, MERGE), 200);
      expect(patched.metadata.resourceVersion).toBe(created.metadata.resourceVersion);
    },
  },
  {
    name: "a name that differs from the URL's is 400",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      expectStatus(await api.request("PUT", mapsIn(ns, "m"), configMap("other")), {
        code: 400,
        reason: "BadRequest",
        message: "the name of the object (other) does not match the name on the URL (m)",
      });
    },
  },
  {
    name: "what the server owns in metadata cannot be changed",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const patched = await must(
        api.request(
          "PATCH",
          podsIn(ns, "p"),
          { metadata: { creationTimestamp: "2001-01-01T00:00:00Z", generation: 77, labels: { a: "b" } } },
          MERGE,
        ),
        200,
      );
      expect(patched.metadata.creationTimestamp).toBe(created.metadata.creationTimestamp);
      expect(patched.metadata.generation).toBe(1);
      expect(patched.metadata.labels).toEqual({ a: "b" });
      expectStatus(
        await api.request("PATCH", podsIn(ns, "p"), { metadata: { deletionTimestamp: "2001-01-01T00:00:00Z" } }, MERGE),
        {
          code: 422,
          reason: "Invalid",
          message:
            'Pod "p" is invalid: metadata.deletionTimestamp: Invalid value: "2001-01-01T00:00:00Z": field is immutable',
        },
      );
    },
  },
];
