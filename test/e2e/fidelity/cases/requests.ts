/** Requests that cannot be served: wrong paths, verbs, bodies, tokens. */
import { expect } from "vitest";
import { configMap, expectStatus, inNamespace, leasesIn, mapsIn, must, podsIn, type FidelityCase } from "../support.ts";

export const requestsCases: readonly FidelityCase[] = [
  {
    name: "what does not exist is 404 NotFound with details",
    async run(api, ns) {
      const answer = await api.request("GET", podsIn(ns, "ghost"));
      expectStatus(answer, { code: 404, reason: "NotFound", message: 'pods "ghost" not found' });
      expect(answer.body.details).toEqual({ name: "ghost", kind: "pods" });
      const lease = await api.request("GET", leasesIn(ns, "ghost"));
      expectStatus(lease, { code: 404, reason: "NotFound", message: 'leases.coordination.k8s.io "ghost" not found' });
      expect(lease.body.details).toEqual({ name: "ghost", group: "coordination.k8s.io", kind: "leases" });
    },
  },
  {
    name: "a resource of the core group that does not exist is 404",
    async run(api, ns) {
      expect((await api.request("GET", inNamespace(ns, "nonsenses"))).status).toBe(404);
    },
  },
  {
    name: "a method that a resource does not have is 405",
    async run(api, ns) {
      const answer = await api.request("PUT", mapsIn(ns), configMap("m"));
      expectStatus(answer, {
        code: 405,
        reason: "MethodNotAllowed",
        message: "the server does not allow this method on the requested resource",
      });
    },
  },
  {
    name: "a patch of no known kind is 415",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      const answer = await api.request("PATCH", mapsIn(ns, "m"), { data: {} }, { "content-type": "application/json" });
      expectStatus(answer, { code: 415, reason: "UnsupportedMediaType" });
    },
  },
  {
    name: "a body over three mebibytes is 413",
    async run(api, ns) {
      const answer = await api.request("POST", mapsIn(ns), configMap("m", { big: "x".repeat(3 * 1024 * 1024 + 1) }));
      expectStatus(answer, { code: 413, reason: "RequestEntityTooLarge", message: /limit is 3145728/ });
    },
  },
  {
    name: "a body that is no JSON is 400",
    async run(api, ns) {
      expect((await api.request("POST", mapsIn(ns), "{not json")).status).toBe(400);
    },
  },
  {
    name: "an Accept header that nothing satisfies is 406",
    async run(api, ns) {
      const answer = await api.request("GET", mapsIn(ns), undefined, { accept: "text/html" });
      expect(answer.status).toBe(406);
    },
  },
];
